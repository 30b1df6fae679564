//! The contents of every place while the graph runs, as symbols, and the required contents at the end.

use super::{
    Order,
    error::{ResultFault, StepFault, VerifyError},
    flaw::Flaw,
    graph::{Graph, Node},
    ops::{At, Fold, From, Op},
    rounds::{MessageEnds, Rounds},
    shifts::Shifts,
    terms::{Term, Terms},
};
use crate::{
    collective::{Collective, Expected},
    group::Group,
    schedule::{Chunk, Form, Rank},
};
use alloc::{vec, vec::Vec};
use core::mem::replace;

/// What a step writes.
#[derive(Clone, Copy)]
struct Value {
    held: Held,
    chunk: Chunk,
}

/// What a place holds.
#[derive(Clone, Copy)]
struct Held {
    term: Term,
    /// How many messages the longest chain behind it has, of which each needs the one before.
    chain: u32,
}

impl Held {
    /// The same behind a chain of messages.
    fn after(self, chain: u32) -> Self {
        Self { chain: self.chain.max(chain), ..self }
    }
}

/// What a step takes of a message for one of its chunks.
struct MessagePart {
    /// Who sends it.
    sender: Node,
    /// Of which source it is, if of any.
    source: Option<u32>,
    /// The chunk that it must be of.
    chunk: Chunk,
    /// The form that it must have.
    form: Form,
    /// Which of the message's chunks it is, counted from the first.
    offset: u32,
}

pub(super) struct Symbols<'a> {
    graph: &'a Graph,
    collective: Collective,
    group: &'a Group,
    terms: Terms,
    canonical: Term,
    /// By place.
    held: Vec<Held>,
    /// By slot: of which chunk it is. A user place is of its chunk from the start.
    slot_chunks: Vec<Chunk>,
    /// The messages of each chain's length.
    rounds: Rounds,
    /// The partial sums of the fold at hand.
    stack: Vec<Term>,
    /// By user place, if anything is encoded: whether its worker has encoded the chunk to be folded.
    encoded: Vec<bool>,
    /// The last sum that was found to be right.
    audited: Option<Term>,
    /// What other ranks hold, if one stands for all.
    shifts: Option<Shifts<'a>>,
}

/// What the workers end with.
pub(super) struct Results {
    pub(super) order: Order,
    /// The longest chain of messages.
    pub(super) rounds: u32,
    /// How long a segment takes alone, as [`Cost::alone`](crate::algorithm::cost::Cost::alone).
    pub(super) alone: Option<u32>,
}

impl<'a> Symbols<'a> {
    /// Every input where the collective says that there is one; `shifts` if one rank stands for all, and the terms that they know.
    pub(super) fn new(
        graph: &'a Graph,
        collective: Collective,
        group: &'a Group,
        mut terms: Terms,
        shifts: Option<Shifts<'a>>,
    ) -> Self {
        let canonical = terms.canonical(group);
        let mut held = vec![Held { term: Term::NONE, chain: 0 }; graph.places()];
        for worker in 0..graph.size.workers {
            for chunk in (0..graph.size.chunks)
                .filter(|chunk| collective.has_input(graph.size.all_workers, worker, *chunk))
            {
                for (before, input) in (0..).zip(group.inputs_of(worker)) {
                    let place = graph.user(worker, before * graph.size.chunks + chunk);
                    held[place.index()].term = Term::input(input);
                }
            }
        }
        let slot_chunks = vec![0; graph.places() - graph.users()];
        let (stack, encoded) = (Vec::new(), Vec::new());
        let (rounds, audited) = (Rounds::new(graph.size.all_workers / graph.size.workers), None);
        Self {
            graph,
            collective,
            group,
            terms,
            canonical,
            held,
            slot_chunks,
            rounds,
            stack,
            encoded,
            audited,
            shifts,
        }
    }

