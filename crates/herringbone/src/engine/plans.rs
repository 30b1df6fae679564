//! The plans of a group's calls: planned, proved and compiled once, and kept by call. A group is of one epoch.

use super::settings::Settings;
use crate::{
    Error, Result,
    core::{
        algorithm::{Algorithm, Layout},
        codec::Codec,
        collective::{Collective, UnevenParts},
        element::DType,
        group::Group as FoldGroup,
        plan::{self, Choice},
        prepare::{self, Call, Prepared, cutting},
        schedule::Program,
        session::{Basis, CutBy, Machines, Summary, membership::MemberId},
        topology::{Ports, Wiring},
        verify::{Order, Verified, verify},
        wire::{Fingerprint, digest},
    },
    execute::{issue::PlanKey, script::Script},
    observe::Observer,
    transport::stats::Stats,
};
use std::{collections::HashMap, sync::Arc};

/// Plans that are kept; a program that uses more kinds of calls makes them anew.
const KEPT: usize = 4096;

/// One kind of call, planned and proved.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) key: PlanKey,
    /// The number by which the observer knows the algorithm's name.
    pub(crate) number: u32,
    pub(crate) why: String,
    pub(crate) fingerprint: Fingerprint,
    /// What it was made from; its digest is in the fingerprint.
    pub(crate) basis: Arc<Basis>,
    /// The endpoints that it exchanges messages with.
    pub(crate) partners: Vec<MemberId>,
    pub(crate) with_reducers: bool,
    /// How many operations of this kind were completed.
    completed: u64,
    verified: Arc<Verified>,
    program: Program,
    pub(crate) call: Call,
    compiled: Option<Compiled>,
}

/// A program compiled for links as they were.
#[derive(Debug)]
struct Compiled {
    /// How many changes of links there had been.
    links: u64,
    /// For which parts of this rank, where they may differ.
    parts: Option<Arc<UnevenParts>>,
    prepared: Arc<Prepared>,
    /// For operations that may run straight through.
    script: Option<Arc<Script>>,
}

/// A schedule that was proved, and what it was made from.
#[derive(Clone, Debug)]
struct Proof {
    verified: Arc<Verified>,
    basis: Arc<Basis>,
    digest: u64,
}

/// Calls that take the same choice by predicted times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CallClass {
    collective: Collective,
    widening: u32,
    codec: Codec,
    /// The [class of size](plan::predicted::class_of).
    bytes: u64,
}

/// What is known of the ways between a group's workers.
#[derive(Debug)]
struct Ways {
    /// The links, and the ports of their hosts, where the job's are known; ports as they were [taken](Plans::take_ports) last.
    wiring: Wiring,
    /// The same as the group began.
    first: Wiring,
    /// How many plans were made before ports were taken last: those are of no more calls.
    before: u64,
}

/// The plans of a group.
#[derive(Debug)]
pub(crate) struct Plans {
    fold: FoldGroup,
    ways: Ways,
    kept: Vec<Planned>,
    /// How many were made.
    made: u64,
    places: HashMap<Call, usize>,
    /// The plan that was asked for last: training asks for the same again and again.
    recent: usize,
    /// The plan that goes next when there are too many.
    oldest: usize,
    proofs: HashMap<(Collective, Algorithm), Proof>,
    /// Choices by predicted times.
    choices: HashMap<CallClass, Choice>,
}

