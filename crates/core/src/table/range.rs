//! The pushes of a range that a pull sees: the clocks of its workers, and the pulls that wait for them.
//!
//! A worker's **clock** counts the steps that it has ended. The state machine decides when a push changes the rows, and
//! when a pull is answered; its caller has the rows. It has no connections and no clock of its own.
//!
//! * If a worker leaves, its pushes of the step that it has not ended are dropped in tables whose steps take effect at
//!   their end (sync, first). They stay if each push takes effect at once. A worker that restarts ends that step, or
//!   withdraws the pushes: it knows whether it has ended the step on another range.
//! * The pushes of a step that it has ended count, whatever becomes of it.
//! * If all workers have come and all have left, the next worker begins a new job. All are waited for again, and begin
//!   with the largest number of ended steps. In async tables, which never wait, each worker continues from its own
//!   step.
//! * A request that a worker repeats on a new connection is executed once. A push has a number, and if that number is
//!   not above its last push's, the push is a repetition.

use super::{Consistency, TableError};
use alloc::{collections::BTreeMap, vec::Vec};

/// No count of steps in an image is above this, so that there is no end to count to.
const STEPS_MOST: u64 = u64::MAX / 2;

/// The clocks of a range, with pushes `P` that are kept for the end of their step, and pulls `Q` that wait.
#[derive(Clone, Debug)]
pub struct RangeState<P, Q> {
    consistency: Consistency,
    workers: u32,
    /// How many steps have been ended by those that have not come.
    began_at: u64,
    /// Those that have come.
    clocks: BTreeMap<u32, Clock>,
    /// How many steps all that take part have ended, and have taken effect.
    version: u64,
    /// Of steps that are not over, by step and worker.
    kept: BTreeMap<(u64, u32), Vec<NumberedPush<P>>>,
    /// In the order in which they came, each with the number of steps that its worker had ended.
    waiting: Vec<Waiting<Q>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    /// The life of its process.
    life: u64,
    /// How many steps it has ended.
    step: u64,
    /// Of the last push that was taken in this life.
    number: u64,
    /// Whether nobody waits for it.
    has_left: bool,
}

#[derive(Clone, Debug)]
struct Waiting<Q> {
    worker: u32,
    step: u64,
    pull: Q,
}

/// A worker's clock, as the [image](super::ImageRecord) of a range has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerClock {
    /// Its rank.
    pub worker: u32,
    /// The life of its process.
    pub life: u64,
    /// How many steps it has ended.
    pub step: u64,
    /// The number of the last push that was taken in this life.
    pub number: u64,
    /// Whether no other worker waits for it.
    pub has_left: bool,
}

/// The sender of a push or pull, by its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Its rank.
    pub worker: u32,
    /// The life of its process.
    pub life: u64,
    /// How many steps it has ended.
    pub step: u64,
}

/// The starting point of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// How many steps it has ended.
    pub step: u64,
    /// Whether pushes of a step are kept that it has not ended, perhaps in an earlier life.
    pub has_half: bool,
}

/// The treatment of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakenPush<P> {
    /// It changes the rows now.
    Now(P),
    /// It changes them at the end of its step.
    Kept,
    /// It was taken before.
    Again,
}

/// A push that is kept, with the number of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedPush<P> {
    /// Its worker's requests have ascending numbers, as long as the worker's process lives.
    pub number: u64,
    /// The push.
    pub push: P,
}

/// The treatment of pushes that a worker withdraws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithdrawnPushes<P> {
    /// How many steps the worker has ended.
    pub step: u64,
    /// The pushes that were kept until now.
    pub dropped: Vec<P>,
}

/// The pushes of a step that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedStep<P> {
    /// The pushes by the workers' ranks, ascending, with each worker's in their order. If [several
    /// steps](Consistency::FirstOf) take effect together, the pushes are sorted by the steps' places, because one
    /// worker can have ended several of them.
    pub pushes: Vec<(u32, Vec<P>)>,
}

