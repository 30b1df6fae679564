//! Compiles a program's steps: it resolves places and counts dependencies.

use super::{
    direct,
    program::{Fold, Head, Kind, Loc, Operand, Outbound, PerSegment, Prepared, PreparedStep, Send, Staged},
};
use crate::{
    collective::Collective,
    schedule::{Chunk, ChunkRun, Form, GRAIN, Origin, Place, Program, SlotChunks, Step},
};
use alloc::{vec, vec::Vec};

/// What of earlier steps a later step on the same place must wait for.
#[derive(Clone, Default)]
struct PlaceState {
    writer: Option<u32>,
    readers: Vec<u32>,
    written: bool,
    chunk: Chunk,
}

/// Where a slot lies in a stage.
#[derive(Clone, Copy)]
struct SlotPlace {
    offset: usize,
    /// The chunk that lies at the offset, where it may be another one than the slot's.
    base: Option<Chunk>,
}

/// A program on its way to steps.
pub(super) struct Compiler {
    out: Prepared,
    user: Vec<PlaceState>,
    slots: Vec<PlaceState>,
    slot_places: Vec<SlotPlace>,
    /// Whether a slot is written after it was sent: then its bytes are not what a late reader must see.
    rewritten: Vec<bool>,
    edges: Vec<(u32, u32)>,
    /// The sends that may be read in the user's buffer, and the results that are received there.
    direct: Vec<u32>,
    results: Vec<u32>,
    /// By what averages divide.
    contributors: u32,
}

impl Compiler {
    pub(super) fn new(
        mut out: Prepared,
        program: &Program,
        direct: Vec<u32>,
        results: Vec<u32>,
        contributors: u32,
    ) -> Self {
        let slot_places = slot_places(&mut out, program);
        let places = out.input.len();
        Self {
            out,
            user: vec![PlaceState::default(); places],
            slots: vec![PlaceState::default(); program.slots().len()],
            slot_places,
            rewritten: direct::rewritten_after_send(program),
            edges: Vec::new(),
            direct,
            results,
            contributors,
        }
    }

    pub(super) fn compile(mut self, program: &Program, me: u32) -> Prepared {
        for step in program.steps() {
            let at = self.out.steps.len() as u32;
            let span = program.span(at as usize);
            let run = |first| ChunkRun { first, span };
            let kind = match *step {
                Step::Send { from, to } => self.send(at, program, from, program.lanes(to)),
                Step::Recv { lane, chunk, into } => {
                    let form = program.form(into).expect("a verified place");
                    let head = self.head(at, lane, run(chunk), form);
                    Kind::Recv { head, into: self.write(at, into, run(chunk)) }
                }
                Step::Fold { chunk, from, into, finish } => {
                    let start = self.out.operands.len() as u32;
                    for source in program.sources(from) {
                        let operand = match source.from {
                            Origin::At(place) => {
                                let form = program.form(place).expect("a verified place");
                                Operand::At { loc: self.read(at, place, span), form, merges: source.merges }
                            }
                            Origin::Head { lane, form } => Operand::Head {
                                head: self.head(at, lane, run(chunk), form),
                                merges: source.merges,
                            },
                        };
                        self.out.operands.push(operand);
                    }
                    let operands = start..self.out.operands.len() as u32;
                    let form = program.form(into).expect("a verified place");
                    Kind::Fold(Fold {
                        operands,
                        into: self.write(at, into, run(chunk)),
                        form,
                        finish: finish.then_some(self.contributors),
                        sent_by: None,
                    })
                }
                Step::Copy { from, into } => {
                    let form = program.form(into).expect("a verified place");
                    let loc = self.read(at, from, span);
                    Kind::Copy { from: loc, into: self.write(at, into, loc.run()), form }
                }
                Step::Encode { from, into } => {
                    let form = program.form(into).expect("a verified place");
                    let loc = self.read(at, from, span);
                    Kind::Encode { from: loc, form, into: self.write(at, into, loc.run()) }
                }
                Step::Decode { chunk, from, into } => {
                    let from = match from {
                        Origin::At(place) => Operand::At {
                            loc: self.read(at, place, span),
                            form: Form::CodedResult,
                            merges: 0,
                        },
                        Origin::Head { lane, form } => {
                            Operand::Head { head: self.head(at, lane, run(chunk), form), merges: 0 }
                        }
                    };
                    Kind::Decode { from, into: self.write(at, into, run(chunk)) }
                }
            };
            self.push(kind);
        }
        self.copy_unwritten(me);
        self.link()
    }

