//! Trees over the links between ranks: MXNet's, better ones, and those for large buffers.
//!
//! A tree's *rounds* are those of a broadcast along it in which a rank sends or receives one message per round. The *load* of a
//! link is the number of trees that use it, divided by its weight. An all-reduce goes up and down each edge, so that a tree uses
//! a link in both directions, and the lesser of their weights counts.
//!
//! ```
//! use herringbone_core::topology::{LinkMatrix, trees::{TreeMode, TreeWish, plan}};
//!
//! let trees = plan(&LinkMatrix::uniform(8, 2.0), &TreeWish::of(TreeMode::Best))?;
//! assert_eq!(trees.trees().len(), 8);
//! assert!(trees.trees().iter().all(|tree| tree.rounds() == 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod anneal;
mod best;
mod broadcast;
mod canonical;
mod exhaustive;
mod flow;
mod kernighan_lin;
mod mxnet;
mod packing;
mod rotated;

pub use canonical::canonical;
pub use flow::bound;

use super::{LinkMatrix, TopologyError};
use alloc::{format, vec, vec::Vec};
use core::{fmt, str::FromStr};

/// Which trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TreeMode {
    /// As MXNet's planner makes them.
    Mxnet,
    /// Few rounds, and no link that carries more than it must.
    #[default]
    Best,
    /// As much at once as the links carry, in however many rounds.
    Throughput,
}

impl TreeMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mxnet, Self::Best, Self::Throughput];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mxnet => "mxnet",
            Self::Best => "best",
            Self::Throughput => "throughput",
        }
    }
}

/// A name that is no mode's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a mode of trees: use mxnet, best or throughput")]
pub struct ParseTreeModeError;

impl FromStr for TreeMode {
    type Err = ParseTreeModeError;

    fn from_str(text: &str) -> Result<Self, ParseTreeModeError> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or(ParseTreeModeError)
    }
}

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
    root: usize,
    edges: Vec<[usize; 2]>,
    by: FoundBy,
    slices: u32,
    rounds: u32,
}

/// Which trees are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeWish {
    /// Which kind.
    pub mode: TreeMode,
    /// The roots; empty means each rank in order.
    pub roots: Vec<usize>,
    /// By what MXNet multiplies the weight of a link for each tree that uses it.
    pub penalty: f32,
    /// The seed of Kernighan and Lin's shuffles. Without one they are used for more than 8 ranks only, with seed 1.
    pub seed: Option<u64>,
}

impl TreeWish {
    /// One tree for each rank, with MXNet's penalty.
    pub fn of(mode: TreeMode) -> Self {
        Self { mode, roots: vec![], penalty: 0.7, seed: None }
    }
}

/// Trees that share the links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSet {
    size: usize,
    trees: Vec<SpanningTree>,
}

/// What a set of trees asks of the links.
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

/// Plans trees.
///
/// # Errors
/// [`TopologyError::Whole`] for roots that are no ranks, a penalty that is no factor, ranks that no links connect, and where
/// MXNet's planner finds no tree.
pub fn plan(links: &LinkMatrix, wish: &TreeWish) -> Result<TreeSet, TopologyError> {
    let size = links.size();
    if let Some(root) = wish.roots.iter().find(|root| **root >= size) {
        let problem = format!("root {root} is none of {size} ranks");
        return Err(TopologyError::whole(problem, format!("use roots from 0 to {}", size - 1)));
    }
    if !(wish.penalty > 0.0 && wish.penalty <= 1.0) {
        let problem = format!("the penalty {} is no factor for weights", wish.penalty);
        return Err(TopologyError::whole(problem, "use a number above 0, and at most 1"));
    }
    links.check_connected()?;
    let all: Vec<usize> = (0..size).collect();
    let roots = if wish.roots.is_empty() { &all } else { &wish.roots };
    let trees = match wish.mode {
        _ if size == 1 => {
            let alone = |root: &usize| SpanningTree::new(*root, vec![], FoundBy::Best);
            roots.iter().map(alone).collect()
        }
        TreeMode::Mxnet => mxnet::trees(links, roots, wish.penalty, wish.seed)?,
        TreeMode::Best => best::trees(links, roots),
        TreeMode::Throughput => packing::trees(links, roots),
    };
    Ok(TreeSet { size, trees })
}

impl SpanningTree {
    /// Edges that do not [span](Self::spans), which MXNet's planner may give, take a round for each of them here.
    fn new(root: usize, edges: Vec<[usize; 2]>, by: FoundBy) -> Self {
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
    fn of_parents(root: usize, parents: &[u8], by: FoundBy) -> Self {
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

    /// The children of each of `size` ranks, those first that start the longest way.
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
        self.edges.iter().map(|[parent, child]| f64::from(links.weight(*child, *parent))).sum()
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

    /// What they ask of the links together.
    pub fn figures(&self, links: &LinkMatrix) -> TreeFigures {
        let size = self.size;
        let mut uses = vec![0u32; size * size];
        for tree in &self.trees {
            for [a, b] in &tree.edges {
                uses[a.min(b) * size + a.max(b)] += tree.slices;
            }
        }
        let mut figures = TreeFigures {
            weight: self.trees.iter().map(|tree| tree.weight(links)).sum(),
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

    /// The part of the [bound] that the trees reach: the least time that any schedule needs for a buffer's way to all ranks,
    /// against the time that the busiest direction of a link needs for it.
    pub fn part_of_bound(&self, links: &LinkMatrix) -> f64 {
        let size = self.size;
        let mut uses = vec![0u32; size * size];
        for tree in &self.trees {
            tree.edges.iter().for_each(|[parent, child]| uses[parent * size + child] += tree.slices);
        }
        let used = uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
        let time = |(at, uses): (usize, &u32)| f64::from(*uses) / links.bandwidth(at / size, at % size);
        let busiest = used.map(time).fold(0.0, f64::max);
        let slices: u32 = self.trees.iter().map(|tree| tree.slices).sum();
        if busiest == 0.0 { 1.0 } else { bound(links) / size as f64 * f64::from(slices) / busiest }
    }
}

/// The rounds that a rank needs for its children, which it serves in this order.
fn rounds_of(children: &[usize], rounds: &[u32]) -> u32 {
    children.iter().zip(1..).map(|(child, sent)| rounds[*child] + sent).max().unwrap_or(0)
}

/// The rounds that a broadcast to so many ranks takes at least: their logarithm, rounded up.
pub(crate) fn least_rounds(size: usize) -> u32 {
    size.next_power_of_two().ilog2()
}
