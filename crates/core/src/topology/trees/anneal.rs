//! Small random changes of trees, kept if they cost little, where the limit falls with time.

use super::broadcast::{Parents, broadcast};
use crate::topology::{LinkMatrix, random::SplitMix};
use alloc::{vec, vec::Vec};

/// One tree for each root, and how many of them use each link.
#[derive(Clone, Debug)]
pub(super) struct Forest<'a> {
    pub(super) links: &'a LinkMatrix,
    pub(super) roots: Vec<usize>,
    pub(super) parents: Vec<Parents>,
    /// The most rounds of each tree.
    limits: Vec<u32>,
    /// By both ends of a link, the lesser first.
    uses: Vec<u16>,
}

/// What a use of a link costs.
pub(super) struct Prices {
    /// By link and uses before it.
    steps: Vec<f64>,
    most: usize,
    /// What a unit of weight is worth.
    worth: f64,
}

impl Prices {
    /// `cost` says what so many uses of a link of this weight cost together; `worth`, what a unit of weight is worth.
    pub(super) fn new(forest: &Forest<'_>, worth: f64, cost: impl Fn(f64, f64) -> f64) -> Self {
        let (size, most) = (forest.links.size(), forest.roots.len());
        let mut steps = vec![0.0; size * size * (most + 1)];
        for (a, b) in (0..size).flat_map(|b| (0..b).map(move |a| (a, b))) {
            let weight = f64::from(forest.links.both_ways(a, b));
            for uses in 0..=most {
                let price = cost(uses as f64 + 1.0, weight) - cost(uses as f64, weight);
                steps[(a * size + b) * (most + 1) + uses] = price;
            }
        }
        Self { steps, most, worth }
    }

    fn step(&self, link: usize, uses: u16) -> f64 {
        self.steps[link * (self.most + 1) + usize::from(uses)]
    }
}

/// Edges that a change takes away and puts in, each as parent and child.
#[derive(Default)]
struct Change {
    old: Vec<(u8, u8)>,
    new: Vec<(u8, u8)>,
    /// The children of both, with their new parents.
    parents: Vec<(u8, u8)>,
}

impl<'a> Forest<'a> {
    pub(super) fn new(links: &'a LinkMatrix, roots: &[usize], trees: Vec<(Parents, u32)>) -> Self {
        let (parents, limits) = trees.into_iter().unzip();
        let uses = vec![0; links.size() * links.size()];
        let mut forest = Self { links, roots: roots.to_vec(), parents, limits, uses };
        for tree in 0..roots.len() {
            for (parent, child) in forest.edges(tree) {
                let link = forest.link(parent, child);
                forest.uses[link] += 1;
            }
        }
        forest
    }

    fn edges(&self, tree: usize) -> Vec<(u8, u8)> {
        let is_edge = |(child, parent): (u8, &u8)| (child != *parent).then_some((*parent, child));
        (0..).zip(&self.parents[tree]).filter_map(is_edge).collect()
    }

    fn link(&self, a: u8, b: u8) -> usize {
        usize::from(a.min(b)) * self.links.size() + usize::from(a.max(b))
    }

    /// The largest number of uses by weight.
    pub(super) fn worst_load(&self) -> f64 {
        let size = self.links.size();
        let used = self.uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
        let load = |(at, uses): (usize, &u16)| {
            f64::from(*uses) / f64::from(self.links.both_ways(at / size, at % size))
        };
        used.map(load).fold(0.0, f64::max)
    }

    pub(super) fn weight(&self) -> f64 {
        let of_tree = |tree| {
            let edges = self.edges(tree);
            edges.into_iter().map(|(parent, child)| self.edge_weight(parent, child)).sum::<f64>()
        };
        (0..self.roots.len()).map(of_tree).sum()
    }

    fn edge_weight(&self, parent: u8, child: u8) -> f64 {
        f64::from(self.links.weight(child.into(), parent.into()))
    }

    /// Makes as many changes as it is told. `watch` sees the forest after each that is kept.
    pub(super) fn anneal(
        &mut self,
        prices: &Prices,
        heat: f64,
        steps: u64,
        random: &mut SplitMix,
        watch: &mut impl FnMut(&Self),
    ) {
        let size = self.links.size();
        if size < 3 {
            return;
        }
        let rarely = 8 * size;
        let mut change = Change::default();
        for step in 0..steps {
            let tree = random.below(self.roots.len());
            change.clear();
            let is_possible = match random.below(rarely) {
                0 => self.renew(tree, prices, random, &mut change),
                at if at % 3 == 0 => self.reparent(tree, random, &mut change),
                _ => self.swap(tree, random, &mut change),
            };
            if !is_possible {
                continue;
            }
            let cost = self.apply(&change, prices);
            let left = 1.0 - step as f64 / steps as f64;
            let patience = heat * left * left * random.unit();
            if cost <= patience && self.keep(tree, &change) {
                watch(self);
            } else {
                self.revert(&change);
            }
        }
    }