impl Plans {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            fold: FoldGroup::clone(&settings.sums.fold),
            ways: Ways { wiring: settings.wiring(), first: settings.wiring(), before: 0 },
            kept: Vec::new(),
            made: 0,
            places: HashMap::new(),
            recent: 0,
            oldest: 0,
            proofs: HashMap::new(),
            choices: HashMap::new(),
        }
    }

    /// The plan of a call, if it was made.
    pub(crate) fn known(&self, call: &Call) -> Option<&Planned> {
        self.place(call).map(|at| &self.kept[at])
    }

    fn place(&self, call: &Call) -> Option<usize> {
        match self.kept.get(self.recent) {
            Some(planned) if planned.call == *call && planned.key.number > self.ways.before => {
                Some(self.recent)
            }
            _ => self.places.get(call).copied(),
        }
    }

    /// The plan of this key, unless it had to make room.
    pub(crate) fn at(&self, key: PlanKey) -> Option<&Planned> {
        self.kept.get(key.place).filter(|planned| planned.key == key)
    }

    /// The plan of a call: that of the key, or the recent one from now on, made by `make` if it was not.
    pub(crate) fn recall(
        &mut self,
        key: Option<PlanKey>,
        call: &Call,
        observer: &mut Observer,
        make: impl FnOnce(&mut Self) -> Result<Planned>,
    ) -> Result<&mut Planned> {
        let known = key.filter(|key| self.at(*key).is_some()).map(|key| key.place);
        match known.or_else(|| self.place(call)) {
            Some(at) => self.recent = at,
            None => {
                let planned = make(self)?;
                self.keep(planned, observer);
            }
        }
        Ok(&mut self.kept[self.recent])
    }

    fn keep(&mut self, mut planned: Planned, observer: &mut Observer) {
        planned.number = observer.number_of(&planned.basis.algorithm);
        self.recent = if self.kept.len() < KEPT { self.kept.len() } else { self.oldest };
        self.made += 1;
        planned.key = PlanKey { place: self.recent, number: self.made };
        self.places.insert(planned.call, self.recent);
        match self.kept.get_mut(self.recent) {
            None => self.kept.push(planned),
            Some(place) => {
                let gone = std::mem::replace(place, planned);
                if self.places.get(&gone.call).is_some_and(|place| *place == self.oldest) {
                    self.places.remove(&gone.call);
                }
                observer.stats.completed(gone.call.collective.name(), &gone.basis.algorithm, gone.completed);
                self.oldest = (self.oldest + 1) % KEPT;
            }
        }
    }

    /// An operation of this kind was completed. Returns its plan, if it is kept.
    pub(crate) fn completed(&mut self, key: PlanKey) -> Option<&Planned> {
        let planned = self.kept.get_mut(key.place).filter(|planned| planned.key == key)?;
        planned.completed += 1;
        Some(planned)
    }

    /// Adds up what was completed.
    pub(crate) fn count(&self, stats: &mut Stats) {
        for planned in &self.kept {
            stats.completed(planned.call.collective.name(), &planned.basis.algorithm, planned.completed);
        }
    }

    /// Calls from now on are planned with these ports. Those that were issued keep their plans.
    pub(crate) fn take_ports(&mut self, ports: &Ports) {
        self.ways.wiring = self.ways.first.with_ports(ports);
        self.ways.before = self.made;
        self.places.clear();
        self.choices.clear();
    }

    /// What is chosen for a call with these ports, and with those that plans take now.
    pub(crate) fn compared(&self, settings: &Settings, call: &Call, ports: &Ports) -> Option<[Choice; 2]> {
        let wiring = self.ways.first.with_ports(ports);
        let now = self.request(settings, call);
        let forced = settings.guidance.for_call(call.collective, call.count, now.bytes);
        let now = plan::Request { forced: forced.as_ref(), ..now };
        let then = plan::Request { ports: wiring.ports.as_ref(), ..now };
        let chosen = |request| settings.guidance.choose(request, settings.sizing).ok();
        Some([chosen(&then)?, chosen(&now)?])
    }

    /// A plan as sizes and hosts have it.
    pub(crate) fn chosen(&mut self, settings: &Settings, call: Call) -> Result<Planned> {
        let Call { collective, count, codec, .. } = call;
        if (collective, count) == (Collective::AllGather, Call::UNEVEN) {
            let why = "parts can differ in length, so each goes straight to every rank".to_owned();
            return self.made(settings, call, &Algorithm::OneShot, why);
        }
        let request = self.request(settings, &call);
        let forced = settings.guidance.for_call(collective, count, request.bytes);
        // What was proved can be had for any count, and trees take long to plan.
        if let Some(forced) = &forced
            && codec == Codec::Plain
            && self.proofs.contains_key(&(collective, forced.clone()))
            && (!forced.needs_reducers() || settings.reducers() > 0)
        {
            return self.made(settings, call, forced, "forced".to_owned());
        }
        let forced = forced.as_ref().filter(|forced| !forced.needs_reducers() || settings.reducers() > 0);
        let bytes = plan::predicted::class_of(request.bytes);
        let class = CallClass { collective, widening: request.widening, codec, bytes };
        let guidance = settings.guided();
        let is_predicted = guidance.is_timed() && forced.is_none();
        let choice = match self.choices.get(&class).filter(|_| is_predicted) {
            Some(choice) => choice.clone(),
            None => {
                let request = plan::Request { forced, ..request };
                guidance.choose(&request, settings.sizing).map_err(Error::unsupported)?
            }
        };
        if is_predicted {
            self.choices.insert(class, choice.clone());
        }
        self.made(settings, call, &choice.algorithm, choice.why)
    }

    /// What is to be planned, where nothing is forced.
    fn request<'a>(&'a self, settings: &'a Settings, call: &Call) -> plan::Request<'a> {
        let Call { collective, dtype, op, count, codec } = *call;
        plan::Request {
            reducers: settings.reducers(),
            hosts: &settings.hosts,
            links: self.ways.wiring.links.as_ref(),
            ports: self.ways.wiring.ports.as_ref(),
            codec,
            ..plan::Request::of_elements(collective, dtype, op, count, &self.fold)
        }
    }

    /// The plan that takes `algorithm`.
    pub(crate) fn made(
        &mut self,
        settings: &Settings,
        call: Call,
        algorithm: &Algorithm,
        why: String,
    ) -> Result<Planned> {
        let is_coded = matches!(algorithm, Algorithm::Coded { .. });
        if is_coded && (call.codec == Codec::Plain || call.dtype != DType::F32) {
            return Err(Error::unsupported(format_args!(
                "{algorithm} of {} coded with {}",
                call.dtype, call.codec
            )));
        }
        let Proof { verified, basis, digest } = self.proof(settings, call.collective, algorithm)?;
        let program = verified.schedule().program(settings.me).into_owned();
        let partners = prepare::partners(&program);
        let with_reducers = partners.iter().any(|rank| settings.is_reducer(*rank));
        let partners = partners.iter().map(|rank| settings.ids[*rank as usize]).collect();
        Ok(Planned {
            key: PlanKey::default(),
            fingerprint: fingerprint(&call, digest),
            why,
            basis,
            partners,
            with_reducers,
            number: 0,
            completed: 0,
            verified,
            program,
            call,
            compiled: None,
        })
    }

    fn proof(&mut self, settings: &Settings, collective: Collective, algorithm: &Algorithm) -> Result<Proof> {
        let key = (collective, algorithm.clone());
        if let Some(proof) = self.proofs.get(&key) {
            return Ok(proof.clone());
        }
        let layout = Layout {
            reducers: settings.reducers(),
            hosts: &settings.hosts,
            links: self.ways.wiring.links.as_ref(),
        };
        let schedule = algorithm.schedule(collective, &self.fold, &layout).map_err(Error::unsupported)?;
        let verified = verify(schedule, collective, &self.fold).map_err(|error| {
            Error::unsupported(format!("the schedule of {algorithm} is wrong, a bug: {error}"))
        })?;
        if settings.sums.is_of_shards && verified.order() != Order::Fixed {
            return Err(Error::unsupported(format_args!(
                "{algorithm} of shards: it has an order of its own, and sums of shards follow the canonical tree; leave the algorithm open, or take radix"
            )));
        }
        if let Algorithm::File(file) = algorithm
            && verified.order() != Order::Fixed
        {
            return Err(Error::unsupported(format_args!(
                "the schedule of {file}: its sums are not added in the order of this group; leave its rule out of HERRINGBONE_PLAN"
            )));
        }
        let basis = Arc::new(self.basis(settings, collective, algorithm));
        let proof = Proof { verified: Arc::new(verified), digest: basis.digest(), basis };
        self.proofs.insert(key, proof.clone());
        Ok(proof)
    }

    /// A digest of what is known of the ways between the workers.
    fn topology(&self, settings: &Settings) -> Option<u64> {
        let latency = settings.parameters.wiring.round_trips.nanoseconds(&settings.ranks);
        match (self.ways.first.to_bytes(), latency) {
            (wiring, None) => wiring.map(|bytes| digest(&bytes)),
            (wiring, Some(time)) => {
                let mut bytes = wiring.unwrap_or_default();
                bytes.extend_from_slice(&time.to_le_bytes());
                Some(digest(&bytes))
            }
        }
    }

    /// Everything that a plan with this algorithm is made from.
    pub(crate) fn basis(&self, settings: &Settings, collective: Collective, algorithm: &Algorithm) -> Basis {
        let Settings { epoch, hosts, parameters, sizing, .. } = settings;
        Basis {
            epoch: *epoch,
            algorithm: algorithm.to_string(),
            collective,
            workers: settings.workers(),
            order: parameters.order,
            keys: Summary::of_keys(&self.fold),
            contributors: self.fold.contributors(),
            machines: Machines {
                reducers: Summary::of_texts(&parameters.reducers),
                hosts: Summary::of_places(hosts),
                memories: Summary::of_places(&settings.memories()),
                // Ports that were taken later show in the algorithm: a reducer knows only those of the group's beginning.
                topology: self.topology(settings),
            },
            cut: CutBy {
                constants: cutting::digest(),
                segment: sizing.segment_bytes as u64,
                staged: sizing.most_staged as u64,
            },
        }
    }
}

