//! A rank: its control thread's watch, its place in each group, and operations of one message per rank.

mod groups;
mod operations;

use super::{End, Job, Parcel, Phase, scenario::Kind};
use groups::Place;
use herringbone_core::{
    group::Rank,
    session::{
        Cause,
        control::Message,
        fence::{Directed, Issued},
        group_state::{GroupFailure, GroupState, Output, Outputs},
        watch::{Effect, RankPatience, Watch},
    },
    wire::Fingerprint,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

pub(super) const GROUP: u32 = 5;
const SILENCE: Duration = Duration::from_secs(6);
/// For so long a rank makes no calls that pauses: longer than operations wait.
const PAUSE: Duration = Duration::from_secs(9);
/// How long a rank that closes a group waits for the others.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A message of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) group: u32,
    pub(super) issued: Issued,
    pub(super) from: Rank,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A rank's part.
    Input,
    /// What a reducer has made of all parts.
    Result,
    /// A rank has the result.
    Holds,
    /// All ranks have it.
    AllHold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Runs,
    Hung,
    Dead,
    Left,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub(super) enum CallEnd {
    Well,
    Failed(GroupFailure),
    /// What was left of it without its reducer has failed, ahead of a decision about the call.
    RestFailed,
    /// No decision has come in time.
    Late,
}

/// A call of the program.
#[derive(Clone, Debug)]
pub(super) struct Called {
    pub(super) group: u32,
    pub(super) fingerprint: Fingerprint,
    pub(super) end: Option<CallEnd>,
}

/// What group states put out.
#[derive(Default)]
struct Sink(Vec<(u32, Output)>);

impl Outputs for Sink {
    fn put(&mut self, group: u32, output: Output) {
        self.0.push((group, output));
    }
}

pub(super) struct Worker {
    pub(super) rank: Rank,
    pub(super) state: State,
    watch: Watch,
    roster: Arc<herringbone_core::session::membership::Roster>,
    /// Ranks with which it has a control connection.
    connected: BTreeSet<Rank>,
    places: BTreeMap<u32, Place>,
    /// Messages of groups that are not made yet.
    early: Vec<Frame>,
    /// When to look at groups again.
    timers: BTreeMap<u32, Duration>,
    /// Reducers that it knows to be gone.
    lost: BTreeSet<usize>,
    /// Ranks that have left in order, and when that was known.
    departed: Vec<(Rank, Duration)>,
    pub(super) calls: Vec<Called>,
    /// What it learnt as it closed groups.
    pub(super) news: Vec<Arc<Cause>>,
    /// Whether a call has failed before that was decided. It may have been another reason, and is not told again.
    pub(super) has_failed_ahead: bool,
    /// What is wrong with a result.
    pub(super) wrong: Option<String>,
    phase: Phase,
    /// In how many calls it is still to call something else.
    pub(super) mistakes: u32,
    paused: Duration,
    is_frozen: bool,
    is_over: bool,
    has_called_more: bool,
    /// Whether it makes no more calls, though the others do.
    pub(super) has_stopped: bool,
    closed: Option<Duration>,
    /// Whether its process leaves, and whether it has said so.
    leaves: Option<bool>,
}

impl Worker {
    pub(super) fn new(rank: Rank, job: &mut Job) -> Self {
        let others = (0..job.scenario.workers).filter(|other| *other != rank);
        let peers: Vec<Rank> = if rank == 0 { others.collect() } else { vec![0] };
        let patience = RankPatience { silence: SILENCE, linger: Duration::from_secs(10) };
        let mut watch = Watch::new(rank, job.roster.clone(), peers.iter().copied(), patience, Duration::ZERO);
        if rank == 0 {
            let members = (0..job.scenario.workers).collect();
            watch.tell_hub(Message::GroupInfo { group: GROUP, generation: 0, members });
        }
        let reducers = (0..job.scenario.reducers).collect();
        Self {
            rank,
            state: State::Runs,
            watch,
            roster: job.roster.clone(),
            connected: peers.into_iter().collect(),
            places: BTreeMap::from([(GROUP, Place::new(GROUP, rank, 0, reducers, job))]),
            early: Vec::new(),
            timers: BTreeMap::new(),
            lost: BTreeSet::new(),
            departed: Vec::new(),
            calls: Vec::new(),
            news: Vec::new(),
            has_failed_ahead: false,
            wrong: None,
            phase: Phase::Calls,
            mistakes: 0,
            paused: Duration::ZERO,
            is_frozen: false,
            is_over: false,
            has_called_more: false,
            has_stopped: false,
            closed: None,
            leaves: None,
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.state == State::Runs
    }

    /// Whether it does what the program says to its end.
    pub(super) fn stays(&self) -> bool {
        self.runs() && !self.has_stopped
    }

    pub(super) fn begin(&mut self, phase: Phase, job: &mut Job) {
        (self.phase, self.mistakes) = (phase, if phase == Phase::Calls { self.mistakes } else { 0 });
        if phase == Phase::Close && self.stays() {
            self.close(job);
        }
    }

    /// Whether it waits for nothing, as far as this phase goes.
    pub(super) fn is_done(&self, job: &Job) -> bool {
        let program = self.has_stopped
            || match self.phase {
                Phase::Calls => self.is_over || !self.has_more(job),
                Phase::OneMore => self.has_called_more,
                Phase::Close => true,
            };
        let closed = self.closed.is_none() || self.places.values().all(|place| place.state.has_left());
        !self.runs() || program && closed && self.calls.iter().all(|called| called.end.is_some())
    }

    /// What it waits for, for people.
    pub(super) fn waits_in(&self) -> String {
        let open =
            self.places.iter().flat_map(|(group, place)| place.open.values().map(move |open| (group, open)));
        let stays = self.places.values().filter(|place| !place.state.has_left()).count();
        format!("rank {} in {:?}, with {stays} groups", self.rank, open.collect::<Vec<_>>())
    }

    /// The group that takes its calls now.
    fn current(&self) -> u32 {
        let mut number = GROUP;
        while let Some(next) = self.places[&number].state.successor() {
            number = next;
        }
        number
    }

    fn has_more(&self, job: &Job) -> bool {
        self.places[&self.current()].state.next() < job.scenario.calls
    }

    pub(super) fn may_call(&self, job: &Job) -> bool {
        let is_up = match self.phase {
            Phase::Calls => !self.is_over && self.has_more(job) && job.now >= self.paused,
            Phase::OneMore => !self.has_called_more,
            Phase::Close => false,
        };
        let open = self.calls.iter().filter(|called| called.end.is_none()).count();
        self.stays() && is_up && self.closed.is_none() && !self.is_frozen && open < job.scenario.window
    }

    pub(super) fn pauses(&mut self, job: &Job) {
        self.paused = job.now + PAUSE;
    }

    /// Something comes to its control thread.
    pub(super) fn control(&mut self, from: End, parcel: Parcel, job: &mut Job) {
        self.is_frozen = false;
        match (from, parcel) {
            (End::Control(other), Parcel::Control(message)) if self.connected.contains(&other) => {
                self.watch.heard(other, job.now);
                self.watch.message(other, message);
            }
            (End::Control(other), Parcel::Closed) if self.connected.remove(&other) => {
                self.watch.unreachable(other);
            }
            (End::Engine(_), Parcel::Control(message)) => self.watch.tell_hub(message),
            (End::Engine(_), Parcel::LinkBroke(id, damaged)) => {
                let cause = |from, to| damaged.then_some(Cause::Corrupt { from, to });
                self.watch.link_broke(id, cause, "it broke", job.now)
            }
            _ => {}
        }
        self.carry_out(job);
    }

    /// Does what its watch wants done.
    fn carry_out(&mut self, job: &mut Job) {
        while let Some(effect) = self.watch.next_effect() {
            let own = End::Control(self.rank);
            match effect {
                Effect::Send(Directed { to, message }) if self.connected.contains(&to) => {
                    job.pipes.send(own, End::Control(to), Parcel::Control(message));
                }
                Effect::Disconnect(rank) => {
                    if self.connected.remove(&rank) {
                        job.pipes.send(own, End::Control(rank), Parcel::Closed);
                    }
                }
                Effect::Probe(address) => self.watch.greeted(&address, None, job.now),
                Effect::Members(roster) => {
                    let before = std::mem::replace(&mut self.roster, roster);
                    let gone = before.reducers().filter(|reducer| self.roster.member(reducer.id).is_none());
                    for reducer in gone.map(|reducer| reducer.id).collect::<Vec<_>>() {
                        self.lose_reducer(job.reducer_at(reducer).expect("it was there"), job);
                    }
                }
                Effect::Groups(event) => self.group_event(event, job),
                Effect::Send(_) | Effect::Connect(_) | Effect::Answer { .. } | Effect::Log { .. } => {}
            }
        }
    }

    /// Something comes over a data link.
    pub(super) fn data(&mut self, from: End, parcel: Parcel, job: &mut Job) {
        match parcel {
            Parcel::Data(frame) => self.frame(frame, job),
            Parcel::Broken(damaged) => {
                let broke = Parcel::LinkBroke(job.member(from), damaged);
                job.pipes.send(End::Engine(self.rank), End::Control(self.rank), broke);
                if let End::Reducer(at) = from {
                    self.lose_reducer(at, job);
                }
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, job: &mut Job) {
        if !self.runs() {
            return;
        }
        self.is_frozen = false;
        self.watch.tick(job.now);
        self.carry_out(job);
        let due: Vec<u32> =
            self.timers.iter().filter(|(_, at)| **at <= job.now).map(|(group, _)| *group).collect();
        for group in due {
            self.timers.remove(&group);
            self.act(group, job, |state, out| state.time_has_passed(out));
        }
        self.look_through_operations(job);
        self.fail_departed(job);
        self.go_on_closing(job);
    }

    /// Closes its groups. Returns once that is begun.
    fn close(&mut self, job: &mut Job) {
        self.closed = Some(job.now);
        for group in self.places.keys().copied().collect::<Vec<_>>() {
            self.close_group(group, job);
        }
    }

    fn go_on_closing(&mut self, job: &mut Job) {
        let Some(closed) = self.closed else { return };
        let groups: Vec<u32> = self.places.keys().copied().collect();
        for group in groups {
            self.close_group(group, job);
            if job.now >= closed + CLOSE_TIMEOUT {
                self.act(group, job, |state, out| state.end_close_check(out));
            }
        }
        let have_left = self.places.values().all(|place| place.state.has_left());
        if self.leaves == Some(false) && have_left && self.calls.iter().all(|called| called.end.is_some()) {
            self.leaves = Some(true);
            self.watch.leave(true, job.now);
            self.carry_out(job);
        }
        if self.leaves == Some(true) && self.watch.has_left(false, job.now) {
            self.carry_out(job);
            self.ends(State::Left, job);
        }
    }

    /// It makes no more calls, and closes the group; its process may leave.
    pub(super) fn leave(&mut self, with_job: bool, job: &mut Job) {
        if self.stays() && self.closed.is_none() {
            self.has_stopped = true;
            self.leaves = with_job.then_some(false);
            self.close(job);
        }
    }

    /// It aborts what is under way.
    pub(super) fn abort(&mut self, job: &mut Job) {
        if !self.stays() || self.closed.is_some() {
            return;
        }
        self.has_stopped = true;
        self.closed = Some(job.now);
        for group in self.places.keys().copied().collect::<Vec<_>>() {
            self.act(group, job, |state, out| state.abort(true, out));
            for sequence in self.places[&group].open.keys().copied().collect::<Vec<_>>() {
                self.end(group, sequence, CallEnd::Failed(GroupFailure::Closed), job);
            }
        }
    }

    /// Its process is over.
    pub(super) fn ends(&mut self, state: State, job: &mut Job) {
        self.state = state;
        for other in std::mem::take(&mut self.connected) {
            job.pipes.send(End::Control(self.rank), End::Control(other), Parcel::Closed);
        }
        for other in (0..job.scenario.workers).filter(|other| *other != self.rank) {
            job.pipes.send(End::Engine(self.rank), End::Engine(other), Parcel::Broken(false));
        }
    }

    /// Has the state of a group take something, and does what it wants done.
    fn act<R>(
        &mut self,
        group: u32,
        job: &mut Job,
        does: impl FnOnce(&mut GroupState, &mut Sink) -> R,
    ) -> Option<R> {
        let mut sink = Sink::default();
        let result = does(&mut self.places.get_mut(&group)?.state, &mut sink);
        for (group, output) in sink.0 {
            self.output(group, output, job);
        }
        Some(result)
    }

    fn output(&mut self, group: u32, output: Output, job: &mut Job) {
        match output {
            Output::Tell(message) => {
                job.pipes.send(End::Engine(self.rank), End::Control(self.rank), Parcel::Control(message));
            }
            Output::TellWorker(..) => unreachable!("it is no reducer"),
            Output::Fail(failure) => self.fail_all(group, &failure, job),
            Output::Settled(settled) => {
                self.fail_all(group, &GroupFailure::Decided(settled.cause), job);
                self.look_again(group, job);
                self.go_on_redoing(job);
                // It may have been closed, and waited for this.
                self.leave_group(group, job);
            }
            Output::After(delay) => _ = self.timers.insert(group, job.now + delay),
            Output::Leave => self.leave_group(group, job),
        }
    }
}
