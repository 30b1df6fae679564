//! One rank's part in the agreement about the next operations.

use super::{
    Coordinator, LIST_BYTES, Lookup, MalformedList, NamedAnswer, NamedCall, NamedKind, NamedRequest,
    NamedResponse, ResponseCache, Stall, StallSettings, SubmitError, Tuning, decode_answers, encode_requests,
    fuse,
    layout::{BitLayout, bit},
};
use crate::{
    codec::Codec,
    element::{DType, ReduceOp},
    group::Rank,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec,
    vec::Vec,
};
use core::time::Duration;

/// This rank shuts down.
const SHUTS_DOWN: u8 = 1;
/// This rank has something to say that it has not said before, or has more than it could say.
const HAS_NEWS: u8 = 2;
/// Rank 0 has something to tell all ranks.
const SPEAKS: u8 = 4;

/// The settings that must be equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct NegotiatorSettings {
    /// How many responses are kept.
    pub capacity: usize,
    /// When operations are called stalled.
    pub stall: StallSettings,
    /// How many bytes are fused, and how long a cycle is.
    pub tuning: Tuning,
    /// Whether tensors of different groups are fused.
    pub across_groups: bool,
}

/// What a rank has submitted and has not seen run.
#[derive(Debug)]
struct Waiting {
    request: NamedRequest,
    /// How many were submitted before it.
    number: u64,
    stage: Stage,
    /// What the cache knew of it at the last call.
    known: Lookup,
    since: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Others of its group have not been submitted here.
    Held,
    /// Rank 0 does not know of it.
    New,
    /// It is in rank 0's book.
    Sent,
}

/// Whether this rank contributes zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joining {
    No,
    /// Rank 0 does not know.
    New,
    Yes,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// How often the ranks combined their bits.
    pub agreements: u64,
    /// How many of this rank's requests went to rank 0.
    pub uncached_requests: u64,
    /// How many responses came out of the cache.
    pub cache_hits: u64,
    /// How many operations were run.
    pub responses: u64,
    /// How many of these ran together with others.
    pub fused_tensors: u64,
    /// How many bytes of lists this rank has sent to rank 0.
    pub bytes_to_coordinator: u64,
}

/// The request of an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// How many bytes each rank's list has, if the lists go to rank 0 and its answers to all.
    pub lists: Option<Vec<usize>>,
}

/// The next steps of all ranks: the same on all of them, except for facts about a rank itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedDecision {
    /// The operations to run, in this order. The operations of a batch run together.
    pub batches: Vec<Vec<NamedResponse>>,
    /// The operations that fail, with the text for the callers that wait for them.
    pub failed: Vec<(String, String)>,
    /// The rank that has joined last, once all have.
    pub joined: Option<Rank>,
    /// Whether this was the last cycle: all queued operations fail.
    pub shuts_down: bool,
}

/// One rank's queue of named operations, and its knowledge of the agreement with the others.
#[derive(Debug)]
pub struct Negotiator {
    rank: Rank,
    size: u32,
    settings: NegotiatorSettings,
    cache: ResponseCache,
    queue: BTreeMap<String, Waiting>,
    joining: Joining,
    shuts_down: bool,
    /// Whether there is something that was not told.
    news: bool,
    /// What the agreement under way has brought.
    round: Round,
    coordinator: Option<Coordinator>,
    counters: Counters,
    submitted: u64,
}

#[derive(Debug, Default)]
struct Round {
    /// This rank's list for rank 0.
    list: Vec<u8>,
    hits: Vec<u32>,
    /// Whether nothing came of it for anybody.
    is_quiet: bool,
    shuts_down: bool,
}

