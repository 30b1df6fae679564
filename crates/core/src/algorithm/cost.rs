//! The cost of a schedule: messages, bytes and rounds. The proof counts it, because it meets every program anyway; see
//! [`Verified::cost`](crate::verify::Verified::cost).

use crate::collective::Collective;
use crate::schedule::{Chunk, Cut, Form, Origin, Place, Program, Rank, Schedule, SlotChunks, Step};
use alloc::{vec, vec::Vec};
use core::mem::replace;

/// The cost of a schedule. Chunks are counted as equally large. With [shares](super::Shares) each chunk is counted as
/// often as its weight. The only error is [`GRAIN`](crate::schedule::GRAIN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The number of chunks of the buffer, or the sum of their weights. In an all_to_all a rank has only one chunk for
    /// each rank.
    pub chunks: u32,
    /// The longest chain of messages in which each message needs the one before.
    pub rounds: u32,
    /// The time of a segment that has all ports to itself, in messages of one chunk. This is the sum, over rounds, of
    /// the messages that the busiest rank sends or receives, as in Valiant's bulk-synchronous model (1990). `None` if
    /// there are too many to count.
    pub alone: Option<u32>,
    /// The busiest worker's load: the most that one sends, receives and keeps, the most partners.
    pub worker: Load,
    /// The busiest reducer's load, likewise; all 0 without reducers.
    pub reducer: Load,
    /// The number of messages that all ranks send together.
    pub messages: u64,
}

impl Cost {
    /// The most messages that a rank sends, or receives, in a segment: how long each takes if segments follow each other closely.
    pub fn busiest(&self) -> u32 {
        let either = |load: &Load| load.sent.count().max(load.received.count());
        either(&self.worker).max(either(&self.reducer))
    }
}

/// The load of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The messages that it sends; a send to several ranks is counted once for each.
    pub sent: Messages,
    /// The messages that it receives.
    pub received: Messages,
    /// How many messages it sends, whatever their weights.
    pub messages: u32,
    /// The most chunks that one of them is of.
    pub longest: u32,
    /// With how many ranks it exchanges messages.
    pub partners: u32,
    /// The most chunks that it keeps in addition to its buffers: messages that it receives or has ready, and partial
    /// sums. Chunks are counted as in [`sent`](Self::sent).
    pub kept: u32,
    /// How many places it keeps them in, whatever their weights.
    pub places: u32,
}

/// Messages of one chunk each. Each is counted once, or as often as its chunk's weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Messages of elements: inputs and results.
    pub plain: u32,
    /// Messages of partial sums, in the accumulator's type.
    pub acc: u32,
    /// Coded messages of any kind.
    pub coded: u32,
}

impl Messages {
    /// How many there are.
    pub fn count(self) -> u32 {
        self.plain + self.acc + self.coded
    }

    /// The size of the messages relative to the whole buffer. An accumulator is `widening` times as wide as an element:
    /// 1 for most types, 2 for 16-bit floats. Coded messages are counted as if they were plain, which is their maximum.
    pub fn buffers(self, chunks: u32, widening: u32) -> f64 {
        let plain = f64::from(self.plain + self.coded);
        (plain + f64::from(self.acc) * f64::from(widening)) / f64::from(chunks)
    }

    fn add(&mut self, form: Form, units: u32) {
        match form {
            Form::Plain => self.plain += units,
            Form::Acc => self.acc += units,
            Form::Coded | Form::CodedResult => self.coded += units,
        }
    }

    fn busier(self, other: Self) -> Self {
        let most = |messages: Self| (messages.count(), messages.acc);
        if most(other) > most(self) { other } else { self }
    }
}

/// Counts programs one after another.
pub(crate) struct Count {
    cost: Cost,
    workers: u32,
    cut: Cut,
    partners: Partners,
}

impl Count {
    pub(crate) fn new(schedule: &Schedule, collective: Collective) -> Self {
        let (mut chunks, load) = (schedule.cut().units(), Load::default());
        if collective == Collective::AllToAll {
            chunks = schedule.workers();
        }
        Self {
            cost: Cost { chunks, rounds: 0, alone: None, worker: load, reducer: load, messages: 0 },
            workers: schedule.workers(),
            cut: schedule.cut().clone(),
            partners: Partners::new(schedule.ranks()),
        }
    }

