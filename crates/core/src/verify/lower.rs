//! Lowering programs to the graph: one pass over each rank's program, checking all that a step alone can show.

use super::{
    conflicts::Conflicts,
    error::{StepFault, VerifyError, check_count},
    graph::{Graph, LIMIT, Node},
    ops::{At, Fold, From, Op, PackedFrom},
};
use crate::{
    algorithm::cost::Count,
    collective::Collective,
    group::Group,
    schedule::{Chunk, Form, Origin, Place, Program, Rank, Run, Schedule, Source, Step},
};
use alloc::{format, vec, vec::Vec};

/// The graph under construction, and what is known of the rank at hand.
pub(super) struct Lowering<'a> {
    collective: Collective,
    group: &'a Group,
    graph: Graph,
    /// How many user places each worker has.
    user_places: u32,
    rank: Rank,
    /// Which of the graph's ranks it is.
    row: Rank,
    conflicts: Conflicts,
    /// By receiver: the last send that names it.
    named: Vec<Node>,
    /// How many messages are sent so far.
    messages: usize,
    /// Where chunks lie side by side: by slot of the rank at hand, the chunk that it has got, if any.
    slot_chunks: Option<Vec<Option<Chunk>>>,
    /// For how many chunks the step at hand stands.
    span: u32,
}

impl<'a> Lowering<'a> {
    /// Of so many of the workers.
    pub(super) fn new(
        schedule: &Schedule,
        workers: u32,
        collective: Collective,
        group: &'a Group,
    ) -> Result<Self, VerifyError> {
        let graph = Graph::empty(schedule, workers, group.most_inputs())?;
        let named = vec![Node::MAX; schedule.ranks() as usize];
        let (user_places, conflicts) = (graph.user_places(), Conflicts::default());
        let slot_chunks = schedule.side_by_side().then(Vec::new);
        Ok(Self {
            collective,
            group,
            graph,
            user_places,
            rank: 0,
            row: 0,
            conflicts,
            named,
            messages: 0,
            slot_chunks,
            span: 1,
        })
    }

    /// Lowers and counts the programs of `ranks`, each made once, of which each stands for so many.
    pub(super) fn of(
        mut self,
        schedule: &Schedule,
        ranks: impl Iterator<Item = Rank>,
        each: u32,
    ) -> Result<(Graph, Count), VerifyError> {
        let (mut count, mut programs) = (Count::new(schedule, self.collective), schedule.programs());
        for (row, rank) in (0..).zip(ranks) {
            (self.rank, self.row) = (rank, row);
            let program = programs(rank);
            self.program(&program)?;
            count.add(rank, &program, each);
        }
        Ok((self.graph, count))
    }

    fn program(&mut self, program: &Program) -> Result<(), VerifyError> {
        let (first, slots) = (self.first_slot() as usize, program.slots().len());
        if first + slots > LIMIT {
            return Err(VerifyError::TooLarge { what: "places".into() });
        }
        self.graph.first_slot.push((first + slots) as u32);
        self.conflicts.start(self.user_places() as usize + slots);
        if let Some(chunks) = &mut self.slot_chunks {
            chunks.clear();
            chunks.resize(slots, None);
        }
        for (index, step) in program.steps().iter().enumerate() {
            let edges = self.conflicts.edges();
            self.span = program.span(index);
            let op = self.step(program, step).map_err(|fault| VerifyError::Step {
                rank: self.rank,
                step: index as u32,
                fault,
            })?;
            if self.span > 1 {
                self.conflicts.join(edges);
            }
            self.check_counts(index, program, step, self.conflicts.edges() - edges)?;
            self.graph.push(op, self.span);
            self.check_size()?;
        }
        self.graph.first_node.push(self.graph.nodes());
        self.conflicts.move_into(&mut self.graph);
        Ok(())
    }

    fn check_size(&self) -> Result<(), VerifyError> {
        let graph = &self.graph;
        let most = [
            (graph.nodes() as usize, "steps"),
            (self.messages, "messages"),
            (graph.sources.len(), "sources"),
            (graph.lists.size() + self.conflicts.edges(), "receivers and conflicts"),
        ];
        match most.into_iter().find(|(len, _)| *len > LIMIT) {
            Some((_, what)) => Err(VerifyError::TooLarge { what: what.into() }),
            None => Ok(()),
        }
    }

