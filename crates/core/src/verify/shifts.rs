//! The terms of other ranks, if one stands for all: counterparts of that rank's terms.
//!
//! Terms can have counterparts in two ways. Sums **in the canonical order**: nodes of the canonical tree that are runs
//! of ranks with all values of their lower digits are counterparts of each other. A term that is the sum of such a
//! node, of inputs or of coded ones, has a counterpart: the sum of another node. Other terms have none. Sums that
//! **turn** with the ranks, as in a ring: a term's counterpart is made of the counterparts of its inputs in the same
//! order, and each term has [one](super::orbits).

use super::{
    graph::Node,
    terms::{Term, Terms},
};
use crate::{
    group::{Group, merges},
    schedule::{Chunk, Rank, Symmetry, ascends},
};
use alloc::{vec, vec::Vec};

/// See the [module](self).
pub(super) struct Shifts<'a> {
    symmetry: &'a Symmetry,
    lanes: &'a Lanes,
    /// `None` if sums turn.
    canonical: Option<NodeSums>,
    /// The sources of the fold at hand.
    folded: Vec<Folded>,
}

/// The sums of the nodes of the canonical tree that are counterparts of each other.
struct NodeSums {
    /// How many ranks a node of each level has, the lowest level first.
    sizes: Vec<u32>,
    /// The sums of all nodes: plain ones, then coded ones, by level, by node.
    sums: [Vec<Vec<Term>>; 2],
    /// By the number of a term: which sum it is.
    known: Vec<Option<Sum>>,
}

/// The sum of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sum {
    is_coded: bool,
    level: u8,
    node: u32,
}

/// A source: whose, and of what.
#[derive(Clone, Copy)]
struct Folded {
    rank: Rank,
    term: Term,
}

/// From which ranks the messages come that the ranks that stand for others take.
pub(super) struct Lanes {
    /// By node of a receive.
    pub(super) of_nodes: Vec<Rank>,
    /// By source; of those that are no messages, the rank itself.
    pub(super) of_sources: Vec<Rank>,
}

impl<'a> Shifts<'a> {
    /// Sums in the canonical order of a group whose members have one input each, and their terms; `None` if the nodes of a level are not of
    /// one shape in the canonical tree.
    pub(super) fn in_canonical_order(
        symmetry: &'a Symmetry,
        group: &Group,
        is_coded: bool,
        lanes: &'a Lanes,
    ) -> Option<(Self, Terms)> {
        let mut terms = Terms::new(group.inputs());
        let sums = NodeSums::new(symmetry, group, is_coded, &mut terms)?;
        Some((Self { symmetry, lanes, canonical: Some(sums), folded: Vec::new() }, terms))
    }

    /// Sums that turn with the ranks, and their terms; `None` where messages are coded, and where chunks are not numbered as ranks are.
    pub(super) fn that_turn(
        symmetry: &'a Symmetry,
        is_coded: bool,
        lanes: &'a Lanes,
    ) -> Option<(Self, Terms)> {
        let is_numbered = symmetry.moves_chunks() && !symmetry.is_side_by_side();
        let shifts = || Self { symmetry, lanes, canonical: None, folded: Vec::new() };
        (is_numbered && !is_coded).then(|| (shifts(), Terms::turning(symmetry)))
    }

    /// What takes the first rank alike to the sender of a message to that sender.
    pub(super) fn of_message(&self, node: Node, source: Option<u32>) -> u32 {
        let rank = match source {
            Some(source) => self.lanes.of_sources[source as usize],
            None => self.lanes.of_nodes[node as usize],
        };
        self.symmetry.place_of(rank)
    }

    /// Where a chunk comes to be.
    pub(super) fn chunk(&self, chunk: Chunk, by: u32) -> Chunk {
        self.symmetry.chunk(chunk, by)
    }

    /// The chunk that a shift takes to this one.
    pub(super) fn chunk_before(&self, chunk: Chunk, by: u32) -> Chunk {
        self.symmetry.chunk(chunk, self.symmetry.opposite(by))
    }

    /// What takes a chunk to another one, where shifts move them and they are numbered as ranks are. Elsewhere it says nothing, and results have
    /// the canonical order, which no shift changes.
    pub(super) fn between(&self, from: Chunk, to: Chunk) -> u32 {
        self.symmetry.shifted(to, self.symmetry.opposite(from))
    }

    /// The counterpart of a term, if it has one: of a result in the canonical order, coded or not, itself.
    pub(super) fn term(&self, terms: &mut Terms, term: Term, by: u32) -> Option<Term> {
        match &self.canonical {
            _ if term == Term::NONE => None,
            Some(sums) => sums.counterpart(self.symmetry, terms, term, by),
            None => terms.counterpart(term, by),
        }
    }

