//! The data of each rank after each round, as sums of inputs: a0+b0 is rank 0's chunk 0 and rank 1's.
//!
//! [`history`] runs a proven schedule on terms, by the steps that [`interpret`](crate::interpret) runs on numbers, so a
//! picture of it shows the steps that run. Terms are the terms of the proof: equal terms mean equal bits. Letters name
//! inputs and numbers chunks, as in Patarasuk and Yuan's ring (2009) and most pictures since.

mod text;

pub use text::letters;

use crate::{
    group::Group,
    interpret::lockstep::{Domain, FoldOperand, Lockstep},
    schedule::{Chunk, Form, Rank},
    verify::{
        Order, Verified,
        terms::{Made, Term, Terms},
    },
};
use alloc::{collections::BTreeMap, vec, vec::Vec};

/// The most ranks whose terms are followed: a term can be as deep as the number of ranks.
pub const MOST_RANKS: u32 = 256;

/// Why a schedule has no history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// The schedule has too many ranks.
    #[error("{ranks} ranks are more than {most}")]
    Ranks {
        /// Workers and reducers.
        ranks: u32,
        /// The limit.
        most: u32,
    },
    /// The schedule is too large to follow.
    #[error(
        "{ranks} ranks x {chunks} chunks x {rounds} or more rounds, and the start, are more than {most} blocks"
    )]
    Blocks {
        /// Workers and reducers.
        ranks: u32,
        /// The chunks of the buffer.
        chunks: u32,
        /// How many rounds there are at the least.
        rounds: u32,
        /// The limit.
        most: u64,
    },
}

/// The limits of following a schedule.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// The most ranks, up to [`MOST_RANKS`].
    pub ranks: u32,
    /// The most blocks: ranks x chunks x (rounds + 1).
    pub blocks: u64,
}

/// The number of a term of a [`TermHistory`], counted from 0; operands come before their sum.
pub type TermNumber = usize;

/// How a term is made of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Composition {
    /// The input of this number.
    Input(u32),
    /// The sum of two terms, in the order in which they are written.
    Sum([TermNumber; 2]),
    /// A coded term.
    Code(TermNumber),
    /// A result: a sum, divided if it is an average, and rounded to the type of elements.
    Result(TermNumber),
}

/// A message to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermMessage {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The chunk that it is about.
    pub chunk: Chunk,
    /// The term that it carries.
    pub term: TermNumber,
}

/// The messages of a round, and the ranks' terms once they have used them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRound {
    /// In the order of senders, then of their programs. Empty if a group of one finishes its own input.
    pub messages: Vec<TermMessage>,
    /// By rank, then by chunk; see [`TermHistory::held`].
    held: Vec<Option<TermNumber>>,
}

/// A schedule's rounds, on terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermHistory {
    ranks: u32,
    workers: u32,
    chunks: u32,
    order: Order,
    /// By term.
    compositions: Vec<Composition>,
    /// By term: how many inputs it has, each as often as it is added.
    inputs: Vec<u32>,
    start: Vec<Option<TermNumber>>,
    rounds: Vec<TermRound>,
}

impl TermHistory {
    /// Workers and reducers.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// How many of the ranks are workers; reducers follow.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// The chunks of the buffer.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The order of the sums.
    pub fn order(&self) -> Order {
        self.order
    }

    /// One after another.
    pub fn rounds(&self) -> &[TermRound] {
        &self.rounds
    }

    /// How many terms there are.
    pub fn terms(&self) -> usize {
        self.compositions.len()
    }

    /// How a term is made.
    pub fn composition(&self, term: TermNumber) -> Composition {
        self.compositions[term]
    }

    /// How many inputs a term has.
    pub fn inputs(&self, term: TermNumber) -> u32 {
        self.inputs[term]
    }

    /// Whether a term is a result.
    pub fn is_result(&self, term: TermNumber) -> bool {
        match self.compositions[term] {
            Composition::Result(_) => true,
            Composition::Code(of) => matches!(self.compositions[of], Composition::Result(_)),
            Composition::Input(_) | Composition::Sum(_) => false,
        }
    }

    /// The term that a rank holds of a chunk after `rounds` rounds. If it holds several terms, such as an input and a
    /// sum, this is the one of the most inputs, and a result rather than a sum.
    pub fn held(&self, rounds: usize, rank: Rank, chunk: Chunk) -> Option<TermNumber> {
        let held = rounds.checked_sub(1).map_or(&self.start, |round| &self.rounds[round].held);
        held[(rank * self.chunks + chunk) as usize]
    }
}