impl<P, Q> RangeState<P, Q> {
    /// A range for `workers` workers, before any has come.
    pub fn new(consistency: Consistency, workers: u32) -> Self {
        Self {
            consistency,
            workers,
            began_at: 0,
            clocks: BTreeMap::new(),
            version: 0,
            kept: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    /// A worker takes part, in its first life or a later one.
    ///
    /// # Errors
    /// [`TableError::Worker`].
    pub fn enter(&mut self, worker: u32, life: u64) -> Result<Entered, TableError> {
        if worker >= self.workers {
            return Err(TableError::Worker { worker, workers: self.workers });
        }
        let before = self.clocks.get(&worker).filter(|clock| clock.life == life);
        let number = before.map_or(0, |clock| clock.number);
        if self.is_over() && self.consistency.bound().is_some() {
            self.began_at = self.furthest();
            self.clocks.clear();
        }
        let new = Clock { step: self.began_at, ..Clock::default() };
        let known = self.clocks.get(&worker).copied().unwrap_or(new);
        if known.life != life || known.has_left {
            // One that comes back after the others went on without it goes on where they are.
            let reached = if self.consistency.is_sync() { self.version } else { self.floor().unwrap_or(0) };
            let step = if known.has_left { known.step.max(reached) } else { known.step };
            self.clocks.insert(worker, Clock { life, step, number, has_left: false });
        }
        let step = self.clocks[&worker].step;
        Ok(Entered { step, has_half: self.kept.contains_key(&(step, worker)) })
    }

    /// A worker's push of a number, which can end its step.
    ///
    /// # Errors
    /// [`TableError::Step`] if it is in another step; [`TableError::Twice`] if another life of it has come since.
    pub fn push(
        &mut self,
        who: Asking,
        number: u64,
        ends: bool,
        push: P,
    ) -> Result<TakenPush<P>, TableError> {
        if !self.push_no_rows(who, number, ends)? {
            return Ok(TakenPush::Again);
        }
        if !self.consistency.keeps() {
            return Ok(TakenPush::Now(push));
        }
        self.kept.entry((who.step, who.worker)).or_default().push(NumberedPush { number, push });
        Ok(TakenPush::Kept)
    }

    /// A worker's push of no rows, which can end its step: nothing of it is kept. Returns whether it is new.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_no_rows(&mut self, who: Asking, number: u64, ends: bool) -> Result<bool, TableError> {
        let clock = self.clock(who)?;
        if number <= clock.number {
            return Ok(false);
        }
        if who.step != clock.step {
            return Err(TableError::Step { expected: clock.step, found: who.step });
        }
        clock.number = number;
        clock.step += u64::from(ends);
        Ok(true)
    }

    /// Drops the kept pushes of a worker's current step, from a number on. Pushes of a step that it has ended here
    /// stay, whether or not the worker knows that it has.
    ///
    /// # Errors
    /// [`TableError::Twice`] if another life of it has come since.
    pub fn withdraw(&mut self, who: Asking, least: u64) -> Result<WithdrawnPushes<P>, TableError> {
        let step = self.clock(who)?.step;
        let dropped = if who.step == step { self.drop_half(who.worker, least) } else { Vec::new() };
        Ok(WithdrawnPushes { step, dropped })
    }

    /// Whether a push of this number was taken before.
    pub fn knows(&self, who: Asking, number: u64) -> bool {
        self.clocks.get(&who.worker).is_some_and(|clock| clock.life == who.life && number <= clock.number)
    }

    /// A worker's pull: it waits until [`ready`](Self::ready) returns it.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn pull(&mut self, who: Asking, pull: Q) -> Result<(), TableError> {
        let clock = *self.clock(who)?;
        if who.step > clock.step {
            return Err(TableError::Step { expected: clock.step, found: who.step });
        }
        self.waiting.push(Waiting { worker: who.worker, step: who.step, pull });
        Ok(())
    }

    /// The next step whose pushes take effect, if all that take part have ended it. Call this again until there is
    /// none, and answer the pulls that are [ready](Self::ready) after each: they see this step and none after it.
    pub fn end_step(&mut self) -> Option<EndedStep<P>> {
        if let Consistency::FirstOf(count) = self.consistency {
            return self.gather(count as usize);
        }
        // If nobody is waited for any more all steps that somebody has ended are over.
        let reached = self.floor().unwrap_or_else(|| self.furthest());
        if !self.consistency.is_sync() || reached <= self.version {
            return None;
        }
        let step = self.version;
        self.version += 1;
        let later = self.kept.split_off(&(step + 1, 0));
        let ended = core::mem::replace(&mut self.kept, later);
        let pushes =
            ended.into_iter().map(|((_, worker), pushes)| (worker, without_numbers(pushes))).collect();
        Some(EndedStep { pushes })
    }

