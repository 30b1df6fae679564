//! One rank's program for one kind of call: a flat array of instructions with resolved places and predecessor counts,
//! made once. Running it copies the counts; no closure or queue per variable is involved.

use crate::core::{
    collective::{Collective, Lengths, UnevenParts},
    element::{DType, ReduceOp},
    group::Rank,
    schedule::{Chunk, Form},
    session::turns::Turns,
    wire::Fingerprint,
};
use std::{collections::BTreeSet, ops::Range};

/// What is asked for, as far as the program depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) count: usize,
}

impl Call {
    /// In place of the count where parts may differ; see [`Fingerprint::UNEVEN`].
    pub(crate) const UNEVEN: usize = Fingerprint::UNEVEN as usize;

    /// How long chunks are; `parts` where they may differ.
    pub(super) fn lengths<'a>(&self, parts: Option<&'a UnevenParts>) -> Lengths<'a> {
        let even = Lengths::Even { count: self.count, element_bytes: self.dtype.bytes() };
        parts.map_or(even, Lengths::Uneven)
    }

    pub(super) fn width(&self, form: Form) -> usize {
        match form {
            Form::Plain => self.dtype.bytes(),
            Form::Acc => self.dtype.accumulator(self.op).bytes(),
        }
    }
}

/// How a group's operations are cut into segments; the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizing {
    /// How many hosts the members have: what they send leaves by as many links.
    pub(crate) hosts: u32,
    /// Whether all members share one host's memory; of no matter where reducers take part.
    pub(crate) shared: bool,
    /// The user's wish for a segment's bytes over the whole buffer, 0 for the default.
    pub(crate) segment_bytes: usize,
    /// The most staging memory that an operation gets on any rank.
    pub(crate) most_staged: usize,
}

impl Sizing {
    /// How many hosts there are, where each member's is given.
    pub(crate) fn distinct(hosts: &[u32]) -> u32 {
        hosts.iter().collect::<BTreeSet<_>>().len() as u32
    }
}

/// Where a chunk's segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loc {
    Input(Chunk),
    Output(Chunk),
    /// A stretch of the stage's staging memory.
    Staged {
        chunk: Chunk,
        offset: usize,
    },
}

/// One message of mine to one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outbound {
    pub(crate) peer: u32,
    pub(crate) index: u16,
    /// The head whose fold's result this message carries back to who sent it.
    pub(crate) answers: Option<u32>,
    /// The number of its turn, if it has to wait for one.
    pub(crate) turn: Option<u32>,
}

/// One source of a fold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    At { loc: Loc, form: Form, merges: u8 },
    Head { head: u32, merges: u8 },
}

/// One message that I receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) instr: u32,
    /// Who sends it: a position among [`Prepared::peers`].
    pub(crate) peer: u32,
    /// Which of that rank's messages it is.
    pub(crate) index: u16,
    pub(crate) chunk: Chunk,
    pub(crate) form: Form,
    /// Where it is kept in the stage's staging memory, when it does not stay with its sender.
    pub(crate) offset: usize,
    /// Whether it has no place there, as its place in the user's buffer is free whenever it comes.
    pub(crate) placed: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Send(Send),
    Recv { head: u32, into: Loc },
    Fold(Fold),
    Copy { from: Loc, into: Loc, form: Form },
}

/// A message for one rank or several.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) from: Loc,
    pub(crate) form: Form,
    /// To whom: positions among [`Prepared::lanes`].
    pub(crate) lanes: Range<u32>,
    /// Where in the stage's staging memory shared-memory receivers find it, if it is not there already.
    pub(crate) copy: Option<usize>,
    /// Whether the fold that makes the message puts it there.
    pub(crate) folded: bool,
    /// Whether they may find it in the user's buffer instead, because its result is what overwrites it.
    pub(crate) direct: bool,
}

/// Partial sums that become one.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    /// Positions among [`Prepared::operands`].
    pub(crate) operands: Range<u32>,
    pub(crate) into: Loc,
    pub(crate) form: Form,
    pub(crate) finish: bool,
    /// The first instruction that sends the result: where its receivers look for it, it is put at once.
    pub(crate) sent_by: Option<u32>,
}

/// One instruction: a step with resolved places.
#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub(crate) kind: Kind,
    /// The instructions that wait for this one.
    pub(crate) next: Range<u32>,
}

/// A rank that I exchange messages with in this program.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its place in the group: workers, then reducers.
    pub(crate) rank: Rank,
    /// The heads of its messages to me, by index.
    pub(crate) heads: Vec<u32>,
    /// How many messages I send it per segment.
    pub(crate) sends: u16,
    /// In how many segments it sends me any, and in how many I send it any: in all, unless parts differ.
    pub(crate) gives: u32,
    pub(crate) takes: u32,
    /// Whether we share memory.
    pub(crate) shared: bool,
}