    /// Counts the change's edges, and says what it costs.
    fn apply(&mut self, change: &Change, prices: &Prices) -> f64 {
        let mut cost = 0.0;
        for (parent, child) in &change.old {
            let link = self.link(*parent, *child);
            self.uses[link] -= 1;
            cost += prices.worth * self.edge_weight(*parent, *child) - prices.step(link, self.uses[link]);
        }
        for (parent, child) in &change.new {
            let link = self.link(*parent, *child);
            cost += prices.step(link, self.uses[link]) - prices.worth * self.edge_weight(*parent, *child);
            self.uses[link] += 1;
        }
        cost
    }

    fn revert(&mut self, change: &Change) {
        for (parent, child) in &change.new {
            let link = self.link(*parent, *child);
            self.uses[link] -= 1;
        }
        for (parent, child) in &change.old {
            let link = self.link(*parent, *child);
            self.uses[link] += 1;
        }
    }

    /// Makes the change, unless the tree then takes too many rounds.
    fn keep(&mut self, tree: usize, change: &Change) -> bool {
        let before = self.parents[tree].clone();
        for (child, parent) in &change.parents {
            self.parents[tree][usize::from(*child)] = *parent;
        }
        let is_quick = rounds(&self.parents[tree], self.roots[tree]) <= self.limits[tree];
        if !is_quick {
            self.parents[tree] = before;
        }
        is_quick
    }

    /// Two ranks take each other's place.
    fn swap(&self, tree: usize, random: &mut SplitMix, change: &mut Change) -> bool {
        let size = self.links.size();
        let (a, b, root) = (random.below(size), random.below(size), self.roots[tree]);
        if a == b || a == root || b == root {
            return false;
        }
        let (a, b) = (a as u8, b as u8);
        let swapped = |rank: u8| {
            if rank == a {
                b
            } else if rank == b {
                a
            } else {
                rank
            }
        };
        for (child, parent) in (0..).zip(&self.parents[tree]) {
            if child == *parent || ![child, *parent].iter().any(|end| *end == a || *end == b) {
                continue;
            }
            let (new_parent, new_child) = (swapped(*parent), swapped(child));
            if self.links.both_ways(new_parent.into(), new_child.into()) <= 0.0 {
                return false;
            }
            change.old.push((*parent, child));
            change.new.push((new_parent, new_child));
            change.parents.push((new_child, new_parent));
        }
        true
    }

    /// A rank and all below it get another parent.
    fn reparent(&self, tree: usize, random: &mut SplitMix, change: &mut Change) -> bool {
        let (size, root, parents) = (self.links.size(), self.roots[tree], &self.parents[tree]);
        let (child, parent) = (random.below(size), random.below(size));
        let is_linked = self.links.both_ways(parent, child) > 0.0;
        if child == root || child == parent || usize::from(parents[child]) == parent || !is_linked {
            return false;
        }
        let mut above = parent;
        while above != root {
            if above == child {
                return false;
            }
            above = parents[above].into();
        }
        change.old.push((parents[child], child as u8));
        change.new.push((parent as u8, child as u8));
        change.parents.push((child as u8, parent as u8));
        true
    }

    /// A new tree, along links that cost little.
    fn renew(&mut self, tree: usize, prices: &Prices, random: &mut SplitMix, change: &mut Change) -> bool {
        let old = self.edges(tree);
        for (parent, child) in &old {
            let link = self.link(*parent, *child);
            self.uses[link] -= 1;
        }
        let noise = random.unit() * 4.0;
        let (parents, rounds) = broadcast(self.links, self.roots[tree], &mut |from, to| {
            let (from, to) = (from as u8, to as u8);
            let link = self.link(from, to);
            prices.step(link, self.uses[link]) - prices.worth * self.edge_weight(from, to)
                + noise * random.unit()
        });
        for (parent, child) in &old {
            let link = self.link(*parent, *child);
            self.uses[link] += 1;
        }
        if rounds > self.limits[tree] {
            return false;
        }
        change.old = old;
        let is_edge = |(child, parent): (u8, &u8)| (child != *parent).then_some((*parent, child));
        change.new = (0..).zip(&parents).filter_map(is_edge).collect();
        change.parents = (0..).zip(parents).collect();
        true
    }
}

impl Change {
    fn clear(&mut self) {
        self.old.clear();
        self.new.clear();
        self.parents.clear();
    }
}

/// The rounds of a broadcast along a tree: a rank serves those first that start the longest way.
pub(super) fn rounds(parents: &[u8], root: usize) -> u32 {
    fn below(parents: &[u8], rank: usize) -> u32 {
        let is_child = |at: &usize| usize::from(parents[*at]) == rank && *at != rank;
        // Rounds of children are below 256, as ranks are.
        let mut counts = [0u8; 65];
        let mut longest = 0;
        for child in (0..parents.len()).filter(is_child) {
            let rounds = below(parents, child) as usize;
            counts[rounds] += 1;
            longest = longest.max(rounds + 1);
        }
        let (mut sent, mut most) = (0, 0);
        for rounds in (0..longest).rev() {
            sent += u32::from(counts[rounds]);
            most = most.max(if counts[rounds] > 0 { rounds as u32 + sent } else { 0 });
        }
        most
    }
    below(parents, root)
}