/// Follows a schedule's terms, round by round.
///
/// ```
/// use herringbone_core::{
///     algorithm::{Algorithm, Layout},
///     collective::Collective,
///     group::Group,
///     terms::{HistoryLimits, history},
///     verify::verify,
/// };
///
/// let (ring, group): (Algorithm, _) = ("ring".parse()?, Group::of_size(4));
/// let schedule = ring.schedule(Collective::AllReduce, &group, &Layout::default())?;
/// let proven = verify(schedule, Collective::AllReduce, &group)?;
/// let history = history(&proven, HistoryLimits { ranks: 4, blocks: 1000 })?;
/// let of_rank_1 = |rounds| history.held(rounds, 1, 0).map(|term| history.text(term, 0));
/// assert_eq!(of_rank_1(0).as_deref(), Some("b0"));
/// assert_eq!(of_rank_1(1).as_deref(), Some("a0+b0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`HistoryError`] if there is more than `limits` allow.
pub fn history(schedule: &Verified, limits: HistoryLimits) -> Result<TermHistory, HistoryError> {
    limits.allow(schedule.ranks())?;
    limits.check(schedule, schedule.cost().rounds)?;
    Recorder::new(schedule).record(limits)
}

impl HistoryLimits {
    /// Whether a schedule of this many ranks can be followed, as far as that is known before it is made.
    ///
    /// # Errors
    /// [`HistoryError::Ranks`] if not.
    pub fn allow(self, ranks: u32) -> Result<(), HistoryError> {
        let most = self.ranks.min(MOST_RANKS);
        if ranks > most { Err(HistoryError::Ranks { ranks, most }) } else { Ok(()) }
    }

    /// Whether so many rounds are few enough.
    fn check(self, schedule: &Verified, rounds: u32) -> Result<(), HistoryError> {
        let (ranks, chunks, most) = (schedule.ranks(), schedule.cut().chunks(), self.blocks);
        let blocks = u64::from(ranks).saturating_mul(chunks.into()).saturating_mul(u64::from(rounds) + 1);
        if blocks > most { Err(HistoryError::Blocks { ranks, chunks, rounds, most }) } else { Ok(()) }
    }
}

/// Steps on terms.
struct Symbolic<'a> {
    group: &'a Group,
    chunks: u32,
    terms: Terms,
}

impl Domain for Symbolic<'_> {
    type Value = Term;

    fn input(&mut self, worker: Rank, place: Chunk) -> Term {
        Term::input(self.group.inputs_of(worker).start + place / self.chunks)
    }

    fn fold(&mut self, _chunk: Chunk, sources: &[FoldOperand<Term>], finish: bool) -> Term {
        let sum = self.terms.folded(sources.iter().map(|source| (source.value, source.merges)));
        if finish { sum.finish() } else { sum }
    }

    fn encode(&mut self, _rank: Rank, _chunk: Chunk, value: &Term, _into: Form) -> Term {
        self.terms.code(*value)
    }

    fn decode(&mut self, _chunk: Chunk, coded: &Term) -> Term {
        *coded
    }
}

/// Numbers the terms that were met, and remembers the rounds.
struct Recorder<'a> {
    schedule: &'a Verified,
    symbolic: Symbolic<'a>,
    numbers: BTreeMap<Term, TermNumber>,
    /// By number: the first of its inputs.
    firsts: Vec<u32>,
    history: TermHistory,
}

impl<'a> Recorder<'a> {
    fn new(schedule: &'a Verified) -> Self {
        let (group, chunks) = (schedule.group(), schedule.cut().chunks());
        Self {
            schedule,
            symbolic: Symbolic { group, chunks, terms: Terms::new(group.inputs()) },
            numbers: BTreeMap::new(),
            firsts: Vec::new(),
            history: TermHistory {
                ranks: schedule.ranks(),
                workers: schedule.workers(),
                chunks,
                order: schedule.order(),
                compositions: Vec::new(),
                inputs: Vec::new(),
                start: Vec::new(),
                rounds: Vec::new(),
            },
        }
    }

