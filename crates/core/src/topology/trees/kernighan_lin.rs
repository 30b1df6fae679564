//! MXNet's trees by clusters: Kernighan and Lin (1970) halve the ranks again and again, and the heaviest link between two halves
//! becomes an edge.
//!
//! Two departures from the paper are MXNet's: only steps that improve a cut are taken, and a cluster that is finished one level
//! early keeps no root. So it gives up for ranks between 2^k and 3 * 2^(k-1).

use super::exhaustive::depth;
use crate::topology::random::SplitMix;
use alloc::{vec, vec::Vec};

/// How often an attempt may fail.
const FAILURES: u32 = 10;

/// A cluster of a pass: what becomes of it.
enum Cut {
    Whole(usize),
    Halves(usize, usize),
}

/// The edges of a tree, level by level from the root; `None` if each attempt gets stuck.
pub(super) fn edges(weights: &[f32], size: usize, root: usize, seed: u64) -> Option<Vec<[usize; 2]>> {
    let mut random = SplitMix::new(seed);
    (0..=FAILURES).find_map(|_| attempt(weights, size, root, &mut random))
}

fn attempt(weights: &[f32], size: usize, root: usize, random: &mut SplitMix) -> Option<Vec<[usize; 2]>> {
    let mut clusters = Clusters { weights, size, of: vec![0; size], count: 1, roots: vec![root] };
    let mut edges = vec![];
    let mut level = vec![root];
    for _ in 0..depth(size) + 1 {
        let (cuts, is_last) = clusters.pass(random);
        let children = clusters.pairs(&cuts, random)?;
        let mut next: Vec<usize> = vec![];
        for (at, entry) in level.iter().enumerate() {
            let is_again = at > 0 && level[at - 1] == *entry;
            let child = children.iter().find(|[parent, _]| parent == entry).map(|[_, child]| *child);
            let child = if is_again { *entry } else { child? };
            if child != *entry {
                edges.push([*entry, child]);
            }
            next.extend([*entry, child]);
        }
        level = next;
        if is_last {
            return Some(edges);
        }
    }
    None
}

struct Clusters<'a> {
    weights: &'a [f32],
    size: usize,
    /// The cluster of each rank.
    of: Vec<usize>,
    count: usize,
    roots: Vec<usize>,
}

impl Clusters<'_> {
    fn members(&self, cluster: usize) -> Vec<usize> {
        (0..self.size).filter(|rank| self.of[*rank] == cluster).collect()
    }

    /// Halves each cluster of more than two ranks. Whether there was none.
    fn pass(&mut self, random: &mut SplitMix) -> (Vec<Cut>, bool) {
        let mut cuts = vec![];
        let mut is_last = true;
        for cluster in 0..self.count {
            let members = self.members(cluster);
            if members.len() <= 2 {
                cuts.push(Cut::Whole(cluster));
                continue;
            }
            is_last = false;
            let sides = self.halve(&members, random);
            members.iter().filter(|rank| sides[**rank] < 0.0).for_each(|rank| self.of[*rank] = self.count);
            cuts.push(Cut::Halves(cluster, self.count));
            self.count += 1;
        }
        (cuts, is_last)
    }

    /// Each member on side 1 or -1, half of them each; the others are 0.
    fn halve(&self, members: &[usize], random: &mut SplitMix) -> Vec<f32> {
        let mut shuffled = members.to_vec();
        random.shuffle(&mut shuffled);
        let mut sides = vec![0.0; self.size];
        let half = members.len() / 2;
        shuffled.iter().enumerate().for_each(|(at, rank)| sides[*rank] = if at < half { 1.0 } else { -1.0 });
        let mut gain = 0.0;
        for _ in 0..=self.size {
            gain = self.improve(&mut sides, half, gain);
            if gain <= 0.0 {
                break;
            }
        }
        sides
    }

    /// Swaps as many pairs as gain most, if they gain more than before.
    fn improve(&self, sides: &mut [f32], half: usize, mut best_gain: f32) -> f32 {
        let mut tried = sides.to_vec();
        let mut used = vec![false; self.size];
        let mut external = self.external(&tried);
        let mut picked = vec![];
        for _ in 0..half {
            let Some((gain, a, b)) =
                self.best_swap(&tried, &external, &used).filter(|(gain, ..)| *gain > 0.0)
            else {
                best_gain = 0.0;
                break;
            };
            picked.push((gain, a, b));
            (used[a], used[b]) = (true, true);
            (tried[a], tried[b]) = (-tried[a], -tried[b]);
            external = self.external(&tried);
            (external[a], external[b]) = (0.0, 0.0);
        }
        let mut sum = 0.0;
        let mut kept = 0;
        for (count, (gain, ..)) in (1..).zip(&picked) {
            sum += gain;
            if sum > best_gain {
                (best_gain, kept) = (sum, count);
            }
        }
        for (_, a, b) in &picked[..kept] {
            (sides[*a], sides[*b]) = (-sides[*a], -sides[*b]);
        }
        best_gain
    }

    /// External minus internal cost of each rank.
    fn external(&self, sides: &[f32]) -> Vec<f32> {
        let cost = |rank: usize| {
            let row = &self.weights[rank * self.size..][..self.size];
            let sum: f32 = row.iter().zip(sides).map(|(weight, side)| weight * side).sum();
            -sides[rank] * sum
        };
        (0..self.size).map(cost).collect()
    }

    fn best_swap(&self, sides: &[f32], external: &[f32], used: &[bool]) -> Option<(f32, usize, usize)> {
        let mut best: Option<(f32, usize, usize)> = None;
        for a in (0..self.size).filter(|a| !used[*a]) {
            for b in (a + 1..self.size).filter(|b| sides[a] * sides[*b] < 0.0) {
                let gain = external[a] + external[b] - 2.0 * self.weights[a * self.size + b];
                if best.is_none_or(|(most, ..)| gain > most) {
                    best = Some((gain, a, b));
                }
            }
        }
        best
    }

    /// Parent and child of each cluster's new edge; `None` where it is stuck.
    fn pairs(&mut self, cuts: &[Cut], random: &mut SplitMix) -> Option<Vec<[usize; 2]>> {
        let root_in =
            |members: &[usize], roots: &[usize]| members.iter().copied().find(|rank| roots.contains(rank));
        let mut roots = vec![];
        let mut pairs = vec![];
        for cut in cuts {
            match *cut {
                Cut::Whole(cluster) => match self.members(cluster)[..] {
                    [alone] => pairs.push([alone, alone]),
                    [a, b] => {
                        let root = root_in(&[a, b], &self.roots)?;
                        pairs.push([root, if root == a { b } else { a }]);
                    }
                    _ => return None,
                },
                Cut::Halves(one, other) => {
                    let (mine, theirs) = (self.members(one), self.members(other));
                    let (parent, across) = match root_in(&mine, &self.roots) {
                        Some(root) => (root, theirs),
                        None => (root_in(&theirs, &self.roots)?, mine),
                    };
                    let weight = |rank: &usize| self.weights[parent * self.size + rank];
                    let most = across.iter().map(weight).fold(0.0, f32::max);
                    let mut heaviest: Vec<usize> =
                        across.iter().copied().filter(|rank| weight(rank) == most && most > 0.0).collect();
                    random.shuffle(&mut heaviest);
                    let child = *heaviest.first()?;
                    pairs.push([parent, child]);
                    roots.extend([parent, child]);
                }
            }
        }
        self.roots = roots;
        Some(pairs)
    }
}
