//! What a schedule costs: messages, bytes and rounds, counted from its programs.

use crate::schedule::{Form, Origin, Place, Program, Rank, Step};
use crate::verify::Verified;
use alloc::{
    borrow::Cow, collections::BTreeMap, collections::BTreeSet, collections::VecDeque, vec, vec::Vec,
};
use core::ops::AddAssign;

/// What a schedule costs. Chunks count as equally large, which they are but for [`GRAIN`](crate::schedule::GRAIN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Into how many chunks the buffer is cut.
    pub chunks: u32,
    /// The longest chain of messages of which each needs the one before.
    pub rounds: u32,
    /// The busiest worker's load: the most that one sends, the most that one receives, the most partners.
    pub worker: Load,
    /// The busiest reducer's load, likewise; nothing where there are no reducers.
    pub reducer: Load,
}

/// What one rank moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// What it sends; a send to several ranks counts once for each.
    pub sent: Messages,
    /// What it receives.
    pub received: Messages,
    /// With how many ranks it exchanges messages.
    pub partners: u32,
}

/// Messages of one chunk each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Of elements: inputs and results.
    pub plain: u32,
    /// Of partial sums, in the accumulator's type.
    pub acc: u32,
}

impl Messages {
    /// How many there are.
    pub fn count(self) -> u32 {
        self.plain + self.acc
    }

    /// How many times the whole buffer's bytes they are, where an accumulator is `widening` times as wide as an
    /// element: 1 for most types, 2 for 16-bit floats.
    pub fn buffers(self, chunks: u32, widening: u32) -> f64 {
        (f64::from(self.plain) + f64::from(self.acc) * f64::from(widening)) / f64::from(chunks)
    }

    fn busier(self, other: Self) -> Self {
        let most = |messages: Self| (messages.count(), messages.acc);
        if most(other) > most(self) { other } else { self }
    }
}

impl AddAssign<Form> for Messages {
    fn add_assign(&mut self, form: Form) {
        match form {
            Form::Plain => self.plain += 1,
            Form::Acc => self.acc += 1,
        }
    }
}

impl Cost {
    /// Counts a schedule. Holds all its programs at once.
    pub fn of(schedule: &Verified) -> Self {
        let schedule = schedule.schedule();
        let programs: Vec<_> = (0..schedule.ranks()).map(|rank| schedule.program(rank)).collect();
        let (workers, reducers) = programs.split_at(schedule.workers() as usize);
        let busiest = |programs: &[Cow<'_, Program>]| {
            programs.iter().map(|program| Load::of(program)).fold(Load::default(), Load::busier)
        };
        Self {
            chunks: schedule.cut().chunks(),
            rounds: longest_chain(&programs, schedule.cut().chunks()),
            worker: busiest(workers),
            reducer: busiest(reducers),
        }
    }
}

impl Load {
    fn of(program: &Program) -> Self {
        let mut load = Self::default();
        let mut partners = BTreeSet::new();
        let form = |place| program.form(place).expect("a slot of the program");
        for step in program.steps() {
            match *step {
                Step::Send { from, to } => {
                    for lane in program.lanes(to) {
                        load.sent += form(from);
                        partners.insert(*lane);
                    }
                }
                Step::Recv { lane, into, .. } => {
                    load.received += form(into);
                    partners.insert(lane);
                }
                Step::Fold { from, .. } => {
                    for source in program.sources(from) {
                        if let Origin::Head { lane, form } = source.from {
                            load.received += form;
                            partners.insert(lane);
                        }
                    }
                }
                Step::Copy { .. } => {}
            }
        }
        load.partners = partners.len() as u32;
        load
    }

    fn busier(self, other: Self) -> Self {
        Self {
            sent: self.sent.busier(other.sent),
            received: self.received.busier(other.received),
            partners: self.partners.max(other.partners),
        }
    }
}

/// Runs the programs with the length of the longest chain behind each value in the place of the value.
fn longest_chain(programs: &[Cow<'_, Program>], chunks: u32) -> u32 {
    let mut lanes = Lanes::new();
    let mut runs: Vec<Run<'_>> =
        (0..).zip(programs).map(|(rank, program)| Run::new(rank, program, chunks)).collect();
    while runs.iter_mut().any(|run| run.advance(&mut lanes)) {}
    runs.iter().flat_map(|run| &run.chains).copied().max().unwrap_or(0)
}

/// Messages under way, by sender and receiver.
type Lanes = BTreeMap<(Rank, Rank), VecDeque<u32>>;

struct Run<'a> {
    rank: Rank,
    program: &'a Program,
    chunks: u32,
    /// By place: the user's chunks, then the slots.
    chains: Vec<u32>,
    step: usize,
    /// How many sources of the current fold have been read, and the longest chain among them.
    sources: (usize, u32),
}

impl<'a> Run<'a> {
    fn new(rank: Rank, program: &'a Program, chunks: u32) -> Self {
        let chains = vec![0; chunks as usize + program.slots().len()];
        Self { rank, program, chunks, chains, step: 0, sources: (0, 0) }
    }

    fn at(&mut self, place: Place) -> &mut u32 {
        match place {
            Place::User(chunk) => &mut self.chains[chunk as usize],
            Place::Slot(slot) => &mut self.chains[(self.chunks + slot) as usize],
        }
    }

    /// Goes on until a message is missing; says whether it moved.
    fn advance(&mut self, lanes: &mut Lanes) -> bool {
        let from = (self.step, self.sources);
        while self.step < self.program.steps().len() && self.take_step(lanes).is_some() {
            self.step += 1;
        }
        from != (self.step, self.sources)
    }

    /// `None` where a message is missing.
    fn take_step(&mut self, lanes: &mut Lanes) -> Option<()> {
        let rank = self.rank;
        let mut receive = |from: Rank| Some(lanes.get_mut(&(from, rank))?.pop_front()? + 1);
        match self.program.steps()[self.step] {
            Step::Recv { lane, into, .. } => *self.at(into) = receive(lane)?,
            Step::Copy { from, into } => *self.at(into) = *self.at(from),
            Step::Send { from, to } => {
                let chain = *self.at(from);
                for lane in self.program.lanes(to) {
                    lanes.entry((rank, *lane)).or_default().push_back(chain);
                }
            }
            Step::Fold { from, into, .. } => {
                for source in &self.program.sources(from)[self.sources.0..] {
                    let chain = match source.from {
                        Origin::At(place) => *self.at(place),
                        Origin::Head { lane, .. } => receive(lane)?,
                    };
                    self.sources = (self.sources.0 + 1, self.sources.1.max(chain));
                }
                *self.at(into) = core::mem::take(&mut self.sources).1;
            }
        }
        Some(())
    }
}
