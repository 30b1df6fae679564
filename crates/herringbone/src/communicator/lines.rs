//! Lines of calls: what ranks match by its order though it runs at another time on each of them.
//!
//! Ranks match the calls of a group by the order in which they make them. A callback of an operation, or a function on
//! another thread, runs when it comes to it, so its calls are not in the order of the program's. They form a **line** of their
//! own, which has a group of its own with the same members. Where the program asks for a line, or for a turn in one, is in the
//! program's order. So the line's number and the order of its turns are the same on all ranks, whatever runs first.

use super::{
    Communicator,
    handle::{GroupHandle, make_known, settings_of},
    residuals::Draws,
};
use crate::{
    Error, ErrorKind, Result,
    core::wire::digest,
    engine::group::{self, Settings},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// The line of calls that are made in no turn.
const PROGRAM: u64 = 0;

thread_local! {
    /// The turns that run on this thread, the innermost last.
    static RUNNING: RefCell<Vec<(Arc<Line>, u64)>> = const { RefCell::new(Vec::new()) };
}

/// A place in the order of a group's calls, for code that runs later or on another thread; see [`Communicator::turn`].
///
/// Its turn is over when this is dropped.
pub struct LineTurn {
    line: Arc<Line>,
    place: u64,
}

impl LineTurn {
    /// Runs `function`, whose calls have this turn's place, whatever the group. The first one waits until all earlier turns of
    /// the line are over.
    pub fn run<R>(&self, function: impl FnOnce() -> R) -> R {
        /// Also where the function panics.
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                RUNNING.with_borrow_mut(Vec::pop);
            }
        }
        RUNNING.with_borrow_mut(|running| running.push((self.line.clone(), self.place)));
        let _leave = Leave;
        function()
    }

    /// Whether all earlier turns of the line are over: then its calls wait for none.
    pub fn is_next(&self) -> bool {
        self.line.lock().first >= self.place
    }

    /// Its number in the line, from 0.
    #[cfg(test)]
    pub(crate) fn place(&self) -> u64 {
        self.place
    }

    /// The turn is over: no more calls are made in it.
    pub fn end(&self) {
        self.line.end(self.place);
    }
}

impl Drop for LineTurn {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for LineTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "turn {} of the {} {:016x}", self.place, self.line.what, self.line.number)
    }
}

/// Calls whose order is that of their turns.
#[derive(Debug)]
struct Line {
    /// The same on all ranks.
    number: u64,
    /// What errors and lists call it.
    what: &'static str,
    turns: Mutex<Turns>,
    moved: Condvar,
    /// The groups that take its calls.
    groups: Mutex<Vec<LineGroup>>,
}

/// A group that takes the calls of a line which are meant for another one.
#[derive(Debug)]
struct LineGroup {
    of: Weak<GroupHandle>,
    number: u32,
    draws: Arc<Draws>,
}

#[derive(Debug, Default)]
struct Turns {
    /// How many were taken.
    taken: u64,
    /// All before this one are over.
    first: u64,
    /// Later ones that are over.
    over: BTreeSet<u64>,
}

