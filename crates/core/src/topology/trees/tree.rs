//! A tree over all ranks, sets of trees, and their use of the links.

use super::strength::all_reduce_bound;
use crate::topology::LinkMatrix;
use alloc::{vec, vec::Vec};
use core::fmt;

/// How a tree was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FoundBy {
    /// MXNet's search over all balanced trees; for more than 8 ranks it takes the first.
    Exhaustive,
    /// MXNet's clusters by Kernighan and Lin.
    KernighanLin,
    /// The search for the least load in few rounds.
    Best,
    /// Trees packed into the links.
    Packing,
    /// The canonical tree of sums, with the holders that the links favour.
    Canonical,
}

impl fmt::Display for FoundBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exhaustive => "exhaustive",
            Self::KernighanLin => "kernighan-lin",
            Self::Best => "best",
            Self::Packing => "packing",
            Self::Canonical => "canonical",
        })
    }
}

/// A tree over all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanningTree {
    pub(super) root: usize,
    pub(super) edges: Vec<[usize; 2]>,
    pub(super) by: FoundBy,
    pub(super) slices: u32,
    pub(super) rounds: u32,
}

/// Trees that share the links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSet {
    pub(super) size: usize,
    pub(super) trees: Vec<SpanningTree>,
}

/// The use of the links by a set of trees.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeFigures {
    /// The sum of all trees' weights.
    pub weight: f64,
    /// The largest load.
    pub worst_load: f64,
    /// The most trees that use one link.
    pub max_link_use: u32,
    /// How many links are used; both directions are one.
    pub links_used: usize,
}

impl SpanningTree {
    /// Edges that do not [span](Self::spans), which MXNet's planner may give, take a round for each of them here.
    pub(super) fn new(root: usize, edges: Vec<[usize; 2]>, by: FoundBy) -> Self {
        let mut tree = Self { root, rounds: edges.len() as u32, edges, by, slices: 1 };
        let size = tree.edges.iter().flatten().max().map_or(1, |most| most + 1);
        let size = size.max(root + 1);
        if tree.spans(size) {
            let children = tree.children(size);
            let mut rounds = vec![0; size];
            for [_, child] in tree.edges.iter().rev() {
                rounds[*child] = rounds_of(&children[*child], &rounds);
            }
            tree.rounds = rounds_of(&children[root], &rounds);
        }
        tree
    }

    /// The tree in which each rank but the root has a parent.
    pub(super) fn of_parents(root: usize, parents: &[u8], by: FoundBy) -> Self {
        let mut edges = vec![];
        let mut open = vec![root];
        while let Some(parent) = open.pop() {
            for child in (0..parents.len()).filter(|at| *at != root && usize::from(parents[*at]) == parent) {
                edges.push([parent, child]);
                open.push(child);
            }
        }
        Self::new(root, edges, by)
    }

    /// The rank at which sums end and from which results leave.
    pub fn root(&self) -> usize {
        self.root
    }

    /// Parent and child of each edge, parents before their children.
    pub fn edges(&self) -> &[[usize; 2]] {
        &self.edges
    }

    /// How it was found.
    pub fn by(&self) -> FoundBy {
        self.by
    }

    /// How many of the set's equal slices of a buffer go over it.
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// Whether it reaches each of `size` ranks once, parents before their children in some order of its edges.
    pub fn spans(&self, size: usize) -> bool {
        let mut reached = vec![false; size];
        reached[self.root] = true;
        let mut left = self.edges.clone();
        while !left.is_empty() {
            let before = left.len();
            left.retain(|[parent, child]| {
                let is_next = reached[*parent] && !reached[*child];
                reached[*child] |= is_next;
                !is_next
            });
            if left.len() == before {
                return false;
            }
        }
        reached.iter().all(|reached| *reached)
    }

    /// The children of each of `size` ranks, beginning with the child that starts the longest way.
    pub fn children(&self, size: usize) -> Vec<Vec<usize>> {
        let mut rounds = vec![0; size];
        let mut children: Vec<Vec<usize>> = vec![vec![]; size];
        // Parents stand before their children, so that backwards a child is complete before it is counted.
        for [parent, child] in self.edges.iter().rev() {
            children[*child].sort_by_key(|below| core::cmp::Reverse(rounds[*below]));
            rounds[*child] = rounds_of(&children[*child], &rounds);
            children[*parent].push(*child);
        }
        children[self.root].sort_by_key(|below| core::cmp::Reverse(rounds[*below]));
        children
    }