    /// So many steps that have ended here and have pushed rows, if there are that many.
    fn gather(&mut self, count: usize) -> Option<EndedStep<P>> {
        let has_ended =
            |(step, worker): &&(u64, u32)| self.clocks.get(worker).is_none_or(|clock| *step < clock.step);
        let ended: Vec<(u64, u32)> = self.kept.keys().filter(has_ended).take(count).copied().collect();
        if ended.len() < count {
            return None;
        }
        let taken = ended.iter().filter_map(|step| self.kept.remove(step));
        Some(EndedStep { pushes: (0..).zip(taken.map(without_numbers)).collect() })
    }

    /// The pulls that are answered now, in the order in which they came.
    pub fn ready(&mut self) -> Vec<Q> {
        let reached = self.reached();
        let is_ready = |waiting: &mut Waiting<Q>| waiting.step <= reached;
        self.waiting.extract_if(.., is_ready).map(|waiting| waiting.pull).collect()
    }

    /// Whether a pull of a worker that has ended `step` steps waits for others.
    pub fn waits(&self, step: u64) -> bool {
        step > self.reached()
    }

    /// Pulls of workers that have ended at most so many steps are answered.
    fn reached(&self) -> u64 {
        match self.consistency.bound() {
            None => u64::MAX,
            Some(0) => self.version,
            // If nobody takes part any more nobody is waited for.
            Some(bound) => self.floor().map_or(u64::MAX, |floor| floor.saturating_add(bound)),
        }
    }

    /// A worker's connection has ended: these pulls of it are useless.
    pub fn forget_pulls(&mut self, worker: u32, is_meant: impl Fn(&Q) -> bool) {
        self.waiting.retain(|waiting| waiting.worker != worker || !is_meant(&waiting.pull));
    }

    /// All pulls that wait: they will not be answered.
    pub fn take_waiting(&mut self) -> Vec<Q> {
        self.waiting.drain(..).map(|waiting| waiting.pull).collect()
    }

    /// A worker's pulls that wait: they will not be answered.
    pub fn take_waiting_of(&mut self, worker: u32) -> Vec<Q> {
        self.waiting.extract_if(.., |waiting| waiting.worker == worker).map(|waiting| waiting.pull).collect()
    }

    /// A worker takes part no more: no other waits for it. Its pushes in the step that it has not ended are dropped,
    /// and returned.
    pub fn leave(&mut self, worker: u32) -> Vec<P> {
        let dropped = self.drop_half(worker, 0);
        if let Some(clock) = self.clocks.get_mut(&worker) {
            clock.has_left = true;
        }
        dropped
    }

    /// The life of a worker that takes part.
    pub fn life(&self, worker: u32) -> Option<u64> {
        self.clocks.get(&worker).filter(|clock| !clock.has_left).map(|clock| clock.life)
    }

    /// How many steps have taken effect, if steps do; else how many all that take part have ended, or, if all have left, one of them.
    pub fn version(&self) -> u64 {
        let reached = || self.floor().unwrap_or_else(|| self.furthest());
        if self.consistency.is_sync() { self.version } else { reached() }
    }