    /// Checks that a compiled program can count a send's receivers, and what a step waits for: `earlier` steps that it conflicts
    /// with, the messages that it takes, and where others have read a place since, the last step that wrote it.
    fn check_counts(
        &self,
        index: usize,
        program: &Program,
        step: &Step,
        earlier: usize,
    ) -> Result<(), VerifyError> {
        let rank = self.rank;
        if let Step::Send { to, .. } = *step {
            check_count(program.lanes(to).len(), || format!("receivers of rank {rank}'s step {index}"))?;
        }
        let waits = earlier + program.received(step).count() + 1;
        check_count(waits, || format!("steps and messages before rank {rank}'s step {index}"))
    }

    fn is_worker(&self) -> bool {
        self.rank < self.graph.size.all_workers
    }

    /// How many places this rank has in the graph for a user's buffer.
    fn user_places(&self) -> u32 {
        if self.is_worker() { self.user_places } else { 0 }
    }

    /// The number of this rank's first slot among all places.
    fn first_slot(&self) -> u32 {
        self.graph.first_slot[self.row as usize]
    }

    /// The step at hand.
    fn node(&self) -> Node {
        self.graph.nodes()
    }

    /// A place's number within its rank: user places first, then slots.
    fn local(&self, at: At) -> usize {
        match self.graph.place(self.row, at) {
            Place::User(chunk) => chunk as usize,
            Place::Slot(slot) => (self.user_places() + slot) as usize,
        }
    }

    fn step(&mut self, program: &Program, step: &Step) -> Result<Op, StepFault> {
        if self.span > 1 && self.slot_chunks.is_none() {
            return Err(StepFault::SpanUnasked { span: self.span });
        }
        match *step {
            Step::Send { from, to } => self.send(program, from, to),
            Step::Recv { lane, chunk, into } => {
                let at = self.write(program, into, Some(chunk))?;
                Ok(Op::Recv { into: at, chunk, sender: self.receive(lane, chunk)?, decodes: false })
            }
            Step::Fold { chunk, from, into, finish } => {
                self.fold(program, chunk, program.sources(from), into, finish)
            }
            Step::Copy { from, into } => {
                if from == into {
                    return Err(StepFault::CopyToItself { place: from });
                }
                let source = self.read(program, from)?;
                let at = self.write(program, into, self.known_chunk(from))?;
                need_form(into, at, source.form())?;
                Ok(Op::Copy { from: source, into: at })
            }
            Step::Encode { from, into } => {
                let source = self.read(program, from)?;
                let at = self.write(program, into, self.known_chunk(from))?;
                if source.form().is_coded() {
                    return Err(StepFault::EncodedTwice { place: from });
                }
                if !at.form().is_coded() {
                    return Err(StepFault::WrongForm {
                        place: into,
                        actual: at.form(),
                        expected: Form::Coded,
                    });
                }
                Ok(Op::Copy { from: source, into: at })
            }
            Step::Decode { chunk, from: Origin::At(place), into } => {
                let source = self.read(program, place)?;
                need_form(place, source, Form::CodedResult)?;
                let at = self.write(program, into, Some(chunk))?;
                need_form(into, at, Form::Plain)?;
                Ok(Op::Copy { from: source, into: at })
            }
            Step::Decode { chunk, from: Origin::Head { lane, form }, into } => {
                if form != Form::CodedResult {
                    let (actual, expected) = (form, Form::CodedResult);
                    return Err(StepFault::WrongMessageForm { lane, actual, expected });
                }
                let at = self.write(program, into, Some(chunk))?;
                need_form(into, at, Form::Plain)?;
                Ok(Op::Recv { into: at, chunk, sender: self.receive(lane, chunk)?, decodes: true })
            }
        }
    }

