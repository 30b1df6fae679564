//! Compiling one rank's program for one kind of call: a flat array of instructions with resolved places and
//! predecessor counts, made once. Running it copies the counts; no closure or queue per variable is involved.

use super::{
    cutting::{self, Medium, Segmentation, segmentation},
    direct,
};
use crate::core::{
    collective::Collective,
    element::{DType, ReduceOp},
    schedule::{Chunk, Form, GRAIN, Origin, Place, Program, Schedule, Step},
};
use std::ops::Range;

/// What is asked for, as far as the program depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) count: usize,
}

impl Call {
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
    /// Whether all members share one host's memory; of no matter where reducers take part.
    pub(crate) shared: bool,
    /// The user's wish for a segment's bytes over the whole buffer, 0 for the default.
    pub(crate) segment_bytes: usize,
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
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// `copy`: where shared-memory receivers find it, if it is not in staging memory already. `direct`: whether they may
    /// find it in the user's buffer instead, because its result is what overwrites it.
    Send {
        from: Loc,
        form: Form,
        lanes: Range<u32>,
        copy: Option<usize>,
        direct: bool,
    },
    Recv {
        head: u32,
        into: Loc,
    },
    /// `spread`: the lanes that send the result; where a receiver allows it, it is put there at once.
    Fold {
        operands: Range<u32>,
        into: Loc,
        form: Form,
        finish: bool,
        spread: Range<u32>,
    },
    Copy {
        from: Loc,
        into: Loc,
        form: Form,
    },
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
    /// Its position in the roster.
    pub(crate) rank: u32,
    /// The heads of its messages to me, by index.
    pub(crate) heads: Vec<u32>,
    /// How many messages I send it per segment.
    pub(crate) sends: u16,
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
    /// How many segments may be in flight, and how many are at the least.
    depth: u32,
    pub(crate) lead: u32,
    pub(crate) stage_bytes: usize,
    /// Whether messages are [eager](cutting::EAGER_BYTES).
    pub(crate) eager: bool,
    /// Per chunk: its elements in the input and in the output, empty where the buffer does not have it.
    input: Vec<Range<usize>>,
    output: Vec<Range<usize>>,
    per_segment: usize,
}

impl Prepared {
    /// Bytes of staging memory for the whole operation.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.stage_bytes * self.depth() as usize
    }

    /// How many segments are in flight.
    pub(crate) fn depth(&self) -> u32 {
        self.depth.min(self.segments)
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
        let whole = if self.input[chunk as usize].is_empty() { &self.output } else { &self.input };
        self.slice(&whole[chunk as usize], segment, self.width(form)).len()
    }

    fn slice(&self, whole: &Range<usize>, segment: u32, width: usize) -> Range<usize> {
        let from = (whole.start + self.per_segment * segment as usize).min(whole.end);
        let to = (from + self.per_segment).min(whole.end);
        from * width..to * width
    }
}

