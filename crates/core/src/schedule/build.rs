//! Writing a program, step by step.

use super::{Chunk, Form, Origin, Place, Program, Rank, Run, Source, Step};
use crate::group::merges;

/// Writes one rank's [`Program`]. Methods append a step and stand in for it in an algorithm's text.
#[derive(Debug, Default)]
pub struct ProgramBuilder {
    program: Program,
}

impl ProgramBuilder {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new slot.
    pub fn slot(&mut self, form: Form) -> Place {
        self.program.slots.push(form);
        Place::Slot(self.program.slots.len() as u32 - 1)
    }

    /// Sends `from` to every rank of `to`, in this order; nothing if there is none.
    pub fn send(&mut self, from: Place, to: impl IntoIterator<Item = Rank>) -> &mut Self {
        let start = self.program.lanes.len() as u32;
        self.program.lanes.extend(to);
        let len = self.program.lanes.len() as u32 - start;
        if len > 0 {
            self.program.steps.push(Step::Send { from, to: Run { start, len } });
        }
        self
    }

    /// Receives the next message of `lane`, which is of `chunk`.
    pub fn recv(&mut self, lane: Rank, chunk: Chunk, into: Place) -> &mut Self {
        self.program.steps.push(Step::Recv { lane, chunk, into });
        self
    }

    /// Folds partial sums, each given with a fold key of its node, in the shape of the canonical tree.
    ///
    /// # Panics
    /// If the keys do not ascend strictly.
    pub fn fold(&mut self, chunk: Chunk, sources: &[(u32, Origin)], into: Place, finish: bool) -> &mut Self {
        let keys: alloc::vec::Vec<u32> = sources.iter().map(|(key, _)| *key).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "the keys of a fold ascend: {keys:?}");
        let shaped = sources.iter().zip(merges(&keys));
        self.fold_shaped(
            chunk,
            shaped.map(|((_, from), merges)| Source { from: *from, merges }),
            into,
            finish,
        )
    }

    /// Folds sources in the shape that their own merges give.
    pub fn fold_shaped(
        &mut self,
        chunk: Chunk,
        sources: impl IntoIterator<Item = Source>,
        into: Place,
        finish: bool,
    ) -> &mut Self {
        let start = self.program.sources.len() as u32;
        self.program.sources.extend(sources);
        let from = Run { start, len: self.program.sources.len() as u32 - start };
        self.program.steps.push(Step::Fold { chunk, from, into, finish });
        self
    }

    /// Copies one place to another.
    pub fn copy(&mut self, from: Place, into: Place) -> &mut Self {
        self.program.steps.push(Step::Copy { from, into });
        self
    }

    /// Encodes the data at `from`; the form of `into` decides the code.
    pub fn encode(&mut self, from: Place, into: Place) -> &mut Self {
        self.program.steps.push(Step::Encode { from, into });
        self
    }

    /// Decodes a result of `chunk`.
    pub fn decode(&mut self, chunk: Chunk, from: Origin, into: Place) -> &mut Self {
        self.program.steps.push(Step::Decode { chunk, from, into });
        self
    }

    /// How many steps there are so far.
    pub(super) fn steps(&self) -> usize {
        self.program.steps.len()
    }

    /// Lets the last step stand for `span` chunks; see [`Program::span`].
    ///
    /// # Panics
    /// If there is no step, or the span is 0 or does not fit 16 bits.
    pub fn span(&mut self, span: u32) -> &mut Self {
        let last = self.program.steps.len().checked_sub(1).expect("a step");
        let span = u16::try_from(span).ok().filter(|span| *span > 0).expect("a span of 1 to 65,535 chunks");
        self.program.spans.truncate(last);
        if span > 1 {
            self.program.spans.resize(last, 1);
            self.program.spans.push(span);
        }
        self
    }

    /// The program as written.
    pub fn build(self) -> Program {
        self.program
    }
}
