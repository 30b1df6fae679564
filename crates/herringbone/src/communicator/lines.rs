//! Lines of calls, which ranks match by their order although they run at other times on each rank.
//!
//! Ranks match the calls of a group by the order in which they make them. A callback of an operation, or a function on
//! another thread, runs at some time, so its calls are not in the order of the program's. They form a **line** of their
//! own, which has a group of its own with the same members. The program's requests for a line, or for a turn in one,
//! are in the program's order. So the line's number and the order of its turns are the same on all ranks, whatever runs
//! first.

use super::residuals::Draws;
use crate::{Result, core::wire::digest, fabric::Fabric};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// The line of calls that are made in no turn.
pub(super) const PROGRAM: u64 = 0;

thread_local! {
    /// The turns that run on this thread, the innermost last.
    static RUNNING: RefCell<Vec<(Arc<CallLine>, u64)>> = const { RefCell::new(Vec::new()) };
}

/// A place in the order of a group's calls, for code that runs later or on another thread; see
/// [`Communicator::turn`](crate::Communicator::turn).
///
/// Its turn is over when this is dropped.
pub struct LineTurn {
    line: Arc<CallLine>,
    /// Its number in the line, from 0.
    pub(super) place: u64,
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
pub(super) struct CallLine {
    /// The same on all ranks.
    pub(super) number: u64,
    /// What errors and lists call it.
    pub(super) what: &'static str,
    turns: Mutex<Turns>,
    moved: Condvar,
    /// The groups that take its calls.
    groups: Mutex<Vec<LineGroup>>,
}

/// A group that takes the calls of a line which are meant for another one.
#[derive(Debug)]
struct LineGroup {
    fabric: Weak<Fabric>,
    of: u32,
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
    /// A call of this one was given up, so that the other ranks have made a call more: no later one may make any.
    given_up: Option<u64>,
}

impl CallLine {
    /// A line that code of another one (`of`) asks a group for.
    fn new(what: &'static str, of: u64, group: u32, index: u64) -> Arc<Self> {
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

    /// Waits until all turns before this one are over, for at most `limit`. Returns whether they are, and the calls of this
    /// one still match those of other ranks.
    fn wait(&self, place: u64, limit: Duration) -> bool {
        let began = Instant::now();
        let mut turns = self.lock();
        while turns.given_up.is_none_or(|first| place < first) {
            if turns.first >= place {
                return true;
            }
            if let Some(left) = limit.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
                turns = self.moved.wait_timeout(turns, left).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                turns.given_up = Some(place);
                self.moved.notify_all();
            }
        }
        false
    }

    /// The number of the group that takes its calls which are meant for group `of`, and what these draw; `make` makes the group.
    pub(super) fn group(
        &self,
        fabric: &Arc<Fabric>,
        of: u32,
        make: impl FnOnce() -> Result<u32>,
    ) -> Result<(u32, Arc<Draws>)> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it =
            |group: &&LineGroup| group.of == of && std::ptr::eq(group.fabric.as_ptr(), Arc::as_ptr(fabric));
        if let Some(known) = groups.iter().find(is_it) {
            return Ok((known.number, known.draws.clone()));
        }
        let number = make()?;
        groups.retain(|group| group.fabric.strong_count() > 0);
        let draws = Arc::new(Draws::from(self.number));
        groups.push(LineGroup { fabric: Arc::downgrade(fabric), of, number, draws: draws.clone() });
        Ok((number, draws))
    }
}

impl Drop for CallLine {
    fn drop(&mut self) {
        for group in self.groups.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(fabric) = group.fabric.upgrade()
                && !fabric.is_forked()
            {
                fabric.node.with(|engine| engine.drop_group(group.number));
            }
        }
    }
}

/// The lines that a group was asked for.
#[derive(Debug, Default)]
pub(super) struct AskedLines(Mutex<Asked>);

#[derive(Debug, Default)]
struct Asked {
    /// Of callbacks, by what these are of and the line that they were given in.
    callbacks: BTreeMap<(&'static str, u64), Arc<CallLine>>,
    /// How many others, by the line that has asked.
    others: BTreeMap<u64, u64>,
}

impl AskedLines {
    /// The next turn in the line of those callbacks (`what`) that code of line `asking` gives to operations of a group.
    pub(super) fn turn(&self, what: &'static str, group: u32, asking: u64) -> LineTurn {
        let new = || CallLine::new(what, asking, group, 0);
        self.lock().callbacks.entry((what, asking)).or_insert_with(new).take()
    }

    /// The next line that code of line `asking` asks a group for: the turn is all of it.
    pub(super) fn line(&self, group: u32, asking: u64) -> LineTurn {
        let mut asked = self.lock();
        let index = asked.others.entry(asking).or_default();
        *index += 1;
        CallLine::new("line", asking, group, *index).take()
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The line of this thread's calls, `None` for the program's, once all earlier turns are over.
///
/// # Errors
/// They are not within `limit`.
pub(super) fn line_in_turn(limit: Duration) -> std::result::Result<Option<Arc<CallLine>>, StillEarlier> {
    let Some((line, place)) = RUNNING.with_borrow(|running| running.last().cloned()) else {
        return Ok(None);
    };
    if line.wait(place, limit) { Ok(Some(line)) } else { Err(StillEarlier) }
}

/// Earlier turns have not ended in time.
pub(super) struct StillEarlier;