    /// For each worker that has come: its rank, how many steps it has ended, and whether it takes part.
    pub fn clocks(&self) -> impl Iterator<Item = (u32, u64, bool)> + '_ {
        self.clocks.iter().map(|(worker, clock)| (*worker, clock.step, !clock.has_left))
    }

    /// The clocks of all workers that have come, ascending: for the image of the range.
    pub fn worker_clocks(&self) -> impl Iterator<Item = WorkerClock> + '_ {
        self.clocks.iter().map(|(worker, clock)| {
            let Clock { life, step, number, has_left } = *clock;
            WorkerClock { worker: *worker, life, step, number, has_left }
        })
    }

    /// The pushes that are kept, each with its step and its worker, in the order in which they take effect.
    pub fn kept(&self) -> impl Iterator<Item = (u64, u32, &NumberedPush<P>)> + '_ {
        self.kept.iter().flat_map(|((step, worker), pushes)| pushes.iter().map(|push| (*step, *worker, push)))
    }

    /// How many steps workers that have not come are taken to have ended.
    pub fn began_at(&self) -> u64 {
        self.began_at
    }

    /// Becomes a range with this progress, from its image. Call this before any worker takes part.
    ///
    /// # Errors
    /// [`TableError::Malformed`] if it cannot have come so far.
    pub fn restore(&mut self, version: u64, began_at: u64) -> Result<(), TableError> {
        if version > STEPS_MOST || began_at > STEPS_MOST {
            return Err(TableError::Malformed("a version that cannot be".into()));
        }
        if self.consistency.is_sync() {
            self.version = version;
        }
        self.began_at = began_at;
        Ok(())
    }

    /// Takes clocks from its image, after [`restore`](Self::restore).
    ///
    /// # Errors
    /// [`TableError::Malformed`] if these cannot be a range's clocks.
    pub fn restore_clocks(
        &mut self,
        clocks: impl IntoIterator<Item = WorkerClock>,
    ) -> Result<(), TableError> {
        for WorkerClock { worker, life, step, number, has_left } in clocks {
            let is_new = self.clocks.last_key_value().is_none_or(|(last, _)| *last < worker);
            if !is_new || worker >= self.workers || step > STEPS_MOST {
                return Err(TableError::Malformed("a clock that cannot be".into()));
            }
            self.clocks.insert(worker, Clock { life, step, number, has_left });
        }
        Ok(())
    }

    /// Keeps a push from an image, after the kept pushes of the same worker in the same step.
    ///
    /// # Errors
    /// [`TableError::Malformed`] if the range keeps no pushes of this step of the worker.
    pub fn restore_kept(&mut self, step: u64, worker: u32, push: NumberedPush<P>) -> Result<(), TableError> {
        let clock = self.clocks.get(&worker).filter(|clock| (self.version..=clock.step).contains(&step));
        if clock.is_none() || !self.consistency.keeps() {
            return Err(TableError::Malformed("a kept push of a step that is over".into()));
        }
        self.kept.entry((step, worker)).or_default().push(push);
        Ok(())
    }

    /// How many pulls wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether all workers have come, and have left.
    fn is_over(&self) -> bool {
        self.clocks.len() == self.workers as usize && self.clocks.values().all(|clock| clock.has_left)
    }

    /// The most steps that one has ended.
    fn furthest(&self) -> u64 {
        self.clocks.values().map(|clock| clock.step).fold(self.began_at.max(self.version), u64::max)
    }

    /// The least number of steps that one who takes part has ended, as those who have not come. `None` if all have left.
    fn floor(&self) -> Option<u64> {
        if self.clocks.len() < self.workers as usize {
            return Some(self.began_at);
        }
        self.clocks.values().filter(|clock| !clock.has_left).map(|clock| clock.step).min()
    }

    fn clock(&mut self, who: Asking) -> Result<&mut Clock, TableError> {
        let clock = self.clocks.get_mut(&who.worker).filter(|clock| !clock.has_left);
        let clock = clock.ok_or(TableError::Unknown)?;
        if clock.life != who.life {
            return Err(TableError::Twice { worker: who.worker });
        }
        Ok(clock)
    }

    /// Drops what a worker has pushed in the step that it has not ended, from a number on.
    fn drop_half(&mut self, worker: u32, least: u64) -> Vec<P> {
        let Some(clock) = self.clocks.get(&worker) else { return Vec::new() };
        let step = (clock.step, worker);
        let Some(half) = self.kept.get_mut(&step) else { return Vec::new() };
        let dropped = half.extract_if(.., |kept| kept.number >= least).map(|kept| kept.push).collect();
        if half.is_empty() {
            self.kept.remove(&step);
        }
        dropped
    }
}

fn without_numbers<P>(pushes: Vec<NumberedPush<P>>) -> Vec<P> {
    pushes.into_iter().map(|kept| kept.push).collect()
}
