//! Partial sums and their holders, for all algorithms that follow the canonical tree.

use super::owners::Node;
use crate::group::{Group, Rank};
use crate::schedule::{Chunk, Form, Origin, Place, ProgramBuilder};
use alloc::vec::Vec;
use core::ops::Range;

/// A node of the canonical tree whose partial sum a rank holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial {
    /// A fold key of the node.
    pub(super) key: u32,
    /// Who holds it.
    pub(super) holder: Rank,
    /// Plain for a lone input, the accumulator's for a sum.
    pub(super) form: Form,
}

impl Partial {
    /// A node's partial sum of a chunk, held by the chunk's owner.
    pub(super) fn of(node: &Node, chunk: Chunk, keys: &[u32]) -> Self {
        Self { key: keys[node.ranks.start as usize], holder: node.owner(chunk), form: node.form() }
    }

    /// The inputs of a group, each held by its own rank.
    pub(super) fn inputs(keys: &[u32]) -> Vec<Self> {
        let input = |(rank, key): (usize, &u32)| Self { key: *key, holder: rank as Rank, form: Form::Plain };
        keys.iter().enumerate().map(input).collect()
    }

    /// Where this rank reads it: in the place that holds it, or at the head of the holder's lane.
    pub(super) fn origin(&self, rank: Rank, held: Place) -> (u32, Origin) {
        let head = Origin::Head { lane: self.holder, form: self.form };
        (self.key, if self.holder == rank { Origin::At(held) } else { head })
    }
}

/// The inputs of a group's members, one each or several, over a buffer of so many chunks.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) group: Group,
    pub(super) chunks: u32,
}

impl Inputs {
    /// All inputs at a chunk, in the order of their keys, as `rank` reads them: its own in its user's buffer, those of others as
    /// these [send](Self::send) them.
    pub(super) fn sources(&self, rank: Rank, chunk: Chunk) -> Vec<(u32, Origin)> {
        let keys = self.group.keys();
        let of_member = |holder: Rank| {
            let inputs = self.group.inputs_of(holder);
            let first = inputs.start;
            inputs.map(move |input| {
                let own = Origin::At(self.place(input - first, chunk));
                let head = Origin::Head { lane: holder, form: Form::Plain };
                (keys[input as usize], if holder == rank { own } else { head })
            })
        };
        (0..self.group.size()).flat_map(of_member).collect()
    }

    /// Sends all inputs of a rank at a chunk.
    pub(super) fn send(&self, program: &mut ProgramBuilder, rank: Rank, chunk: Chunk, to: &[Rank]) {
        for input in 0..self.group.inputs_of(rank).len() as u32 {
            program.send(self.place(input, chunk), to.iter().copied());
        }
    }

    /// Where a member has one of its inputs at a chunk.
    fn place(&self, input: u32, chunk: Chunk) -> Place {
        Place::User(input * self.chunks + chunk)
    }
}

/// A merge of the canonical tree, as seen by one leaf below it: the side with the leaf and the side without, as
/// ranges of positions in the list of keys.
#[derive(Clone, Debug)]
pub(super) struct Merge {
    pub(super) mine: Range<usize>,
    pub(super) other: Range<usize>,
}

/// The merges on the way from a leaf to the root of the canonical tree over `keys`.
pub(super) fn merges_above(leaf: usize, keys: &[u32]) -> Vec<Merge> {
    let mut merges = Vec::new();
    let mut node = 0..keys.len();
    while node.len() > 1 {
        let bit = (keys[node.start] ^ keys[node.end - 1]).ilog2();
        let split = node.start + keys[node.clone()].partition_point(|key| key >> bit & 1 == 0);
        let (low, high) = (node.start..split, split..node.end);
        let (mine, other) = if leaf < split { (low, high) } else { (high, low) };
        node = mine.clone();
        merges.push(Merge { mine, other });
    }
    merges.reverse();
    merges
}

/// Folds `sources` into the result, on a rank that sends `held` to the ranks whose partial sums it folds.
///
/// If `held` is where the result belongs, the fold would have to wait for the send, the send for the other rank's
/// fold, and that one for its send to us: so the result waits beside it.
pub(super) fn finish(program: &mut ProgramBuilder, chunk: Chunk, sources: &[(u32, Origin)], held: Place) {
    let result = Place::User(chunk);
    if held == result {
        let beside = program.slot(Form::Plain);
        program.fold(chunk, sources, beside, true).copy(beside, result);
    } else {
        program.fold(chunk, sources, result, true);
    }
}
