//! One rank's machine.

use super::{
    ReplayDecision, ReplayError, ReplayItem, ReplayPoint, ReplaySettings, ReplayTransfer,
    bootstrap::BootstrapResults,
    decide,
    error::ReplayCallName,
    models::{Kept, KeptResult, ReplayGlobal},
    progress::{CheckpointPhase, ReplayProgress},
    results::KeptResults,
    standing::{CallSite, CheckpointOffer, ReplayStanding},
};
use crate::group::Rank;
use alloc::vec::Vec;

/// A call of the program.
#[derive(Clone, Debug)]
pub enum ReplayCall<M> {
    /// It begins: it takes its place among the ranks.
    Join,
    /// An all-reduce, a broadcast or an all-gather: its result is the same on all ranks.
    Collective {
        /// How many bytes its result has.
        bytes: u64,
        /// Whether its result proves that all ranks have made the call: all of them contributed to it.
        proves_all: bool,
        /// A number for the collective, its type, and its operation.
        kind: u64,
        /// A hash of the place in the program's text; 0 if it is not known.
        place: u64,
    },
    /// It loads the last checkpoint, or sees that there is none.
    Load,
    /// It ends a version.
    Checkpoint {
        /// The model that all ranks have.
        global: ReplayGlobal<M>,
        /// This rank's own.
        local: Option<Kept<M>>,
    },
    /// It ends.
    Finalize,
}

/// The data that a rank sends.
#[derive(Clone, Debug)]
pub enum ReplayPayload<M> {
    /// An item that it keeps.
    Kept(Kept<M>),
    /// The program's own model, which is turned into bytes now.
    Lazy,
}

/// A message of a [transfer](ReplayStep::Transfer). Messages from one rank to another come in the order in which they are sent.
#[derive(Clone, Debug)]
pub enum ReplayPart<M> {
    /// This rank sends.
    Send {
        /// The receiver.
        to: Rank,
        /// The data.
        payload: ReplayPayload<M>,
    },
    /// This rank receives.
    Receive {
        /// The sender.
        from: Rank,
        /// How many bytes; `None` for a lazy model, whose sender first reports its length.
        bytes: Option<u64>,
    },
}

/// The next step. If a step fails because a rank is lost, call [`lost`](ReplayMember::lost).
#[derive(Clone, Debug)]
pub enum ReplayStep<M> {
    /// Re-form the group with all ranks, then call [`formed`](ReplayMember::formed).
    Regroup,
    /// Gather the [standings](ReplayMember::standing) of all ranks; then [`decided`](ReplayMember::decided).
    Exchange,
    /// Send and receive all of these; then [`moved`](ReplayMember::moved).
    Transfer(Vec<ReplayPart<M>>),
    /// Run the collective, on the input as it was when the call began; then [`ran`](ReplayMember::ran).
    Run,
    /// Gather these of all ranks; then [`offered`](ReplayMember::offered).
    Offer(CheckpointOffer),
    /// Wait at a barrier; then [`met`](ReplayMember::met).
    Meet,
    /// The collective is over: others have kept its result.
    Replayed(Kept<M>),
    /// The call is over.
    Done,
}

/// How far the ranks are with each other.
#[derive(Clone, Debug)]
enum Formation {
    /// Some rank is lost.
    Broken,
    /// A group is there, and nobody knows how far the others are.
    Formed,
    /// All know, and send each other what is lacking: this rank gets so much.
    Decided(ReplayDecision, Vec<ReplayTransfer>),
    /// All have, or hold, the same results.
    Level,
}

/// Ranks leave after so many barriers in a row. Who passes the first one knows that all have come to their end, and who passes the second
/// that all know it. So who is in the first one may rely on those who have passed it only: they come again if a process is lost.
const LAST_BARRIER: u8 = 2;

/// The call that a program is in.
#[derive(Clone, Debug)]
pub(super) enum InCall {
    /// What needs only that the ranks are level.
    Join,
    Load,
    Collective {
        bytes: u64,
        proves_all: bool,
        kind: u64,
        at: ReplayPlace,
    },
    Checkpoint(CheckpointPhase),
    /// How many barriers this rank has passed in a row, and whether it has passed one at all: then all have come to their end.
    Finalize {
        passed: u8,
        all_ended: bool,
    },
    /// It is over.
    Over,
}

/// Where a collective stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplayPlace {
    Bootstrap(CallSite),
    Version(ReplayPoint),
}