impl Negotiator {
    /// The negotiator of one rank of `size`. Rank 0's has the [`Coordinator`].
    pub fn new(rank: Rank, size: u32, settings: NegotiatorSettings) -> Self {
        Self {
            rank,
            size,
            settings,
            cache: ResponseCache::new(settings.capacity),
            queue: BTreeMap::new(),
            joining: Joining::No,
            shuts_down: false,
            news: false,
            round: Round { is_quiet: true, ..Round::default() },
            coordinator: (rank == 0).then(|| Coordinator::new(size, settings.stall)),
            counters: Counters::default(),
            submitted: 0,
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// If it cannot be queued. The other ranks do not learn of it.
    pub fn submit(&mut self, request: NamedRequest, now: Duration) -> Result<(), SubmitError> {
        request.check()?;
        if self.joining != Joining::No {
            return Err(SubmitError::Joined);
        }
        if self.queue.contains_key(&request.name) {
            return Err(SubmitError::Duplicate);
        }
        let stage = if self.completes_its_group(&request) { Stage::New } else { Stage::Held };
        if stage == Stage::New {
            self.news = true;
            for waiting in self.queue.values_mut() {
                if waiting.stage == Stage::Held && waiting.request.group == request.group {
                    waiting.stage = Stage::New;
                }
            }
        }
        let name = request.name.clone();
        self.queue.insert(
            name,
            Waiting { request, number: self.submitted, stage, known: Lookup::Miss, since: now },
        );
        self.submitted += 1;
        Ok(())
    }

    /// This rank has no more data: it contributes zeros until all ranks have joined.
    ///
    /// # Errors
    /// If it has joined already.
    pub fn join(&mut self) -> Result<(), SubmitError> {
        if self.joining != Joining::No {
            return Err(SubmitError::Joined);
        }
        (self.joining, self.news) = (Joining::New, true);
        // What its groups lack will not come: it counts as zeros there.
        let held = self.queue.values_mut().filter(|waiting| waiting.stage == Stage::Held);
        held.for_each(|waiting| waiting.stage = Stage::New);
        Ok(())
    }

    /// Has all ranks end after the next agreement.
    pub fn shut_down(&mut self) {
        (self.shuts_down, self.news) = (true, true);
    }

    /// Whether this rank has something to report. If so it calls the next agreement; all others rest until they are
    /// called.
    pub fn has_news(&self) -> bool {
        self.news || self.coordinator.as_ref().is_some_and(Coordinator::speaks)
    }

    /// Whether nothing came of the last agreement, for any rank.
    pub fn is_quiet(&self) -> bool {
        self.round.is_quiet
    }

    /// Whether something is queued here that has not been run.
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty() || self.joining != Joining::No
    }

    /// The report about operations that have waited too long. Call this about once a second while something
    /// [waits](Self::is_waiting), and always on rank 0.
    pub fn look(&mut self, now: Duration) -> Option<Stall> {
        // What the cache knows, rank 0 does not: it is to be told, so that it can say which ranks are missing.
        let any_stalls = self.queue.values().any(|waiting| self.stalls(waiting, now));
        self.news |= any_stalls;
        let stall = self.coordinator.as_mut()?.look(now)?;
        if stall.shuts_down {
            self.shut_down();
        }
        Some(stall)
    }

    /// This rank's bits for the next agreement, which are combined with the other ranks' bits by *or*.
    pub fn call(&mut self, now: Duration) -> Vec<u8> {
        self.news = false;
        for waiting in self.queue.values_mut().filter(|waiting| waiting.stage == Stage::New) {
            waiting.known = self.cache.look(&waiting.request);
        }
        let layout = self.layout();
        let mut bits = vec![0; layout.bytes()];
        bits[layout.unready()].fill(0xff);
        self.say_what_is_cached(&mut bits, now);
        self.round.list = self.list();
        let length = (self.round.list.len() as u32).to_le_bytes();
        bits[layout.list_of(self.rank)].copy_from_slice(&length);
        let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
        // What is left over, or was found to be invalid, is said in the next one.
        bits[0] = flag(SHUTS_DOWN, self.shuts_down)
            | flag(HAS_NEWS, self.news)
            | flag(SPEAKS, self.coordinator.as_ref().is_some_and(Coordinator::speaks));
        bits
    }

    /// This rank's list for rank 0, as the last [call](Self::call) announced it.
    pub fn own_list(&self) -> &[u8] {
        &self.round.list
    }

    /// Reads the combined bits.
    ///
    /// # Panics
    /// If there are not as many as this rank's.
    pub fn agreed(&mut self, bits: &[u8]) -> Agreement {
        let layout = self.layout();
        assert_eq!(bits.len(), layout.bytes(), "all ranks have caches of the same size");
        self.counters.agreements += 1;
        let (unready, invalid) = (&bits[layout.unready()], &bits[layout.invalid()]);
        let asked = &bits[layout.asked()];
        let mut gone = Vec::new();
        self.round.hits.clear();
        for place in 0..self.cache.places() as u32 {
            if bit(invalid, place) {
                gone.push(place);
            } else if !bit(unready, place) && bit(asked, place) {
                self.round.hits.push(place);
            }
        }
        gone.iter().for_each(|place| self.cache.evict(*place));
        let length = |rank| {
            let field: [u8; 4] = bits[layout.list_of(rank)].try_into().unwrap_or_default();
            u32::from_le_bytes(field) as usize
        };
        let lengths: Vec<usize> = (0..self.size).map(length).collect();
        let negotiates = bits[0] & SPEAKS != 0 || lengths.iter().any(|length| *length > 0);
        self.round.shuts_down = bits[0] & SHUTS_DOWN != 0;
        self.round.is_quiet = bits[0] & HAS_NEWS == 0 && self.round.hits.is_empty() && !negotiates;
        if negotiates {
            self.counters.bytes_to_coordinator += self.round.list.len() as u64;
        }
        Agreement { lists: negotiates.then_some(lengths) }
    }

    /// Rank 0's book.
    pub fn coordinator(&mut self) -> Option<&mut Coordinator> {
        self.coordinator.as_mut()
    }

    /// The next steps of all ranks, by the agreed bits and rank 0's answers, if there are any.
    ///
    /// # Errors
    /// If the bytes are no answers.
    pub fn decide(&mut self, answers: Option<&[u8]>) -> Result<NamedDecision, MalformedList> {
        let answers = answers.map_or(Ok(Vec::new()), decode_answers)?;
        let mut decision = NamedDecision { shuts_down: self.round.shuts_down, ..NamedDecision::default() };
        let hits = core::mem::take(&mut self.round.hits);
        let mut responses: Vec<NamedResponse> =
            hits.iter().filter_map(|place| self.cache.take(*place)).collect();
        self.counters.cache_hits += responses.len() as u64;
        responses.iter().for_each(|response| drop(self.queue.remove(&response.name)));
        for answer in answers {
            match answer {
                NamedAnswer::Run(response) => {
                    let own = self.queue.remove(&response.name).map(|waiting| waiting.request.call);
                    self.cache.put(&response, own.as_ref());
                    responses.push(response);
                }
                NamedAnswer::Fail { name, text } => {
                    self.queue.remove(&name);
                    decision.failed.push((name, text));
                }
                NamedAnswer::Joined { last } => {
                    decision.joined = Some(last);
                    self.joining = Joining::No;
                }
                NamedAnswer::Tuned(tuning) => self.settings.tuning = tuning,
            }
        }
        responses.sort_by_key(|response| core::cmp::Reverse(response.priority));
        self.counters.responses += responses.len() as u64;
        decision.batches = fuse(responses, self.settings.tuning.threshold, self.settings.across_groups);
        let fused = decision.batches.iter().map(Vec::len).filter(|tensors| *tensors > 1);
        self.counters.fused_tensors += fused.sum::<usize>() as u64;
        Ok(decision)
    }

    /// The counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The parameters that all ranks use now.
    pub fn tuning(&self) -> Tuning {
        self.settings.tuning
    }

    /// Whether all others of a request's group are here.
    fn completes_its_group(&self, request: &NamedRequest) -> bool {
        let Some(group) = &request.group else { return true };
        let is_of_it = |waiting: &&Waiting| waiting.request.group == request.group;
        self.queue.values().filter(is_of_it).count() + 1 >= group.members as usize
    }

    /// Whether a request that the cache knows has waited so long that rank 0 is to be told of it.
    fn stalls(&self, waiting: &Waiting, now: Duration) -> bool {
        let warning = self.settings.stall.warning;
        waiting.stage == Stage::New && !warning.is_zero() && now.saturating_sub(waiting.since) > warning
    }

    /// Sets the bits of places for which this rank is ready, and of those that it finds wrong.
    fn say_what_is_cached(&mut self, bits: &mut [u8], now: Duration) {
        let layout = self.layout();
        let (unready, invalid) = (layout.unready().start, layout.invalid().start);
        let asked = layout.asked().start;
        let mut any_invalid = false;
        let mut spoil = |bits: &mut [u8], place: u32| {
            bits[invalid + place as usize / 8] |= 1 << (place % 8);
            any_invalid = true;
        };
        if self.joining != Joining::No {
            let refused = self.cache.groups_without_zeros();
            for place in 0..self.cache.places() as u32 {
                let Some(response) = self.cache.get(place) else { continue };
                let is_refused = response.group.as_ref().is_some_and(|group| refused.contains(group));
                if is_refused || !response.call.kind.takes_zeros() {
                    spoil(bits, place);
                } else {
                    bits[unready + place as usize / 8] &= !(1 << (place % 8));
                }
            }
        }
        let split = self.groups_where(|known| !matches!(known, Lookup::Hit(_)));
        for waiting in self.queue.values().filter(|waiting| waiting.stage == Stage::New) {
            let request = &waiting.request;
            let is_split = request.group.as_ref().is_some_and(|group| split.contains(&group.name));
            match waiting.known {
                Lookup::Hit(place) if is_split || self.stalls(waiting, now) => spoil(bits, place),
                Lookup::Hit(place) => {
                    bits[unready + place as usize / 8] &= !(1 << (place % 8));
                    bits[asked + place as usize / 8] |= 1 << (place % 8);
                }
                Lookup::Invalid(place) => spoil(bits, place),
                Lookup::Miss => {}
            }
        }
        self.news |= any_invalid;
    }

    /// The groups of which the cache does not have all tensors, or has some: all of them go to rank 0, so that they are run all
    /// or none, and first all are given up that it has.
    fn groups_where(&self, is_split: impl Fn(Lookup) -> bool) -> BTreeSet<String> {
        let new = self.queue.values().filter(|waiting| waiting.stage == Stage::New);
        let split = new.filter_map(|waiting| {
            let group = waiting.request.group.as_ref()?;
            is_split(waiting.known).then(|| group.name.clone())
        });
        split.collect()
    }

    /// What rank 0 is to be told, in the order of the calls. It counts as told.
    fn list(&mut self) -> Vec<u8> {
        let unknown = self.groups_where(|known| !matches!(known, Lookup::Hit(_)));
        let known = self.groups_where(|known| known != Lookup::Miss);
        let later: BTreeSet<&String> = unknown.intersection(&known).collect();
        let is_invalid = |waiting: &Waiting| matches!(waiting.known, Lookup::Invalid(_));
        let is_any_invalid =
            self.queue.values().any(|waiting| waiting.stage == Stage::New && is_invalid(waiting));
        let Self { queue, counters, news, joining, .. } = self;
        let is_new = |waiting: &&mut Waiting| {
            let goes_later = waiting.request.group.as_ref().is_some_and(|group| later.contains(&group.name));
            waiting.stage == Stage::New && waiting.known == Lookup::Miss && !goes_later
        };
        let mut new: Vec<&mut Waiting> = queue.values_mut().filter(is_new).collect();
        new.sort_by_key(|waiting| waiting.number);
        let mut list = Vec::new();
        let mut all_announced = later.is_empty() && !is_any_invalid;
        for waiting in new {
            if list.len() >= LIST_BYTES {
                (*news, all_announced) = (true, false);
                break;
            }
            list.extend(encode_requests([&waiting.request]));
            waiting.stage = Stage::Sent;
            counters.uncached_requests += 1;
        }
        if *joining == Joining::New {
            // Rank 0 hears of it after what was submitted before.
            *news |= !all_announced;
            if all_announced {
                list.extend(encode_requests([&join_request()]));
                *joining = Joining::Yes;
            }
        }
        list
    }

    fn layout(&self) -> BitLayout {
        let words = self.cache.places().div_ceil(64);
        let bitmap = if words == 0 { 0 } else { 8 * words.next_power_of_two() };
        BitLayout { ranks: self.size as usize, bitmap }
    }
}

/// What a rank that joins asks for.
fn join_request() -> NamedRequest {
    let call = NamedCall {
        kind: NamedKind::Join,
        dtype: DType::U8,
        op: ReduceOp::Sum,
        shape: Vec::new(),
        root: 0,
        prescale: 1.0,
        postscale: 1.0,
        codec: Codec::Plain,
    };
    NamedRequest { name: String::new(), call, group: None, priority: 0 }
}
