//! The bound of any schedule, by the largest flows.
//!
//! Let S be a set of ranks that leaves out some rank. The parts of all ranks in S have to leave S over the links that
//! cross its boundary. So for a buffer of one unit for each rank no schedule takes less time than |S| / (bandwidth that
//! leaves S), for any S (ForestColl, Zhao and others, 2024).

use crate::topology::LinkMatrix;
use alloc::{vec, vec::Vec};

/// The largest |S| / (bandwidth that leaves S), over all sets S of ranks that leave out some rank. 0 for a single rank.
///
/// From a known set, a flow finds one with a higher bound, until there is none. Each bound is above the one before, so
/// the search ends (Dinkelbach, 1967).
pub fn bound(links: &LinkMatrix) -> f64 {
    let size = links.size();
    let mut bound = 0.0;
    for out in 0..size {
        let mut others = vec![true; size];
        others[out] = false;
        let mut set = others;
        loop {
            let found = ratio(links, &set);
            if found <= bound * (1.0 + 1e-12) {
                // No better than the last: look whether any set that leaves `out` out is.
                match tighter(links, out, bound) {
                    Some(better) if ratio(links, &better) > bound * (1.0 + 1e-9) => set = better,
                    _ => break,
                }
            } else {
                bound = found;
            }
        }
    }
    bound
}

fn ratio(links: &LinkMatrix, set: &[bool]) -> f64 {
    let size = links.size();
    let members = (0..size).filter(|rank| set[*rank]);
    let (mut count, mut leaving) = (0.0, 0.0);
    for from in members {
        count += 1.0;
        leaving += (0..size).filter(|to| !set[*to]).map(|to| links.bandwidth(from, to)).sum::<f64>();
    }
    if count == 0.0 { 0.0 } else { count / leaving }
}

/// The set without `out` whose ratio is most above the bound by the largest flow from a source that gives each rank 1 / bound.
fn tighter(links: &LinkMatrix, out: usize, bound: f64) -> Option<Vec<bool>> {
    let size = links.size();
    if bound == 0.0 || size < 2 {
        return None;
    }
    let rate = 1.0 / bound;
    let (source, nodes) = (size, size + 1);
    let mut left = vec![0.0; nodes * nodes];
    for from in 0..size {
        left[source * nodes + from] = rate;
        (0..size).filter(|to| *to != from).for_each(|to| left[from * nodes + to] = links.bandwidth(from, to));
    }
    let mut flow = Flow::new(nodes, left, rate * 1e-10);
    flow.most(source, out);
    // What the source still reaches is the set.
    Some((0..size).map(|rank| flow.is_reached(rank)).collect())
}

/// Dinic's algorithm (1970).
pub(super) struct Flow {
    nodes: usize,
    /// What each link can still carry.
    left: Vec<f64>,
    /// Less does not count.
    least: f64,
    level: Vec<Option<u32>>,
}

impl Flow {
    /// Of `nodes`, with what each can send to each, row by row. Less than `least` does not count.
    pub(super) fn new(nodes: usize, left: Vec<f64>, least: f64) -> Self {
        Self { nodes, left, least, level: vec![] }
    }

    /// Between ranks, as much as links carry.
    pub(super) fn between(links: &LinkMatrix) -> Self {
        let size = links.size();
        let left: Vec<f64> = (0..size * size).map(|at| links.bandwidth(at / size, at % size)).collect();
        let least = left.iter().copied().fold(0.0, f64::max) * 1e-12;
        Self::new(size, left, least)
    }

    /// Sends as much as can be; how much that is.
    pub(super) fn most(&mut self, source: usize, sink: usize) -> f64 {
        let mut most = 0.0;
        while self.layers(source, sink) {
            let mut next = vec![0; self.nodes];
            loop {
                let sent = self.push(source, sink, f64::INFINITY, &mut next);
                most += sent;
                if sent <= self.least {
                    break;
                }
            }
        }
        most
    }

    /// Whether the source still reaches a node, after [`most`](Self::most).
    pub(super) fn is_reached(&self, node: usize) -> bool {
        self.level[node].is_some()
    }

    /// Numbers the nodes by their distance from the source. Whether the sink is reached.
    fn layers(&mut self, source: usize, sink: usize) -> bool {
        self.level = vec![None; self.nodes];
        self.level[source] = Some(0);
        let mut layer = vec![source];
        let mut distance = 0;
        while !layer.is_empty() {
            distance += 1;
            let mut next = vec![];
            for from in layer {
                for to in 0..self.nodes {
                    if self.level[to].is_none() && self.left[from * self.nodes + to] > self.least {
                        self.level[to] = Some(distance);
                        next.push(to);
                    }
                }
            }
            layer = next;
        }
        self.level[sink].is_some()
    }

    /// Sends along one way from layer to layer; how much.
    fn push(&mut self, from: usize, sink: usize, most: f64, next: &mut [usize]) -> f64 {
        if from == sink {
            return most;
        }
        while next[from] < self.nodes {
            let to = next[from];
            let room = self.left[from * self.nodes + to];
            let is_ahead = match (self.level[from], self.level[to]) {
                (Some(here), Some(there)) => there == here + 1,
                _ => false,
            };
            if is_ahead && room > self.least {
                let sent = self.push(to, sink, most.min(room), next);
                if sent > self.least {
                    self.left[from * self.nodes + to] -= sent;
                    self.left[to * self.nodes + from] += sent;
                    return sent;
                }
            }
            next[from] += 1;
        }
        0.0
    }
}