/// One rank's state machine. A program's call [begins](Self::begin), and then [`step`](Self::step) gives the steps
/// until it is over. `M` keeps bytes, and clones of it are cheap.
#[derive(Clone, Debug)]
pub struct ReplayMember<M> {
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) settings: ReplaySettings,
    formation: Formation,
    pub(super) call: InCall,
    pub(super) progress: Option<ReplayProgress<M>>,
    bootstrap: BootstrapResults<M>,
    others_have_loaded: bool,
}

impl<M: Clone> ReplayMember<M> {
    /// A process that has just joined a group of `size` ranks. Its first call is [`ReplayCall::Join`].
    pub fn new(rank: Rank, size: u32, settings: ReplaySettings) -> Self {
        Self {
            rank,
            size,
            settings,
            formation: Formation::Formed,
            call: InCall::Over,
            progress: None,
            bootstrap: BootstrapResults::default(),
            others_have_loaded: false,
        }
    }

    /// How many checkpoints there are.
    pub fn version(&self) -> u32 {
        self.progress.as_ref().map_or(0, |progress| progress.version)
    }

    /// The call that is next, or in which the program is.
    pub fn point(&self) -> ReplayPoint {
        self.progress.as_ref().map_or(ReplayPoint { version: 0, call: 0 }, ReplayProgress::point)
    }

    /// The checkpoint's global model, which is none at version 0, and this rank's local one.
    pub fn loaded(&self) -> (Option<&ReplayGlobal<M>>, Option<&Kept<M>>) {
        let current = self.progress.as_ref().map(|progress| &progress.current);
        let global = current.and_then(|current| current.global.as_ref());
        (global, current.and_then(|current| current.locals.get(&self.rank)))
    }

    /// How many bytes of results it keeps, from calls since the last checkpoint and from calls before it was loaded.
    pub fn kept_bytes(&self) -> u64 {
        self.bootstrap.bytes() + self.progress.as_ref().map_or(0, |progress| progress.results.bytes())
    }

    /// A call begins. The one before is over, or has failed.
    ///
    /// # Errors
    /// If the program cannot make it here.
    pub fn begin(&mut self, call: ReplayCall<M>) -> Result<(), ReplayError> {
        self.call = match call {
            ReplayCall::Join => InCall::Join,
            ReplayCall::Load => self.begin_load()?,
            ReplayCall::Finalize => {
                self.check_no_more_calls()?;
                InCall::Finalize { passed: 0, all_ended: false }
            }
            ReplayCall::Collective { bytes, proves_all, kind, place } => {
                let loaded = self.progress.as_ref().filter(|progress| progress.has_loaded);
                let at = loaded.map_or_else(
                    || ReplayPlace::Bootstrap(self.bootstrap.next_at(place)),
                    |progress| ReplayPlace::Version(progress.point()),
                );
                InCall::Collective { bytes, proves_all, kind, at }
            }
            ReplayCall::Checkpoint { global, local } => self.begin_checkpoint(global, local)?,
        };
        Ok(())
    }

    fn begin_load(&self) -> Result<InCall, ReplayError> {
        match &self.progress {
            Some(ReplayProgress { has_loaded: true, version, calls, .. }) if *calls > 0 => {
                Err(ReplayError::LateLoad { rank: self.rank, version: *version, calls: *calls })
            }
            _ => Ok(InCall::Load),
        }
    }

    /// That the others have made no call that this rank lacks.
    pub(super) fn check_no_more_calls(&self) -> Result<(), ReplayError> {
        let Some(progress) = &self.progress else { return Ok(()) };
        let next = progress.point();
        let is_short = progress.closes_at.is_some_and(|calls| calls > next.call);
        if progress.has_loaded && (is_short || progress.results.get(next).is_some()) {
            return Err(ReplayError::Missing { rank: self.rank, call: ReplayCallName::At(next) });
        }
        Ok(())
    }

    /// The next step in this call.
    ///
    /// # Errors
    /// If the program has made other calls than the others, or before.
    pub fn step(&mut self) -> Result<ReplayStep<M>, ReplayError> {
        match &self.formation {
            Formation::Broken if self.is_ended() => Ok(ReplayStep::Done),
            Formation::Broken => Ok(ReplayStep::Regroup),
            Formation::Formed => Ok(ReplayStep::Exchange),
            Formation::Decided(decision, _) => Ok(ReplayStep::Transfer(self.parts(decision)?)),
            Formation::Level => self.step_of_call(),
        }
    }

    /// Whether the call needs nobody any more.
    fn is_ended(&self) -> bool {
        matches!(
            self.call,
            InCall::Over
                | InCall::Checkpoint(CheckpointPhase::Installed)
                | InCall::Finalize { passed: LAST_BARRIER, .. }
        )
    }

