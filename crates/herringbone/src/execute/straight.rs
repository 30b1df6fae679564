//! An operation that one thread runs from beginning to end, in the order of its program.
//!
//! Between ranks that share memory, most of a small operation's time would go into looking up what a frame is for and
//! counting what an instruction still waits for. If the proof says that ranks may run their programs strictly in
//! order ([`Verified::serial`](crate::core::verify::Verified::serial)), and nothing else is under way, both are known:
//! the next instruction waits for the next frames of certain ranks. Steps and frames are those of any other operation,
//! and at any instruction it can [become](Straight::into_operation) one.

use super::{
    operation::{Arrived, Io, Operation},
    prepare::Prepared,
    staging::Staging,
};
use crate::{
    core::wire::{Header, Kind as FrameKind},
    transport::{Broken, shm::Wanted},
};

/// What an instruction that has run waits for: more than ever comes.
const NEVER: u16 = u16::MAX;

/// An operation that runs in order.
#[derive(Debug)]
pub(crate) struct Straight {
    pub(crate) operation: Operation,
    /// The next instruction, and its first message.
    instr: usize,
    head: usize,
}

/// How far a straight run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// To its end.
    Done,
    /// To an instruction whose messages are not there.
    Waiting,
    /// To something that does not happen in a straight run.
    Stuck,
}

impl Prepared {
    /// Whether all messages go with their frames, and no instruction needs two from one rank, of which only the first can
    /// be seen.
    pub(crate) fn can_run_straight(&self) -> bool {
        let mut heads: Vec<_> = self.heads.iter().map(|head| (head.instr, head.peer)).collect();
        heads.sort_unstable();
        self.eager
            && self.peers.iter().all(|peer| peer.shared)
            && heads.windows(2).all(|pair| pair[0] != pair[1])
    }
}

impl Straight {
    /// A run of an operation whose rank's program is serial, whose messages are eager, and whose partners all share
    /// memory with this rank.
    pub(crate) fn new(mut operation: Operation, roster: &[u32]) -> Self {
        operation.furnish(roster);
        Self { operation, instr: 0, head: 0 }
    }

    /// Runs as far as it can. Returns how far that is, and whether anything was done.
    pub(crate) fn run(&mut self, io: &mut Io<'_>) -> (Pace, bool) {
        let prepared = self.operation.prepared.clone();
        let before = self.instr;
        let pace = loop {
            if self.instr == prepared.instrs.len() {
                break Pace::Done;
            }
            let of_it =
                prepared.heads[self.head..].iter().take_while(|head| head.instr as usize == self.instr);
            let heads = self.head..self.head + of_it.count();
            if let Some(pace) = heads.clone().map(|head| self.look(head, io)).find(|pace| *pace != Pace::Done)
            {
                break pace;
            }
            let complete = self.operation.step(&prepared, 0, self.instr as u32, io);
            heads.for_each(|head| self.done_with(head, io));
            if !complete {
                break Pace::Stuck;
            }
            self.instr += 1;
        };
        (pace, self.instr > before)
    }

    /// Looks for a message: `Done` if it is there.
    fn look(&mut self, head: usize, io: &mut Io<'_>) -> Pace {
        if self.operation.room.heads[head] != Arrived::No {
            return Pace::Done;
        }
        let endpoint = &mut io.endpoints[self.operation.sender(head) as usize];
        let wanted = self.operation.wanted(head);
        loop {
            match endpoint.find(&Wanted::new(&wanted)) {
                None => return Pace::Waiting,
                Some(Ok(at)) => {
                    self.operation.room.heads[head] = Arrived::At(at);
                    io.stats.received(endpoint, wanted.length as usize);
                    return Pace::Done;
                }
                Some(Err(())) if !endpoint.take_credits() => return Pace::Stuck,
                Some(Err(())) => {}
            }
        }
    }

    /// Is done with a message, whose frame then goes.
    fn done_with(&mut self, head: usize, io: &mut Io<'_>) {
        self.head = head + 1;
        if let Arrived::At(_) = self.operation.room.heads[head] {
            io.endpoints[self.operation.sender(head) as usize].take();
        }
    }

    /// Takes in a message that came before this operation began.
    ///
    /// # Errors
    /// If the schedule does not have it.
    pub(crate) fn arrived_early(
        &mut self,
        endpoint: u32,
        header: &Header,
        bytes: &[u8],
        staging: &Staging,
    ) -> Result<(), Broken> {
        let length = header.length as usize;
        let noted = self.operation.note(endpoint, header, |place| {
            if bytes.len() != length {
                return Err(Broken::Protocol("a message without its payload"));
            }
            staging.segment().span(place..place + length).write(bytes);
            Ok(Arrived::Staged)
        });
        noted.map(drop)
    }

    /// The operation, to go on in any order.
    pub(crate) fn into_operation(mut self, io: &mut Io<'_>) -> Operation {
        for head in self.head..self.operation.room.heads.len() {
            if let Arrived::At(at) = self.operation.room.heads[head] {
                self.operation.keep(head, at, io);
                io.endpoints[self.operation.sender(head) as usize].take();
            }
        }
        self.operation.go_on(self.instr, io);
        self.operation
    }
}

impl Operation {
    /// The endpoint that sends a message.
    fn sender(&self, head: usize) -> u32 {
        self.room.flows[self.prepared.heads[head].peer as usize].endpoint
    }

    /// The frame with which a message comes.
    fn wanted(&self, head: usize) -> Header {
        let head = &self.prepared.heads[head];
        let mut header = self.header(FrameKind::Data, 0);
        header.length = self.prepared.bytes(head.chunk, 0, head.form) as u32;
        header.index = head.index;
        header
    }

    /// Moves a message that lies with its frame into my staging memory.
    fn keep(&mut self, head: usize, at: usize, io: &Io<'_>) {
        let wanted = &self.prepared.heads[head];
        let bytes = self.prepared.bytes(wanted.chunk, 0, wanted.form);
        let place = self.stage_at(0) + wanted.offset;
        if let Some(carried) = io.endpoints[self.sender(head) as usize].payload(at, bytes) {
            io.staging.segment().span(place..place + bytes).copy_from(carried);
        }
        self.room.heads[head] = Arrived::Staged;
    }

    /// Goes on in any order after the first `done` instructions; the next one may have begun to send.
    fn go_on(&mut self, done: usize, io: &mut Io<'_>) {
        let prepared = self.prepared.clone();
        self.room.waits.copy_from_slice(&prepared.waits);
        self.room.left[0] = (prepared.instrs.len() - done) as u32;
        let ran = done + usize::from(!self.room.blocked.is_empty());
        for (head, arrived) in prepared.heads.iter().zip(&self.room.heads) {
            self.room.waits[head.instr as usize] -= u16::from(*arrived != Arrived::No);
        }
        for instr in 0..done {
            for next in prepared.instrs[instr].next.clone() {
                self.room.waits[prepared.next[next as usize] as usize] -= 1;
            }
        }
        self.room.waits[..ran].fill(NEVER);
        self.invite(io);
        self.begin_segments(io);
    }
}
