//! What every place holds while the graph runs, as symbols, and what it must hold at the end.

use super::{
    Order,
    error::{ResultFault, StepFault, VerifyError},
    graph::{At, Fold, From, Graph, Node, Op, Receive},
    terms::{Flaw, Term, Terms},
};
use crate::{
    collective::{Collective, Expected},
    group::Group,
    schedule::{Chunk, Form, Rank},
};
use alloc::{vec, vec::Vec};

/// What a place holds. A user place is of its chunk from the start.
#[derive(Clone, Copy)]
struct Value {
    term: Term,
    chunk: Chunk,
}

pub(super) struct Symbols<'a> {
    graph: &'a Graph,
    collective: Collective,
    terms: Terms,
    canonical: Term,
    values: Vec<Value>,
    /// The partial sums of the fold at hand.
    stack: Vec<Term>,
}

impl<'a> Symbols<'a> {
    /// Every input where the collective says that there is one.
    pub(super) fn new(graph: &'a Graph, collective: Collective, group: &Group) -> Self {
        let mut terms = Terms::new(graph.workers);
        let canonical = terms.canonical(group);
        let mut values = vec![Value { term: Term::NONE, chunk: 0 }; graph.places()];
        for worker in 0..graph.workers {
            for chunk in 0..graph.chunks {
                let term = if collective.has_input(worker, chunk) { Term::input(worker) } else { Term::NONE };
                values[graph.user(worker, chunk)] = Value { term, chunk };
            }
        }
        Self { graph, collective, terms, canonical, values, stack: Vec::new() }
    }

    /// Runs a step; a send only looks at what it sends, which stays until its receivers have taken it.
    pub(super) fn step(&mut self, node: Node) -> Result<(), StepFault> {
        match self.graph.ops[node as usize] {
            Op::Send { from, .. } => self.read(node, from).map(drop),
            Op::Recv { into, receive } => {
                let Receive { chunk, .. } = self.graph.receives[receive as usize];
                let term = self.take(receive, into.form())?;
                self.write(node, into, Value { term, chunk })
            }
            Op::Fold { fold } => self.fold(node, &self.graph.folds[fold as usize]),
            Op::Copy { from, into } => {
                let value = self.read(node, from)?;
                self.write(node, into, value)
            }
        }
    }

    fn fold(&mut self, node: Node, fold: &Fold) -> Result<(), StepFault> {
        self.stack.clear();
        let sources = &self.graph.sources[fold.sources.start as usize..fold.sources.end as usize];
        for (source_index, source) in sources.iter().enumerate() {
            let (mut top, merges) = match *source {
                From::At { place, merges } => (self.read_chunk(node, place, fold.chunk)?, merges),
                From::Head { receive, form, merges } => (self.take(receive, form)?, merges),
            };
            if top.is_finished() {
                return Err(StepFault::FoldOfFinished { source_index: source_index as u32 });
            }
            for _ in 0..merges {
                let below = self.stack.pop().expect("the fold's shape was checked");
                top = self.terms.merge(below, top);
            }
            self.stack.push(top);
        }
        let term = if fold.finish { self.stack[0].finish() } else { self.stack[0] };
        self.write(node, fold.into, Value { term, chunk: fold.chunk })
    }

    fn read(&self, node: Node, at: At) -> Result<Value, StepFault> {
        let value = self.values[at.index()];
        if value.term == Term::NONE {
            let place = self.graph.place(self.graph.rank(node), at);
            return Err(StepFault::Uninitialised { place });
        }
        Ok(value)
    }

    fn read_chunk(&self, node: Node, at: At, expected: Chunk) -> Result<Term, StepFault> {
        let Value { term, chunk } = self.read(node, at)?;
        if chunk == expected {
            return Ok(term);
        }
        let place = self.graph.place(self.graph.rank(node), at);
        Err(StepFault::WrongChunk { place, actual: chunk, expected })
    }

    /// Takes a message, which lies at its sender's place still.
    fn take(&self, receive: u32, expected: Form) -> Result<Term, StepFault> {
        let receive = self.graph.receives[receive as usize];
        let sender = self.graph.sender(receive.message);
        let Op::Send { from, .. } = self.graph.ops[sender as usize] else {
            unreachable!("messages are sent by sends");
        };
        let Value { term, chunk } = self.values[from.index()];
        let lane = || self.graph.rank(sender);
        if from.form() != expected {
            Err(StepFault::WrongMessageForm { lane: lane(), actual: from.form(), expected })
        } else if chunk != receive.chunk {
            Err(StepFault::WrongMessageChunk { lane: lane(), actual: chunk, expected: receive.chunk })
        } else {
            Ok(term)
        }
    }

    fn write(&mut self, node: Node, at: At, value: Value) -> Result<(), StepFault> {
        let held = &mut self.values[at.index()];
        if at.is_user() && held.chunk != value.chunk {
            let place = self.graph.place(self.graph.rank(node), at);
            return Err(StepFault::Misplaced { place, actual: value.chunk });
        }
        *held = value;
        Ok(())
    }

    /// Holds what the workers end with against the collective, and says in which order it was folded.
    pub(super) fn results(mut self) -> Result<Order, VerifyError> {
        let mut order = Order::Fixed;
        // By chunk: who holds its result first, and the result.
        let mut first: Vec<Option<(Rank, Term)>> = vec![None; self.graph.chunks as usize];
        for rank in 0..self.graph.workers {
            for chunk in 0..self.graph.chunks {
                let term = self.values[self.graph.user(rank, chunk)].term;
                let result = match self.collective.result(rank, chunk) {
                    None => Ok(()),
                    Some(Expected::Input(input)) if term == Term::input(input) => Ok(()),
                    Some(Expected::Input(input)) => Err(ResultFault::NotTheInput { input }),
                    Some(Expected::Fold) => {
                        if term != self.canonical.finish() {
                            order = Order::Schedule;
                        }
                        self.is_fold(term, rank, &mut first[chunk as usize])
                    }
                };
                result.map_err(|fault| VerifyError::Result { rank, chunk, fault })?;
            }
        }
        Ok(order)
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
        if term != self.canonical.finish() {
            self.terms.audit(term).map_err(|flaw| match flaw {
                Flaw::Missing(input) => ResultFault::Missing { input },
                Flaw::Twice(input) => ResultFault::Twice { input },
            })?;
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
