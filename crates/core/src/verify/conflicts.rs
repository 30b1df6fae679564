//! Which steps of a rank conflict: they touch the same place, and one of them writes it.

use super::graph::{Graph, Node};
use alloc::vec::Vec;

/// Finds the steps of one rank that conflict.
#[derive(Default)]
pub(super) struct Conflicts {
    places: Vec<Uses>,
    /// Reads since the last write of their place; each with the one before it.
    reads: Vec<(Node, u32)>,
    /// Pairs of conflicting steps, in program order.
    edges: Vec<(Node, Node)>,
}

/// What the steps so far do with a place.
#[derive(Clone, Copy)]
struct Uses {
    /// The last step that writes it.
    writer: Node,
    /// The last read since.
    read: u32,
    /// Whether it was ever sent.
    sent: bool,
}

/// What a write replaces.
pub(super) struct Overwritten {
    /// Whether the place was written before.
    pub(super) written: bool,
    /// Whether the place was sent before.
    pub(super) sent: bool,
}

const NOBODY: Node = Node::MAX;
const NO_READ: u32 = u32::MAX;

impl Conflicts {
    /// Starts a rank with this many places.
    pub(super) fn start(&mut self, places: usize) {
        self.places.clear();
        self.places.resize(places, Uses { writer: NOBODY, read: NO_READ, sent: false });
        self.reads.clear();
        self.edges.clear();
    }

    /// Whether the step at hand reads the place already.
    pub(super) fn reads(&self, place: usize, node: Node) -> bool {
        self.reads.get(self.places[place].read as usize).is_some_and(|(reader, _)| *reader == node)
    }

    /// Whether a step so far writes the place.
    pub(super) fn is_written(&self, place: usize) -> bool {
        self.places[place].writer != NOBODY
    }

    pub(super) fn read(&mut self, place: usize, node: Node) {
        let uses = &mut self.places[place];
        if uses.writer != NOBODY {
            self.edges.push((uses.writer, node));
        }
        self.reads.push((node, uses.read));
        uses.read = self.reads.len() as u32 - 1;
    }

    pub(super) fn sent(&mut self, place: usize) {
        self.places[place].sent = true;
    }

    pub(super) fn write(&mut self, place: usize, node: Node) -> Overwritten {
        let uses = self.places[place];
        if uses.read == NO_READ && uses.writer != NOBODY {
            self.edges.push((uses.writer, node));
        }
        let mut read = uses.read;
        while read != NO_READ {
            let (reader, before) = self.reads[read as usize];
            if reader != node {
                self.edges.push((reader, node));
            }
            read = before;
        }
        self.places[place] = Uses { writer: node, read: NO_READ, sent: uses.sent };
        Overwritten { written: uses.writer != NOBODY, sent: uses.sent }
    }

    /// Leaves one of each of a step's conflicts, which are those from a number on, where it touches several places.
    pub(super) fn join(&mut self, first: usize) {
        let mut own = self.edges.split_off(first);
        own.sort_unstable();
        own.dedup();
        self.edges.append(&mut own);
    }

    /// How many conflicts the rank has so far.
    pub(super) fn edges(&self) -> usize {
        self.edges.len()
    }

    /// Adds the rank's conflicts to the graph.
    pub(super) fn move_into(&mut self, graph: &mut Graph) {
        self.edges.sort_unstable();
        graph.follow(&self.edges);
    }
}
