//! Running the graph: a step runs once all steps that it follows have run. Steps that never run are deadlocked.
//!
//! The graph is a Kahn network without choices, so every maximal run ends in the same state and one run proves all.

use super::{
    error::{Stuck, VerifyError},
    graph::{Graph, Node},
    lists::List,
    ops::Op,
};
use alloc::vec::Vec;
use core::ops::Range;

/// Runs all steps, each told to `step`, over lanes that hold nothing. A send is joined with its receives: it ends, for the steps
/// that conflict with it, when its last receiver has taken the message.
pub(super) fn joined(
    graph: &Graph,
    mut step: impl FnMut(Node) -> Result<(), VerifyError>,
) -> Result<(), VerifyError> {
    let mut run = Run::new(graph);
    for node in 0..graph.nodes() {
        run.followers(node).for_each(|follower| run.wait(follower));
    }
    while let Some(node) = run.next() {
        step(node)?;
        match graph.op(node) {
            Op::Send { to, .. } => {
                run.set_waits(node, graph.lists.len(to));
                run.release_all(to);
            }
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
    if graph.takes_several {
        return false;
    }
    let mut run = Run::new(graph);
    for rank in 0..graph.ranks() {
        let nodes = graph.nodes_of(rank);
        nodes.clone().skip(1).for_each(|node| run.wait(node));
        nodes.clone().for_each(|node| next_sends(graph, node, &nodes).for_each(|next| run.wait(next)));
    }
    let mut left = graph.nodes();
    while let Some(first) = run.next() {
        let nodes = graph.nodes_of(graph.rank(first));
        for node in first..nodes.end {
            if node != first && !run.count_down(node) {
                break;
            }
            left -= 1;
            run.end_in_order(node, &nodes);
        }
    }
    left == 0
}

/// Those that follow a node of a rank, given the rank's nodes, but are not the rank's own: these follow it in program order anyway.
/// Where one rank stands for all, its own are among the others' sends, and to wait for them twice changes nothing.
fn next_sends<'a>(graph: &'a Graph, node: Node, nodes: &'a Range<Node>) -> impl Iterator<Item = Node> + 'a {
    let followers = graph.lists.of(graph.ops[node as usize].followers);
    followers.filter(|follower| graph.is_of_one() || !nodes.contains(follower))
}

struct Run<'a> {
    graph: &'a Graph,
    /// Nodes that have come to wait for nothing.
    ready: Vec<Node>,
    /// Nodes from this one on may have waited for nothing from the start.
    unseen: Node,
}

/// In place of what an ended node waits for.
const ENDED: u32 = u32::MAX;

impl<'a> Run<'a> {
    /// Each node waits for the messages that it takes.
    fn new(graph: &'a Graph) -> Self {
        let mut run = Self { graph, ready: Vec::new(), unseen: 0 };
        for node in 0..graph.nodes() {
            run.set_waits(node, graph.senders_of(node).count() as u32);
        }
        run
    }

    /// A node that waits for nothing. One that has come to does before the next that never did, so those that wait
    /// their turn are few, and neighbours in one program often are in time.
    fn next(&mut self) -> Option<Node> {
        if let Some(node) = self.ready.pop() {
            return Some(node);
        }
        let node = (self.unseen..self.graph.nodes()).find(|node| self.waits(*node) == 0)?;
        self.unseen = node + 1;
        Some(node)
    }

    /// How much a node still waits for; a send that has started waits for its receivers.
    fn waits(&self, node: Node) -> u32 {
        self.graph.ops[node as usize].waits.get()
    }

    fn set_waits(&mut self, node: Node, waits: u32) {
        self.graph.ops[node as usize].waits.set(waits);
    }

    /// One thing more for `node` to wait for.
    fn wait(&mut self, node: Node) {
        self.set_waits(node, self.waits(node) + 1);
    }

    /// One thing that `node` waits for has come about. Says whether it was the last.
    fn count_down(&mut self, node: Node) -> bool {
        let waits = self.waits(node) - 1;
        self.set_waits(node, waits);
        waits == 0
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

    /// Ends a node, and the sends of which it took the last message.
    fn end(&mut self, node: Node) {
        for sender in self.graph.senders_of(node) {
            if self.count_down(sender) {
                self.release_followers(sender);
            }
        }
        self.release_followers(node);
    }

    /// What waits for a node's end.
    fn followers(&self, node: Node) -> impl Iterator<Item = Node> + use<'a> {
        let graph = self.graph;
        graph.lists.of(graph.ops[node as usize].followers)
    }

    fn release_followers(&mut self, ended: Node) {
        self.set_waits(ended, ENDED);
        for node in self.followers(ended) {
            self.release(node);
        }
    }

    /// Ends a node of a rank that runs its steps, `nodes`, in order.
    fn end_in_order(&mut self, node: Node, nodes: &Range<Node>) {
        self.set_waits(node, ENDED);
        if let Op::Send { to, .. } = self.graph.op(node) {
            self.release_all(to);
        }
        for next in next_sends(self.graph, node, nodes) {
            self.release(next);
        }
    }

    /// The first step of each rank that has not ended.
    fn stuck(&self) -> Vec<Stuck> {
        let stands = |rank| {
            let mut nodes = self.graph.nodes_of(rank);
            let first = nodes.start;
            let node = nodes.find(|node| self.waits(*node) != ENDED)?;
            Some(Stuck { rank, step: node - first })
        };
        (0..self.graph.ranks()).filter_map(stands).collect()
    }
}
