//! Trees for large buffers. Each rank's part of the buffer is cut into equal slices, and each slice goes over a tree of
//! its own, so that all links are busy.
//!
//! The trees are improved in turns. Each is removed and grown again along the links that are then least loaded, which
//! gives the least possible largest load on its way (Prim's algorithm on the largest load).

use super::tree::{FoundBy, SpanningTree, TreeSet};
use super::{all_reduce_bound, bound};
use crate::topology::{LinkMatrix, random::SplitMix};
use alloc::{vec, vec::Vec};

/// The most slices of one rank's part.
const MOST_SLICES: usize = 12;

/// The part of the bound that is good enough.
const ENOUGH: f64 = 0.97;

const SEED: u64 = 20_240_209;

/// `is_one_way` says that trees carry a broadcast; else an all-reduce, which uses both directions of each link.
pub(super) fn trees(links: &LinkMatrix, roots: &[usize], is_one_way: bool) -> Vec<SpanningTree> {
    let least = if is_one_way { bound(links) } else { all_reduce_bound(links) };
    let mut best: Option<(f64, Vec<SpanningTree>)> = None;
    for slices in 1..=MOST_SLICES {
        let set = TreeSet { size: links.size(), trees: packed(links, roots, slices, is_one_way) };
        let part = if is_one_way { set.part_one_way(least, links) } else { set.part_of(least, links) };
        let set = set.trees;
        if best.as_ref().is_none_or(|(most, _)| part > *most + 1e-9) {
            best = Some((part, set));
        }
        if best.as_ref().is_some_and(|(most, _)| *most >= ENOUGH) {
            break;
        }
    }
    best.map(|(_, trees)| trees).unwrap_or_default()
}

struct Packing<'a> {
    links: &'a LinkMatrix,
    roots: Vec<usize>,
    parents: Vec<Vec<usize>>,
    /// By sender and receiver of a broadcast; of trees that are used both ways, the same in both directions.
    uses: Vec<u32>,
    is_one_way: bool,
}

/// The trees with so many slices for each root.
fn packed(links: &LinkMatrix, roots: &[usize], slices: usize, is_one_way: bool) -> Vec<SpanningTree> {
    let size = links.size();
    let all: Vec<usize> = roots.iter().flat_map(|root| vec![*root; slices]).collect();
    let (parents, uses) = (vec![vec![]; all.len()], vec![0; size * size]);
    let mut packing = Packing { links, parents, roots: all, uses, is_one_way };
    let mut random = SplitMix::new(SEED + slices as u64);
    let (mut best, mut stale) = (None::<(f64, Vec<Vec<usize>>)>, 0);
    let mut order: Vec<usize> = (0..packing.roots.len()).collect();
    let patience = if size <= 16 { 60 } else { 6 };
    while stale < patience {
        random.shuffle(&mut order);
        order.iter().for_each(|tree| packing.regrow(*tree, &mut random));
        let worst = packing.worst();
        stale += 1;
        if best.as_ref().is_none_or(|(least, _)| worst < *least - 1e-12) {
            best = Some((worst, packing.parents.clone()));
            stale = 0;
        }
    }
    packing.parents = best.map(|(_, parents)| parents).unwrap_or_default();
    packing.merged()
}

impl Packing<'_> {
    fn load(&self, from: usize, to: usize, uses: u32) -> f64 {
        let forth = self.links.bandwidth(from, to);
        let bandwidth = if self.is_one_way { forth } else { forth.min(self.links.bandwidth(to, from)) };
        f64::from(uses) / bandwidth
    }

    /// The uses of a direction of a link, in each direction that counts with it.
    fn count(&mut self, from: usize, to: usize, change: impl Fn(&mut u32)) {
        let size = self.links.size();
        change(&mut self.uses[from * size + to]);
        if !self.is_one_way {
            change(&mut self.uses[to * size + from]);
        }
    }

    fn worst(&self) -> f64 {
        let size = self.links.size();
        let used = self.uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
        used.map(|(at, uses)| self.load(at / size, at % size, *uses)).fold(0.0, f64::max)
    }

    /// Takes a tree out and grows it from its root: always by the link that is least loaded then.
    fn regrow(&mut self, tree: usize, random: &mut SplitMix) {
        let (size, root) = (self.links.size(), self.roots[tree]);
        for (child, parent) in core::mem::take(&mut self.parents[tree]).into_iter().enumerate() {
            if child != root {
                self.count(parent, child, |uses| *uses -= 1);
            }
        }
        let mut parents = vec![root; size];
        let mut cheapest = vec![(f64::INFINITY, root); size];
        let mut is_in = vec![false; size];
        let mut newest = root;
        for _ in 1..size {
            is_in[newest] = true;
            for to in (0..size).filter(|to| !is_in[*to] && self.links.both_ways(newest, *to) > 0.0) {
                let load = self.load(newest, to, self.uses[newest * size + to] + 1);
                let price = load * (1.0 + 0.01 * random.unit());
                if price < cheapest[to].0 {
                    cheapest[to] = (price, newest);
                }
            }
            let open = (0..size).filter(|to| !is_in[*to]);
            let Some(next) = open.min_by(|a, b| cheapest[*a].0.total_cmp(&cheapest[*b].0)) else { break };
            parents[next] = cheapest[next].1;
            self.count(parents[next], next, |uses| *uses += 1);
            newest = next;
        }
        self.parents[tree] = parents;
    }

    /// Equal trees as one, with as many slices.
    fn merged(&self) -> Vec<SpanningTree> {
        let mut merged: Vec<(usize, &Vec<usize>, u32)> = vec![];
        for (root, parents) in self.roots.iter().zip(&self.parents) {
            match merged.iter_mut().find(|(other, same, _)| other == root && *same == parents) {
                Some((.., slices)) => *slices += 1,
                None => merged.push((*root, parents, 1)),
            }
        }
        let tree = |(root, parents, slices): (usize, &Vec<usize>, u32)| {
            let parents: Vec<u8> = parents.iter().map(|parent| *parent as u8).collect();
            let tree = SpanningTree::of_parents(root, &parents, FoundBy::Packing);
            SpanningTree { slices, ..tree }
        };
        merged.into_iter().map(tree).collect()
    }
}