impl Planned {
    fn compiled(&self, links: u64) -> Option<&Compiled> {
        self.compiled.as_ref().filter(|compiled| compiled.links == links)
    }

    /// Whether the program is compiled for links as they are (`links` counts their changes).
    pub(crate) fn is_prepared(&self, links: u64, parts: Option<&Arc<UnevenParts>>) -> bool {
        self.compiled(links).is_some_and(|compiled| compiled.parts.as_ref() == parts)
    }

    /// For operations that may run straight through over links as they are.
    pub(crate) fn script(&self, links: u64) -> Option<&Arc<Script>> {
        self.compiled(links).and_then(|compiled| compiled.script.as_ref())
    }

    /// This rank's program, compiled as [`prepare`](prepare::prepare) says, if it was not yet.
    ///
    /// # Errors
    /// If the call is too long for an operation.
    pub(crate) fn prepared(
        &mut self,
        settings: &Settings,
        links: u64,
        parts: Option<&Arc<UnevenParts>>,
        shared: impl Fn(u32) -> bool,
    ) -> Result<Arc<Prepared>> {
        if let Some(compiled) = self.compiled(links).filter(|compiled| compiled.parts.as_ref() == parts) {
            return Ok(compiled.prepared.clone());
        }
        let Self { verified, program, call, .. } = self;
        let Settings { me, sizing, .. } = *settings;
        let prepared = prepare::prepare(verified, program, me, *call, parts.map(Arc::as_ref), sizing, shared);
        let prepared = Arc::new(prepared.map_err(Error::unsupported)?);
        let script = Script::of(&prepared, &self.partners).filter(|_| self.verified.serial()).map(Arc::new);
        let parts = parts.cloned();
        self.compiled = Some(Compiled { links, parts, prepared: prepared.clone(), script });
        Ok(prepared)
    }
}

/// What ranks compare of a call ahead of its slices.
pub(crate) fn ahead_of_slices(call: &Call, plan: u64) -> Fingerprint {
    Fingerprint { order: Fingerprint::AHEAD, ..fingerprint(call, plan) }
}

fn fingerprint(call: &Call, plan: u64) -> Fingerprint {
    let (code, root) = (call.collective.code(), call.collective.root().unwrap_or(0));
    let folds = call.collective.folds();
    Fingerprint {
        sequence: 0,
        collective: code,
        dtype: call.dtype.code(),
        op: if folds { call.op.code() } else { 0 },
        order: 0,
        root,
        count: call.count as u64,
        plan,
        priority: 0,
        mark: 0,
        codec: call.codec.code(),
    }
}
