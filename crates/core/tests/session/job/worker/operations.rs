//! Calls and operations of a rank.

use super::{CallEnd, Called, Frame, Kind, Phase, What, Worker};
use crate::{
    call,
    job::{End, Job, Parcel},
};
use herringbone_core::{
    group::Rank,
    session::{
        Cause, Mismatch,
        fence::{Admission, Check, Issued, NotIssued},
        group_state::{Gone, GroupFailure},
    },
    wire::Fingerprint,
};
use std::{collections::BTreeSet, time::Duration};

const ALL_REDUCE: u8 = 1;
const BROADCAST: u8 = 3;
/// How long an operation may take, and how long it waits for a decision after that.
const TIMEOUT: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a rank that waits keeps that to itself, at first and later.
const WAITING: Duration = Duration::from_millis(50);
const WAITING_AGAIN: Duration = Duration::from_secs(1);
/// How long what a rank has left behind may be on its way.
const GRACE: Duration = Duration::from_millis(300);

/// An operation that is under way.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) issued: Issued,
    kind: Kind,
    pub(super) with_reducers: bool,
    /// Whose messages have not come.
    needs: BTreeSet<Rank>,
    /// Whether the result is here.
    pub(super) holds: bool,
    /// Whether it is finished without the reducer that it began with.
    pub(super) is_redone: bool,
    /// The group and operation that this finishes.
    repair_of: Option<(u32, u64)>,
    since: Duration,
    round: u32,
}

impl Open {
    fn involves(&self, rank: Rank, own: Rank) -> bool {
        match self.kind {
            Kind::Broadcast(root) => root == rank || root == own,
            _ => !self.with_reducers,
        }
    }

    /// Whether it needs more of a rank.
    fn needs(&self, rank: Rank) -> bool {
        self.needs.contains(&rank) || self.with_reducers && !self.is_redone
    }
}

impl Worker {
    /// Makes the next call.
    pub(in crate::job) fn call(&mut self, job: &mut Job) {
        let group = self.current();
        let place = &self.places[&group];
        let kind = match self.phase {
            Phase::Calls => job.scenario.kind(place.state.next()),
            _ => Kind::AllToAll,
        };
        let with_reducers = kind == Kind::Sum && !place.reducers.is_empty();
        let count = if self.mistakes > 0 { 77 } else { 1000 };
        let wanted = match kind {
            Kind::Broadcast(root) => Fingerprint { collective: BROADCAST, root, count, ..call() },
            _ => Fingerprint { collective: ALL_REDUCE, plan: u64::from(with_reducers), count, ..call() },
        };
        let issued = self.act(group, job, |state, out| state.issue(wanted, with_reducers, out));
        let mut called = Called { group, fingerprint: wanted, end: None };
        match issued.expect("it is there") {
            Err(NotIssued::Frozen) => {
                self.is_frozen = true;
                return;
            }
            Ok(issued) => {
                called.fingerprint = issued.fingerprint;
                self.calls.push(called);
                self.start(group, issued, (kind, with_reducers), None, job);
            }
            Err(NotIssued::Counted(issued, failure)) => {
                (called.fingerprint, called.end) = (issued.fingerprint, Some(CallEnd::Failed(failure)));
                self.calls.push(called);
            }
            Err(NotIssued::Failed(failure)) => {
                self.is_over = true;
                (called.fingerprint.sequence, called.end) = (u64::MAX, Some(CallEnd::Failed(failure)));
                self.calls.push(called);
            }
        }
        self.mistakes = self.mistakes.saturating_sub(1);
        // A call that learns what has failed before is none more.
        let is_news = matches!(self.calls.last(), Some(Called { end: Some(CallEnd::Failed(_)), .. }));
        self.has_called_more |= self.phase == Phase::OneMore && (self.is_over || !is_news);
        if self.phase == Phase::Calls && job.scenario.closes_at_once && (self.is_over || !self.has_more(job))
        {
            self.close(job);
        }
    }