    /// The rounds of a broadcast along it.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The sum of its links' weights, in the direction from children to parents.
    pub fn weight(&self, links: &LinkMatrix) -> f64 {
        // An empty sum would be -0.
        let weights = self.edges.iter().map(|[parent, child]| f64::from(links.weight(*child, *parent)));
        weights.fold(0.0, |sum, weight| sum + weight)
    }
}

impl TreeSet {
    /// The trees, in the order of their roots.
    pub fn trees(&self) -> &[SpanningTree] {
        &self.trees
    }

    /// How many ranks they span.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Their use of the links together.
    pub fn figures(&self, links: &LinkMatrix) -> TreeFigures {
        let size = self.size;
        let mut uses = vec![0u32; size * size];
        for tree in &self.trees {
            for [a, b] in &tree.edges {
                uses[a.min(b) * size + a.max(b)] += tree.slices;
            }
        }
        let mut figures = TreeFigures {
            weight: self.trees.iter().fold(0.0, |sum, tree| sum + tree.weight(links)),
            ..Default::default()
        };
        for (at, uses) in uses.iter().enumerate().filter(|(_, uses)| **uses > 0) {
            let load = f64::from(*uses) / f64::from(links.both_ways(at / size, at % size));
            figures.worst_load = figures.worst_load.max(load);
            figures.max_link_use = figures.max_link_use.max(*uses);
            figures.links_used += 1;
        }
        figures
    }

    /// How long an all-reduce of a buffer of one unit keeps the busiest direction of a link busy: in seconds for 1 GB, if bandwidths
    /// are in GB/s.
    ///
    /// Sums go up each tree while results come down, so each tree uses both directions of its links.
    pub fn all_reduce_time(&self, links: &LinkMatrix) -> f64 {
        let uses = self.uses(|edge| [edge, [edge[1], edge[0]]]);
        self.busiest(links, &uses)
    }

    /// The part of the speed of the [bound of an all-reduce](all_reduce_bound) that the trees reach: the least time that any schedule
    /// needs by the [time](Self::all_reduce_time) of the trees.
    pub fn part_of_bound(&self, links: &LinkMatrix) -> f64 {
        self.part_of(all_reduce_bound(links), links)
    }

    /// The same, where the bound is known.
    pub(super) fn part_of(&self, bound: f64, links: &LinkMatrix) -> f64 {
        let time = self.all_reduce_time(links);
        if time == 0.0 { 1.0 } else { bound / time }
    }

    /// The part of the speed of the [bound of an all-gather](super::bound) that the trees reach with broadcasts.
    pub(super) fn part_one_way(&self, bound: f64, links: &LinkMatrix) -> f64 {
        let uses = self.uses(|edge| [edge]);
        let time = self.busiest(links, &uses) * self.size as f64;
        if time == 0.0 { 1.0 } else { bound / time }
    }

    /// How many slices go from each rank to each.
    fn uses<const DIRECTIONS: usize>(
        &self,
        directions: impl Fn([usize; 2]) -> [[usize; 2]; DIRECTIONS],
    ) -> Vec<u32> {
        let mut uses = vec![0u32; self.size * self.size];
        for tree in &self.trees {
            for [from, to] in tree.edges.iter().flat_map(|edge| directions(*edge)) {
                uses[from * self.size + to] += tree.slices;
            }
        }
        uses
    }

    /// How long the busiest direction of a link is busy, if all slices together are one unit.
    fn busiest(&self, links: &LinkMatrix, uses: &[u32]) -> f64 {
        let used = uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
        let time =
            |(at, uses): (usize, &u32)| f64::from(*uses) / links.bandwidth(at / self.size, at % self.size);
        let slices: u32 = self.trees.iter().map(|tree| tree.slices).sum();
        used.map(time).fold(0.0, f64::max) / f64::from(slices.max(1))
    }
}

/// The rounds that a rank needs for its children, which it serves in this order.
fn rounds_of(children: &[usize], rounds: &[u32]) -> u32 {
    children.iter().zip(1..).map(|(child, sent)| rounds[*child] + sent).max().unwrap_or(0)
}

/// The rounds that a broadcast to so many ranks takes at least: their logarithm, rounded up.
pub(super) fn least_rounds(size: usize) -> u32 {
    size.next_power_of_two().ilog2()
}
