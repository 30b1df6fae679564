//! Running all ranks of a schedule in rounds, on any kind of values: the numbers of [`interpret`](super), or
//! [terms](crate::terms).
//!
//! A round runs every step that can run. Its messages arrive before the next round, so a round is the work between two
//! messages that need each other.

use crate::schedule::{Chunk, Form, Origin, Place, Program, Rank, Schedule, Step};
use alloc::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    vec,
    vec::Vec,
};

/// What the steps of a schedule do to values of one kind.
pub(crate) trait Domain {
    /// What a place of one chunk holds.
    type Value: Clone;

    /// What a worker has at a place of its user's buffer before it writes there; see [`Place::User`].
    fn input(&mut self, worker: Rank, place: Chunk) -> Self::Value;

    /// The fold of these sources, in the shape that their merges give.
    fn fold(&mut self, chunk: Chunk, sources: &[FoldOperand<Self::Value>], finish: bool) -> Self::Value;

    /// What a codec makes of the value that a rank has of a chunk; the form says as what.
    fn encode(&mut self, rank: Rank, chunk: Chunk, value: &Self::Value, into: Form) -> Self::Value;

    /// What a codec makes of a coded result.
    fn decode(&mut self, chunk: Chunk, coded: &Self::Value) -> Self::Value;
}

/// A source of a fold.
pub(crate) struct FoldOperand<V> {
    pub(crate) value: V,
    pub(crate) form: Form,
    pub(crate) merges: u8,
}

/// A message to one receiver.
pub(crate) struct SentValue<V> {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) chunk: Chunk,
    pub(crate) value: V,
}

/// All ranks of a schedule, while they run.
pub(crate) struct Lockstep<'a, V> {
    ranks: Vec<State<'a, V>>,
    lanes: Lanes<V>,
    /// What the last round has sent, in the order of ranks and then of their programs.
    sent: Vec<SentValue<V>>,
}

/// The messages that have arrived, by sender and receiver.
type Lanes<V> = BTreeMap<(Rank, Rank), VecDeque<V>>;

impl<'a, V: Clone> Lockstep<'a, V> {
    /// Before the first round.
    pub(crate) fn new(schedule: &'a Schedule) -> Self {
        let mut programs = schedule.programs();
        let ranks = (0..schedule.ranks()).map(|rank| {
            let program = match programs(rank) {
                Cow::Borrowed(program) => program.chunk_by_chunk(),
                Cow::Owned(program) => Cow::Owned(program.chunk_by_chunk().into_owned()),
            };
            State::new(rank, program, schedule.cut().chunks())
        });
        Self { ranks: ranks.collect(), lanes: Lanes::new(), sent: Vec::new() }
    }

    /// Whether all steps have run.
    pub(crate) fn is_done(&self) -> bool {
        !self.ranks.iter().any(|rank| rank.done.contains(&false))
    }

    /// Delivers what was sent, and runs every step that can run then.
    ///
    /// # Panics
    /// If no step can, which a verified schedule that is not done does not do.
    pub(crate) fn round(&mut self, domain: &mut impl Domain<Value = V>) {
        for SentValue { from, to, value, .. } in self.sent.drain(..) {
            self.lanes.entry((from, to)).or_default().push_back(value);
        }
        let mut moved = false;
        for rank in &mut self.ranks {
            moved |= rank.advance(domain, &mut self.lanes, &mut self.sent);
        }
        assert!(moved, "a verified schedule does not deadlock");
    }

    /// What the last round has sent.
    pub(crate) fn sent(&self) -> &[SentValue<V>] {
        &self.sent
    }

    /// What a rank has written of a chunk and still holds: in its user's buffer, then in slots.
    pub(crate) fn written(&self, rank: Rank, chunk: Chunk) -> impl Iterator<Item = &V> {
        let state = &self.ranks[rank as usize];
        let slots = state.slots.iter().flatten().filter(move |(of, _)| *of == chunk);
        state.written[chunk as usize].iter().chain(slots.map(|(_, value)| value))
    }

    /// What a rank has written at a chunk of its user's buffer, if it has.
    pub(crate) fn output(&self, rank: Rank, chunk: Chunk) -> Option<&V> {
        self.ranks[rank as usize].written[chunk as usize].as_ref()
    }
}

/// One rank, while it runs.
struct State<'a, V> {
    rank: Rank,
    program: Cow<'a, Program>,
    done: Vec<bool>,
    /// Of which chunk each is, and what it holds, once it was written.
    slots: Vec<Option<(Chunk, V)>>,
    /// By chunk, what was written to the user's buffer.
    written: Vec<Option<V>>,
}

impl<'a, V: Clone> State<'a, V> {
    fn new(rank: Rank, program: Cow<'a, Program>, chunks: u32) -> Self {
        let (steps, slots) = (program.steps().len(), program.slots().len());
        Self {
            rank,
            program,
            done: vec![false; steps],
            slots: vec![None; slots],
            written: vec![None; chunks as usize],
        }
    }

    /// Runs every step that can run; whether there was one.
    ///
    /// A step can run if its messages are there, and no earlier step that has not run conflicts with it or shares a
    /// lane and a direction with it.
    fn advance(
        &mut self,
        domain: &mut impl Domain<Value = V>,
        lanes: &mut Lanes<V>,
        sent: &mut Vec<SentValue<V>>,
    ) -> bool {
        let mut moved = false;
        let mut held = Held::default();
        for at in 0..self.done.len() {
            if self.done[at] {
                continue;
            }
            let uses = Uses::of(&self.program, at);
            let there = |lane: &Rank| {
                let taken = uses.receives.iter().filter(|other| *other == lane).count();
                lanes.get(&(*lane, self.rank)).is_some_and(|queue| queue.len() >= taken)
            };
            if held.allow(&uses) && uses.receives.iter().all(there) {
                self.step(domain, at, lanes, sent);
                self.done[at] = true;
                moved = true;
            } else {
                held.hold(uses);
            }
        }
        moved
    }