    fn record(mut self, limits: HistoryLimits) -> Result<TermHistory, HistoryError> {
        let mut ranks = Lockstep::new(self.schedule.schedule());
        self.history.start = self.held(&ranks);
        // Steps that need no message come first: they are part of the first round.
        if !ranks.is_done() {
            ranks.round(&mut self.symbolic);
        }
        loop {
            let sent = ranks.sent().iter();
            let messages = sent.map(|sent| TermMessage {
                from: sent.from,
                to: sent.to,
                chunk: sent.chunk,
                term: self.number(sent.value),
            });
            let messages: Vec<TermMessage> = messages.collect();
            let is_over = ranks.is_done();
            if !is_over {
                ranks.round(&mut self.symbolic);
            }
            let held = self.held(&ranks);
            if !messages.is_empty()
                || held != *self.history.rounds.last().map_or(&self.history.start, |round| &round.held)
            {
                // Messages may need more rounds than their longest chain, where one waits for another's place.
                limits.check(self.schedule, self.history.rounds.len() as u32 + 1)?;
                self.history.rounds.push(TermRound { messages, held });
            }
            if is_over {
                return Ok(self.history);
            }
        }
    }

    fn held(&mut self, ranks: &Lockstep<'_, Term>) -> Vec<Option<TermNumber>> {
        let chunks = self.history.chunks;
        let places = (0..self.history.ranks).flat_map(|rank| (0..chunks).map(move |chunk| (rank, chunk)));
        places.map(|(rank, chunk)| self.most(ranks, rank, chunk)).collect()
    }

    /// What a rank holds of a chunk: the term of the most inputs, of these a result, and of these what its user's buffer has.
    fn most(&mut self, ranks: &Lockstep<'_, Term>, rank: Rank, chunk: Chunk) -> Option<TermNumber> {
        let workers = self.history.workers;
        let has_input = rank < workers && self.schedule.collective().has_input(workers, rank, chunk);
        let input = has_input && ranks.output(rank, chunk).is_none();
        let input = input.then(|| self.symbolic.input(rank, chunk));
        let terms: Vec<Term> = input.into_iter().chain(ranks.written(rank, chunk).copied()).collect();
        let numbers: Vec<TermNumber> = terms.into_iter().map(|term| self.number(term)).collect();
        let history = &self.history;
        // Of several that are equal `max_by_key` takes the last.
        numbers.into_iter().rev().max_by_key(|term| (history.inputs(*term), history.is_result(*term)))
    }

    /// The number of a term, after those of the terms that it is made of.
    fn number(&mut self, term: Term) -> TermNumber {
        // A stack of its own, because a schedule may add up more than there is stack for calls.
        let mut open = vec![term];
        while let Some(top) = open.last() {
            let (top, made) = (*top, self.symbolic.terms.made(*top));
            let operands = match made {
                Made::Input(_) => [None, None],
                Made::Code(of) | Made::Finish(of) => [Some(of), None],
                Made::Merge(operands) => operands.map(Some),
            };
            let unknown = operands.into_iter().flatten().filter(|of| !self.numbers.contains_key(of));
            let before = open.len();
            open.extend(unknown);
            if open.len() == before {
                self.note(top, made);
                open.pop();
            }
        }
        self.numbers[&term]
    }

    /// Gives a term whose operands have numbers the next one, unless it has one.
    fn note(&mut self, term: Term, made: Made) {
        if self.numbers.contains_key(&term) {
            return;
        }
        let of_input = |of: &Term| (self.history.inputs[self.numbers[of]], self.firsts[self.numbers[of]]);
        let (composition, (inputs, first)) = match made {
            Made::Input(input) => (Composition::Input(input), (1, input)),
            Made::Code(of) => (Composition::Code(self.numbers[&of]), of_input(&of)),
            Made::Finish(of) => (Composition::Result(self.numbers[&of]), of_input(&of)),
            Made::Merge(operands) => {
                let [mut a, mut b] = operands.map(|of| self.numbers[&of]);
                if self.is_written_first(b, a) {
                    (a, b) = (b, a);
                }
                let inputs = self.history.inputs[a].saturating_add(self.history.inputs[b]);
                (Composition::Sum([a, b]), (inputs, self.firsts[a].min(self.firsts[b])))
            }
        };
        self.numbers.insert(term, self.history.compositions.len());
        self.history.compositions.push(composition);
        self.history.inputs.push(inputs);
        self.firsts.push(first);
    }

    /// Whether a term is written before another one that it is added to; the bits of a + b and b + a are the same. Sums of the
    /// canonical tree are written in the order of inputs. Others, such as a ring's, grow at their end.
    fn is_written_first(&self, one: TermNumber, other: TermNumber) -> bool {
        let grown = |term: TermNumber| match self.history.order {
            Order::Fixed => 0,
            Order::Schedule => u32::MAX - self.history.inputs[term],
        };
        (grown(one), self.firsts[one]) < (grown(other), self.firsts[other])
    }
}

#[cfg(test)]
mod tests;