/// One rank's program for one kind of call, ready to run.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) call: Call,
    pub(crate) workers: u32,
    pub(crate) instrs: Vec<Instr>,
    /// Per instruction: how many instructions and messages it waits for.
    pub(crate) waits: Vec<u16>,
    pub(crate) next: Vec<u32>,
    pub(crate) operands: Vec<Operand>,
    pub(crate) lanes: Vec<Outbound>,
    pub(crate) heads: Vec<Head>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) segments: u32,
    /// How many segments may be in flight.
    pub(crate) depth: u32,
    /// How many of them a rank begins that has to copy its messages to where host-mates find them, and for how many there has
    /// to be memory.
    pub(crate) lead: u32,
    pub(crate) stage_bytes: usize,
    /// Whether messages are [eager](crate::core::session::lane::EAGER_BYTES).
    pub(crate) eager: bool,
    /// The order in which messages leave over links, if there is one.
    pub(crate) turns: Option<Turns>,
    /// Per chunk: its elements in the input and in the output, empty where the buffer does not have it.
    pub(super) input: Vec<Range<usize>>,
    pub(super) output: Vec<Range<usize>>,
    /// Elements per chunk and segment.
    pub(super) per_segment: usize,
}

impl Prepared {
    /// Whether a place in the group is a reducer's.
    pub(crate) fn is_reducer(&self, place: Rank) -> bool {
        place >= self.workers
    }

    /// Whether parts may differ, so that each message has to say how long its part is.
    pub(crate) fn is_uneven(&self) -> bool {
        self.call.count == Call::UNEVEN
    }

    /// The send that an instruction is.
    pub(crate) fn send(&self, instr: u32) -> &Send {
        match &self.instrs[instr as usize].kind {
            Kind::Send(send) => send,
            kind => unreachable!("only sends have lanes: {kind:?}"),
        }
    }

    /// Bytes of staging memory for so many segments in flight.
    pub(crate) fn staging_bytes(&self, segments: u32) -> usize {
        self.stage_bytes * segments as usize
    }

    /// How many segments a rank has in flight at most, if there is memory for them. One that copies what host-mates
    /// read has fewer than one whose buffer they can reach.
    pub(crate) fn ahead(&self, is_mapped: bool) -> u32 {
        if self.is_in_memory() && !is_mapped { self.lead } else { self.depth }
    }

    /// How many chunks there are.
    pub(crate) fn chunks(&self) -> u32 {
        self.output.len() as u32
    }

    /// The chunk whose result an instruction puts in its place, if it does.
    pub(super) fn result_of(&self, instr: u32) -> Option<Chunk> {
        match &self.instrs[instr as usize].kind {
            Kind::Recv { into: Loc::Output(chunk), .. }
            | Kind::Copy { into: Loc::Output(chunk), .. }
            | Kind::Fold(Fold { into: Loc::Output(chunk), .. }) => Some(*chunk),
            _ => None,
        }
    }

    /// The bytes of some segments of a chunk within a user's buffer, in an all-reduce.
    pub(crate) fn stretch(&self, chunk: Chunk, segments: &Range<u32>) -> Range<usize> {
        let last = segments.end.clamp(1, self.segments) - 1;
        self.output(chunk, segments.start).start..self.output(chunk, last).end
    }

    /// The position of a rank among [`Self::peers`], if it is one.
    pub(super) fn peer(&self, rank: u32) -> Option<usize> {
        self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok()
    }

    /// Whether all messages are read where they lie.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.peers.iter().all(|peer| peer.shared)
    }

    pub(crate) fn width(&self, form: Form) -> usize {
        self.call.width(form)
    }

    /// The bytes of a chunk's segment within the input buffer.
    pub(crate) fn input(&self, chunk: Chunk, segment: u32) -> Range<usize> {
        self.slice(&self.input[chunk as usize], segment, self.width(Form::Plain))
    }

    /// The bytes of a chunk's segment within the output buffer.
    pub(crate) fn output(&self, chunk: Chunk, segment: u32) -> Range<usize> {
        self.slice(&self.output[chunk as usize], segment, self.width(Form::Plain))
    }

    /// How many bytes a chunk's segment has in a form.
    pub(crate) fn bytes(&self, chunk: Chunk, segment: u32, form: Form) -> usize {
        self.slice(self.whole(chunk), segment, self.width(form)).len()
    }

    /// Where a chunk lies in a buffer that has it, in elements.
    pub(crate) fn whole(&self, chunk: Chunk) -> &Range<usize> {
        let whole = if self.input[chunk as usize].is_empty() { &self.output } else { &self.input };
        &whole[chunk as usize]
    }

    /// In how many segments a chunk goes, if parts may differ: in one at the least, which says that it is empty.
    pub(super) fn segments_of(&self, chunk: Chunk) -> u32 {
        self.whole(chunk).len().div_ceil(self.per_segment.max(1)).max(1) as u32
    }

    /// How many bytes a chunk takes in a stage.
    pub(super) fn room_of(&self, chunk: Chunk, form: Form) -> usize {
        if self.is_uneven() { self.bytes(chunk, 0, form) } else { self.per_segment * self.width(form) }
    }

    fn slice(&self, whole: &Range<usize>, segment: u32, width: usize) -> Range<usize> {
        let from = (whole.start + self.per_segment * segment as usize).min(whole.end);
        let to = (from + self.per_segment).min(whole.end);
        from * width..to * width
    }
}