    /// Notes a source of the fold at hand.
    pub(super) fn fold(&mut self, source: u32, term: Term) {
        self.folded.push(Folded { rank: self.lanes.of_sources[source as usize], term });
    }

    /// Ends the fold at hand. Says whether its counterpart is the fold of the counterpart of `sum`, on all ranks. Where sums turn it is if the
    /// sources stay in their order, which [`Symmetry::counterpart`] changes only of those that ascend.
    pub(super) fn folded_alike(&mut self, sum: Term) -> bool {
        let alike = match &self.canonical {
            Some(sums) => sums.folded_alike(&self.folded, sum),
            None => self.folded.len() == 1 || !ascends(self.folded.iter().map(|source| source.rank)),
        };
        self.folded.clear();
        alike
    }
}

impl NodeSums {
    fn new(symmetry: &Symmetry, group: &Group, is_coded: bool, terms: &mut Terms) -> Option<Self> {
        let inputs: Vec<Term> = (0..group.inputs()).map(Term::input).collect();
        let coded: Vec<Term> = match is_coded {
            true => inputs.iter().map(|input| terms.code(*input)).collect(),
            false => Vec::new(),
        };
        let (mut sizes, mut sums) = (vec![1], [vec![inputs], vec![coded]]);
        for radix in symmetry.radices() {
            let size = sizes[sizes.len() - 1];
            let shape = shape(group.keys(), size, *radix)?;
            for sums in &mut sums {
                let parts = sums[sums.len() - 1].chunks(*radix as usize);
                let level = parts.map(|parts| folded(terms, parts, &shape)).collect();
                sums.push(level);
            }
            sizes.push(size * radix);
        }
        let root = terms.canonical(group);
        if sums[0].last() != Some(&vec![root]) {
            return None;
        }
        let mut sums = Self { sizes, sums, known: Vec::new() };
        sums.learn();
        Some(sums)
    }

    fn learn(&mut self) {
        for (is_coded, sums) in [false, true].into_iter().zip(&self.sums) {
            for (level, sums) in (0..).zip(sums) {
                for (node, term) in (0..).zip(sums) {
                    let number = term.number();
                    if self.known.len() <= number {
                        self.known.resize(number + 1, None);
                    }
                    // A level of one part each has the sums of the level below, by which they are known.
                    self.known[number].get_or_insert(Sum { is_coded, level, node });
                }
            }
        }
    }

    fn sum(&self, term: Term) -> Option<Sum> {
        self.known.get(term.number()).copied().flatten()
    }

    fn counterpart(&self, symmetry: &Symmetry, terms: &Terms, term: Term, by: u32) -> Option<Term> {
        let Sum { is_coded, level, node } = self.sum(terms.result(term))?;
        let of_level = &self.sums[usize::from(is_coded)][usize::from(level)];
        if term.is_finished() {
            return (of_level.len() == 1).then_some(term);
        }
        let size = self.sizes[usize::from(level)];
        Some(of_level[(symmetry.shifted(node * size, by) / size) as usize])
    }

    /// Whether the counterpart of a fold is the fold of the counterpart of its `sum`: if its sources are the sums of nodes
    /// of one level, each from one of the node's ranks, in their order, and it makes the sum of a node. For then the counterpart's sources are
    /// those of the counterpart of that node, put in their order, and nodes of a level are of one shape.
    fn folded_alike(&self, folded: &[Folded], sum: Term) -> bool {
        let of = |Folded { rank, term }: &Folded| {
            self.sum(*term).filter(|sum| sum.node == rank / self.sizes[usize::from(sum.level)])
        };
        let Some(first) = folded.first().and_then(of) else { return false };
        let is_next =
            |(at, source): (u32, &Folded)| of(source) == Some(Sum { node: first.node + at, ..first });
        (0..).zip(folded).all(is_next) && self.sum(sum).is_some()
    }
}

/// The merges of the parts of a node, of which each has `size` ranks, if they are the same in all nodes of so many parts.
fn shape(keys: &[u32], size: u32, parts: u32) -> Option<Vec<u8>> {
    let firsts: Vec<u32> = keys.iter().copied().step_by(size as usize).collect();
    let mut shapes = firsts.chunks(parts as usize).map(merges);
    let first = shapes.next()?;
    shapes.all(|other| other == first).then_some(first)
}

/// The sum of a node's parts.
fn folded(terms: &mut Terms, parts: &[Term], shape: &[u8]) -> Term {
    let mut stack: Vec<Term> = Vec::new();
    for (part, merges) in parts.iter().zip(shape) {
        let mut top = *part;
        for _ in 0..*merges {
            let below = stack.pop().expect("merges of keys make one tree");
            top = terms.merge(below, top);
        }
        stack.push(top);
    }
    stack[0]
}