    fn step(
        &mut self,
        domain: &mut impl Domain<Value = V>,
        at: usize,
        lanes: &mut Lanes<V>,
        sent: &mut Vec<SentValue<V>>,
    ) {
        let rank = self.rank;
        let mut take = |lane: Rank| {
            lanes.get_mut(&(lane, rank)).and_then(VecDeque::pop_front).expect("the message is there")
        };
        match self.program.steps()[at] {
            Step::Send { from, to } => {
                let (chunk, value) = (self.chunk(from), self.read(domain, from));
                let to = self.program.lanes(to).iter();
                sent.extend(to.map(|to| SentValue { from: rank, to: *to, chunk, value: value.clone() }));
            }
            Step::Recv { lane, chunk, into } => self.write(into, chunk, take(lane)),
            Step::Fold { chunk, from, into, finish } => {
                let sources = self.program.sources(from).iter().map(|source| {
                    let (value, form) = match source.from {
                        Origin::At(place) => (
                            self.read(domain, place),
                            self.program.form(place).expect("a place of the program"),
                        ),
                        Origin::Head { lane, form } => (take(lane), form),
                    };
                    FoldOperand { value, form, merges: source.merges }
                });
                let sources: Vec<FoldOperand<V>> = sources.collect();
                self.write(into, chunk, domain.fold(chunk, &sources, finish));
            }
            Step::Copy { from, into } => self.write(into, self.chunk(from), self.read(domain, from)),
            Step::Encode { from, into } => {
                let (chunk, value) = (self.chunk(from), self.read(domain, from));
                let form = self.program.form(into).expect("a place of the program");
                self.write(into, chunk, domain.encode(rank, chunk, &value, form));
            }
            Step::Decode { chunk, from, into } => {
                let coded = match from {
                    Origin::At(place) => self.read(domain, place),
                    Origin::Head { lane, .. } => take(lane),
                };
                self.write(into, chunk, domain.decode(chunk, &coded));
            }
        }
    }

    /// The chunk at a place; of a place of a further input, the one of the buffer that it is folded into.
    fn chunk(&self, place: Place) -> Chunk {
        match place {
            Place::User(chunk) => chunk % self.written.len() as Chunk,
            Place::Slot(slot) => self.slots[slot as usize].as_ref().expect("it was written").0,
        }
    }

    fn read(&self, domain: &mut impl Domain<Value = V>, place: Place) -> V {
        match place {
            Place::Slot(slot) => self.slots[slot as usize].as_ref().expect("it was written").1.clone(),
            Place::User(chunk) => match self.written.get(chunk as usize) {
                Some(Some(value)) => value.clone(),
                _ => domain.input(self.rank, chunk),
            },
        }
    }

    fn write(&mut self, place: Place, of: Chunk, value: V) {
        match place {
            Place::Slot(slot) => self.slots[slot as usize] = Some((of, value)),
            Place::User(chunk) => self.written[chunk as usize] = Some(value),
        }
    }
}

/// What a step touches.
struct Uses {
    reads: Vec<Place>,
    writes: Option<Place>,
    sends: Vec<Rank>,
    receives: Vec<Rank>,
}

impl Uses {
    fn of(program: &Program, at: usize) -> Self {
        let mut uses = Self { reads: Vec::new(), writes: None, sends: Vec::new(), receives: Vec::new() };
        match program.steps()[at] {
            Step::Send { from, to } => {
                uses.reads.push(from);
                uses.sends.extend(program.lanes(to));
            }
            Step::Recv { lane, into, .. } => {
                uses.receives.push(lane);
                uses.writes = Some(into);
            }
            Step::Fold { from, into, .. } => {
                for source in program.sources(from) {
                    match source.from {
                        Origin::At(place) => uses.reads.push(place),
                        Origin::Head { lane, .. } => uses.receives.push(lane),
                    }
                }
                uses.writes = Some(into);
            }
            Step::Copy { from, into } | Step::Encode { from, into } => {
                uses.reads.push(from);
                uses.writes = Some(into);
            }
            Step::Decode { from, into, .. } => {
                match from {
                    Origin::At(place) => uses.reads.push(place),
                    Origin::Head { lane, .. } => uses.receives.push(lane),
                }
                uses.writes = Some(into);
            }
        }
        uses
    }
}

/// What earlier steps that have not run touch.
#[derive(Default)]
struct Held {
    reads: Vec<Place>,
    writes: Vec<Place>,
    sends: Vec<Rank>,
    receives: Vec<Rank>,
}

impl Held {
    fn allow(&self, uses: &Uses) -> bool {
        let written = |place: &Place| self.writes.contains(place);
        !uses.reads.iter().any(written)
            && !uses.writes.iter().any(|place| written(place) || self.reads.contains(place))
            && !uses.sends.iter().any(|lane| self.sends.contains(lane))
            && !uses.receives.iter().any(|lane| self.receives.contains(lane))
    }

    fn hold(&mut self, uses: Uses) {
        self.reads.extend(uses.reads);
        self.writes.extend(uses.writes);
        self.sends.extend(uses.sends);
        self.receives.extend(uses.receives);
    }
}
