//! The fewest rounds of each tree, then the least worst load of all trees, then their most weight.
//!
//! For few ranks this is exact. For more it is a search. If MXNet's trees on the same links take as few rounds and are
//! better than its result, it continues from them.

use super::anneal::{Forest, Prices};
use super::broadcast::{Parents, fewest_rounds};
use super::tree::{FoundBy, SpanningTree, least_rounds};
use super::{exact, exhaustive, mxnet, rotated};
use crate::topology::{LinkMatrix, random::SplitMix};
use alloc::vec::Vec;

/// The seed of the search: the same links give the same trees everywhere.
const SEED: u64 = 20_180_430;

/// How many leaves of balanced trees are tried for one of few rounds, of more than 8 ranks.
const STEPS: u64 = 200_000;

/// How many tries a tree of few rounds is worth.
const TRIES: u32 = 400;

pub(super) fn trees(links: &LinkMatrix, roots: &[usize]) -> Vec<SpanningTree> {
    let mut random = SplitMix::new(SEED);
    let tree = |(root, parents): (&usize, &Parents)| SpanningTree::of_parents(*root, parents, FoundBy::Best);
    if roots.iter().copied().eq(0..links.size())
        && let Some(turned) = rotated::trees(links, &mut random)
    {
        return roots.iter().zip(&turned).map(tree).collect();
    }
    // Over links that are alike a tree alone has no choice of load and weight.
    let is_free = roots.len() == 1 && rotated::are_alike(links);
    if !is_free && links.size() <= exact::MOST_EXACT && roots.len() <= links.size() {
        return roots.iter().zip(&exact::trees(links, roots)).map(tree).collect();
    }
    let first: Vec<(Parents, u32)> = roots.iter().map(|root| first(links, *root, &mut random)).collect();
    if is_free {
        return roots.iter().zip(first.iter().map(|(parents, _)| parents)).map(tree).collect();
    }
    let limits: Vec<u32> = first.iter().map(|(_, rounds)| *rounds).collect();
    let mut search = Search::new(Forest::new(links, roots, first));
    search.level(&mut random);
    search.lower(&mut random);
    search.fill(&mut random);
    if let Some(better) = mxnets(links, roots, &limits).filter(|forest| search.adopts(forest)) {
        search.best = better;
        search.lower(&mut random);
        search.fill(&mut random);
    }
    roots.iter().zip(&search.best.parents).map(tree).collect()
}

/// A tree of few rounds. MXNet's search tries more where none of the fewest is found; up to 8 ranks it knows whether there is one.
fn first(links: &LinkMatrix, root: usize, random: &mut SplitMix) -> (Parents, u32) {
    let size = links.size();
    let found = fewest_rounds(links, root, TRIES, random);
    if found.1 == least_rounds(size) {
        return found;
    }
    let both: Vec<f32> = (0..size * size).map(|at| links.both_ways(at / size, at % size)).collect();
    let leaves = exhaustive::leaves(&both, size, root, STEPS);
    let tree = leaves.map(|leaves| {
        let edges = exhaustive::edges(&leaves, exhaustive::depth(size));
        SpanningTree::new(root, edges, FoundBy::Exhaustive)
    });
    match tree.filter(|tree| tree.spans(size)) {
        Some(tree) if tree.rounds() < found.1 => (parents_of(&tree, size), tree.rounds()),
        _ => found,
    }
}

/// The best of MXNet's trees that take so few rounds over links that are there.
fn mxnets<'a>(links: &'a LinkMatrix, roots: &[usize], limits: &[u32]) -> Option<Forest<'a>> {
    // Shuffles decide what clusters become, so several are tried. For many ranks they take long, most of all where links differ by
    // direction.
    let seeds: &[Option<u64>] = match links.size() {
        ..=8 => &[None, Some(1), Some(2), Some(3), Some(4)],
        9..=16 => &[Some(1), Some(2), Some(3), Some(4)],
        _ if links.is_symmetric() => &[Some(1)],
        _ => &[],
    };
    let has_link = |[parent, child]: &[usize; 2]| links.both_ways(*parent, *child) > 0.0;
    let is_quick = |(tree, limit): (&SpanningTree, &u32)| {
        tree.spans(links.size()) && tree.rounds() <= *limit && tree.edges().iter().all(has_link)
    };
    let forest = |seed: &Option<u64>| {
        let trees = mxnet::trees(links, roots, 0.7, *seed).ok()?;
        let is_usable = trees.iter().zip(limits).all(is_quick);
        let parents = || trees.iter().map(|tree| parents_of(tree, links.size())).zip(limits.iter().copied());
        is_usable.then(|| Forest::new(links, roots, parents().collect()))
    };
    let forests = seeds.iter().filter_map(forest);
    forests.reduce(|best, other| if Reached::by(&other).is_better(Reached::by(&best)) { other } else { best })
}

fn parents_of(tree: &SpanningTree, size: usize) -> Parents {
    let mut parents: Parents = (0..size).map(|rank| rank as u8).collect();
    tree.edges().iter().for_each(|[parent, child]| parents[*child] = *parent as u8);
    parents
}