    fn send(&mut self, program: &Program, from: Place, to: Run) -> Result<Op, StepFault> {
        let node = self.node();
        let to = program.lanes(to);
        for &lane in to {
            self.check_lane(lane)?;
            if self.named[lane as usize] == node {
                return Err(StepFault::SendTwice { to: lane });
            }
            self.named[lane as usize] = node;
        }
        if to.is_empty() {
            return Err(StepFault::SendToNobody);
        }
        self.messages += to.len();
        let at = self.read(program, from)?;
        for offset in 0..self.span {
            self.conflicts.sent(self.local(self.graph.shifted(at, offset)));
        }
        Ok(Op::Send { from: at, to: self.graph.lists.add(to.iter().copied()) })
    }

    fn fold(
        &mut self,
        program: &Program,
        chunk: Chunk,
        from: &[Source],
        into: Place,
        finish: bool,
    ) -> Result<Op, StepFault> {
        if !self.collective.folds() {
            return Err(StepFault::FoldUnasked { collective: self.collective });
        }
        check_shape(from)?;
        let first = self.graph.sources.len() as u32;
        for source in from {
            let at = self.source(program, chunk, *source)?;
            self.graph.sources.push(PackedFrom::new(at));
            self.graph.merges.push(source.merges);
        }
        let at = self.write(program, into, Some(chunk))?;
        need_form(into, at, if finish { Form::Plain } else { Form::Acc })?;
        let sources = first..self.graph.sources.len() as u32;
        self.graph.folds.push(Fold { chunk, finish, sources });
        Ok(Op::Fold { into: at, fold: self.graph.folds.len() as u32 - 1 })
    }

    fn source(&mut self, program: &Program, chunk: Chunk, source: Source) -> Result<From, StepFault> {
        // A result is finished, so no fold takes it.
        let wrong = (Form::CodedResult, Form::Coded);
        match source.from {
            Origin::At(place) if program.form(place) == Some(wrong.0) => {
                Err(StepFault::WrongForm { place, actual: wrong.0, expected: wrong.1 })
            }
            Origin::Head { lane, form } if form == wrong.0 => {
                Err(StepFault::WrongMessageForm { lane, actual: wrong.0, expected: wrong.1 })
            }
            Origin::At(place) => {
                let at = self.at(program, place)?;
                for offset in 0..self.span {
                    if self.conflicts.reads(self.local(self.graph.shifted(at, offset)), self.node()) {
                        return Err(StepFault::FoldTwice { place: place.shifted(offset) });
                    }
                }
                self.read(program, place).map(From::At)
            }
            Origin::Head { lane, form } => Ok(From::Head { sender: self.receive(lane, chunk)?, form }),
        }
    }

    /// What stands for the sender of the next message of a lane until messages are matched.
    fn receive(&self, lane: Rank, chunk: Chunk) -> Result<u32, StepFault> {
        self.check_lane(lane)?;
        self.check_chunk(chunk.saturating_add(self.span - 1))?;
        Ok(lane)
    }

    /// The chunk at a place, where slots have one at most; nothing for one that has none so far.
    fn known_chunk(&self, place: Place) -> Option<Chunk> {
        let chunks = self.slot_chunks.as_ref()?;
        match place {
            Place::User(chunk) => Some(chunk % self.graph.size.chunks.max(1)),
            Place::Slot(slot) => *chunks.get(slot as usize)?,
        }
    }

    /// Reads a place for each chunk of the step, and returns the first.
    fn read(&mut self, program: &Program, place: Place) -> Result<At, StepFault> {
        let at = self.at(program, place)?;
        let is_written = |offset| self.conflicts.is_written(self.local(self.graph.shifted(at, offset)));
        if at.is_user() && (1..self.span).any(|offset| is_written(offset) != is_written(0)) {
            return Err(StepFault::HalfWritten { place, span: self.span });
        }
        for offset in 0..self.span {
            self.conflicts.read(self.local(self.graph.shifted(at, offset)), self.node());
        }
        Ok(at)
    }