    /// Begins an operation of a group, which may finish another one.
    pub(super) fn start(
        &mut self,
        group: u32,
        issued: Issued,
        (kind, with_reducers): (Kind, bool),
        repair_of: Option<(u32, u64)>,
        job: &mut Job,
    ) {
        let sequence = issued.fingerprint.sequence;
        let others: BTreeSet<Rank> = (0..job.scenario.workers).filter(|other| *other != self.rank).collect();
        let place = self.places.get_mut(&group).expect("it is there");
        let is_redone = with_reducers && place.state.replaced().is_some();
        let (to, needs) = match kind {
            _ if with_reducers => (BTreeSet::new(), BTreeSet::new()),
            Kind::Broadcast(root) if root == self.rank => (others, BTreeSet::new()),
            Kind::Broadcast(root) => (BTreeSet::new(), [root].into()),
            _ => (others.clone(), others),
        };
        let (holds, round, since) = (false, 0, job.now);
        let open = Open { issued, kind, with_reducers, needs, holds, is_redone, repair_of, since, round };
        place.open.insert(sequence, open);
        let frame = Frame { group, issued, from: self.rank, what: What::Input };
        let own = End::Engine(self.rank);
        if is_redone {
            place.to_redo.push_back(sequence);
        } else if with_reducers {
            let at = place.reducers[sequence as usize % place.reducers.len()];
            match self.lost.contains(&at) {
                true => self.lose_reducer(at, job),
                false => job.pipes.send(own, End::Reducer(at), Parcel::Data(frame)),
            }
        }
        to.into_iter().for_each(|to| job.pipes.send(own, End::Engine(to), Parcel::Data(frame)));
        self.end_if_complete(group, sequence, job);
        self.look_again(group, job);
        self.go_on_redoing(job);
    }

    /// Messages that came early may be of use now.
    pub(super) fn look_again(&mut self, group: u32, job: &mut Job) {
        let mut frames = std::mem::take(&mut self.early);
        frames.extend(
            self.places.get_mut(&group).into_iter().flat_map(|place| std::mem::take(&mut place.early)),
        );
        frames.into_iter().for_each(|frame| self.frame(frame, job));
    }

    pub(super) fn frame(&mut self, frame: Frame, job: &mut Job) {
        let Frame { group, issued, from, what } = frame;
        let sequence = issued.fingerprint.sequence;
        let Some(place) = self.places.get_mut(&group) else { return self.early.push(frame) };
        match place.state.admit(issued.generation) {
            Admission::Discard => return,
            Admission::Hold => return place.early.push(frame),
            Admission::Accept => {}
        }
        match place.state.check(sequence, issued.hash) {
            Check::Match => {}
            Check::NotYet => return place.early.push(frame),
            Check::Forgotten => return,
            Check::Differs => {
                let rank = self.rank;
                self.act(group, job, |state, out| state.dispute_frame(sequence, rank, out));
                return;
            }
        }
        let Some(open) = place.open.get_mut(&sequence) else { return };
        if !place.state.may_run(sequence, false) {
            return place.early.push(frame);
        }
        if open.with_reducers && (open.is_redone || place.state.holds_still()) {
            return;
        }
        match what {
            What::Input => _ = open.needs.remove(&from),
            What::Result => {
                open.holds = true;
                let at = place.reducers[sequence as usize % place.reducers.len()];
                let holds = Frame { from: self.rank, what: What::Holds, ..frame };
                job.pipes.send(End::Engine(self.rank), End::Reducer(at), Parcel::Data(holds));
            }
            What::AllHold => return self.end(group, sequence, CallEnd::Well, job),
            What::Holds => unreachable!("reducers hear that"),
        }
        self.end_if_complete(group, sequence, job);
    }

    fn end_if_complete(&mut self, group: u32, sequence: u64, job: &mut Job) {
        let is_complete = |open: &Open| !open.with_reducers && open.needs.is_empty();
        if self.places[&group].open.get(&sequence).is_some_and(is_complete) {
            self.end(group, sequence, CallEnd::Well, job);
        }
    }