    /// Runs a step; a send only looks at what it sends, which stays until its receivers have taken it.
    pub(super) fn step(&mut self, node: Node) -> Result<(), StepFault> {
        let chain = match self.graph.span(node) {
            1 => 0,
            span => self.chain_behind(node, span)?,
        };
        (0..self.graph.span(node)).try_for_each(|offset| self.chunk_step(node, offset, chain))
    }

    /// Does a step's part for one of its chunks. `chain` is the longest behind those of several, of which each waits for all.
    fn chunk_step(&mut self, node: Node, offset: u32, chain: u32) -> Result<(), StepFault> {
        let graph = self.graph;
        let at = |first| graph.shifted(first, offset);
        match graph.op(node) {
            Op::Send { from, .. } => self.read(node, at(from)).map(drop),
            Op::Recv { into, chunk, sender, decodes } => {
                let form = if decodes { Form::CodedResult } else { into.form() };
                let message = MessagePart { sender, source: None, chunk: chunk + offset, form, offset };
                let held = self.take(node, message)?.after(chain);
                self.write(node, at(into), Value { held, chunk: chunk + offset })
            }
            Op::Fold { into, fold } => {
                let fold = &graph.folds[fold as usize];
                let held = self.fold(node, fold, offset)?.after(chain);
                self.write(node, at(into), Value { held, chunk: fold.chunk + offset })
            }
            Op::Copy { from, into } => {
                let (from, into) = (at(from), at(into));
                let mut held = self.read(node, from)?.after(chain);
                if into.form().is_coded() && !from.form().is_coded() {
                    held.term = self.encode(node, held.term, from, into.form())?;
                }
                self.write(node, into, Value { held, chunk: self.chunk(from) })
            }
        }
    }

    /// The longest chain behind any chunk of a step, and behind its messages.
    fn chain_behind(&mut self, node: Node, span: u32) -> Result<u32, StepFault> {
        let graph = self.graph;
        let held = |symbols: &Self, first| {
            let chunks = (0..span).map(|offset| symbols.held[graph.shifted(first, offset).index()].chain);
            chunks.max().unwrap_or(0)
        };
        let mut chain = match graph.op(node) {
            Op::Copy { from, .. } => held(self, from),
            _ => 0,
        };
        if let Op::Fold { fold, .. } = graph.op(node) {
            for source in &graph.sources[graph.folds[fold as usize].sources()] {
                if let From::At(at) = source.get() {
                    chain = chain.max(held(self, at));
                }
            }
        }
        for sender in graph.senders_of(node) {
            let (actual, expected) = (graph.span(sender), span);
            if actual != expected {
                return Err(StepFault::WrongMessageSpan { lane: graph.rank(sender), actual, expected });
            }
            let message = held(self, graph.sent(sender)) + 1;
            let ends = || MessageEnds { from: graph.rank(sender), to: graph.rank(node) };
            self.rounds.note(message, span, ends);
            chain = chain.max(message);
        }
        Ok(chain)
    }

    /// What becomes of a term that is encoded.
    fn encode(&mut self, node: Node, term: Term, from: At, into: Form) -> Result<Term, StepFault> {
        let rank = self.graph.rank(node);
        let place = self.graph.place(rank, from);
        let finished = term.is_finished();
        if finished != (into == Form::CodedResult) {
            return Err(StepFault::WrongCode { place, into, finished });
        }
        let is_coded = if finished { self.terms.is_code(term) } else { self.terms.uncoded(term) != term };
        if is_coded {
            return Err(StepFault::EncodedTwice { place });
        }
        if !finished {
            let (chunk, workers) = (self.chunk(from), self.graph.size.workers);
            if rank >= workers {
                return Err(StepFault::EncodedByReducer);
            }
            if self.encoded.is_empty() {
                self.encoded.resize(self.graph.users(), false);
            }
            if replace(&mut self.encoded[self.graph.user(rank, chunk).index()], true) {
                return Err(StepFault::ChunkEncodedTwice { chunk });
            }
        }
        Ok(self.terms.code(term))
    }