    fn push(&mut self, kind: Kind) {
        self.out.steps.push(PreparedStep { kind, next: 0..0 });
        self.out.waits.push(0);
    }

    fn send(&mut self, at: u32, program: &Program, from: Place, to: &[u32]) -> Kind {
        let form = program.form(from).expect("a verified place");
        let direct = self.direct.contains(&at);
        let span = program.span(at as usize);
        let loc = self.read(at, from, span);
        let start = self.out.lanes.len() as u32;
        for rank in to {
            let peer = self.peer(*rank);
            let answers = self.answered(loc, peer);
            let state = &mut self.out.peers[peer as usize];
            self.out.lanes.push(Outbound { peer, index: state.sends, answers });
            state.sends += 1;
        }
        let lanes = start..self.out.lanes.len() as u32;
        let fold = self.folded(loc).filter(|fold| fold.sent_by.is_none());
        let folded = fold.map(|fold| fold.sent_by = Some(at)).is_some();
        let reaches_shared = to.iter().any(|rank| self.out.peers[self.peer(*rank) as usize].shared);
        let in_place = match from {
            Place::Slot(slot) => !self.rewritten[slot as usize..(slot + span) as usize].contains(&true),
            Place::User(_) => false,
        };
        let copy = (reaches_shared && !in_place && !self.out.eager).then(|| {
            let bytes = self.out.room_of(loc.run(), form);
            reserve(&mut self.out, bytes)
        });
        Kind::Send(Send { from: loc, form, lanes, copy, folded, direct })
    }

    /// The fold that made what lies in a user's buffer, of the same chunks.
    fn folded(&mut self, loc: Loc) -> Option<&mut Fold> {
        let Loc::Output(run) = loc else { return None };
        let writer = self.user[run.first as usize].writer?;
        match &mut self.out.steps[writer as usize].kind {
            Kind::Fold(fold) if fold.into == loc => Some(fold),
            _ => None,
        }
    }

    /// The message of a rank that went into the fold that made what lies in a place, if no step has sent that yet.
    fn answered(&mut self, loc: Loc, peer: u32) -> Option<u32> {
        let operands = self.folded(loc).filter(|fold| fold.sent_by.is_none())?.operands.clone();
        self.out.operands[operands.start as usize..operands.end as usize].iter().find_map(|operand| {
            match operand {
                Operand::Head { head, .. } if self.out.heads[*head as usize].peer == peer => Some(*head),
                _ => None,
            }
        })
    }

    fn head(&mut self, step: u32, lane: u32, run: ChunkRun, form: Form) -> u32 {
        let peer = self.peer(lane) as usize;
        let comes_here = !self.out.peers[peer].shared || self.out.eager;
        let placed = comes_here && !self.out.eager && self.results.contains(&step);
        let bytes = if comes_here && !placed { self.out.room_of(run, form) } else { 0 };
        let offset = reserve(&mut self.out, bytes);
        let head = self.out.heads.len() as u32;
        let index = self.out.peers[peer].heads.len() as u16;
        self.out.heads.push(Head { step, peer: peer as u32, index, run, form, offset, placed });
        self.out.peers[peer].heads.push(head);
        head
    }

    fn peer(&self, rank: u32) -> u32 {
        self.out.peer(rank).expect("a partner") as u32
    }

    fn state(&mut self, place: Place) -> &mut PlaceState {
        match place {
            Place::User(chunk) => &mut self.user[chunk as usize],
            Place::Slot(slot) => &mut self.slots[slot as usize],
        }
    }

    fn read(&mut self, at: u32, first: Place, span: u32) -> Loc {
        for place in (0..span).map(|offset| first.shifted(offset)) {
            let state = self.state(place);
            state.readers.push(at);
            let writer = state.writer;
            self.edges.extend(writer.filter(|by| *by != at).map(|writer| (writer, at)));
        }
        let PlaceState { written, chunk, .. } = *self.state(first);
        match first {
            Place::User(first) if written => Loc::Output(ChunkRun { first, span }),
            Place::User(first) => Loc::Input(ChunkRun { first, span }),
            Place::Slot(slot) => self.staged(slot, ChunkRun { first: chunk, span }),
        }
    }

