//! Running the graph: a step runs once all that it follows has run. What never runs is deadlocked.
//!
//! The graph is a Kahn network without choices, so every maximal run ends in the same state and one run proves all.

use super::{
    error::{Stuck, VerifyError},
    graph::{Graph, Node, Op},
    symbols::Symbols,
};
use alloc::{vec, vec::Vec};

/// Runs all steps on symbols, each send joined with its receives: lanes hold nothing, and a send ends, for the steps
/// that conflict with it, when its last receiver has taken the message.
pub(super) fn joined(graph: &Graph, symbols: &mut Symbols<'_>) -> Result<(), VerifyError> {
    let mut run = Run::new(graph, graph.follows.clone());
    while let Some(node) = run.ready.pop() {
        let received = run.waits[node as usize] == STARTED;
        if !received {
            symbols.step(node).map_err(|fault| graph.fault(node, fault))?;
        }
        match graph.ops[node as usize] {
            Op::Send { parts, .. } if !received => run.start_send(node, parts),
            _ => run.end(node),
        }
    }
    match run.stuck() {
        stuck if stuck.is_empty() => Ok(()),
        stuck => Err(VerifyError::Deadlock { stuck }),
    }
}

/// Whether every rank can run its steps strictly in order if each lane holds one message: a send, to all its
/// receivers at once, waits until each has taken the message before.
pub(super) fn serial(graph: &Graph) -> bool {
    let mut follows = vec![1; graph.ops.len()];
    for rank in 0..graph.ranks() {
        if let Some(first) = graph.nodes_of(rank).next() {
            follows[first as usize] = 0;
        }
    }
    let mut run = Run::new(graph, follows);
    let mut left = graph.ops.len();
    while let Some(node) = run.ready.pop() {
        left -= 1;
        if let Op::Send { parts, .. } = graph.ops[node as usize] {
            run.release_receivers(parts);
        }
        for receive in graph.receives_of(node) {
            run.release_next_sender(graph.receives[receive as usize].message);
        }
        let next = node + 1;
        if graph.nodes_of(graph.rank(node)).contains(&next) {
            run.release(next);
        }
    }
    left == 0
}

struct Run<'a> {
    graph: &'a Graph,
    /// How much each node still waits for; a send that has started waits for its receivers.
    waits: Vec<u32>,
    ready: Vec<Node>,
}

/// Added to what a send waits for once it has started.
const STARTED: u32 = 1 << 31;
/// In place of what an ended node waits for.
const ENDED: u32 = u32::MAX;

impl<'a> Run<'a> {
    /// `follows`: how many steps of its own rank each node follows.
    fn new(graph: &'a Graph, follows: Vec<u32>) -> Self {
        let mut run = Self { graph, waits: follows, ready: Vec::new() };
        for message in 0..graph.senders.len() as u32 {
            if let Some(next) = graph.next_sender(message) {
                run.waits[next as usize] += 1;
            }
        }
        for node in 0..graph.ops.len() as Node {
            run.waits[node as usize] += graph.receives_of(node).len() as u32;
            if run.waits[node as usize] == 0 {
                run.ready.push(node);
            }
        }
        run
    }

    /// One thing that `node` waits for has come about.
    fn release(&mut self, node: Node) {
        let waits = &mut self.waits[node as usize];
        *waits -= 1;
        if *waits & !STARTED == 0 {
            self.ready.push(node);
        }
    }

    fn release_receivers(&mut self, first_part: u32) {
        for receiver in self.graph.receivers_from(first_part) {
            self.release(receiver);
        }
    }

    fn release_next_sender(&mut self, message: u32) {
        if let Some(next) = self.graph.next_sender(message) {
            self.release(next);
        }
    }

    fn start_send(&mut self, node: Node, first_part: u32) {
        self.waits[node as usize] = STARTED + self.graph.receivers_from(first_part).count() as u32;
        self.release_receivers(first_part);
    }

    fn end(&mut self, node: Node) {
        self.waits[node as usize] = ENDED;
        for receive in self.graph.receives_of(node) {
            let message = self.graph.receives[receive as usize].message;
            self.release(self.graph.sender(message));
            self.release_next_sender(message);
        }
        for follower in self.graph.followers_of(node) {
            self.release(*follower);
        }
    }

    /// The first step of each rank that has not ended.
    fn stuck(&self) -> Vec<Stuck> {
        let stands = |rank| {
            let mut nodes = self.graph.nodes_of(rank);
            let first = nodes.start;
            let node = nodes.find(|node| self.waits[*node as usize] != ENDED)?;
            Some(Stuck { rank, step: node - first })
        };
        (0..self.graph.ranks()).filter_map(stands).collect()
    }
}
