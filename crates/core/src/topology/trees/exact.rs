//! The best trees over few ranks, by an exhaustive search.
//!
//! Each tree takes the fewest rounds that the links allow from its root. The search compares all sets of such trees,
//! one tree for each root. It finds a set whose worst load is least, and among these one with the most weight.
//!
//! A load caps the uses of each link. The search tries the possible loads of links in ascending order, until trees fit
//! under the caps of one. The remaining caps determine the remaining trees, so each remainder is solved once.

use super::anneal::rounds;
use super::broadcast::Parents;
use crate::topology::LinkMatrix;
use alloc::{collections::BTreeMap, vec, vec::Vec};

/// The most ranks: 5 ranks have 125 trees from each root.
pub(super) const MOST_EXACT: usize = 5;

/// Pairs of so many ranks.
const PAIRS: usize = MOST_EXACT * (MOST_EXACT - 1) / 2;

/// How many more trees each link can take, by [`pair`].
type Caps = [u8; PAIRS];

/// A tree that takes the fewest rounds from its root.
#[derive(Clone)]
struct Candidate {
    parents: Parents,
    pairs: Vec<usize>,
    weight: f64,
}

/// One tree for each of the roots, by the parent of each rank.
///
/// # Panics
/// Unless there are 2 to [`MOST_EXACT`] ranks, at most as many roots, and links that carry both ways between all ranks.
pub(super) fn trees(links: &LinkMatrix, roots: &[usize]) -> Vec<Parents> {
    assert!((2..=MOST_EXACT).contains(&links.size()) && roots.len() <= links.size(), "few ranks");
    let of_root: Vec<_> = roots.iter().map(|root| candidates(links, *root)).collect();
    let under = |load| Choice::new(&of_root).trees(caps(links, roots.len(), load));
    let found = loads(links, roots.len()).into_iter().find_map(under);
    found.expect("under the largest load each link takes all trees")
}

/// All trees that take the fewest rounds from a root, those of the most weight first.
fn candidates(links: &LinkMatrix, root: usize) -> Vec<Candidate> {
    let size = links.size();
    let others: Vec<usize> = (0..size).filter(|rank| *rank != root).collect();
    let mut parents: Parents = vec![root as u8; size];
    let mut found = vec![];
    'all: loop {
        if is_tree(links, &parents, root) {
            found.push(parents.clone());
        }
        // The next choice of parents: a number with a digit for each rank.
        for rank in &others {
            parents[*rank] = (parents[*rank] + 1) % size as u8;
            if usize::from(parents[*rank]) != root {
                continue 'all;
            }
        }
        break;
    }
    let fewest = found.iter().map(|parents| rounds(parents, root)).min();
    found.retain(|parents| Some(rounds(parents, root)) == fewest);
    let candidate = |parents: Parents| {
        let edges = others.iter().map(|child| (usize::from(parents[*child]), *child));
        let weight = edges.clone().map(|(parent, child)| f64::from(links.weight(child, parent))).sum();
        Candidate { pairs: edges.map(|(parent, child)| pair(parent, child)).collect(), weight, parents }
    };
    let mut candidates: Vec<Candidate> = found.into_iter().map(candidate).collect();
    candidates.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    candidates
}

/// Whether each rank comes to the root over links that carry both ways.
fn is_tree(links: &LinkMatrix, parents: &[u8], root: usize) -> bool {
    let comes = |rank: usize| {
        let mut at = rank;
        for _ in 1..parents.len() {
            let above = usize::from(parents[at]);
            if at != root && links.both_ways(above, at) <= 0.0 {
                return false;
            }
            at = if at == root { root } else { above };
        }
        at == root
    };
    (0..parents.len()).all(comes)
}

/// The number of the pair of two ranks.
fn pair(one: usize, other: usize) -> usize {
    let (low, high) = (one.min(other), one.max(other));
    high * (high - 1) / 2 + low
}

