//! The models of a checkpoint.

use super::standing::{HeldGlobal, HeldLocal, HeldModels};
use crate::group::Rank;
use alloc::{collections::BTreeMap, vec::Vec};

/// Bytes that are kept for others. Their meaning is the caller's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<M> {
    /// How many.
    pub bytes: u64,
    /// They themselves.
    pub data: M,
}

/// The result of a call, as it is kept.
#[derive(Clone, Debug)]
pub(super) struct KeptResult<M> {
    /// Of which [kind](super::ReplayCall::Collective) the call was.
    pub(super) kind: u64,
    pub(super) kept: Kept<M>,
}

/// A model that all ranks have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayGlobal<M> {
    /// Its bytes.
    Stored(Kept<M>),
    /// The program's own model, which is turned into bytes only if a rank asks for it.
    Lazy,
}

/// What a checkpoint has.
#[derive(Clone, Debug)]
pub(super) struct Models<M> {
    /// None at version 0.
    pub(super) global: Option<ReplayGlobal<M>>,
    /// Those of this rank and of the ranks before it.
    pub(super) locals: BTreeMap<Rank, Kept<M>>,
    /// Whether ranks have local models at all.
    pub(super) has_local: bool,
}

impl<M> Default for Models<M> {
    fn default() -> Self {
        Self { global: None, locals: BTreeMap::new(), has_local: false }
    }
}

impl<M> Models<M> {
    /// What others are told of it.
    pub(super) fn held(&self) -> HeldModels {
        let local = |(owner, local): (&Rank, &Kept<M>)| HeldLocal { owner: *owner, bytes: local.bytes };
        HeldModels {
            global: match &self.global {
                None => HeldGlobal::Absent,
                Some(ReplayGlobal::Stored(kept)) => HeldGlobal::Stored { bytes: kept.bytes },
                Some(ReplayGlobal::Lazy) => HeldGlobal::Lazy,
            },
            locals: self.locals.iter().map(local).collect::<Vec<_>>(),
            has_local: self.has_local,
        }
    }
}
