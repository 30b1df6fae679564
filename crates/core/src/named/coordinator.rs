//! Rank 0's book: which ranks have asked for which name.

use super::{
    MalformedList, NamedAnswer, NamedKind, NamedRequest, Stall, StallSettings, Tuning, checks,
    message::decode_requests, stall,
};
use crate::group::Rank;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::time::Duration;

/// Counts the ranks that are ready for each name, and decides what all ranks run.
#[derive(Debug)]
pub struct Coordinator {
    size: u32,
    /// The ranks that have no more data.
    joined: BTreeSet<Rank>,
    last_joined: Rank,
    table: BTreeMap<String, Tallied>,
    /// The names of each group for which all ranks are ready.
    ready_of_group: BTreeMap<String, Vec<String>>,
    /// The names of which something was heard since the last answer, in the order in which it was.
    touched: Vec<String>,
    stall: StallSettings,
    next_look: Duration,
    tuned: Option<Tuning>,
}

/// The requests for one name.
#[derive(Debug)]
struct Tallied {
    requests: BTreeMap<Rank, NamedRequest>,
    since: Duration,
}

/// A rank is ready for an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The operation's name.
    pub name: String,
    /// Its kind.
    pub kind: NamedKind,
    /// The rank.
    pub rank: Rank,
}

impl Coordinator {
    /// The coordinator of `size` ranks.
    pub fn new(size: u32, stall: StallSettings) -> Self {
        Self {
            size,
            joined: BTreeSet::new(),
            last_joined: 0,
            table: BTreeMap::new(),
            ready_of_group: BTreeMap::new(),
            touched: Vec::new(),
            stall,
            next_look: stall.warning,
            tuned: None,
        }
    }

    /// Reads the list of a rank. Returns the requests for which it is ready.
    ///
    /// # Errors
    /// If the bytes are no list.
    pub fn receive(
        &mut self,
        rank: Rank,
        list: &[u8],
        now: Duration,
    ) -> Result<Vec<Readiness>, MalformedList> {
        let mut ready = Vec::new();
        for request in decode_requests(list)? {
            let (name, kind) = (request.name.clone(), request.call.kind);
            if kind == NamedKind::Join {
                self.joins(rank);
                continue;
            }
            let tallied = self.table.entry(name.clone());
            let tallied = tallied.or_insert_with(|| Tallied { requests: BTreeMap::new(), since: now });
            tallied.requests.insert(rank, request);
            self.touched.push(name.clone());
            ready.push(Readiness { name, kind, rank });
        }
        Ok(ready)
    }

    /// Makes all ranks use other parameters.
    pub fn tune(&mut self, tuning: Tuning) {
        self.tuned = Some(tuning);
    }

    /// Whether it has something to tell that no rank has asked for.
    pub fn speaks(&self) -> bool {
        self.tuned.is_some()
    }

    /// The answers to all ranks now.
    pub fn answer(&mut self) -> Vec<NamedAnswer> {
        let mut answers: Vec<NamedAnswer> = self.tuned.take().map(NamedAnswer::Tuned).into_iter().collect();
        for name in core::mem::take(&mut self.touched) {
            if self.is_ready(&name) {
                self.release(name, &mut answers);
            }
        }
        if self.joined.len() == self.size as usize {
            // What groups lack will not come.
            let halves: Vec<String> =
                core::mem::take(&mut self.ready_of_group).into_values().flatten().collect();
            answers.extend(halves.iter().filter_map(|name| self.settle(name)));
            self.joined.clear();
            answers.push(NamedAnswer::Joined { last: self.last_joined });
        }
        answers
    }

    /// The operations that have waited too long for some ranks, if it is time to look and there are any.
    pub fn look(&mut self, now: Duration) -> Option<Stall> {
        if self.stall.warning.is_zero() || now < self.next_look {
            return None;
        }
        self.next_look = now + self.stall.warning.min(Duration::from_secs(1));
        let Self { table, joined, size, stall, .. } = self;
        let missing = |tallied: &Tallied| {
            (0..*size).filter(|rank| !tallied.requests.contains_key(rank) && !joined.contains(rank)).collect()
        };
        let waiting = table
            .iter()
            .map(|(name, tallied)| (name.as_str(), now.saturating_sub(tallied.since), missing(tallied)));
        let report = stall::report(waiting, stall);
        if report.is_some() {
            self.next_look = now + self.stall.warning;
        }
        report
    }

    fn joins(&mut self, rank: Rank) {
        if self.joined.insert(rank) {
            self.last_joined = rank;
            // What waited for this rank only may be ready now.
            self.touched.extend(self.table.keys().cloned());
        }
    }

    fn is_ready(&self, name: &str) -> bool {
        let Some(tallied) = self.table.get(name) else { return false };
        let absent = self.joined.iter().filter(|rank| !tallied.requests.contains_key(rank)).count();
        tallied.requests.len() + absent == self.size as usize
    }

    /// Answers a name for which all ranks are ready; one of a group only together with the others.
    fn release(&mut self, name: String, answers: &mut Vec<NamedAnswer>) {
        let group = self.table.get(&name).and_then(|tallied| tallied.requests.values().next()?.group.clone());
        let Some(group) = group else {
            answers.extend(self.settle(&name));
            return;
        };
        let ready = self.ready_of_group.entry(group.name.clone()).or_default();
        if !ready.contains(&name) {
            ready.push(name);
        }
        if ready.len() >= group.members as usize {
            let names = self.ready_of_group.remove(&group.name).unwrap_or_default();
            answers.extend(names.iter().filter_map(|name| self.settle(name)));
        }
    }

    fn settle(&mut self, name: &str) -> Option<NamedAnswer> {
        let tallied = self.table.remove(name)?;
        let any_joined = self.joined.iter().any(|rank| !tallied.requests.contains_key(rank));
        Some(match checks::agree(&tallied.requests, self.size, any_joined) {
            Ok(response) => NamedAnswer::Run(response),
            Err(text) => NamedAnswer::Fail { name: name.into(), text },
        })
    }
}