    fn step_of_call(&mut self) -> Result<ReplayStep<M>, ReplayError> {
        match &self.call {
            InCall::Collective { .. } => self.collective(),
            InCall::Checkpoint(CheckpointPhase::Offer) => Ok(ReplayStep::Offer(self.offer())),
            InCall::Checkpoint(CheckpointPhase::Hand(offers)) => Ok(ReplayStep::Transfer(self.hands(offers))),
            InCall::Load => {
                self.progress.iter_mut().for_each(|progress| progress.has_loaded = true);
                Ok(self.over())
            }
            InCall::Join
            | InCall::Over
            | InCall::Checkpoint(CheckpointPhase::Installed)
            | InCall::Finalize { passed: LAST_BARRIER, .. } => Ok(self.over()),
            InCall::Checkpoint(CheckpointPhase::Meet) | InCall::Finalize { .. } => Ok(ReplayStep::Meet),
        }
    }

    fn over(&mut self) -> ReplayStep<M> {
        self.call = InCall::Over;
        ReplayStep::Done
    }

    fn collective(&mut self) -> Result<ReplayStep<M>, ReplayError> {
        let InCall::Collective { bytes, proves_all, kind, at } = self.call else { return Ok(self.over()) };
        let rank = self.rank;
        let (kept, is_past, call) = match at {
            ReplayPlace::Bootstrap(site) => {
                (self.bootstrap.get(site), self.others_have_loaded, ReplayCallName::Bootstrap(site.nth))
            }
            ReplayPlace::Version(point) => {
                let progress = self.progress.as_ref();
                let kept = progress.and_then(|progress| progress.results.get(point));
                let ends_here = progress.is_some_and(|progress| progress.closes_at == Some(point.call));
                (kept, ends_here, ReplayCallName::At(point))
            }
        };
        match kept.cloned() {
            Some(KeptResult { kept, .. }) if kept.bytes != bytes => {
                Err(ReplayError::UnlikeSizes { rank, call, called: bytes, kept: kept.bytes })
            }
            Some(result) if result.kind != kind => Err(ReplayError::UnlikeCalls { rank, call }),
            Some(KeptResult { kept, .. }) => {
                self.passed(at, proves_all);
                Ok(ReplayStep::Replayed(kept))
            }
            None if is_past => Err(ReplayError::Extra { rank, call }),
            None => Ok(ReplayStep::Run),
        }
    }

    /// The program has the result of a call.
    fn passed(&mut self, at: ReplayPlace, proves_all: bool) {
        match at {
            ReplayPlace::Bootstrap(site) => self.bootstrap.passed(site),
            ReplayPlace::Version(point) => {
                if let Some(progress) = &mut self.progress {
                    progress.calls += 1;
                    progress.results.passed(point, proves_all);
                }
            }
        }
        self.call = InCall::Over;
    }

    /// The collective has run, with this result.
    pub fn ran(&mut self, result: Kept<M>) {
        let InCall::Collective { proves_all, kind, at, .. } = self.call else { return };
        let result = KeptResult { kind, kept: result };
        match at {
            ReplayPlace::Bootstrap(site) => self.bootstrap.insert(site, result),
            ReplayPlace::Version(point) => {
                self.progress.iter_mut().for_each(|progress| progress.results.insert(point, result.clone()));
            }
        }
        self.passed(at, proves_all);
    }

    /// A rank is lost, or the way to it.
    pub fn lost(&mut self) {
        self.formation = Formation::Broken;
        match &mut self.call {
            InCall::Checkpoint(phase @ (CheckpointPhase::Hand(_) | CheckpointPhase::Meet)) => {
                *phase = CheckpointPhase::Offer
            }
            InCall::Finalize { passed, .. } => *passed = 0,
            _ => {}
        }
    }

    /// The group is formed again, with all ranks.
    pub fn formed(&mut self) {
        self.formation = Formation::Formed;
    }

    /// The items and the progress of this rank.
    pub fn standing(&self) -> ReplayStanding {
        ReplayStanding {
            position: self.progress.as_ref().map(ReplayProgress::position),
            bootstrap: self.bootstrap.held(),
            ..ReplayStanding::of_new(&self.settings)
        }
    }

