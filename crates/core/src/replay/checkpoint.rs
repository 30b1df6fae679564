//! A member's checkpoints: the offers of ranks to each other, and the models that they hand on.

use super::{
    ReplayError, ReplayGlobal,
    member::{InCall, ReplayMember, ReplayPart, ReplayPayload},
    models::{Kept, Models},
    progress::CheckpointPhase,
    standing::CheckpointOffer,
};
use alloc::vec::Vec;

impl<M: Clone> ReplayMember<M> {
    pub(super) fn begin_checkpoint(
        &mut self,
        global: ReplayGlobal<M>,
        local: Option<Kept<M>>,
    ) -> Result<InCall, ReplayError> {
        self.check_no_more_calls()?;
        let rank = self.rank;
        let Some(progress) = &mut self.progress else {
            return Err(ReplayError::NotLoaded { rank, version: 0 });
        };
        if !progress.has_loaded && progress.version > 0 {
            return Err(ReplayError::NotLoaded { rank, version: progress.version });
        }
        progress.has_loaded = true;
        let has_local = local.is_some();
        let locals = local.map(|local| (rank, local)).into_iter().collect();
        progress.pending = Some(Models { global: Some(global), locals, has_local });
        // Others have ended this version, so nobody waits for this rank in its checkpoint.
        if progress.closes_at.is_some() {
            progress.install();
            return Ok(InCall::Checkpoint(CheckpointPhase::Installed));
        }
        progress.closes_at = Some(progress.calls);
        Ok(InCall::Checkpoint(CheckpointPhase::Offer))
    }

    pub(super) fn offer(&self) -> CheckpointOffer {
        let progress = self.progress.as_ref();
        let pending = progress.and_then(|progress| progress.pending.as_ref());
        let local = pending.and_then(|pending| pending.locals.get(&self.rank));
        CheckpointOffer {
            calls: progress.map_or(0, |progress| progress.calls),
            local: local.map(|local| local.bytes),
        }
    }

    /// All ranks are in this checkpoint, and offer these, by rank.
    ///
    /// # Errors
    /// If they do not fit each other: the same error on all ranks.
    pub fn offered(&mut self, offers: &[CheckpointOffer]) -> Result<(), ReplayError> {
        let mine = self.offer();
        for (other, offer) in (0..).zip(offers) {
            let first = offers[0];
            if offer.calls != first.calls {
                let version = self.version();
                let (rank, calls) = (0, first.calls);
                return Err(ReplayError::UnlikeEnds {
                    version,
                    rank,
                    calls,
                    other,
                    others_calls: offer.calls,
                });
            }
            if offer.local.is_some() != first.local.is_some() {
                let (with, without) = if offer.local.is_some() { (other, 0) } else { (0, other) };
                return Err(ReplayError::UnlikeLocals { with, without });
            }
        }
        match mine.local {
            None => self.install(),
            Some(_) => self.call = InCall::Checkpoint(CheckpointPhase::Hand(offers.to_vec())),
        }
        Ok(())
    }

    /// To and from whom local models go: each rank's own to so many ranks after it.
    pub(super) fn hands(&self, offers: &[CheckpointOffer]) -> Vec<ReplayPart<M>> {
        let (me, size) = (self.rank, self.size);
        let mine = self.progress.as_ref().and_then(|progress| progress.pending.as_ref()?.locals.get(&me));
        let mut parts = Vec::new();
        for steps in 1..=self.copies() {
            let (to, from) = ((me + steps) % size, (me + size - steps) % size);
            parts
                .extend(mine.map(|mine| ReplayPart::Send { to, payload: ReplayPayload::Kept(mine.clone()) }));
            parts.push(ReplayPart::Receive { from, bytes: offers[from as usize].local });
        }
        parts
    }

    /// On how many other ranks a local model is kept.
    fn copies(&self) -> u32 {
        self.settings.local_replica.min(self.size - 1)
    }

    pub(super) fn handed(&mut self, arrived: Vec<Kept<M>>) {
        let InCall::Checkpoint(phase @ CheckpointPhase::Hand(_)) = &mut self.call else { return };
        *phase = CheckpointPhase::Meet;
        let (me, size) = (self.rank, self.size);
        if let Some(pending) = self.progress.as_mut().and_then(|progress| progress.pending.as_mut()) {
            let from = (1..).map(|steps| (me + size - steps) % size);
            pending.locals.extend(from.zip(arrived));
        }
        if !self.settings.rules.checkpoints_in_two_phases {
            self.install();
        }
    }

    pub(super) fn install(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.install();
            progress.results.drop_before(progress.version);
        }
        self.call = InCall::Checkpoint(CheckpointPhase::Installed);
    }
}
