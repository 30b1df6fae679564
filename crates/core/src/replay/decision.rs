//! The messages between ranks after which all have, or hold, the results of all calls that any of them has completed.

use super::{
    ReplayError, ReplayPoint, ReplaySettings, distance,
    item::{ReplayItem, ReplayTransfer},
    standing::{HeldGlobal, HeldModels, ReplayPosition, ReplayStanding, ResultRun},
};
use crate::group::Rank;
use alloc::vec::Vec;

/// The consequence of the standings of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayDecision {
    /// The version at which all are, or which they reach with their next checkpoint.
    pub version: u32,
    /// How many calls of that version have a result.
    pub calls: u64,
    /// How many calls the version before has, if a rank is still in it.
    pub calls_before: Option<u64>,
    /// Whether some rank has loaded the checkpoint, and so makes no more calls of before.
    pub has_loaded: bool,
    /// The transfers, in the order in which all ranks make them.
    pub transfers: Vec<ReplayTransfer>,
}

/// The steps of all ranks, given the standings of all, by rank.
///
/// # Errors
/// [`ReplayError::Lost`] if no rank has an item that a rank needs; others if the ranks' programs have made different
/// calls.
pub fn decide(
    standings: &[ReplayStanding],
    settings: &ReplaySettings,
) -> Result<ReplayDecision, ReplayError> {
    check_options(standings)?;
    let positions = || (0..).zip(standings).filter_map(|(rank, it)| Some((rank, it.position.as_ref()?)));
    let newest = positions().map(|(_, position)| position.version).max().unwrap_or(0);
    let version = newest + u32::from(goes_on_with_next(newest, standings, settings));
    let view = View { standings, settings, version };
    let mut transfers = view.bootstraps()?;
    let calls = view.calls()?;
    let calls_before = view.calls_before()?;
    if version > 0 {
        view.globals(&mut transfers)?;
        view.locals(&mut transfers)?;
    }
    view.results(calls, calls_before, &mut transfers)?;
    let has_loaded = positions().any(|(_, position)| position.has_loaded);
    Ok(ReplayDecision { version, calls, calls_before, has_loaded, transfers })
}

/// That all ranks keep as much for others as these expect.
fn check_options(standings: &[ReplayStanding]) -> Result<(), ReplayError> {
    let Some(first) = standings.first() else { return Ok(()) };
    for (rank, other) in (0..).zip(standings) {
        for (option, first, value) in [
            ("rabit_global_replica", first.global_replica, other.global_replica),
            ("rabit_local_replica", first.local_replica, other.local_replica),
        ] {
            if first != value {
                return Err(ReplayError::UnlikeOptions { option, first, rank, value });
            }
        }
    }
    Ok(())
}

/// Whether nobody can give the newest version's model any more to a process that has just started, and some can give the next one.
fn goes_on_with_next(newest: u32, standings: &[ReplayStanding], settings: &ReplaySettings) -> bool {
    let view = View { standings, settings, version: newest };
    let next = View { version: newest + 1, ..view };
    let is_needed = newest > 0 && standings.iter().any(|standing| standing.position.is_none());
    let has_no_local = |rank: &Rank| next.models(*rank).is_some_and(|models| !models.has_local);
    is_needed && view.givers().next().is_none() && next.givers().any(|rank| has_no_local(&rank))
}

/// The standings, as seen from the version that is decided.
#[derive(Clone, Copy)]
struct View<'a> {
    standings: &'a [ReplayStanding],
    settings: &'a ReplaySettings,
    version: u32,
}

impl<'a> View<'a> {
    fn size(&self) -> u32 {
        self.standings.len() as u32
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        0..self.size()
    }