    fn write(&mut self, at: u32, first: Place, run: ChunkRun) -> Loc {
        for (place, chunk) in (0..run.span).map(|offset| (first.shifted(offset), run.first + offset)) {
            let state = self.state(place);
            let before = state.readers.drain(..).chain(state.writer).filter(|&by| by != at);
            let before: Vec<u32> = before.collect();
            (state.writer, state.written, state.chunk) = (Some(at), true, chunk);
            self.edges.extend(before.into_iter().map(|by| (by, at)));
        }
        match first {
            Place::User(first) => Loc::Output(ChunkRun { first, span: run.span }),
            Place::Slot(slot) => self.staged(slot, run),
        }
    }

    fn staged(&self, slot: u32, run: ChunkRun) -> Loc {
        let SlotPlace { offset, base } = self.slot_places[slot as usize];
        Loc::Staged(Staged { run, base: base.unwrap_or(run.first), offset })
    }

    /// Chunks that the program never writes are copied from the input, where both buffers have them.
    fn copy_unwritten(&mut self, me: u32) {
        let keeps = match self.out.call.collective {
            Collective::Reduce { root } => root == me,
            _ => true,
        };
        for chunk in 0..self.out.chunks() {
            let both =
                !self.out.input[chunk as usize].is_empty() && !self.out.output[chunk as usize].is_empty();
            if keeps && both && !self.out.is_reducer(me) && !self.user[chunk as usize].written {
                let run = ChunkRun::one(chunk);
                self.push(Kind::Copy { from: Loc::Input(run), into: Loc::Output(run), form: Form::Plain });
            }
        }
    }

    /// Turns edges into successor lists and waiting counts.
    fn link(mut self) -> Prepared {
        self.edges.sort_unstable();
        self.edges.dedup();
        let mut edges = self.edges.iter().peekable();
        for at in 0..self.out.steps.len() {
            let start = self.out.next.len() as u32;
            while let Some((_, to)) = edges.next_if(|(from, _)| *from as usize == at) {
                self.out.next.push(*to);
                self.out.waits[*to as usize] += 1;
            }
            self.out.steps[at].next = start..self.out.next.len() as u32;
        }
        for head in &self.out.heads {
            self.out.waits[head.step as usize] += 1;
        }
        self.out
    }
}

/// Reserves room for each slot of a program.
fn slot_places(out: &mut Prepared, program: &Program) -> Vec<SlotPlace> {
    if let PerSegment::SideBySide(_) = out.per_segment {
        return side_by_side(out, program);
    }
    let bytes = slot_bytes(out, program).into_iter();
    bytes.map(|bytes| SlotPlace { offset: reserve(out, bytes), base: None }).collect()
}

/// The same where each slot holds one chunk: slots that follow each other, of chunks that follow each other, lie side by side.
fn side_by_side(out: &mut Prepared, program: &Program) -> Vec<SlotPlace> {
    let program = program.chunk_by_chunk();
    let mut held = SlotChunks::new(&program, out.chunks());
    for step in program.steps() {
        held.step(step);
    }
    let chunk = |slot: usize| held.chunk(Place::Slot(slot as u32));
    let slots: Vec<usize> = (0..program.slots().len()).collect();
    let form = |slot: usize| program.slots()[slot];
    let runs = slots.chunk_by(|a, b| form(*a) == form(*b) && chunk(*a) + 1 == chunk(*b));
    let place = |run: &[usize]| {
        let chunks = ChunkRun { first: chunk(run[0]), span: run.len() as u32 };
        let bytes = out.room_of(chunks, form(run[0]));
        vec![SlotPlace { offset: reserve(out, bytes), base: Some(chunks.first) }; run.len()]
    };
    runs.flat_map(place).collect()
}

/// How many bytes each slot of a program needs for one segment: of the longest chunk that comes to lie in it.
fn slot_bytes(out: &Prepared, program: &Program) -> Vec<usize> {
    if let PerSegment::Same(elements) = &out.per_segment {
        return program.slots().iter().map(|form| out.call.bytes(*elements, *form)).collect();
    }
    let mut bytes = vec![0; program.slots().len()];
    let mut held = SlotChunks::new(program, out.chunks());
    for step in program.steps() {
        if let Some(place @ Place::Slot(slot)) = held.step(step) {
            let form = program.slots()[slot as usize];
            let needed = out.room_of(ChunkRun::one(held.chunk(place)), form);
            bytes[slot as usize] = needed.max(bytes[slot as usize]);
        }
    }
    bytes
}

fn reserve(out: &mut Prepared, bytes: usize) -> usize {
    let offset = out.stage_bytes;
    out.stage_bytes += bytes.next_multiple_of(GRAIN);
    offset
}
