//! The groups of a rank: what the hub says, who is gone, and how they go on without a reducer.

use super::{CallEnd, Frame, Worker, operations::Open};
use crate::job::{End, Job, Parcel, scenario::Kind};
use herringbone_core::{
    group::Rank,
    session::{
        control::Message,
        fence::{Member, NotIssued},
        group_state::{Departure, GroupState, ReducerUse},
        recovery::{Calls, Held, Holding, OperationRepair, Resume, repair_of, successor_of},
        watch::GroupEvent,
    },
};
use std::collections::{BTreeMap, VecDeque};

/// A rank's place in a group.
pub(super) struct Place {
    pub(super) state: GroupState,
    /// The reducers of the group, by their places in the job.
    pub(super) reducers: Vec<usize>,
    pub(super) open: BTreeMap<u64, Open>,
    /// Messages that are not to be looked at yet.
    pub(super) early: Vec<Frame>,
    /// The group whose operations are finished here.
    finishes: Option<u32>,
    /// What is left to do of operations that have lost their reducer.
    pub(super) repairs: BTreeMap<u64, OperationRepair>,
    pub(super) to_redo: VecDeque<u64>,
}

impl Place {
    pub(super) fn new(group: u32, rank: Rank, first: u64, reducers: Vec<usize>, job: &Job) -> Self {
        let member = Member::new(group, rank, (0..job.scenario.workers).collect()).starting_at(first);
        Self {
            state: GroupState::of_worker(member).with_rules(job.rules),
            reducers,
            open: BTreeMap::new(),
            early: Vec::new(),
            finishes: None,
            repairs: BTreeMap::new(),
            to_redo: VecDeque::new(),
        }
    }

    pub(super) fn uses_reducers(&self) -> bool {
        self.state.reducers() == ReducerUse::InUse && !self.state.has_left()
    }
}

impl Worker {
    pub(super) fn group_event(&mut self, event: GroupEvent, job: &mut Job) {
        match event {
            GroupEvent::FromHub(message) => {
                self.receive(message.group().expect("it is about a group"), message, job);
            }
            GroupEvent::PeerDied { worker, death, hub_is_gone } => {
                let dead = self.roster.rank_of(worker).expect("it is a worker");
                self.lose(dead, &death.to_string(), hub_is_gone, job);
            }
            GroupEvent::PeerLeft(worker) => {
                self.departed.push((self.roster.rank_of(worker).expect("it is a worker"), job.now));
            }
            GroupEvent::LinkBroke { endpoint, cause } => {
                let rank = self.roster.rank_of(endpoint).expect("it is a worker");
                self.dispute_all_with(rank, &cause, job);
            }
            GroupEvent::NoHub => {
                for group in self.places.keys().copied().collect::<Vec<_>>() {
                    self.act(group, job, |state, out| state.lose_hub(out));
                }
            }
        }
    }

    fn receive(&mut self, group: u32, message: Message, job: &mut Job) {
        match message {
            Message::Recover { .. } => self.stand_still(group, job),
            Message::Resume(resume) => self.resume(group, &resume, job),
            Message::Late(_) | Message::Forget { .. } => {}
            message => {
                self.act(group, job, |state, out| state.receive(&message, out));
            }
        }
    }

    fn stand_still(&mut self, group: u32, job: &mut Job) {
        let place = self.places.get_mut(&group).filter(|place| !place.state.has_left());
        let Some(place) = place else { return };
        let holding = |(sequence, open): (&u64, &Open)| Holding {
            sequence: *sequence,
            segments: 1,
            chunks: vec![open.holds.then_some(0..1).into_iter().collect()],
        };
        let operations = place.open.iter().filter(|(_, open)| open.with_reducers).map(holding).collect();
        self.act(group, job, |state, out| state.suspend(operations, out));
    }

    /// The hub has decided how a group goes on without a reducer.
    fn resume(&mut self, group: u32, resume: &Resume, job: &mut Job) {
        let Some(place) = self.places.get_mut(&group) else { return };
        if place.state.has_left() {
            return self.leave_followers(group, &resume.calls, job);
        }
        if !place.state.resume(resume) {
            return;
        }
        let Some((from, _)) = place.state.replaced() else { return };
        place.repairs = resume.operations.iter().map(|repair| (repair.sequence, repair.clone())).collect();
        for (sequence, open) in place.open.iter_mut().filter(|(_, open)| open.with_reducers) {
            open.is_redone = true;
            place.to_redo.push_back(*sequence);
        }
        let is_left = |at: &usize| resume.lost.iter().all(|lost| job.reducer_at(lost.id) != Some(*at));
        let left: Vec<usize> = place.reducers.iter().copied().filter(is_left).collect();
        let (repair, next) = (repair_of(group), successor_of(group));
        let finishing = Place { finishes: Some(group), ..Place::new(repair, self.rank, 0, Vec::new(), job) };
        let following = Place::new(next, self.rank, from, left, job);
        self.places.extend([(repair, finishing), (next, following)]);
        if self.closed.is_some() {
            self.close_group(next, job);
        }
        self.look_again(repair, job);
        self.look_again(next, job);
        self.go_on_redoing(job);
    }

