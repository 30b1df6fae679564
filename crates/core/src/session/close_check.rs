//! How a rank that leaves a group finds out whether all members have made the same calls.
//!
//! A rank notices a mismatch when a frame arrives. A rank whose last calls only sent receives no frame that could show one, and
//! no later call of it would fail. So it asks before it leaves:
//!
//! ```text
//! member    Confirm      a question: its last operation, and the rolling hash after it
//! hub       Confirm      to all other members, once for the same calls
//! member    Confirmed    once it has completed that operation and all before it; if its own call differs, it disputes
//! hub       Confirmed    to all that asked, once every member has confirmed, has asked the same, has left or died
//! ```
//!
//! Control threads answer, not programs, and a member that has not made the call yet answers when it makes it. So
//! programs can close their groups in any order. A question stays with the members after the rank that asked has left,
//! so a member whose call differs still notices. A mismatch leads to a [fence](super::fence), as always.
//!
//! A member that leaves reports how many calls it has made. If a question is about a later call, the member has left
//! without it: the hub begins a fence, and a member that has the question already notices by itself.

use super::codec::{Malformed, Reader, Writer};
use crate::{group::Rank, wire::Fingerprint};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

/// How many questions of a group the hub knows; the oldest are forgotten first. Each is about calls of its own, so more than one
/// is a mismatch, or ranks that leave at different calls.
const QUESTIONS: usize = 64;

/// The last call of a rank that leaves a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseQuestion {
    /// The asking rank.
    pub rank: Rank,
    /// In which group.
    pub group: u32,
    /// In which generation of it.
    pub generation: u32,
    /// The rolling hash after the operation.
    pub hash: u64,
    /// The operation.
    pub fingerprint: Fingerprint,
}

/// A member, or all of them, have made the same calls up to an operation, and have completed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmation {
    /// The group.
    pub group: u32,
    /// Its generation.
    pub generation: u32,
    /// The operation.
    pub sequence: u64,
    /// The rolling hash after it.
    pub hash: u64,
}

impl CloseQuestion {
    /// The answer of a member that has made the same calls.
    pub fn confirmed(&self) -> Confirmation {
        let Self { group, generation, hash, fingerprint, .. } = *self;
        Confirmation { group, generation, sequence: fingerprint.sequence, hash }
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.rank);
        to.u32(self.group);
        to.u32(self.generation);
        to.u64(self.hash);
        to.fingerprint(&self.fingerprint);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (rank, group, generation, hash) = (from.u32()?, from.u32()?, from.u32()?, from.u64()?);
        Ok(Self { rank, group, generation, hash, fingerprint: from.fingerprint()? })
    }
}

impl Confirmation {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.u32(self.generation);
        to.u64(self.sequence);
        to.u64(self.hash);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, generation, sequence, hash) = (from.u32()?, from.u32()?, from.u64()?, from.u64()?);
        Ok(Self { group, generation, sequence, hash })
    }
}

/// The questions of one group's generation, at the hub.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// By the operation and the hash after it.
    asked: BTreeMap<(u64, u64), Asked>,
}

/// A question, and who has answered it.
#[derive(Debug)]
struct Asked {
    first: CloseQuestion,
    /// Who has made the same calls: has confirmed it, or asked the same.
    same: BTreeSet<Rank>,
    /// Who waits for the answer.
    waiting: BTreeSet<Rank>,
}

impl Questions {
    /// Returns whether nobody has asked the same before: then it is to be shown to the other members.
    pub(super) fn ask(&mut self, question: CloseQuestion) -> bool {
        let key = (question.fingerprint.sequence, question.hash);
        let is_new = !self.asked.contains_key(&key);
        let new = || Asked { first: question, same: BTreeSet::new(), waiting: BTreeSet::new() };
        let asked = self.asked.entry(key).or_insert_with(new);
        asked.same.insert(question.rank);
        asked.waiting.insert(question.rank);
        if self.asked.len() > QUESTIONS {
            self.asked.pop_first();
        }
        is_new
    }

    /// A member has made the same calls.
    pub(super) fn confirmed(&mut self, from: Rank, confirmation: &Confirmation) {
        if let Some(asked) = self.asked.get_mut(&(confirmation.sequence, confirmation.hash)) {
            asked.same.insert(from);
        }
    }

    /// The questions for each live member, once the live members are known.
    pub(super) fn shown(&self, live: &[Rank]) -> Vec<(Rank, CloseQuestion)> {
        let of = |asked: &Asked| {
            let others = live.iter().copied().filter(|rank| !asked.same.contains(rank));
            others.map(|rank| (rank, asked.first)).collect::<Vec<_>>()
        };
        self.asked.values().flat_map(of).collect()
    }

    /// The answers that all `live` members have made the same calls, with their receivers. Each receiver gets one once.
    pub(super) fn answered(&mut self, live: &[Rank]) -> Vec<(Rank, Confirmation)> {
        let mut answers = Vec::new();
        for asked in self.asked.values_mut() {
            if live.iter().all(|rank| asked.same.contains(rank)) {
                let confirmed = asked.first.confirmed();
                let waiting = core::mem::take(&mut asked.waiting).into_iter();
                answers.extend(waiting.filter(|rank| live.contains(rank)).map(|rank| (rank, confirmed)));
            }
        }
        answers
    }

    /// The first question about a call that comes after the first `made` ones.
    pub(super) fn beyond(&self, made: u64) -> Option<&CloseQuestion> {
        self.asked.range((made, 0)..).next().map(|(_, asked)| &asked.first)
    }

    /// Another generation begins.
    pub(super) fn clear(&mut self) {
        self.asked.clear();
    }
}