    /// An operation is over.
    pub(super) fn end(&mut self, group: u32, sequence: u64, end: CallEnd, job: &mut Job) {
        let place = self.places.get_mut(&group).expect("it is there");
        let Some(open) = place.open.remove(&sequence) else { return };
        place.to_redo.retain(|other| *other != sequence);
        let hears_all = !matches!(open.kind, Kind::Broadcast(_));
        let is_well = matches!(end, CallEnd::Well);
        match open.repair_of {
            Some((of, number)) => self.end_redone(of, number, end, job),
            None => {
                let is_it = |called: &&mut Called| {
                    called.group == group && called.fingerprint.sequence == sequence && called.end.is_none()
                };
                let called = self.calls.iter_mut().find(is_it).expect("it was called");
                called.end = Some(end);
            }
        }
        self.act(group, job, |state, out| {
            if is_well {
                state.complete(sequence, hears_all, out);
            }
            state.ended(out);
        });
        if self.closed.is_some() {
            self.leave_group(group, job);
        }
    }

    /// What is under way in a group fails, and with it what finishes it.
    pub(super) fn fail_all(&mut self, group: u32, failure: &GroupFailure, job: &mut Job) {
        let Some(place) = self.places.get(&group) else { return };
        let open: Vec<u64> = place.open.keys().copied().collect();
        open.into_iter()
            .for_each(|sequence| self.end(group, sequence, CallEnd::Failed(failure.clone()), job));
        let repairs = self.places.iter().flat_map(|(repair, place)| {
            let is_repair = |open: &&Open| open.repair_of.is_some_and(|(of, _)| of == group);
            place.open.values().find(is_repair).map(|open| (*repair, open.issued.fingerprint.sequence))
        });
        for (repair, first) in repairs.collect::<Vec<_>>() {
            let cause = Cause::Mismatch(Mismatch::new(first, []));
            self.act(repair, job, |state, out| state.dispute(cause, out));
        }
    }

    /// A rank has died: what needs more of it fails.
    pub(super) fn fail_needing(&mut self, group: u32, rank: Rank, job: &mut Job) {
        let place = &self.places[&group];
        let needing: Vec<u64> =
            place.open.iter().filter(|(_, open)| open.needs(rank)).map(|(sequence, _)| *sequence).collect();
        let gone = place.state.gone().cloned();
        if needing.is_empty() && !self.is_frozen {
            return;
        }
        let failure = GroupFailure::Gone(gone.expect("it is gone"));
        self.has_failed_ahead = true;
        self.act(group, job, |state, out| state.fail_needing(needing.iter().copied(), out));
        needing
            .into_iter()
            .for_each(|sequence| self.end(group, sequence, CallEnd::Failed(failure.clone()), job));
    }

    /// Ranks have left in order: what needs more of them fails, once nothing more comes from them.
    pub(super) fn fail_departed(&mut self, job: &mut Job) {
        for (rank, since) in self.departed.clone() {
            let pipe = (End::Engine(rank), End::Engine(self.rank));
            let is_empty = job.pipes.0.get(&pipe).is_none_or(|pipe| pipe.is_empty());
            if job.now < since + GRACE || !is_empty {
                continue;
            }
            let needing = self.places.iter().flat_map(|(group, place)| {
                let needs = place.open.iter().filter(|(_, open)| open.needs(rank));
                needs.map(|(sequence, _)| (*group, *sequence)).collect::<Vec<_>>()
            });
            for (group, sequence) in needing.collect::<Vec<_>>() {
                let gone = self.places[&group].state.gone().cloned();
                let gone = gone.unwrap_or_else(|| Gone { ranks: vec![rank], reason: "it left".to_owned() });
                let cause = Cause::PeerLost { ranks: gone.ranks.clone() };
                self.fail_ahead(group, sequence, job);
                self.end(group, sequence, CallEnd::Failed(GroupFailure::Gone(gone)), job);
                self.act(group, job, |state, out| state.dispute(cause, out));
            }
        }
    }

    /// The link to a rank that lives broke.
    pub(super) fn dispute_all_with(&mut self, rank: Rank, cause: &Cause, job: &mut Job) {
        let involved = |place: &super::Place| place.open.values().any(|open| open.involves(rank, self.rank));
        let groups: Vec<u32> =
            self.places.iter().filter(|(_, place)| involved(place)).map(|(group, _)| *group).collect();
        for group in groups {
            self.act(group, job, |state, out| state.dispute(cause.clone(), out));
        }
    }

