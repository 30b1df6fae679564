//! Lowering programs to the graph: one pass over each rank's program, checking all that a step alone can show.

use super::{
    conflicts::Conflicts,
    error::{StepFault, VerifyError},
    graph::{At, Fold, From, Graph, LIMIT, Node, Op, Receive, end_run},
};
use crate::{
    collective::Collective,
    schedule::{Chunk, Form, Origin, Place, Program, Rank, Run, Schedule, Source, Step},
};
use alloc::{vec, vec::Vec};

/// The graph under construction, and what is known of the rank at hand.
pub(super) struct Lowering {
    collective: Collective,
    graph: Graph,
    rank: Rank,
    conflicts: Conflicts,
    /// By receiver: the last send that names it.
    named: Vec<Node>,
}

impl Lowering {
    pub(super) fn new(schedule: &Schedule, collective: Collective) -> Self {
        let graph = Graph {
            chunks: schedule.cut().chunks(),
            workers: schedule.workers(),
            first_node: vec![0],
            first_place: vec![0],
            ops: Vec::new(),
            folds: Vec::new(),
            sources: Vec::new(),
            receives: Vec::new(),
            follows: Vec::new(),
            first_follower: vec![0],
            followers: Vec::new(),
            receivers: Vec::new(),
            senders: Vec::new(),
            restartable: true,
        };
        let named = vec![Node::MAX; schedule.ranks() as usize];
        Self { collective, graph, rank: 0, conflicts: Conflicts::default(), named }
    }

    /// Lowers every rank's program, each made once.
    pub(super) fn all(mut self, schedule: &Schedule) -> Result<Graph, VerifyError> {
        for rank in 0..schedule.ranks() {
            self.rank = rank;
            self.program(&schedule.program(rank))?;
        }
        Ok(self.graph)
    }

    fn program(&mut self, program: &Program) -> Result<(), VerifyError> {
        let chunks = if self.is_worker() { self.graph.chunks as usize } else { 0 };
        let places = chunks + program.slots().len();
        let first = self.first_place() as usize;
        if first + places > LIMIT {
            return Err(VerifyError::TooLarge { what: "places" });
        }
        self.graph.first_place.push((first + places) as u32);
        self.conflicts.start(places);
        for (index, step) in program.steps().iter().enumerate() {
            let op = self.step(program, step).map_err(|fault| VerifyError::Step {
                rank: self.rank,
                step: index as u32,
                fault,
            })?;
            self.graph.ops.push(op);
            self.check_size()?;
        }
        self.graph.first_node.push(self.graph.ops.len() as Node);
        self.conflicts.move_into(&mut self.graph);
        Ok(())
    }

    fn check_size(&self) -> Result<(), VerifyError> {
        let graph = &self.graph;
        let most = [
            (graph.ops.len(), "steps"),
            (graph.receivers.len(), "messages"),
            (graph.receives.len(), "messages"),
            (graph.sources.len(), "sources"),
            (self.conflicts.edges(), "conflicts"),
        ];
        match most.into_iter().find(|(len, _)| *len > LIMIT) {
            Some((_, what)) => Err(VerifyError::TooLarge { what }),
            None => Ok(()),
        }
    }

    fn is_worker(&self) -> bool {
        self.rank < self.graph.workers
    }

    /// The number of this rank's first place.
    fn first_place(&self) -> u32 {
        self.graph.first_place[self.rank as usize]
    }

    /// The step at hand.
    fn node(&self) -> Node {
        self.graph.ops.len() as Node
    }

    /// A place's number within its rank.
    fn local(&self, at: At) -> usize {
        at.index() - self.first_place() as usize
    }