    /// The standings of all ranks are here, by rank.
    ///
    /// # Errors
    /// If the program cannot continue: the same error on all ranks.
    pub fn decided(&mut self, standings: &[ReplayStanding]) -> Result<(), ReplayError> {
        let decision = decide(standings, &self.settings)?;
        self.others_have_loaded = decision.has_loaded;
        if let Some(progress) = self.progress.as_mut().filter(|progress| progress.version < decision.version)
        {
            match progress.pending.is_some() {
                // Those who are behind may need the results of its version, so they stay until the next checkpoint.
                true => {
                    progress.install();
                    self.call = InCall::Checkpoint(CheckpointPhase::Installed);
                }
                false => progress.closes_at = decision.calls_before,
            }
        }
        let mine = decision.transfers.iter().filter(|transfer| transfer.to == self.rank);
        let arrive = mine.copied().collect();
        self.formation = Formation::Decided(decision, arrive);
        Ok(())
    }

    /// This rank's part in what was decided.
    fn parts(&self, decision: &ReplayDecision) -> Result<Vec<ReplayPart<M>>, ReplayError> {
        let mut parts = Vec::new();
        for transfer in &decision.transfers {
            if transfer.from == self.rank {
                let payload = self.payload(&transfer.item);
                let payload = payload.ok_or(ReplayError::NotHeld { rank: self.rank, item: transfer.item })?;
                parts.push(ReplayPart::Send { to: transfer.to, payload });
            } else if transfer.to == self.rank {
                parts.push(ReplayPart::Receive { from: transfer.from, bytes: transfer.bytes });
            }
        }
        Ok(parts)
    }

    fn payload(&self, item: &ReplayItem) -> Option<ReplayPayload<M>> {
        let progress = self.progress.as_ref();
        let current = |version: u32| {
            progress.filter(|progress| progress.version == version).map(|progress| &progress.current)
        };
        let kept = match item {
            ReplayItem::Bootstrap(site) => self.bootstrap.get(*site).map(|result| &result.kept),
            ReplayItem::Global { version } => match current(*version)?.global.as_ref()? {
                ReplayGlobal::Lazy => return Some(ReplayPayload::Lazy),
                ReplayGlobal::Stored(kept) => Some(kept),
            },
            ReplayItem::Local { version, owner } => current(*version)?.locals.get(owner),
            ReplayItem::Result(point) => progress?.results.get(*point).map(|result| &result.kept),
        };
        kept.cloned().map(ReplayPayload::Kept)
    }

    /// All data of a [transfer](ReplayStep::Transfer) for this rank is here, in its order, and all data that it had to
    /// send is on its way.
    pub fn moved(&mut self, arrived: Vec<Kept<M>>) {
        match core::mem::replace(&mut self.formation, Formation::Level) {
            Formation::Decided(decision, mine) => self.take_over(&decision, mine, arrived),
            formation => {
                self.formation = formation;
                self.handed(arrived);
            }
        }
    }

    fn take_over(
        &mut self,
        decision: &ReplayDecision,
        transfers: Vec<ReplayTransfer>,
        arrived: Vec<Kept<M>>,
    ) {
        let results = || KeptResults::new(self.rank, self.size, &self.settings);
        let mut progress =
            self.progress.take().unwrap_or_else(|| ReplayProgress::begins(decision.version, results()));
        for (ReplayTransfer { item, kind, .. }, kept) in transfers.into_iter().zip(arrived) {
            let result = |kept| KeptResult { kind: kind.unwrap_or(0), kept };
            match item {
                ReplayItem::Bootstrap(site) => self.bootstrap.insert(site, result(kept)),
                ReplayItem::Global { .. } => progress.current.global = Some(ReplayGlobal::Stored(kept)),
                ReplayItem::Local { owner, .. } => {
                    progress.current.has_local = true;
                    progress.current.locals.insert(owner, kept);
                }
                ReplayItem::Result(point) => progress.results.insert(point, result(kept)),
            }
        }
        self.progress = Some(progress);
    }

    /// All ranks have reached the barrier.
    pub fn met(&mut self) {
        match &mut self.call {
            InCall::Finalize { passed, all_ended } => {
                *passed += 1;
                *all_ended = true;
            }
            InCall::Checkpoint(CheckpointPhase::Meet) => self.install(),
            _ => {}
        }
    }

    /// Whether all ranks are known to have reached their end. Then ranks that cannot meet once more, because others
    /// have left, do not need to.
    pub fn may_leave(&self) -> bool {
        matches!(self.call, InCall::Finalize { all_ended: true, .. })
    }

    /// This rank [may leave](Self::may_leave), and the others have not met once more.
    pub fn leave(&mut self) {
        if self.may_leave() {
            self.call = InCall::Over;
        }
    }
}