    /// Says what it waits in, and gives up what has taken too long.
    pub(super) fn look_through_operations(&mut self, job: &mut Job) {
        let (now, rank) = (job.now, self.rank);
        for group in self.places.keys().copied().collect::<Vec<_>>() {
            let place = self.places.get_mut(&group).expect("it is there");
            let oldest = place.open.values_mut().find(|open| !open.is_redone);
            if let Some(open) = oldest.filter(|open| now >= open.since + WAITING + open.round * WAITING_AGAIN)
            {
                let member = place.state.member().expect("it is a worker");
                let waiting = member.waiting(open.issued.fingerprint.sequence, open.round);
                open.round += 1;
                waiting.into_iter().for_each(|message| {
                    job.pipes.send(End::Engine(rank), End::Control(rank), Parcel::Control(message));
                });
            }
            let late = place.open.values().filter(|open| !open.is_redone && now >= open.since + TIMEOUT);
            let late: Vec<(Fingerprint, bool, Vec<Rank>)> = late
                .map(|open| {
                    let waiting_for = open.needs.iter().copied().collect();
                    (open.issued.fingerprint, now >= open.since + TIMEOUT + PATIENCE, waiting_for)
                })
                .collect();
            for (operation, is_over, waiting_for) in late {
                let cause =
                    Cause::Timeout { rank, operation, milliseconds: TIMEOUT.as_millis() as u64, waiting_for };
                if is_over {
                    self.fail_ahead(group, operation.sequence, job);
                    self.end(group, operation.sequence, CallEnd::Late, job);
                } else {
                    self.act(group, job, |state, out| state.dispute(cause, out));
                }
            }
        }
    }

    /// A reducer is gone: groups that use it are to go on without.
    pub(super) fn lose_reducer(&mut self, at: usize, job: &mut Job) {
        self.lost.insert(at);
        let uses = |place: &super::Place| place.uses_reducers() && place.reducers.contains(&at);
        for (group, _) in self.places.iter().filter(|(_, place)| uses(place)) {
            let suspect = job.suspect(*group, at);
            job.pipes.send(End::Engine(self.rank), End::Control(self.rank), Parcel::Control(suspect));
        }
    }

    /// An operation fails before that is decided.
    pub(super) fn fail_ahead(&mut self, group: u32, sequence: u64, job: &mut Job) {
        self.has_failed_ahead = true;
        self.act(group, job, |state, _| state.fail(sequence));
    }

    /// What another group does for an operation is over.
    pub(super) fn end_redone(&mut self, group: u32, sequence: u64, end: CallEnd, job: &mut Job) {
        let place = &self.places[&group];
        let Some(open) = place.open.get(&sequence) else { return };
        let own = open.issued.fingerprint;
        match end {
            CallEnd::Failed(GroupFailure::Decided(cause))
                if matches!(*cause, Cause::Mismatch(_)) && !place.state.is_over() =>
            {
                let cause = Cause::Mismatch(Mismatch::new(sequence, [(self.rank, own)]));
                self.act(group, job, |state, out| state.dispute(cause, out));
            }
            CallEnd::Well => self.end(group, sequence, CallEnd::Well, job),
            failed => {
                let is_late = matches!(failed, CallEnd::Late);
                let failed = if is_late { failed } else { CallEnd::RestFailed };
                self.fail_ahead(group, sequence, job);
                self.end(group, sequence, failed, job);
            }
        }
    }

    /// The call of the repair group that finishes an operation.
    pub(super) fn repair(&self, group: u32, sequence: u64) -> Option<(Kind, Fingerprint)> {
        let place = &self.places[&group];
        let open = &place.open[&sequence];
        let kind = match place.repairs.get(&sequence).map(|repair| &repair.chunks[..]) {
            None | Some([]) => Kind::AllToAll,
            Some([pieces, ..]) => match pieces.first()?.holder {
                Some(holder) => Kind::Broadcast(holder),
                None => Kind::AllToAll,
            },
        };
        // Ranks that have not called the same do not do the same: their calls are not to meet.
        let mark = (open.issued.hash ^ open.issued.hash >> 32) as u32;
        let own = Fingerprint { mark, plan: 3, ..open.issued.fingerprint };
        Some(match kind {
            Kind::Broadcast(root) => (kind, Fingerprint { collective: BROADCAST, root, ..own }),
            _ => (kind, Fingerprint { collective: ALL_REDUCE, ..own }),
        })
    }
}