    fn step(&mut self, program: &Program, step: &Step) -> Result<Op, StepFault> {
        match *step {
            Step::Send { from, to } => self.send(program, from, to),
            Step::Recv { lane, chunk, into } => {
                let at = self.write(program, into, Some(chunk))?;
                Ok(Op::Recv { into: at, receive: self.receive(lane, chunk)? })
            }
            Step::Fold { chunk, from, into, finish } => {
                self.fold(program, chunk, program.sources(from), into, finish)
            }
            Step::Copy { from, into } => {
                if from == into {
                    return Err(StepFault::CopyToItself { place: from });
                }
                let source = self.read(program, from)?;
                let at = self.write(program, into, None)?;
                need_form(into, at, source.form())?;
                Ok(Op::Copy { from: source, into: at })
            }
        }
    }

    fn send(&mut self, program: &Program, from: Place, to: Run) -> Result<Op, StepFault> {
        let node = self.node();
        let parts = self.graph.receivers.len();
        for &lane in program.lanes(to) {
            self.check_lane(lane)?;
            if self.named[lane as usize] == node {
                return Err(StepFault::SendTwice { to: lane });
            }
            self.named[lane as usize] = node;
            self.graph.receivers.push(lane);
        }
        if parts == self.graph.receivers.len() {
            return Err(StepFault::SendToNobody);
        }
        end_run(&mut self.graph.receivers[parts..]);
        let at = self.read(program, from)?;
        self.conflicts.sent(self.local(at));
        Ok(Op::Send { from: at, parts: parts as u32 })
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
        let first = (self.graph.sources.len() as u32, self.graph.receives.len() as u32);
        for source in from {
            let source = self.source(program, chunk, *source)?;
            self.graph.sources.push(source);
        }
        let at = self.write(program, into, Some(chunk))?;
        need_form(into, at, if finish { Form::Plain } else { Form::Acc })?;
        let sources = first.0..self.graph.sources.len() as u32;
        let receives = first.1..self.graph.receives.len() as u32;
        self.graph.folds.push(Fold { chunk, into: at, finish, sources, receives });
        Ok(Op::Fold { fold: self.graph.folds.len() as u32 - 1 })
    }

    fn source(&mut self, program: &Program, chunk: Chunk, source: Source) -> Result<From, StepFault> {
        let merges = source.merges;
        match source.from {
            Origin::At(place) => {
                let at = self.at(program, place)?;
                if self.conflicts.reads(self.local(at), self.node()) {
                    return Err(StepFault::FoldTwice { place });
                }
                Ok(From::At { place: self.read(program, place)?, merges })
            }
            Origin::Head { lane, form } => {
                Ok(From::Head { receive: self.receive(lane, chunk)?, form, merges })
            }
        }
    }

    fn receive(&mut self, lane: Rank, chunk: Chunk) -> Result<u32, StepFault> {
        self.check_lane(lane)?;
        self.check_chunk(chunk)?;
        self.graph.receives.push(Receive { message: lane, chunk });
        Ok(self.graph.receives.len() as u32 - 1)
    }

    fn read(&mut self, program: &Program, place: Place) -> Result<At, StepFault> {
        let at = self.at(program, place)?;
        self.conflicts.read(self.local(at), self.node());
        Ok(at)
    }

    /// Writes to a place; `chunk` is what the step says that it writes, where it does.
    fn write(&mut self, program: &Program, place: Place, chunk: Option<Chunk>) -> Result<At, StepFault> {
        let at = self.at(program, place)?;
        if let Place::User(user) = place {
            if self.collective.result(self.rank, user).is_none() {
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
        Ok(at)
    }

    fn at(&self, program: &Program, place: Place) -> Result<At, StepFault> {
        let chunks = if self.is_worker() { self.graph.chunks } else { 0 };
        match place {
            Place::User(chunk) => {
                if !self.is_worker() {
                    return Err(StepFault::UserOfReducer);
                }
                self.check_chunk(chunk)?;
                Ok(At::new(self.first_place() + chunk, Form::Plain, true))
            }
            Place::Slot(slot) => {
                let form = program.form(place).ok_or(StepFault::NoSuchSlot { slot })?;
                Ok(At::new(self.first_place() + chunks + slot, form, false))
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
        let chunks = self.graph.chunks;
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