/// What trees reach together.
#[derive(Clone, Copy)]
struct Reached {
    load: f64,
    weight: f64,
}

impl Reached {
    fn by(forest: &Forest<'_>) -> Self {
        Self { load: forest.worst_load(), weight: forest.weight() }
    }

    /// Less load, or as much and more weight.
    fn is_better(self, other: Self) -> bool {
        let is_close = (self.load - other.load).abs() <= 1e-9 * self.load.max(other.load);
        if is_close { self.weight > other.weight + 1e-9 } else { self.load < other.load }
    }
}

struct Search<'a> {
    forest: Forest<'a>,
    best: Forest<'a>,
    /// What the best trees reach.
    reached: Reached,
    /// What trees would load each link with if their uses could be cut at will.
    fair: f64,
    /// Changes in each stage.
    steps: u64,
}

impl<'a> Search<'a> {
    fn new(forest: Forest<'a>) -> Self {
        let size = forest.links.size();
        let pairs = (0..size).flat_map(|b| (0..b).map(move |a| (a, b)));
        let total: f64 = pairs.map(|(a, b)| f64::from(forest.links.both_ways(a, b))).sum();
        let fair = (forest.roots.len() * (size - 1)) as f64 / total.max(f64::MIN_POSITIVE);
        let reached = Reached::by(&forest);
        let steps = 500 * size as u64 + 2500 * forest.roots.len() as u64;
        Self { best: forest.clone(), forest, reached, fair, steps }
    }

    /// Whether other trees are better than the best so far; then what they reach counts.
    fn adopts(&mut self, other: &Forest<'a>) -> bool {
        let reached = Reached::by(other);
        let is_better = reached.is_better(self.reached);
        self.reached = if is_better { reached } else { self.reached };
        is_better
    }

    fn run(&mut self, prices: &Prices, heat: f64, steps: u64, random: &mut SplitMix) {
        let Self { forest, best, reached, .. } = self;
        let mut kept = 0u64;
        // Looking at all links of many is dear.
        let every = (forest.links.size() as u64 / 8).pow(2).max(1);
        let mut look = |forest: &Forest<'a>| {
            let load = forest.worst_load();
            // The weight is dear, too.
            if load <= reached.load * (1.0 + 1e-9) && Reached::by(forest).is_better(*reached) {
                *reached = Reached::by(forest);
                *best = forest.clone();
            }
        };
        forest.anneal(prices, heat, steps, random, &mut |forest| {
            kept += 1;
            if kept.is_multiple_of(every) {
                look(forest);
            }
        });
        look(forest);
    }

    /// Spreads the uses over the links, with more and more regard to weight.
    fn level(&mut self, random: &mut SplitMix) {
        let fair = self.fair;
        for worth in [0.0, 0.5, 2.0] {
            let prices = Prices::new(&self.forest, worth * fair, |uses, weight| {
                let load = (uses / (weight * fair)).min(1e6);
                let squared = load * load;
                weight * fair * squared * squared
            });
            self.run(&prices, 8.0, self.steps, random);
        }
    }

    /// Takes the worst load down as long as that succeeds.
    fn lower(&mut self, random: &mut SplitMix) {
        for _ in 0..6 {
            let before = self.reached.load;
            let Some(below) = self.next_load(before) else { return };
            self.forest = self.best.clone();
            let prices = capped(&self.forest, below, 0.02 * self.fair);
            self.run(&prices, 1.0, self.steps * 2, random);
            if self.reached.load >= before {
                return;
            }
        }
    }

    /// The largest load below this one that uses of a link can make, unless no trees can stay under it.
    fn next_load(&self, load: f64) -> Option<f64> {
        let (size, most) = (self.forest.links.size(), self.forest.roots.len());
        let mut next: Option<f64> = None;
        for (a, b) in (0..size).flat_map(|b| (0..b).map(move |a| (a, b))) {
            let weight = f64::from(self.forest.links.both_ways(a, b));
            let loads = (1..=most).map(|uses| uses as f64 / weight).filter(|found| *found < load - 1e-9);
            if weight > 0.0 {
                next = loads.fold(next, |next, found| Some(next.map_or(found, |next| next.max(found))));
            }
        }
        next.filter(|next| *next >= self.fair - 1e-9)
    }

    /// Adds weight without more load.
    fn fill(&mut self, random: &mut SplitMix) {
        for worth in [0.3, 1.0] {
            self.forest = self.best.clone();
            let prices = capped(&self.forest, self.reached.load, worth * self.fair);
            self.run(&prices, 2.0, self.steps * 2, random);
        }
    }
}

/// Only loads above the cap cost, and they cost much.
fn capped(forest: &Forest<'_>, cap: f64, worth: f64) -> Prices {
    Prices::new(forest, worth, |uses, weight| {
        let over = (uses - cap * weight - 1e-9).max(0.0);
        4.0 * over + if over > 0.0 { 1.0 } else { 0.0 }
    })
}