    fn standing(&self, rank: Rank) -> &'a ReplayStanding {
        &self.standings[rank as usize]
    }

    fn position(&self, rank: Rank) -> Option<&'a ReplayPosition> {
        self.standing(rank).position.as_ref()
    }

    /// Whether a rank is in the version before.
    fn is_behind(&self, rank: Rank) -> bool {
        self.position(rank).is_some_and(|position| position.version < self.version)
    }

    /// What a rank has of this version's checkpoint, once it has installed what it can.
    fn models(&self, rank: Rank) -> Option<&'a HeldModels> {
        let position = self.position(rank)?;
        match position.version == self.version {
            true => Some(&position.current),
            false => position.pending.as_ref().filter(|_| position.version + 1 == self.version),
        }
    }

    /// Who can give this version's global model.
    fn givers(self) -> impl Iterator<Item = Rank> + use<'a> {
        let gives = move |rank: &Rank| match self.models(*rank).map(|models| models.global) {
            None | Some(HeldGlobal::Absent) => false,
            Some(HeldGlobal::Stored { .. }) => true,
            // In the next checkpoint its program has changed it.
            Some(HeldGlobal::Lazy) => {
                let is_unchanged =
                    |position: &ReplayPosition| position.version < self.version || position.pending.is_none();
                !self.settings.rules.gives_only_unchanged_models
                    || self.position(*rank).is_some_and(is_unchanged)
            }
        };
        self.ranks().filter(gives)
    }

    /// Of those who have something, who is nearest to a rank.
    fn nearest(&self, to: Rank, has: impl Fn(Rank) -> bool) -> Option<Rank> {
        let others = self.ranks().filter(|rank| *rank != to);
        let holders = others.filter(|rank| !self.settings.rules.asks_holders_only || has(*rank));
        holders.min_by_key(|from| (distance(*from, to, self.size()), *from))
    }

    /// The results of calls before a checkpoint was loaded: all ranks have the beginning of one list.
    fn bootstraps(&self) -> Result<Vec<ReplayTransfer>, ReplayError> {
        let list = |rank: Rank| &self.standing(rank).bootstrap;
        let Some(longest) = self.ranks().max_by_key(|rank| (list(*rank).len(), u32::MAX - rank)) else {
            return Ok(Vec::new());
        };
        let mut transfers = Vec::new();
        for to in self.ranks() {
            let have = list(to).len();
            if list(longest)[..have] != list(to)[..] {
                return Err(ReplayError::UnlikeBootstraps { rank: to, other: longest });
            }
            for (at, held) in list(longest).iter().enumerate().skip(have) {
                let item = ReplayItem::Bootstrap(held.site);
                let from = self.nearest(to, |rank| list(rank).len() > at);
                let from = from.ok_or(ReplayError::Lost { item, needed_by: to })?;
                transfers.push(ReplayTransfer {
                    item,
                    from,
                    to,
                    kind: Some(held.kind),
                    bytes: Some(held.bytes),
                });
            }
        }
        Ok(transfers)
    }

    /// How many calls of a version a rank has results of without a gap.
    fn reach(&self, rank: Rank, version: u32) -> u64 {
        let Some(position) = self.position(rank) else { return 0 };
        let mut point =
            ReplayPoint { version, call: if position.version == version { position.calls } else { 0 } };
        while let Some(run) = run_with(&position.results, point) {
            point = run.next();
        }
        point.call
    }

    /// How many calls of this version have a result.
    fn calls(&self) -> Result<u64, ReplayError> {
        let reached = self.ranks().map(|rank| (self.reach(rank, self.version), rank));
        let (calls, furthest) = reached.max().unwrap_or((0, 0));
        self.check_ends(self.version, calls, furthest)?;
        Ok(calls)
    }

    /// That all who know how many calls a version has know the same.
    fn check_ends(&self, version: u32, calls: u64, furthest: Rank) -> Result<(), ReplayError> {
        let ends = |rank: &Rank| {
            let position = self.position(*rank).filter(|position| position.version == version);
            position.and_then(|position| position.closes_at).is_some_and(|at| at != calls)
        };
        match self.ranks().find(ends) {
            None => Ok(()),
            Some(rank) => Err(ReplayError::UnlikeEnds {
                version,
                rank,
                calls: self.position(rank).and_then(|position| position.closes_at).unwrap_or(0),
                other: furthest,
                others_calls: calls,
            }),
        }
    }

    /// How many calls the version before has, if ranks are still in it: they know, or others are in its checkpoint and know it.
    fn calls_before(&self) -> Result<Option<u64>, ReplayError> {
        let behind = || self.ranks().filter(|rank| self.is_behind(*rank));
        let apart = |rank: Rank| ReplayError::Apart {
            rank,
            version: self.position(rank).map_or(0, |position| position.version),
            newest: self.version,
        };
        if let Some(rank) = behind()
            .find(|rank| self.position(*rank).is_some_and(|position| position.version + 1 < self.version))
        {
            return Err(apart(rank));
        }
        let known = behind().find_map(|rank| Some((self.position(rank)?.closes_at?, rank)));
        match (known, behind().next()) {
            (_, None) => Ok(None),
            (None, Some(rank)) => Err(apart(rank)),
            (Some((calls, rank)), Some(_)) => {
                self.check_ends(self.version - 1, calls, rank)?;
                Ok(Some(calls))
            }
        }
    }

    /// The global model, for those who have just started.
    fn globals(&self, transfers: &mut Vec<ReplayTransfer>) -> Result<(), ReplayError> {
        let givers: Vec<Rank> = self.givers().collect();
        for to in self.ranks().filter(|rank| self.position(*rank).is_none()) {
            let item = ReplayItem::Global { version: self.version };
            let from = self.nearest(to, |rank| givers.contains(&rank));
            let from = from.ok_or(ReplayError::Lost { item, needed_by: to })?;
            let bytes = match self.models(from).map(|models| models.global) {
                Some(HeldGlobal::Stored { bytes }) => Some(bytes),
                _ => None,
            };
            transfers.push(ReplayTransfer { item, from, to, kind: None, bytes });
        }
        Ok(())
    }

    /// Local models: for their owners, if these have just started, and for those who keep them for others.
    fn locals(&self, transfers: &mut Vec<ReplayTransfer>) -> Result<(), ReplayError> {
        let size = self.size();
        let are_used = self.ranks().any(|rank| self.models(rank).is_some_and(|models| models.has_local));
        if !are_used {
            return Ok(());
        }
        let held = |rank: Rank, owner: Rank| {
            let locals = self.models(rank).map_or(&[][..], |models| &models.locals);
            locals.iter().find(|local| local.owner == owner).map(|local| local.bytes)
        };
        for to in self.ranks() {
            let copies = self.settings.local_replica.min(size - 1);
            for owner in (0..=copies).map(|back| (to + size - back) % size) {
                if held(to, owner).is_some() {
                    continue;
                }
                let item = ReplayItem::Local { version: self.version, owner };
                let from = self.nearest(to, |rank| held(rank, owner).is_some());
                let from = from.ok_or(ReplayError::Lost { item, needed_by: owner })?;
                transfers.push(ReplayTransfer { item, from, to, kind: None, bytes: held(from, owner) });
            }
        }
        Ok(())
    }

    /// The results that ranks lack: of this version, and of the version before for those who are still in it.
    fn results(
        &self,
        calls: u64,
        calls_before: Option<u64>,
        transfers: &mut Vec<ReplayTransfer>,
    ) -> Result<(), ReplayError> {
        for to in self.ranks() {
            if let Some(calls) = calls_before.filter(|_| self.is_behind(to)) {
                self.results_of(self.version - 1, calls, to, transfers)?;
            }
            self.results_of(self.version, calls, to, transfers)?;
        }
        Ok(())
    }

    fn results_of(
        &self,
        version: u32,
        calls: u64,
        to: Rank,
        transfers: &mut Vec<ReplayTransfer>,
    ) -> Result<(), ReplayError> {
        let held = |rank: Rank, point: ReplayPoint| {
            let runs = self.position(rank).map_or(&[][..], |position| &position.results);
            run_with(runs, point)
        };
        for call in self.reach(to, version)..calls {
            let point = ReplayPoint { version, call };
            if held(to, point).is_some() {
                continue;
            }
            let item = ReplayItem::Result(point);
            let from = self.nearest(to, |rank| held(rank, point).is_some());
            let from = from.ok_or(ReplayError::Lost { item, needed_by: to })?;
            let (kind, bytes) = held(from, point).map(|run| (run.kind, run.bytes)).unzip();
            transfers.push(ReplayTransfer { item, from, to, kind, bytes });
        }
        Ok(())
    }
}

/// The run that has a call's result. Runs are in order; among others it is not found.
fn run_with(runs: &[ResultRun], point: ReplayPoint) -> Option<&ResultRun> {
    let next = runs.partition_point(|run| run.first <= point);
    runs[..next].last().filter(|run| run.has(point))
}
