//! From a program's steps to steps: places resolved, what waits for what counted.

use super::{
    direct,
    program::{Fold, Head, Kind, Loc, Operand, Outbound, PerSegment, Prepared, PreparedStep, Send},
};
use crate::{
    collective::Collective,
    schedule::{Chunk, Form, GRAIN, Origin, Place, Program, SlotChunks, Step},
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

/// A program on its way to steps.
pub(super) struct Compiler {
    out: Prepared,
    user: Vec<PlaceState>,
    slots: Vec<PlaceState>,
    slot_offsets: Vec<usize>,
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
        let slot_offsets = slots(&out, program).into_iter().map(|bytes| reserve(&mut out, bytes)).collect();
        let places = out.input.len();
        Self {
            out,
            user: vec![PlaceState::default(); places],
            slots: vec![PlaceState::default(); program.slots().len()],
            slot_offsets,
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
                    Kind::Fold(Fold {
                        operands,
                        into: self.write(at, into, chunk),
                        form,
                        finish: finish.then_some(self.contributors),
                        sent_by: None,
                    })
                }
                Step::Copy { from, into } => {
                    let form = program.form(into).expect("a verified place");
                    let loc = self.read(at, from);
                    let chunk = self.chunk_of(from);
                    Kind::Copy { from: loc, into: self.write(at, into, chunk), form }
                }
                Step::Encode { from, into } => {
                    let form = program.form(into).expect("a verified place");
                    let loc = self.read(at, from);
                    let chunk = self.chunk_of(from);
                    Kind::Encode { from: loc, form, into: self.write(at, into, chunk) }
                }
                Step::Decode { chunk, from, into } => {
                    let from = match from {
                        Origin::At(place) => {
                            Operand::At { loc: self.read(at, place), form: Form::CodedResult, merges: 0 }
                        }
                        Origin::Head { lane, form } => {
                            Operand::Head { head: self.head(at, lane, chunk, form), merges: 0 }
                        }
                    };
                    Kind::Decode { from, into: self.write(at, into, chunk) }
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
        let fold = self.folded(from).filter(|fold| fold.sent_by.is_none());
        let folded = fold.map(|fold| fold.sent_by = Some(at)).is_some();
        let reaches_shared = to.iter().any(|rank| self.out.peers[self.peer(*rank) as usize].shared);
        let in_place = matches!(from, Place::Slot(slot) if !self.rewritten[slot as usize]);
        let copy = (reaches_shared && !in_place && !self.out.eager).then(|| {
            let chunk = self.chunk_of(from);
            let bytes = self.out.room_of(chunk, form);
            reserve(&mut self.out, bytes)
        });
        Kind::Send(Send { from: self.read(at, from), form, lanes, copy, folded, direct })
    }

    /// The fold that made what lies in a user's chunk.
    fn folded(&mut self, place: Place) -> Option<&mut Fold> {
        let Place::User(chunk) = place else { return None };
        let writer = self.user[chunk as usize].writer?;
        match &mut self.out.steps[writer as usize].kind {
            Kind::Fold(fold) => Some(fold),
            _ => None,
        }
    }

    /// The message of a rank that went into the fold that made what lies in a place, if no step has sent that yet.
    fn answered(&mut self, place: Place, peer: u32) -> Option<u32> {
        let operands = self.folded(place).filter(|fold| fold.sent_by.is_none())?.operands.clone();
        self.out.operands[operands.start as usize..operands.end as usize].iter().find_map(|operand| {
            match operand {
                Operand::Head { head, .. } if self.out.heads[*head as usize].peer == peer => Some(*head),
                _ => None,
            }
        })
    }

    fn head(&mut self, step: u32, lane: u32, chunk: Chunk, form: Form) -> u32 {
        let peer = self.peer(lane) as usize;
        let comes_here = !self.out.peers[peer].shared || self.out.eager;
        let placed = comes_here && !self.out.eager && self.results.contains(&step);
        let bytes = if comes_here && !placed { self.out.room_of(chunk, form) } else { 0 };
        let offset = reserve(&mut self.out, bytes);
        let head = self.out.heads.len() as u32;
        let index = self.out.peers[peer].heads.len() as u16;
        self.out.heads.push(Head { step, peer: peer as u32, index, chunk, form, offset, placed });
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
        for chunk in 0..self.out.chunks() {
            let both =
                !self.out.input[chunk as usize].is_empty() && !self.out.output[chunk as usize].is_empty();
            if keeps && both && !self.out.is_reducer(me) && !self.user[chunk as usize].written {
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

/// How many bytes each slot of a program needs for one segment: of the longest chunk that comes to lie in it.
fn slots(out: &Prepared, program: &Program) -> Vec<usize> {
    if let PerSegment::Same(elements) = out.per_segment {
        return program.slots().iter().map(|form| out.call.bytes(elements, *form)).collect();
    }
    let mut bytes = vec![0; program.slots().len()];
    let mut held = SlotChunks::new(program, out.chunks());
    for step in program.steps() {
        if let Some(place @ Place::Slot(slot)) = held.step(step) {
            let form = program.slots()[slot as usize];
            let needed = out.room_of(held.chunk(place), form);
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
