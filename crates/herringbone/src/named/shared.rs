//! The state that a controller's thread shares with the threads that submit and wait.

use super::{NamedFailure, queue::Queue, timeline::Timeline, work::WaitListener};
use crate::{
    Communicator, Error, ErrorKind, Result, communicator::called, completion::Completion, sys::fork,
};
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// The state that a controller's thread shares with the threads that submit and wait.
#[derive(Debug)]
pub(super) struct SharedState {
    /// Where the ranks agree.
    pub(super) agreement: Communicator,
    queue: Mutex<Queue>,
    /// Told when the thread has ended.
    pub(super) has_ended: Condvar,
    timeline: Mutex<Option<Timeline>>,
    pub(super) began: Instant,
    /// How many threads wait for operations.
    waiting: AtomicUsize,
    /// The generation of processes that it belongs to.
    born: u64,
}

impl SharedState {
    pub(super) fn new(agreement: Communicator, queue: Queue) -> Self {
        Self {
            agreement,
            queue: Mutex::new(queue),
            has_ended: Condvar::new(),
            timeline: Mutex::new(None),
            began: Instant::now(),
            waiting: AtomicUsize::new(0),
            born: fork::generation(),
        }
    }

    /// A forked child has no thread that would do anything.
    pub(super) fn check_usable(&self) -> Result<()> {
        match fork::generation() == self.born {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Forked).at(self.agreement.rank())),
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn timeline(&self) -> MutexGuard<'_, Option<Timeline>> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waits, so that nothing is to be gained by waiting for more to be submitted.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Wakes the thread, if it rests and there is something to say.
    pub(super) fn wake(&self, mut queue: MutexGuard<'_, Queue>) {
        let may_rest_on = queue.gathers && !self.is_awaited();
        let asleep = if queue.negotiator.has_news() && !may_rest_on { queue.asleep.take() } else { None };
        drop(queue);
        asleep.into_iter().for_each(|asleep| called::end(&self.agreement, &asleep));
    }

    /// Lets the thread rest until another rank calls, something is submitted here, or for at most `limit`. If it `gathers`,
    /// it rests also while something is submitted, until somebody waits for that. Returns whether another rank has called.
    pub(super) fn rest(&self, mut queue: MutexGuard<'_, Queue>, gathers: bool, limit: Duration) -> bool {
        let awaited = Arc::new(Completion::default());
        (queue.asleep, queue.gathers) = (Some(awaited.clone()), gathers);
        drop(queue);
        let was_ended = called::until_called(&self.agreement, &awaited, limit);
        let was_woken_here = self.queue().asleep.take().is_none();
        was_ended && !was_woken_here
    }

    /// Nothing more is taken.
    pub(super) fn end(&self, failure: NamedFailure) {
        self.queue().finish(failure);
        self.has_ended.notify_all();
    }
}

impl WaitListener for SharedState {
    fn begin(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.wake(self.queue());
    }

    fn end(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