    /// Adds the program of a rank, as which so many ranks do as much; its slots and lanes are there.
    pub(crate) fn add(&mut self, rank: Rank, program: &Program, ranks: u32) {
        let mut load = Load::of(&program.chunk_by_chunk(), &self.cut, &mut self.partners);
        if program.longest_span() > 1 {
            load.count_spans(program);
        }
        self.cost.messages += u64::from(load.messages) * u64::from(ranks);
        let busiest = if rank < self.workers { &mut self.cost.worker } else { &mut self.cost.reducer };
        *busiest = busiest.busier(load);
    }

    /// All programs together, given the longest chain of messages, and how long a segment takes alone.
    pub(crate) fn cost(&self, rounds: u32, alone: Option<u32>) -> Cost {
        Cost { rounds, alone, ..self.cost }
    }
}

impl Load {
    /// The number of messages of average length in a buffer of `units` units.
    pub fn messages_of_buffer(&self, units: u32) -> u32 {
        let sent = u64::from(self.sent.count()).max(1);
        (u64::from(units) * u64::from(self.messages)).div_ceil(sent).max(1) as u32
    }

    fn of(program: &Program, cut: &Cut, partners: &mut Partners) -> Self {
        let mut load = Self { places: program.slots().len() as u32, longest: 1, ..Self::default() };
        let mut held = SlotChunks::new(program, cut.chunks());
        let mut slots = vec![0; program.slots().len()];
        let form = |place| program.form(place).expect("a slot of the program");
        for step in program.steps() {
            match *step {
                Step::Send { from, to } => {
                    let units = cut.units_of(held.chunk(from));
                    load.kept += units;
                    load.places += 1;
                    for lane in program.lanes(to) {
                        load.messages += 1;
                        load.sent.add(form(from), units);
                        partners.meet(*lane);
                    }
                }
                Step::Recv { lane, chunk, into } => load.receive(cut, chunk, lane, form(into), partners),
                Step::Fold { chunk, from, .. } => {
                    for source in program.sources(from) {
                        if let Origin::Head { lane, form } = source.from {
                            load.receive(cut, chunk, lane, form, partners);
                        }
                    }
                }
                Step::Decode { chunk, from: Origin::Head { lane, form }, .. } => {
                    load.receive(cut, chunk, lane, form, partners);
                }
                Step::Copy { .. } | Step::Encode { .. } | Step::Decode { .. } => {}
            }
            if let Some(Place::Slot(slot)) = held.step(step) {
                let most: &mut u32 = &mut slots[slot as usize];
                *most = cut.units_of(held.chunk(Place::Slot(slot))).max(*most);
            }
        }
        load.kept += slots.iter().sum::<u32>();
        load.partners = partners.part();
        load
    }

    /// Counts a message of several chunks once, and so a place for several.
    fn count_spans(&mut self, program: &Program) {
        (self.messages, self.places) = (0, program.slots().len() as u32);
        self.longest = program.longest_span();
        for step in program.steps() {
            if let Step::Send { to, .. } = *step {
                self.messages += program.lanes(to).len() as u32;
                self.places += 1;
            }
            self.places += program.received(step).count() as u32;
        }
    }

    fn receive(&mut self, cut: &Cut, chunk: Chunk, lane: Rank, form: Form, partners: &mut Partners) {
        let units = cut.units_of(chunk);
        self.kept += units;
        self.places += 1;
        self.received.add(form, units);
        partners.meet(lane);
    }

    fn busier(self, other: Self) -> Self {
        Self {
            sent: self.sent.busier(other.sent),
            received: self.received.busier(other.received),
            messages: self.messages.max(other.messages),
            longest: self.longest.max(other.longest),
            partners: self.partners.max(other.partners),
            kept: self.kept.max(other.kept),
            places: self.places.max(other.places),
        }
    }
}

/// The ranks that one rank meets.
struct Partners {
    /// By rank.
    met: Vec<bool>,
    count: u32,
}

impl Partners {
    fn new(ranks: u32) -> Self {
        Self { met: vec![false; ranks as usize], count: 0 }
    }

    fn meet(&mut self, rank: Rank) {
        self.count += u32::from(!replace(&mut self.met[rank as usize], true));
    }

    /// Forgets them all, and says how many there were.
    fn part(&mut self) -> u32 {
        self.met.fill(false);
        replace(&mut self.count, 0)
    }
}