/// The ranks that `program` exchanges messages with, ascending.
pub(crate) fn partners(program: &Program) -> Vec<u32> {
    let mut ranks = Vec::new();
    for step in program.steps() {
        match *step {
            Step::Send { to, .. } => ranks.extend(program.lanes(to)),
            Step::Recv { lane, .. } => ranks.push(lane),
            Step::Fold { from, .. } => {
                ranks.extend(program.sources(from).iter().filter_map(|source| match source.from {
                    Origin::Head { lane, .. } => Some(lane),
                    Origin::At(_) => None,
                }))
            }
            Step::Copy { .. } => {}
        }
    }
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Compiles rank `me`'s program of a schedule; `shared` tells which ranks share memory with it.
pub(crate) fn prepare(
    schedule: &Schedule,
    program: &Program,
    me: u32,
    call: Call,
    sizing: Sizing,
    shared: impl Fn(u32) -> bool,
) -> Prepared {
    let cut = schedule.cut();
    let medium = match (schedule.reducers() > 0, sizing.shared) {
        (true, _) if schedule.reducers() < schedule.workers() => Medium::FewReducers,
        (true, _) => Medium::Reducers,
        (false, true) => Medium::Memory,
        (false, false) => Medium::Links,
    };
    let Segmentation { elements: per_segment, segments, depth, lead } =
        segmentation(cut, &call, sizing.segment_bytes, medium);
    let message_bytes = per_segment * call.width(Form::Acc).max(call.width(Form::Plain));
    let peer = |rank| Peer { rank, heads: Vec::new(), sends: 0, shared: shared(rank) };
    let peers = partners(program).into_iter().map(peer).collect();
    let (input, output) = cutting::buffers(cut, &call, me);
    let prepared = Prepared {
        call,
        workers: schedule.workers(),
        instrs: Vec::new(),
        waits: Vec::new(),
        next: Vec::new(),
        operands: Vec::new(),
        lanes: Vec::new(),
        heads: Vec::new(),
        peers,
        segments,
        depth,
        lead,
        stage_bytes: 0,
        eager: segments == 1 && message_bytes <= cutting::eager_bytes(medium),
        input,
        output,
        per_segment,
    };
    let direct = if medium == Medium::Memory { direct::sends(schedule, program, me) } else { Vec::new() };
    Compiler::new(prepared, program, cut.chunks(), direct).compile(program, me)
}

/// What of earlier steps a later step on the same place must wait for.
#[derive(Clone, Default)]
struct PlaceState {
    writer: Option<u32>,
    readers: Vec<u32>,
    written: bool,
    chunk: Chunk,
}

struct Compiler {
    out: Prepared,
    user: Vec<PlaceState>,
    slots: Vec<PlaceState>,
    slot_offsets: Vec<usize>,
    /// Whether a slot is written after it was sent: then its bytes are not what a late reader must see.
    rewritten: Vec<bool>,
    edges: Vec<(u32, u32)>,
    /// The sends that may be read in the user's buffer.
    direct: Vec<u32>,
}

impl Compiler {
    fn new(mut out: Prepared, program: &Program, chunks: u32, direct: Vec<u32>) -> Self {
        let mut slot_offsets = Vec::new();
        for form in program.slots() {
            let bytes = out.per_segment * out.width(*form);
            slot_offsets.push(reserve(&mut out, bytes));
        }
        Self {
            out,
            user: vec![PlaceState::default(); chunks as usize],
            slots: vec![PlaceState::default(); program.slots().len()],
            slot_offsets,
            rewritten: direct::rewritten_after_send(program),
            edges: Vec::new(),
            direct,
        }
    }

    fn compile(mut self, program: &Program, me: u32) -> Prepared {
        for step in program.steps() {
            let at = self.out.instrs.len() as u32;
            let kind = match *step {
                Step::Send { from, to } => {
                    let direct = self.direct.contains(&at);
                    self.send(at, program, from, program.lanes(to), direct)
                }
                Step::Recv { lane, chunk, into } => {
                    let form = program.form(into).expect("a verified place");
                    let head = self.head(at, lane, chunk, form);
                    Kind::Recv { head, into: self.write(at, into, chunk) }
                }
                Step::Fold { chunk, from, into, finish } => {
                    let start = self.out.operands.len() as u32;
                    for source in program.sources(from) {
                        let operand = match source.from {
                            Origin::At(place) => {
                                let form = program.form(place).expect("a verified place");
                                Operand::At { loc: self.read(at, place), form, merges: source.merges }
                            }
                            Origin::Head { lane, form } => Operand::Head {
                                head: self.head(at, lane, chunk, form),
                                merges: source.merges,
                            },
                        };
                        self.out.operands.push(operand);
                    }
                    let operands = start..self.out.operands.len() as u32;
                    let form = program.form(into).expect("a verified place");
                    Kind::Fold { operands, into: self.write(at, into, chunk), form, finish, spread: 0..0 }
                }
                Step::Copy { from, into } => {
                    let form = program.form(into).expect("a verified place");
                    let loc = self.read(at, from);
                    let chunk = self.chunk_of(from);
                    Kind::Copy { from: loc, into: self.write(at, into, chunk), form }
                }
            };
            self.push(kind);
        }
        self.copy_unwritten(me);
        self.link()
    }

    fn push(&mut self, kind: Kind) {
        self.out.instrs.push(Instr { kind, next: 0..0 });
        self.out.waits.push(0);
    }

    fn send(&mut self, at: u32, program: &Program, from: Place, to: &[u32], direct: bool) -> Kind {
        let form = program.form(from).expect("a verified place");
        let start = self.out.lanes.len() as u32;
        for rank in to {
            let peer = self.peer(*rank);
            let answers = self.answered(from, peer);
            let state = &mut self.out.peers[peer as usize];
            self.out.lanes.push(Outbound { peer, index: state.sends, answers });
            state.sends += 1;
        }
        let lanes = start..self.out.lanes.len() as u32;
        if let Some(Kind::Fold { spread, .. }) = self.folded(from).filter(|_| !lanes.is_empty())
            && spread.start == spread.end
        {
            *spread = lanes.clone();
        }
        let reaches_shared = to.iter().any(|rank| self.out.peers[self.peer(*rank) as usize].shared);
        let in_place = matches!(from, Place::Slot(slot) if !self.rewritten[slot as usize]);
        let copy = (reaches_shared && !in_place && !self.out.eager).then(|| {
            let bytes = self.out.per_segment * self.out.width(form);
            reserve(&mut self.out, bytes)
        });
        Kind::Send { from: self.read(at, from), form, lanes, copy, direct }
    }

    /// The fold that made what lies in a user's chunk.
    fn folded(&mut self, place: Place) -> Option<&mut Kind> {
        let Place::User(chunk) = place else { return None };
        let writer = self.user[chunk as usize].writer?;
        let kind = &mut self.out.instrs[writer as usize].kind;
        matches!(kind, Kind::Fold { .. }).then_some(kind)
    }

    /// The message of a rank that went into the fold that made what lies in a place, if no step has sent that yet.
    fn answered(&mut self, place: Place, peer: u32) -> Option<u32> {
        let Some(Kind::Fold { operands, spread, .. }) = self.folded(place) else { return None };
        if spread.start < spread.end {
            return None;
        }
        let operands = operands.clone();
        self.out.operands[operands.start as usize..operands.end as usize].iter().find_map(|operand| {
            match operand {
                Operand::Head { head, .. } if self.out.heads[*head as usize].peer == peer => Some(*head),
                _ => None,
            }
        })
    }

    fn head(&mut self, instr: u32, lane: u32, chunk: Chunk, form: Form) -> u32 {
        let peer = self.peer(lane) as usize;
        let staged = !self.out.peers[peer].shared || self.out.eager;
        let bytes = if staged { self.out.per_segment * self.out.width(form) } else { 0 };
        let offset = reserve(&mut self.out, bytes);
        let head = self.out.heads.len() as u32;
        let index = self.out.peers[peer].heads.len() as u16;
        self.out.heads.push(Head { instr, peer: peer as u32, index, chunk, form, offset });
        self.out.peers[peer].heads.push(head);
        head
    }

    fn peer(&self, rank: u32) -> u32 {
        self.out.peers.binary_search_by_key(&rank, |peer| peer.rank).expect("a partner") as u32
    }

    fn state(&mut self, place: Place) -> &mut PlaceState {
        match place {
            Place::User(chunk) => &mut self.user[chunk as usize],
            Place::Slot(slot) => &mut self.slots[slot as usize],
        }
    }

    fn chunk_of(&mut self, place: Place) -> Chunk {
        match place {
            Place::User(chunk) => chunk,
            Place::Slot(_) => self.state(place).chunk,
        }
    }

    fn read(&mut self, at: u32, place: Place) -> Loc {
        let state = self.state(place);
        state.readers.push(at);
        let (writer, written, chunk) = (state.writer, state.written, state.chunk);
        self.edges.extend(writer.map(|writer| (writer, at)));
        match place {
            Place::User(chunk) if written => Loc::Output(chunk),
            Place::User(chunk) => Loc::Input(chunk),
            Place::Slot(slot) => Loc::Staged { chunk, offset: self.slot_offsets[slot as usize] },
        }
    }

    fn write(&mut self, at: u32, place: Place, chunk: Chunk) -> Loc {
        let state = self.state(place);
        let before: Vec<u32> = state.readers.drain(..).chain(state.writer).filter(|&by| by != at).collect();
        (state.writer, state.written, state.chunk) = (Some(at), true, chunk);
        self.edges.extend(before.into_iter().map(|by| (by, at)));
        match place {
            Place::User(chunk) => Loc::Output(chunk),
            Place::Slot(slot) => Loc::Staged { chunk, offset: self.slot_offsets[slot as usize] },
        }
    }

    /// Chunks that the program never writes are copied from the input, where both buffers have them.
    fn copy_unwritten(&mut self, me: u32) {
        let keeps = match self.out.call.collective {
            Collective::Reduce { root } => root == me,
            _ => true,
        };
        for chunk in 0..self.user.len() as u32 {
            let both =
                !self.out.input[chunk as usize].is_empty() && !self.out.output[chunk as usize].is_empty();
            if keeps && both && me < self.out.workers && !self.user[chunk as usize].written {
                self.push(Kind::Copy {
                    from: Loc::Input(chunk),
                    into: Loc::Output(chunk),
                    form: Form::Plain,
                });
            }
        }
    }

    /// Turns edges into successor lists and waiting counts.
    fn link(mut self) -> Prepared {
        self.edges.sort_unstable();
        self.edges.dedup();
        let mut edges = self.edges.iter().peekable();
        for at in 0..self.out.instrs.len() {
            let start = self.out.next.len() as u32;
            while let Some((_, to)) = edges.next_if(|(from, _)| *from as usize == at) {
                self.out.next.push(*to);
                self.out.waits[*to as usize] += 1;
            }
            self.out.instrs[at].next = start..self.out.next.len() as u32;
        }
        for head in &self.out.heads {
            self.out.waits[head.instr as usize] += 1;
        }
        self.out
    }
}

fn reserve(out: &mut Prepared, bytes: usize) -> usize {
    let offset = out.stage_bytes;
    out.stage_bytes += bytes.next_multiple_of(GRAIN);
    offset
}