    /// Writes to a place for each chunk of the step, and returns the first; `chunk` is the first of what the step says that it writes,
    /// where it does.
    fn write(&mut self, program: &Program, place: Place, chunk: Option<Chunk>) -> Result<At, StepFault> {
        let at = self.at(program, place)?;
        for offset in 0..self.span {
            let chunk = chunk.map(|chunk| chunk.saturating_add(offset));
            self.write_one(place.shifted(offset), self.graph.shifted(at, offset), chunk)?;
        }
        Ok(at)
    }

    fn write_one(&mut self, place: Place, at: At, chunk: Option<Chunk>) -> Result<(), StepFault> {
        if let (Some(chunks), Place::Slot(slot), Some(chunk)) = (&mut self.slot_chunks, place, chunk) {
            let before = *chunks[slot as usize].get_or_insert(chunk);
            if before != chunk {
                return Err(StepFault::SlotOfTwoChunks { place, chunk, before });
            }
        }
        if let Place::User(user) = place {
            // Inputs but the first are read only.
            let is_output = user < self.graph.size.chunks
                && self.collective.result(self.graph.size.all_workers, self.rank, user).is_some();
            if !is_output {
                return Err(StepFault::NotAnOutput { chunk: user });
            }
            if let Some(actual) = chunk.filter(|chunk| *chunk != user) {
                return Err(StepFault::Misplaced { place, actual });
            }
        }
        let overwritten = self.conflicts.write(self.local(at), self.node());
        self.graph.restartable &= match (self.is_worker(), place) {
            (true, Place::User(_)) => !overwritten.written,
            (true, Place::Slot(_)) => !overwritten.sent,
            (false, _) => true,
        };
        Ok(())
    }

    /// The place of a step's first chunk, if there is one for each of its chunks.
    fn at(&self, program: &Program, place: Place) -> Result<At, StepFault> {
        match place {
            Place::User(first) => {
                if !self.is_worker() {
                    return Err(StepFault::UserOfReducer);
                }
                let chunks = self.graph.size.chunks * self.group.inputs_of(self.rank).len() as u32;
                let chunk = first.saturating_add(self.span - 1);
                if chunk >= chunks {
                    return Err(StepFault::NoSuchChunk { chunk, chunks });
                }
                Ok(self.graph.user(self.row, first))
            }
            Place::Slot(first) => {
                let slots = program.slots().get(first as usize..).unwrap_or_default();
                let form = *slots.first().ok_or(StepFault::NoSuchSlot { slot: first })?;
                for offset in 1..self.span {
                    let place = place.shifted(offset);
                    let slot = first.saturating_add(offset);
                    let actual = *slots.get(offset as usize).ok_or(StepFault::NoSuchSlot { slot })?;
                    if actual != form {
                        return Err(StepFault::UnlikeSlots { place, actual, expected: form });
                    }
                }
                Ok(At::slot(self.first_slot() + first, form))
            }
        }
    }

    fn check_lane(&self, lane: Rank) -> Result<(), StepFault> {
        if lane == self.rank {
            Err(StepFault::OwnLane)
        } else if lane as usize >= self.named.len() {
            Err(StepFault::NoSuchRank { lane })
        } else {
            Ok(())
        }
    }

    fn check_chunk(&self, chunk: Chunk) -> Result<(), StepFault> {
        let chunks = self.graph.size.chunks;
        if chunk < chunks { Ok(()) } else { Err(StepFault::NoSuchChunk { chunk, chunks }) }
    }
}

/// Checks that the sources' merges make exactly one tree of them.
fn check_shape(sources: &[Source]) -> Result<(), StepFault> {
    if sources.is_empty() {
        return Err(StepFault::FoldOfNothing);
    }
    let mut open = 0;
    for (source_index, source) in sources.iter().enumerate() {
        open += 1;
        if u32::from(source.merges) >= open {
            return Err(StepFault::MergeOfNothing { source_index: source_index as u32 });
        }
        open -= u32::from(source.merges);
    }
    if open == 1 { Ok(()) } else { Err(StepFault::Unmerged { left: open }) }
}

fn need_form(place: Place, at: At, expected: Form) -> Result<(), StepFault> {
    if at.form() == expected {
        return Ok(());
    }
    Err(StepFault::WrongForm { place, actual: at.form(), expected })
}