/// Each pair of ranks with the weight of its link.
fn weights(links: &LinkMatrix) -> impl Iterator<Item = (usize, f64)> {
    let pairs = (0..links.size()).flat_map(|high| (0..high).map(move |low| (low, high)));
    pairs.map(|(low, high)| (pair(low, high), f64::from(links.both_ways(low, high))))
}

/// All loads that so many trees can put on a link, in ascending order.
fn loads(links: &LinkMatrix, trees: usize) -> Vec<f64> {
    let there = weights(links).filter(|(_, weight)| *weight > 0.0);
    let of_link = |(_, weight): (usize, f64)| (1..=trees).map(move |uses| uses as f64 / weight);
    let mut loads: Vec<f64> = there.flat_map(of_link).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    loads
}

/// How many of so many trees each link takes under a load.
fn caps(links: &LinkMatrix, trees: usize, load: f64) -> Caps {
    let mut caps = [0; PAIRS];
    for (at, weight) in weights(links).filter(|(_, weight)| *weight > 0.0) {
        caps[at] = (1..=trees).take_while(|uses| *uses as f64 / weight <= load).count() as u8;
    }
    caps
}

/// One tree for each root, under caps.
struct Choice<'a> {
    of_root: &'a [Vec<Candidate>],
    /// The most weight that the trees of a root and of all later ones can have, whatever the caps.
    most: Vec<f64>,
    /// By root and caps: the most weight of the trees of that root and of all later ones; `None` where no trees fit.
    solved: Vec<BTreeMap<Caps, Option<f64>>>,
}

impl<'a> Choice<'a> {
    fn new(of_root: &'a [Vec<Candidate>]) -> Self {
        let mut most = vec![0.0; of_root.len() + 1];
        for (at, candidates) in of_root.iter().enumerate().rev() {
            most[at] = candidates[0].weight + most[at + 1];
        }
        Self { of_root, most, solved: vec![BTreeMap::new(); of_root.len()] }
    }

    /// The trees of the most weight, if any fit.
    fn trees(mut self, caps: Caps) -> Option<Vec<Parents>> {
        let (mut weight, mut caps) = (self.solve(0, caps)?, caps);
        let of_root = self.of_root;
        let mut trees = vec![];
        for (at, candidates) in of_root.iter().enumerate() {
            // The sum is the one that was the largest, to the bit.
            let (candidate, rest, left) = candidates.iter().find_map(|candidate| {
                let left = taken(caps, candidate)?;
                let rest = self.solve(at + 1, left)?;
                (candidate.weight + rest == weight).then_some((candidate, rest, left))
            })?;
            trees.push(candidate.parents.clone());
            (weight, caps) = (rest, left);
        }
        Some(trees)
    }

    fn solve(&mut self, at: usize, caps: Caps) -> Option<f64> {
        let of_root = self.of_root;
        let Some(candidates) = of_root.get(at) else { return Some(0.0) };
        // More than the remaining trees can use makes no difference.
        let caps = caps.map(|cap| cap.min((of_root.len() - at) as u8));
        if let Some(known) = self.solved[at].get(&caps) {
            return *known;
        }
        let mut best: Option<f64> = None;
        for candidate in candidates {
            if best.is_some_and(|best| candidate.weight + self.most[at + 1] <= best) {
                break;
            }
            if let Some(left) = taken(caps, candidate)
                && let Some(rest) = self.solve(at + 1, left)
            {
                let weight = candidate.weight + rest;
                best = Some(best.map_or(weight, |best| best.max(weight)));
            }
        }
        self.solved[at].insert(caps, best);
        best
    }
}

/// What a tree leaves of caps, if it fits.
fn taken(mut caps: Caps, tree: &Candidate) -> Option<Caps> {
    for pair in &tree.pairs {
        caps[*pair] = caps[*pair].checked_sub(1)?;
    }
    Some(caps)
}