impl Line {
    /// A line that code of another one (`of`) asks a group for.
    fn new(what: &'static str, (of, group, index): (u64, u32, u64)) -> Arc<Self> {
        let bytes = [of.to_le_bytes(), u64::from(group).to_le_bytes(), index.to_le_bytes()].concat();
        // No line has the program's number.
        let number = digest(&[what.as_bytes(), &bytes].concat()).max(PROGRAM + 1);
        Arc::new(Self {
            number,
            what,
            turns: Mutex::default(),
            moved: Condvar::new(),
            groups: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>) -> LineTurn {
        let mut turns = self.lock();
        turns.taken += 1;
        LineTurn { place: turns.taken - 1, line: self.clone() }
    }

    fn end(&self, place: u64) {
        let mut turns = self.lock();
        if place < turns.first || !turns.over.insert(place) {
            return;
        }
        while let Some(first) = turns.over.first().copied().filter(|first| *first == turns.first) {
            turns.over.remove(&first);
            turns.first += 1;
        }
        self.moved.notify_all();
    }

    /// Waits until all turns before this one are over, for at most `limit`. Returns whether they are.
    fn wait(&self, place: u64, limit: Duration) -> bool {
        let began = Instant::now();
        let mut turns = self.lock();
        while turns.first < place {
            let Some(left) = limit.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else {
                return false;
            };
            turns = self.moved.wait_timeout(turns, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        for LineGroup { of, number, .. } in
            self.groups.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..)
        {
            if let Some(fabric) = of.upgrade().and_then(|of| of.fabric.upgrade())
                && !fabric.is_forked()
            {
                fabric.node.with(|engine| engine.drop_group(number));
            }
        }
    }
}

/// The lines that a group was asked for.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<Asked>);

#[derive(Debug, Default)]
struct Asked {
    /// Of the callbacks of its operations, by the line that they were given in.
    callbacks: BTreeMap<u64, Arc<Line>>,
    /// How many others, by the line that has asked.
    others: BTreeMap<u64, u64>,
}

impl Communicator {
    /// A turn for code that runs when an operation of this group is over: the next one in the line of such code. All ranks ask for
    /// as many, in the same order. So its calls match those of the other ranks, whenever and on whichever thread it runs, and the
    /// program's own calls go on meanwhile.
    ///
    /// A call in a turn waits until all earlier turns are over. Code that makes no calls waits for nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if this is called in a turn, and earlier ones do not end within the group's timeout.
    pub fn turn(&self) -> Result<LineTurn> {
        let (of, number) = (self.asking_line()?, self.group.number);
        let new = || Line::new("callbacks", (of, number, 0));
        let mut asked = self.group.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(asked.callbacks.entry(of).or_insert_with(new).take())
    }

    /// A line of calls apart from the program's, for a thread that makes them in an order of its own: all that runs in the turn
    /// has its place. All ranks ask for as many lines, in the same order.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn line(&self) -> Result<LineTurn> {
        let of = self.asking_line()?;
        let mut asked = self.group.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = asked.others.entry(of).or_default();
        *index += 1;
        Ok(Line::new("line", (of, self.group.number, *index)).take())
    }

    /// The number of this thread's line, once it is its turn.
    fn asking_line(&self) -> Result<u64> {
        let line = self.line_in_turn("turn", self.timeout())?;
        Ok(line.map_or(PROGRAM, |line| line.number))
    }

    /// The line of this thread's calls, once it is its turn; `None` for the program's.
    fn line_in_turn(&self, call: &'static str, limit: Duration) -> Result<Option<Arc<Line>>> {
        let Some((line, place)) = RUNNING.with_borrow(|running| running.last().cloned()) else {
            return Ok(None);
        };
        if line.wait(place, limit) {
            return Ok(Some(line));
        }
        let (rank, missing) = (self.fabric.job.rank, vec!["an earlier callback to return".to_owned()]);
        Err(Error::new(ErrorKind::Timeout { rank, after: limit, missing }).about(rank, call))
    }

    /// The number of the group that takes a call of this thread, once it is its turn, and what it draws if that is not this group.
    pub(super) fn called_group(
        &self,
        call: &'static str,
        limit: Duration,
    ) -> Result<(u32, Option<Arc<Draws>>)> {
        if RUNNING.with_borrow(Vec::is_empty) {
            return Ok((self.group.number, None));
        }
        let Some(line) = self.line_in_turn(call, limit)? else { return Ok((self.group.number, None)) };
        let mut groups = line.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let own = Arc::as_ptr(&self.group);
        if let Some(known) = groups.iter().find(|group| std::ptr::eq(group.of.as_ptr(), own)) {
            return Ok((known.number, Some(known.draws.clone())));
        }
        let number = self.make_group(&line).map_err(|error| error.about(self.fabric.job.rank, call))?;
        groups.retain(|group| group.of.strong_count() > 0);
        let draws = Arc::new(Draws::from(line.number));
        groups.push(LineGroup { of: Arc::downgrade(&self.group), number, draws: draws.clone() });
        Ok((number, Some(draws)))
    }

    /// Makes a group of the same ranks for the calls of a line.
    fn make_group(&self, line: &Line) -> Result<u32> {
        let (fabric, GroupHandle { number: of, rank, members, .. }) = self.parts();
        let number = group::number_of(&format!("line {:016x} of group {of:08x}", line.number), members);
        if !fabric.node.with(|engine| engine.add_line(*of, number, line.what))? {
            return Err(Error::config("the name of a group", "it meets another one: choose other names"));
        }
        let reducers = fabric.job.roster.reducers().map(|reducer| reducer.id);
        let seats = members.iter().copied().chain(reducers).collect();
        let settings = settings_of(fabric, number, (*rank, members), seats);
        let (guidance, timeout) = (fabric.settings.guidance.clone(), self.timeout());
        make_known(fabric, Settings { guidance, timeout, ..settings });
        Ok(number)
    }
}
