//! Running the graph: a step runs once all that it follows has run. What never runs is deadlocked.
//!
//! The graph is a Kahn network without choices, so every maximal run ends in the same state and one run proves all.

use super::{
    error::{Stuck, VerifyError},
    graph::{Graph, Node},
    lists::List,
    ops::Op,
    symbols::Symbols,
};
use alloc::{vec, vec::Vec};

/// Runs all steps on symbols, each send joined with its receives: lanes hold nothing, and a send ends, for the steps
/// that conflict with it, when its last receiver has taken the message.
pub(super) fn joined(graph: &Graph, symbols: &mut Symbols<'_>) -> Result<(), VerifyError> {
    let mut follows = vec![0; graph.nodes() as usize];
    for followers in &graph.followers {
        graph.lists.of(*followers).for_each(|follower| follows[follower as usize] += 1);
    }
    let mut run = Run::new(graph, follows);
    while let Some(node) = run.next() {
        let received = run.waits[node as usize] == STARTED;
        if !received {
            symbols.step(node).map_err(|fault| graph.fault(node, fault))?;
        }
        match graph.op(node) {
            Op::Send { to, .. } if !received => run.start_send(node, to),
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
    let mut follows = vec![1; graph.nodes() as usize];
    for rank in 0..graph.ranks() {
        if let Some(first) = graph.nodes_of(rank).next() {
            follows[first as usize] = 0;
        }
    }
    let mut run = Run::new(graph, follows);
    let mut left = graph.nodes();
    while let Some(first) = run.next() {
        for node in first..graph.nodes_of(graph.rank(first)).end {
            if node != first && !run.count_down(node) {
                break;
            }
            left -= 1;
            run.end_in_order(node);
        }
    }
    left == 0
}

struct Run<'a> {
    graph: &'a Graph,
    /// How much each node still waits for; a send that has started waits for its receivers.
    waits: Vec<u32>,
    /// Nodes that have come to wait for nothing.
    ready: Vec<Node>,
    /// Nodes from this one on may have waited for nothing from the start.
    unseen: Node,
}

/// Added to what a send waits for once it has started.
const STARTED: u32 = 1 << 31;
/// In place of what an ended node waits for.
const ENDED: u32 = u32::MAX;

impl<'a> Run<'a> {
    /// `follows`: how many steps of its own rank each node follows.
    fn new(graph: &'a Graph, follows: Vec<u32>) -> Self {
        let mut run = Self { graph, waits: follows, ready: Vec::new(), unseen: 0 };
        for message in 0..graph.senders.len() as u32 {
            if let Some(next) = graph.next_sender(message) {
                run.waits[next as usize] += 1;
            }
        }
        for node in 0..graph.nodes() {
            run.waits[node as usize] += graph.messages_of(node).count() as u32;
        }
        run
    }

    /// A node that waits for nothing. One that has come to does before the next that never did, so those that wait
    /// their turn are few, and neighbours in one program often are in time.
    fn next(&mut self) -> Option<Node> {
        if let Some(node) = self.ready.pop() {
            return Some(node);
        }
        let unseen = &self.waits[self.unseen as usize..];
        let node = self.unseen + unseen.iter().position(|waits| *waits == 0)? as Node;
        self.unseen = node + 1;
        Some(node)
    }

    /// One thing that `node` waits for has come about. Says whether it was the last.
    fn count_down(&mut self, node: Node) -> bool {
        let waits = &mut self.waits[node as usize];
        *waits -= 1;
        *waits & !STARTED == 0
    }

    fn release(&mut self, node: Node) {
        if self.count_down(node) {
            self.ready.push(node);
        }
    }

    fn release_all(&mut self, nodes: List) {
        for node in self.graph.lists.of(nodes) {
            self.release(node);
        }
    }

    fn release_next_sender(&mut self, message: u32) {
        if let Some(next) = self.graph.next_sender(message) {
            self.release(next);
        }
    }

    fn start_send(&mut self, node: Node, to: List) {
        self.waits[node as usize] = STARTED + self.graph.lists.len(to);
        self.release_all(to);
    }

    fn end(&mut self, node: Node) {
        self.waits[node as usize] = ENDED;
        for message in self.graph.messages_of(node) {
            self.release(self.graph.sender(message));
            self.release_next_sender(message);
        }
        self.release_all(self.graph.followers[node as usize]);
    }

    /// Ends a node of a rank that runs its steps in order.
    fn end_in_order(&mut self, node: Node) {
        self.waits[node as usize] = ENDED;
        if let Op::Send { to, .. } = self.graph.op(node) {
            self.release_all(to);
        }
        for message in self.graph.messages_of(node) {
            self.release_next_sender(message);
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