    fn fold(&mut self, node: Node, fold: &Fold, offset: u32) -> Result<Held, StepFault> {
        let (graph, chunk) = (self.graph, fold.chunk + offset);
        self.stack.clear();
        let mut chain = 0;
        let sources = &graph.sources[fold.sources()];
        let merges = &graph.merges[fold.sources()];
        for (source_index, (source, merges)) in (0..).zip(sources.iter().zip(merges)) {
            let held = match source.get() {
                From::At(place) => self.read_chunk(node, graph.shifted(place, offset), chunk)?,
                From::Head { sender, form } => {
                    let source = Some(fold.sources.start + source_index);
                    self.take(node, MessagePart { sender, source, chunk, form, offset })?
                }
            };
            let mut top = held.term;
            if top.is_finished() {
                return Err(StepFault::FoldOfFinished { source_index });
            }
            if let Some(shifts) = &mut self.shifts {
                shifts.fold(fold.sources.start + source_index, top);
            }
            for _ in 0..*merges {
                let below = self.stack.pop().expect("the fold's shape was checked");
                top = self.terms.merge(below, top);
            }
            self.stack.push(top);
            chain = chain.max(held.chain);
        }
        let sum = self.stack[0];
        if self.shifts.as_mut().is_some_and(|shifts| !shifts.folded_alike(sum)) {
            return Err(StepFault::Unlike);
        }
        Ok(Held { term: if fold.finish { sum.finish() } else { sum }, chain })
    }

    fn read(&self, node: Node, at: At) -> Result<Held, StepFault> {
        let held = self.held[at.index()];
        if held.term == Term::NONE {
            let place = self.graph.place(self.graph.rank(node), at);
            return Err(StepFault::Uninitialised { place });
        }
        Ok(held)
    }

    fn read_chunk(&self, node: Node, at: At, expected: Chunk) -> Result<Held, StepFault> {
        let held = self.read(node, at)?;
        let actual = self.chunk(at);
        if actual == expected {
            return Ok(held);
        }
        let place = self.graph.place(self.graph.rank(node), at);
        Err(StepFault::WrongChunk { place, actual, expected })
    }

    /// Of which chunk a place is, if it holds anything.
    fn chunk(&self, at: At) -> Chunk {
        if at.is_user() { self.graph.user_chunk(at) } else { self.slot_chunks[self.slot(at)] }
    }

    /// A slot's number among all ranks' slots.
    fn slot(&self, at: At) -> usize {
        at.index() - self.graph.users()
    }

    /// Takes a message, or what it has of one chunk, which lies at its sender's place still.
    fn take(&mut self, node: Node, part: MessagePart) -> Result<Held, StepFault> {
        let graph = self.graph;
        let MessagePart { sender, source, chunk: expected_chunk, form: expected, mut offset } = part;
        let first = graph.sent(sender);
        let by = self.shifts.as_ref().map_or(0, |shifts| shifts.of_message(node, source));
        if let Some(shifts) = &self.shifts {
            // The chunks of the first rank's message come in another order after a shift.
            offset = shifts.chunk_before(expected_chunk, by).wrapping_sub(self.chunk(first));
            offset = if offset < graph.span(sender) { offset } else { part.offset };
        }
        let from = graph.shifted(first, offset);
        let Held { mut term, chain } = self.held[from.index()];
        let mut chunk = self.chunk(from);
        if let Some(shifts) = &self.shifts {
            chunk = shifts.chunk(chunk, by);
            term = shifts.term(&mut self.terms, term, by).ok_or(StepFault::Unlike)?;
        }
        let lane = || graph.rank(sender);
        let (actual_span, expected_span) = (graph.span(sender), graph.span(node));
        if actual_span != expected_span {
            return Err(StepFault::WrongMessageSpan {
                lane: lane(),
                actual: actual_span,
                expected: expected_span,
            });
        }
        if from.form() != expected {
            Err(StepFault::WrongMessageForm { lane: lane(), actual: from.form(), expected })
        } else if chunk != expected_chunk {
            Err(StepFault::WrongMessageChunk { lane: lane(), actual: chunk, expected: expected_chunk })
        } else {
            if expected_span == 1 {
                let ends = || MessageEnds { from: graph.rank(sender), to: graph.rank(node) };
                self.rounds.note(chain + 1, 1, ends);
            }
            Ok(Held { term, chain: chain + 1 })
        }
    }

