//! A group's operations when a reducer is lost: the workers finish them, and later ones use the remaining reducers. See
//! [`core`'s recovery](crate::core::session::recovery).
//!
//! Two groups follow a group that has lost a reducer. Its **repair group** has no reducers. All ranks do the unfinished
//! part of each operation there, as broadcasts and all-reduces of stretches of the user's buffers. They keep the order
//! in which they issued the operations. Its **successor** has the remaining reducers: the group's calls from an agreed
//! number on are calls of the successor. So each group has one set of reducers for good, and no frame of an abandoned
//! operation can be taken for another's.

use super::{
    begin::{self, prepared},
    group::{Group, Service, Settings},
    links::{DRAINS, Links},
    outbox::{Deferred, Ended, Event, Outbox},
    refused::Refused,
    runtime::Runtime,
};
use crate::{
    Error, ErrorKind,
    completion::Completion,
    core::{
        collective::Collective,
        element::DType,
        prepare::{Call, Prepared},
        session::{
            Cause, Mismatch, Parameters,
            control::Message,
            fence::Member,
            membership::MemberId,
            recovery::{self, Calls, Held, Holding, LostReducer, OperationRepair, Resume, SegmentRepair},
        },
    },
    execute::{
        issue::{Caller, Identity, Issue, Queued},
        operation::Operation,
    },
    log::{Level, LogRecord},
    memory,
    request::CallAttrs,
    sys::region::Region,
    transport::{endpoint::Endpoint, ticket::OpKey},
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// An operation that the repair group is finishing.
#[derive(Debug)]
pub(super) struct Redone {
    pub(super) queued: Queued,
    /// Calls of the repair group that are yet to be made.
    issues: VecDeque<Issue>,
    /// The numbers and ends of those that were made.
    pub(super) parts: Vec<(u64, Arc<Completion>)>,
    /// Whether its call was given up before it was issued: it fails, everywhere.
    is_late: bool,
    consensus: Consensus,
}

/// Whether ranks agree about an operation that the repair group is finishing.
#[derive(Debug)]
enum Consensus {
    /// As far as is known.
    Agreed,
    /// They do not, and its group is to say in what.
    Disputed,
    /// They do not, so it ends with this error when the repair group's calls have ended.
    Failed(Error),
}

impl Redone {
    /// Makes the calls of the repair group. While a fence of it is under way it takes none: the rest follows after the decision, so that
    /// all ranks number them alike.
    fn issue(&mut self, runtime: &mut Runtime) {
        while let Some(issue) = self.issues.front() {
            let completion = Arc::<Completion>::default();
            let number = runtime.groups.get(issue.group).map_or(0, |repair| repair.state.next());
            let issued = match self.is_late {
                true => runtime.issue_late(issue, Vec::new()),
                false => runtime.issue(Some(self.queued.order), issue, completion.clone()),
            };
            match issued {
                Ok(()) => {}
                Err(Refused::Failed(error) | Refused::Counted(error)) => completion.finish(Err(error)),
                Err(Refused::Frozen) => return,
            }
            self.parts.push((number, completion));
            self.issues.pop_front();
        }
    }

    fn is_over(&self) -> bool {
        !matches!(self.consensus, Consensus::Disputed)
            && self.issues.is_empty()
            && self.parts.iter().all(|(_, part)| part.is_done())
    }

    /// Where the repair group's calls differ, the group's do: it finds out which, since a program knows its own calls only. Returns
    /// whether it is to do so.
    fn disputes(&self, result: &Result<(), Error>, runtime: &mut Runtime) -> bool {
        let Err(error) = result else { return false };
        let Identity { group, generation, fingerprint, .. } = self.queued.id;
        let differs = matches!(error.kind(), ErrorKind::Mismatch { .. });
        let is_new =
            |group: &&mut Group| differs && !group.state.is_over() && group.state.generation() == generation;
        let Some(group) = runtime.groups.get_mut(group).filter(is_new) else { return false };
        let mismatch = Mismatch::new(fingerprint.sequence, [(runtime.links.rank, fingerprint)]);
        group.state.dispute(Cause::Mismatch(mismatch), &mut runtime.out);
        true
    }
}

/// A group whose reducer was lost.
#[derive(Debug)]
struct Decided {
    repair: u32,
    operations: BTreeMap<u64, OperationRepair>,
    /// By their numbers.
    redone: BTreeMap<u64, Redone>,
    /// Whether nothing more is called in the group.
    is_closing: bool,
}

/// The groups that have lost a reducer.
#[derive(Debug, Default)]
pub(crate) struct Recoveries {
    decided: BTreeMap<u32, Decided>,
    /// The group of each repair group.
    repairs: BTreeMap<u32, u32>,
    /// Whether a reducer was ever lost.
    has_begun: bool,
    /// What was said last of reducers, by their addresses: whether they are used.
    said: BTreeMap<String, bool>,
}

impl Recoveries {
    /// Whether some group has ever lost a reducer: if not, nothing here is of any matter.
    pub(super) fn have_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether a group is another one's repair group.
    pub(super) fn carries(&self, number: u32) -> bool {
        self.repairs.contains_key(&number)
    }

    /// The group whose operations a repair group finishes.
    pub(super) fn repaired_group(&self, repair: u32) -> Option<u32> {
        self.repairs.get(&repair).copied()
    }

    /// The call that a repair group's operation finishes, as programs know it.
    pub(super) fn origin(&self, repair: u32, sequence: u64) -> Option<&Identity> {
        let decided = self.decided.get(self.repairs.get(&repair)?)?;
        let is_part = |redone: &&Redone| redone.parts.iter().any(|(number, _)| *number == sequence);
        decided.redone.values().find(is_part).map(|redone| &redone.queued.id)
    }

    /// The operations that repair groups finish, each with its repair group.
    pub(super) fn redone(&self) -> impl Iterator<Item = (u32, &Redone)> {
        let of = |decided: &Decided| decided.repair;
        self.decided
            .values()
            .flat_map(move |decided| decided.redone.values().map(move |redone| (of(decided), redone)))
    }

    /// The hub asks what this rank holds: from now on nothing of it changes.
    pub(super) fn stand_still(&mut self, number: u32, runtime: &mut Runtime) {
        let Runtime { links, groups, ops, backlog, out } = runtime;
        self.has_begun = true;
        let Some(group) = groups.get_mut(number) else {
            // Where this rank has left, the hub hears of that before it waits for an answer.
            if let Some(state) = groups.unmade(number, None, links.rank) {
                state.suspend(Vec::new(), out);
            }
            return;
        };
        let running = group.running.iter().filter_map(|(_, key)| ops.get(*key));
        let running =
            running.filter(|operation| operation.with_reducers() && operation.caller.completion.is_some());
        let mut operations: Vec<Holding> = running
            .map(|operation| Holding {
                sequence: operation.id.fingerprint.sequence,
                segments: operation.prepared().segments,
                chunks: operation.held(),
            })
            .collect();
        for queued in backlog.queue.iter().filter(|queued| queued.id.group == number) {
            if group.plan(queued.call, &mut out.observer).is_ok_and(|planned| planned.with_reducers) {
                let sequence = queued.id.fingerprint.sequence;
                operations.push(Holding { sequence, segments: 0, chunks: Vec::new() });
            }
        }
        operations.sort_by_key(|holding| holding.sequence);
        group.state.suspend(operations, out);
    }

    /// The hub has decided: operations that stand still are finished without reducers. Returns the groups to be added.
    pub(super) fn resume(&mut self, number: u32, resume: Resume, runtime: &mut Runtime) -> Vec<Group> {
        let Runtime { groups, links, out, .. } = runtime;
        let Some(group) = groups.get_mut(number) else {
            let (known, calls) = (groups.unmade.get_mut(&number), resume.calls.clone());
            if !known.is_some_and(|state| state.resume_early(resume)) {
                leave_followers(number, calls, out);
            }
            return Vec::new();
        };
        if !group.state.resume(&resume) {
            return Vec::new();
        }
        let Some((from, _)) = group.state.replaced() else { return Vec::new() };
        let (repair, successor) = (repair_of(&group.settings), successor_of(&group.settings, &resume, links));
        self.tell(&resume, successor.reducers(), links);
        let (ranks, ordinal) = (&group.settings.ranks, group.state.ordinal());
        let operations = resume
            .operations
            .into_iter()
            .map(|operation| (operation.sequence, operation.among(ranks)))
            .collect();
        let decided = Decided { repair: repair.id, operations, redone: BTreeMap::new(), is_closing: false };
        self.repairs.insert(repair.id, number);
        self.decided.insert(number, decided);
        links.forget(number);
        out.observer.inherit_name(number, [repair.id, successor.id]);
        let new = |settings: Settings, first| {
            let ranks = settings.ranks.clone();
            let member = Member::new(settings.id, links.rank, ranks).starting_at(first).named(ordinal);
            Group::new(settings, member)
        };
        let new = [new(repair, 0), new(successor, from).succeeding(group)];
        out.push(Deferred::Redo(number));
        out.push(Deferred::Start);
        new.into()
    }

    /// Says what was lost or has come, and with what this rank goes on: for the first group that hears of it.
    fn tell(&mut self, resume: &Resume, left: u32, links: &Links) {
        let who = format!("rank {}", links.rank);
        let on = match left {
            0 => "with no reducer left".to_owned(),
            1 => "with one reducer".to_owned(),
            _ => format!("with {left} reducers"),
        };
        for LostReducer { address, reason, .. } in &resume.lost {
            if self.said.insert(address.clone(), false) == Some(false) {
                continue;
            }
            let what = format_args!("the reducer at {address} is lost: {reason}; continuing {on}");
            let level = if reason == DRAINS { Level::Info } else { Level::Warn };
            LogRecord::new(level, &who).peer(&format!("reducer {address}")).say(what);
        }
        for gained in resume.gained.iter().filter_map(|id| links.endpoints.get(*id)) {
            if self.said.insert(gained.name.clone(), true) != Some(true) {
                let what =
                    format_args!("the reducer at {} is used from now on: continuing {on}", gained.name);
                LogRecord::new(Level::Info, &who).peer(&format!("reducer {}", gained.name)).say(what);
            }
        }
    }

    /// Finishes the operations of a group that has lost a reducer: those that were running and those that waited, in the order
    /// of their calls. What had begun differs from rank to rank, and all ranks have to number the repair group's calls alike.
    pub(super) fn redo(&mut self, number: u32, runtime: &mut Runtime) {
        let Runtime { groups, ops, .. } = runtime;
        let Some(group) = groups.get(number) else { return };
        let keys: Vec<OpKey> = group.running.iter().map(|(_, key)| *key).collect();
        let is_due =
            |operation: &Operation| operation.with_reducers() && operation.caller.completion.is_some();
        let keys = keys.into_iter().filter(|key| ops.get(*key).is_some_and(is_due)).collect::<Vec<OpKey>>();
        let mut due: Vec<(Queued, Arc<Prepared>)> =
            keys.into_iter().filter_map(|key| runtime.take_back(key)).collect();
        due.extend(begin::take_with_reducers(runtime, number));
        for (queued, prepared) in due {
            self.add(queued, &prepared, false, runtime);
            if !runtime.groups.rules.redoes_in_order {
                self.step(number, runtime);
            }
        }
        self.step(number, runtime);
    }

    /// A call that was given up takes its numbers in a group that has lost a reducer, and fails.
    ///
    /// # Errors
    /// See [`Runtime::agree`].
    pub(super) fn issue_late(&mut self, issue: &Issue, runtime: &mut Runtime) -> Result<(), Refused> {
        let agreed = runtime.agree(issue, None)?;
        let Runtime { groups, links, out, .. } = runtime;
        let Some(group) = groups.get_mut(issue.group) else { return Ok(()) };
        let queued = Queued::new(agreed, issue, None, out.now());
        let prepared = prepared(group, &queued, links, &mut out.observer)?;
        self.add(queued, &prepared, true, runtime);
        self.step(issue.group, runtime);
        Ok(())
    }

    fn add(&mut self, queued: Queued, prepared: &Prepared, is_late: bool, runtime: &mut Runtime) {
        let (number, sequence) = (queued.id.group, queued.id.fingerprint.sequence);
        runtime.backlog.discard_early(&queued.id, &mut runtime.links);
        let Some(decided) = self.decided.get_mut(&number) else {
            // The group was aborted.
            return end(queued, Err(Error::new(ErrorKind::Closed)), runtime);
        };
        let rules = runtime.groups.rules;
        let operation = decided.operations.get(&sequence);
        let issues = repair_calls(&queued, operation, decided.repair, prepared, rules.uses_holders);
        let issues = std::iter::repeat_n(issues, rules.times_redone).flatten().collect();
        decided.redone.insert(
            sequence,
            Redone { queued, issues, parts: Vec::new(), is_late, consensus: Consensus::Agreed },
        );
    }

    /// Something ended in a repair group.
    pub(super) fn carried(&mut self, repair: u32, runtime: &mut Runtime) {
        if let Some(group) = self.repairs.get(&repair) {
            self.step(*group, runtime);
        }
    }

    /// Ends what is finished.
    fn step(&mut self, number: u32, runtime: &mut Runtime) {
        let Some(decided) = self.decided.get_mut(&number) else { return };
        decided.redone.values_mut().for_each(|redone| redone.issue(runtime));
        let over: Vec<u64> = decided
            .redone
            .iter()
            .filter(|(_, redone)| redone.is_over())
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in over {
            let Some(redone) = decided.redone.remove(&sequence) else { continue };
            if !runtime.groups.rules.ends_redone {
                continue;
            }
            let result = redone.parts.iter().filter_map(|(_, part)| part.result()).collect();
            match redone.consensus {
                Consensus::Failed(error) => end(redone.queued, Err(error), runtime),
                _ if redone.disputes(&result, runtime) => {
                    decided.redone.insert(sequence, Redone { consensus: Consensus::Disputed, ..redone });
                }
                _ => end(redone.queued, result, runtime),
            }
        }
        self.close_if_over(number, runtime);
    }

    /// What is under way in a group fails on all of its ranks: all of it, or else that about which they do not agree. The repair group's
    /// calls end first, since they write to the same memory.
    pub(super) fn fail_redone(&mut self, number: u32, error: &Error, all: bool, runtime: &mut Runtime) {
        let Some(decided) = self.decided.get_mut(&number) else { return };
        let fails = |redone: &&mut Redone| all || matches!(redone.consensus, Consensus::Disputed);
        for redone in decided.redone.values_mut().filter(fails) {
            redone.consensus = Consensus::Failed(error.clone());
            redone.issues.clear();
        }
        let under_way = decided.redone.values().filter(|_| all).flat_map(|redone| &redone.parts);
        let first = under_way.filter(|(_, part)| !part.is_done()).map(|(number, _)| *number).min();
        if let Some((first, repair)) = first.zip(runtime.groups.get_mut(decided.repair)) {
            repair.state.dispute(Cause::Mismatch(Mismatch::new(first, [])), &mut runtime.out);
        }
        self.step(number, runtime);
    }

    /// A group was closed here. What is under way goes on. Returns the group that takes its calls.
    pub(super) fn close(&mut self, number: u32, runtime: &mut Runtime) -> Option<u32> {
        let (_, next) = runtime.groups.get(number)?.state.replaced()?;
        self.decided.get_mut(&number)?.is_closing = true;
        self.close_if_over(number, runtime);
        Some(next)
    }

    fn close_if_over(&mut self, number: u32, runtime: &mut Runtime) {
        let is_over = |decided: &Decided| decided.is_closing && decided.redone.is_empty();
        if self.decided.get(&number).is_some_and(is_over) && !runtime.backlog.has_any(number) {
            let Some(decided) = self.decided.remove(&number) else { return };
            self.repairs.remove(&decided.repair);
            runtime.groups.drop_group(decided.repair, &mut runtime.out);
        }
    }

    /// Everything under way in a group fails. Returns the groups that are to be aborted with it.
    pub(super) fn abort(&mut self, number: u32, error: &Error, runtime: &mut Runtime) -> Vec<u32> {
        let Some(decided) = self.decided.remove(&number) else { return Vec::new() };
        self.repairs.remove(&decided.repair);
        for (_, redone) in decided.redone {
            end(redone.queued, Err(error.clone()), runtime);
        }
        let next = runtime.groups.get(number).and_then(|group| group.state.replaced());
        next.map(|(_, next)| next).into_iter().chain([decided.repair]).collect()
    }
}

/// Tells those that wait for an operation how it ended.
fn end(queued: Queued, result: Result<(), Error>, runtime: &mut Runtime) {
    let Runtime { groups, links, out, .. } = runtime;
    let Queued { id, plan, caller: Caller { completion, issued, .. }, .. } = queued;
    let Some(group) = groups.get_mut(id.group) else {
        completion.into_iter().for_each(|completion| completion.finish(result.clone()));
        return;
    };
    if result.is_err() {
        group.state.fail(id.fingerprint.sequence);
    }
    out.conclude(group, links.rank, Ended { id, plan, completion, issued, result });
    out.push(Deferred::Forget(id.group));
}

/// What is left of an operation, as calls of its repair group.
fn repair_calls(
    queued: &Queued,
    operation: Option<&OperationRepair>,
    repair: u32,
    prepared: &Prepared,
    uses_holders: bool,
) -> VecDeque<Issue> {
    let Some((input, output)) = &queued.buffers else { return VecDeque::new() };
    // Ranks that have not called the same until now do not redo the same: their calls of the repair group are not to meet.
    let mark = (queued.id.hash ^ queued.id.hash >> 32) as u32;
    let (priority, timeout) = (queued.id.fingerprint.priority, Some(queued.caller.timeout));
    let attrs = CallAttrs { priority, mark, timeout, ahead_of: None };
    let again = |bytes: std::ops::Range<usize>| {
        let (input, output) = (input_part(input, output, &bytes), output.part(bytes.clone()));
        let call = Call { count: bytes.len() / queued.call.dtype.bytes(), ..queued.call };
        let fed = queued.fed.as_ref().map(|fed| fed.part(bytes.start / queued.call.dtype.bytes()));
        Issue { fed, attrs, ..Issue::new(repair, call, input, output) }
    };
    let sent = |root: u32, bytes: std::ops::Range<usize>| {
        let region = output.part(bytes);
        let (collective, dtype, op) = (Collective::Broadcast { root }, DType::U8, queued.call.op);
        let call = Call::new(collective, dtype, op, region.len());
        Issue { attrs, ..Issue::new(repair, call, region.clone(), region) }
    };
    let Some(OperationRepair { chunks, .. }) = operation.filter(|operation| !operation.chunks.is_empty())
    else {
        return [again(0..output.len())].into();
    };
    let chunks = (0..prepared.chunks()).zip(chunks);
    let pieces = chunks.flat_map(|(chunk, pieces)| pieces.iter().map(move |piece| (chunk, piece)));
    let issue = |(chunk, SegmentRepair { segments, holder }): (u32, &SegmentRepair)| {
        let bytes = prepared.byte_range(chunk, segments);
        let holder = holder.filter(|_| uses_holders);
        (!bytes.is_empty())
            .then(|| holder.map_or_else(|| again(bytes.clone()), |root| sent(root, bytes.clone())))
    };
    pieces.filter_map(issue).collect()
}

/// What an all-reduce reads to make these bytes of its output: as many of each of this rank's inputs, gathered if there are several.
fn input_part(input: &Region, output: &Region, bytes: &std::ops::Range<usize>) -> Region {
    if input.is_same(output) {
        return output.part(bytes.clone());
    }
    let starts = (0..input.len()).step_by(output.len().max(1));
    match starts.len() {
        0 | 1 => input.part(bytes.clone()),
        _ if *bytes == (0..output.len()) => input.clone(),
        inputs => {
            let ranges = starts.map(|start| start + bytes.start..start + bytes.end);
            memory::gathered(input, ranges).unwrap_or_else(|| Region::lacking(inputs * bytes.len()))
        }
    }
}

/// This rank has left a group before it heard what the hub has decided of it: it takes no part in what follows.
fn leave_followers(number: u32, calls: Calls, out: &mut Outbox) {
    let (successor, repair) = (recovery::successor_of(number), recovery::repair_of(number));
    let calls = Calls { generation: 0, hashes: Vec::new(), ..calls };
    let held = Message::Held(Held { group: successor, calls, operations: Vec::new() });
    let messages = [held, Message::Forget { group: successor }, Message::Forget { group: repair }];
    out.events.extend(messages.map(Event::ToHub));
}

/// A group of the same workers without reducers.
fn repair_of(settings: &Settings) -> Settings {
    let id = recovery::repair_of(settings.id);
    let settings = derived(settings, id, settings.members().to_vec(), Vec::new());
    Settings { serves: Some(Service::Remains), timeout: Duration::MAX, ..settings }
}

/// A group of the same workers with the reducers that are left, and those that came.
fn successor_of(settings: &Settings, resume: &Resume, links: &Links) -> Settings {
    let is_left = |id: &&MemberId| resume.lost.iter().all(|lost| lost.id != **id);
    let left = settings.servers().iter().filter(is_left).copied();
    let is_known = |id: &&MemberId| links.endpoints.get(**id).is_some_and(Endpoint::is_reducer);
    let left: Vec<MemberId> = left.chain(resume.gained.iter().filter(is_known).copied()).collect();
    let addresses = left.iter().map(|index| links.endpoints[*index].name.clone()).collect();
    let ids = settings.members().iter().copied().chain(left).collect();
    derived(settings, recovery::successor_of(settings.id), ids, addresses)
}

fn derived(settings: &Settings, id: u32, ids: Vec<MemberId>, reducers: Vec<String>) -> Settings {
    let Settings { epoch, me, ranks, hosts, parameters, sums, guidance, timeout, .. } = settings.clone();
    let parameters = Parameters { reducers, ..Parameters::clone(&parameters) };
    let settings = Settings::new(id, epoch, ids, ranks, me, hosts, Arc::new(parameters));
    Settings { sums, guidance, timeout, ..settings }
}