    /// It has left a group before it heard how that goes on.
    fn leave_followers(&mut self, group: u32, calls: &Calls, job: &mut Job) {
        let (next, repair) = (successor_of(group), repair_of(group));
        let calls = Calls { generation: 0, hashes: Vec::new(), ..calls.clone() };
        let held = Message::Held(Held { group: next, calls, operations: Vec::new() });
        for message in [held, Message::Forget { group: next }, Message::Forget { group: repair }] {
            job.pipes.send(End::Engine(self.rank), End::Control(self.rank), Parcel::Control(message));
        }
    }

    /// Finishes operations that have lost their reducer, in the order of the calls.
    pub(super) fn go_on_redoing(&mut self, job: &mut Job) {
        for group in self.places.keys().copied().collect::<Vec<_>>() {
            let repair = repair_of(group);
            while let Some(&sequence) = self.places[&group].to_redo.front() {
                let Some((kind, wanted)) = self.repair(group, sequence) else {
                    self.places.get_mut(&group).expect("it is there").to_redo.pop_front();
                    if !self.places[&group].open[&sequence].holds {
                        self.wrong = Some(format!("rank {} has no result of call {sequence}", self.rank));
                    }
                    self.end(group, sequence, CallEnd::Well, job);
                    continue;
                };
                if kind == Kind::Broadcast(self.rank) && !self.places[&group].open[&sequence].holds {
                    self.wrong =
                        Some(format!("rank {} sends a result of call {sequence} that it lacks", self.rank));
                }
                let issued = self.act(repair, job, |state, out| state.issue(wanted, false, out));
                let failure = match issued.expect("it is there") {
                    Err(NotIssued::Frozen) => break,
                    Ok(issued) => {
                        self.places.get_mut(&group).expect("it is there").to_redo.pop_front();
                        self.start(repair, issued, (kind, false), Some((group, sequence)), job);
                        continue;
                    }
                    Err(NotIssued::Failed(failure) | NotIssued::Counted(_, failure)) => failure,
                };
                self.places.get_mut(&group).expect("it is there").to_redo.pop_front();
                self.end_redone(group, sequence, CallEnd::Failed(failure), job);
            }
        }
    }

    fn lose(&mut self, dead: Rank, reason: &str, hub_is_gone: bool, job: &mut Job) {
        // What it has sent before is still used.
        while let Some(parcel) = job.pipes.take(End::Engine(dead), End::Engine(self.rank)) {
            self.data(End::Engine(dead), parcel, job);
        }
        for group in self.places.keys().copied().collect::<Vec<_>>() {
            if hub_is_gone {
                self.act(group, job, |state, out| state.lose_hub(out));
            }
            if self.act(group, job, |state, out| state.lose(dead, reason, out)) == Some(true) {
                self.fail_needing(group, dead, job);
            }
        }
    }

    /// It makes no more calls in a group.
    pub(super) fn close_group(&mut self, group: u32, job: &mut Job) {
        let place = &self.places[&group];
        if place.state.is_closed() {
            return;
        }
        match place.finishes {
            Some(of) if !self.places[&of].open.is_empty() => {}
            Some(_) => _ = self.act(group, job, |state, out| state.close(out)),
            None => {
                self.act(group, job, |state, out| {
                    state.await_close_check();
                    state.close(out);
                });
            }
        }
    }

    /// Leaves a group, if nothing is under way there any more.
    pub(super) fn leave_group(&mut self, group: u32, job: &mut Job) {
        let Some(place) = self.places.get(&group) else { return };
        if !place.state.is_closed() || !place.open.is_empty() {
            return;
        }
        let counts = place.finishes.is_none();
        if let Some(Departure::Left(Some(cause))) =
            self.act(group, job, |state, out| state.leave(counts, out))
            && counts
        {
            self.news.push(cause);
        }
    }
}