    fn write(&mut self, node: Node, at: At, value: Value) -> Result<(), StepFault> {
        if !at.is_user() {
            let slot = self.slot(at);
            self.slot_chunks[slot] = value.chunk;
        } else if self.chunk(at) != value.chunk {
            let place = self.graph.place(self.graph.rank(node), at);
            return Err(StepFault::Misplaced { place, actual: value.chunk });
        }
        self.held[at.index()] = value.held;
        Ok(())
    }

    /// Whether each result that the first worker ends with is the counterpart of its first one, after a shift that takes chunk to chunk
    /// if shifts move chunks. Then all workers agree about each chunk.
    pub(super) fn ends_alike(&mut self) -> bool {
        let Some(shifts) = &self.shifts else { return true };
        let (graph, collective, terms) = (self.graph, self.collective, &mut self.terms);
        let held = &self.held;
        let is_fold =
            |chunk: &Chunk| collective.result(graph.size.all_workers, 0, *chunk) == Some(Expected::Fold);
        let ends = |chunk: Chunk| held[graph.user(0, chunk).index()].term;
        let mut folds = (0..graph.size.chunks).filter(is_fold);
        terms.are_distinct()
            && folds.next().is_none_or(|first| {
                folds.all(|chunk| {
                    shifts.term(terms, ends(first), shifts.between(first, chunk)) == Some(ends(chunk))
                })
            })
    }

    /// Holds what the workers end with against the collective.
    pub(super) fn results(mut self) -> Result<Results, VerifyError> {
        let mut order = Order::Fixed;
        for chunk in 0..self.graph.size.chunks {
            // Who holds its result first, and the result.
            let mut first = None;
            for rank in 0..self.graph.size.workers {
                let term = self.held[self.graph.user(rank, chunk).index()].term;
                let result = match self.collective.result(self.graph.size.all_workers, rank, chunk) {
                    None => Ok(()),
                    Some(Expected::Input(input)) if term == Term::input(input) => Ok(()),
                    Some(Expected::Input(input)) => Err(ResultFault::NotTheInput { input }),
                    Some(Expected::Fold) => {
                        if term != Term::NONE && self.terms.uncoded(term) != self.canonical.finish() {
                            order = Order::Schedule;
                        }
                        self.is_fold(term, rank, &mut first)
                    }
                };
                result.map_err(|fault| VerifyError::Result { rank, chunk, fault })?;
            }
        }
        Ok(Results { order, rounds: self.rounds.longest(), alone: self.rounds.alone() })
    }

    /// Whether a term is the finished fold of all inputs, and the same as the first worker's at this chunk.
    fn is_fold(
        &mut self,
        term: Term,
        rank: Rank,
        first: &mut Option<(Rank, Term)>,
    ) -> Result<(), ResultFault> {
        if first.is_some_and(|(_, agreed)| agreed == term) {
            return Ok(());
        }
        if !term.is_finished() {
            return Err(ResultFault::Unfinished);
        }
        if term != self.canonical.finish() && self.audited != Some(term) {
            let holder = |input| self.group.holder(input);
            self.terms.audit(term).map_err(|flaw| match flaw {
                Flaw::Missing(input) => ResultFault::Missing { input: holder(input) },
                Flaw::Twice(input) => ResultFault::Twice { input: holder(input) },
                Flaw::Uncoded(input) => ResultFault::Uncoded { input: holder(input) },
            })?;
            self.audited = Some(term);
        }
        match *first {
            Some((other, _)) => Err(ResultFault::Disagreement { other }),
            None => {
                *first = Some((rank, term));
                Ok(())
            }
        }
    }
}
