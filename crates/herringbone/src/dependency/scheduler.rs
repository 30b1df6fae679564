//! The threads that run the ready operations of the queues, and the threads that wait for them.

use super::{
    failure::{DependencyError, OperationFailure, Unfinished},
    queues::{Pushed, Queues, VariableUse},
    recorder::Recorder,
    sync::{Condvar, Mutex, MutexGuard, YIELDS, generation, inside, set_inside, thread},
};
use std::{
    any::Any,
    error::Error,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

/// The error of a function.
pub(crate) type BoxedError = Box<dyn Error + Send + Sync>;

/// A function, and how its operation ends.
pub(crate) enum Function {
    /// With its return.
    Now(Box<dyn FnOnce() -> Result<(), BoxedError> + Send>),
    /// When the ticket is used.
    Later(Box<dyn FnOnce(OnComplete) + Send>),
}

/// What all handles and threads of an engine share.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    /// Something is ready, or the engine closes.
    work: Condvar,
    /// An operation or a wait is over.
    over: Condvar,
    limit: usize,
    /// Of the process that made it: a forked child has none of its threads, and may find its lock taken for ever.
    generation: u64,
}

struct State {
    queues: Queues<Function>,
    /// Threads that sleep.
    idle: usize,
    /// Threads that run a function.
    busy: usize,
    /// Those that sleep until something is over.
    waiting: usize,
    /// Those of them that wait for room.
    crowd: usize,
    /// Threads that have not ended.
    living: usize,
    closing: bool,
    recorder: Recorder,
}

impl State {
    /// Whether no thread will end anything: what is pending waits for a completion from elsewhere.
    fn is_still(&self) -> bool {
        self.busy + self.queues.ready() == 0
    }
}

impl Scheduler {
    /// `limit`: with so many operations pending, and one that runs or is ready, a push waits.
    pub(crate) fn new(limit: usize) -> Self {
        let (queues, recorder) = (Queues::default(), Recorder::default());
        let state =
            State { queues, idle: 0, busy: 0, waiting: 0, crowd: 0, living: 0, closing: false, recorder };
        let (work, over) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), work, over, limit, generation: generation() }
    }

    /// Whether this process is a forked child of the one that made it. Then nothing here may take the lock.
    pub(crate) fn is_forked(&self) -> bool {
        generation() != self.generation
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether this thread is one of this engine.
    pub(crate) fn is_inside(&self) -> bool {
        inside() == self.address()
    }

    /// Does something with the queues.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Queues<Function>) -> R) -> R {
        act(&mut self.lock().queues)
    }

    /// Does something with the record of what has run.
    pub(crate) fn with_recorder<R>(&self, act: impl FnOnce(&mut Recorder) -> R) -> R {
        act(&mut self.lock().recorder)
    }

    /// Waits for room for one more operation, at most for `limit`; whether a push would not wait then.
    pub(crate) fn wait_for_room(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.with_room(self.lock(), deadline).1
    }

    /// Sleeps until there is room, or until the deadline; says which.
    fn with_room<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, State>, bool) {
        if state.queues.pending() < self.limit || self.is_inside() {
            return (state, true);
        }
        // Only while something is going to end: operations that all wait for a completion may wait for this thread.
        while !state.closing && state.queues.pending() > self.limit / 2 && !state.is_still() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return (state, false);
            }
            state.crowd += 1;
            state = self.sleep(state, left);
            state.crowd -= 1;
        }
        (state, true)
    }

    /// Pushes an operation; false if the engine is closed.
    pub(crate) fn push(&self, entry: Pushed<Function>) -> bool {
        let (mut state, _) = self.with_room(self.lock(), None);
        if state.closing {
            drop(state);
            return false;
        }
        state.queues.push(entry);
        self.tell(state, 0);
        true
    }

    /// Sleeps until something is over.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = match limit {
            None => self.over.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => self.over.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
        };
        state.waiting -= 1;
        state
    }

    /// Wakes whom a change concerns, and drops what will not run. `taken`: how many of what is ready this thread takes itself.
    fn tell(&self, mut state: MutexGuard<'_, State>, taken: usize) {
        let skipped = state.queues.take_skipped();
        let wake = state.queues.ready().saturating_sub(taken).min(state.idle);
        let has_room = state.crowd > 0 && state.queues.pending() <= self.limit / 2;
        let is_news = state.queues.take_has_waited() || has_room || state.is_still();
        let someone_waits = state.waiting > 0 && is_news;
        drop(state);
        for _ in 0..wake {
            self.work.notify_one();
        }
        if someone_waits {
            self.over.notify_all();
        }
        drop(skipped);
    }

    /// Says that one more thread is going to work.
    pub(crate) fn enlist(&self) {
        self.lock().living += 1;
    }

    /// The life of a thread that was enlisted: runs what is ready until the engine closes.
    pub(crate) fn work(self: &Arc<Self>, number: u32) {
        // What a function leaves behind may be dropped between two functions, and an engine with it.
        let before = set_inside(self.address());
        while let Some((operation, job)) = self.next() {
            let began = Instant::now();
            let result = match job {
                Function::Now(function) => {
                    Some(catch_unwind(AssertUnwindSafe(function)).unwrap_or_else(|panic| Err(said(&*panic))))
                }
                Function::Later(function) => {
                    let ticket = OnComplete(Some(Ticket { scheduler: self.clone(), operation, began }));
                    // A function that panics drops its ticket, which fails the operation.
                    let _dropped = catch_unwind(AssertUnwindSafe(|| function(ticket)));
                    None
                }
            };
            let mut state = self.lock();
            state.busy -= 1;
            if let Some(result) = result {
                end(&mut state, operation, Some(number), began, result);
            }
            self.tell(state, 1);
        }
        self.retire();
        set_inside(before);
    }

    /// A thread ends, or was never made. The last one drops what will not run.
    pub(crate) fn retire(&self) {
        let mut state = self.lock();
        state.living -= 1;
        if state.living > 0 {
            return;
        }
        // What waits is dropped where no lock is held.
        let waiting = state.queues.abandon_waiting();
        drop(state);
        self.over.notify_all();
        drop(waiting);
    }

    /// Waits until all threads have ended, at most for `limit`; whether they have.
    pub(crate) fn wait_for_threads(&self, limit: Duration) -> bool {
        let deadline = Instant::now().checked_add(limit);
        let mut state = self.lock();
        while state.living > 0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            state = self.sleep(state, left);
        }
        true
    }

    /// Waits for a function to run; none once the engine closes and nothing runs that could make another one ready.
    fn next(&self) -> Option<(u32, Function)> {
        let mut yields = 0;
        let mut state = self.lock();
        loop {
            if let Some(taken) = state.queues.take() {
                state.busy += 1;
                return Some(taken);
            }
            if state.closing && state.busy == 0 {
                drop(state);
                self.work.notify_all();
                self.over.notify_all();
                return None;
            }
            if yields < YIELDS {
                yields += 1;
                drop(state);
                thread::yield_now();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            yields = 0;
        }
    }

    /// Begins a wait for a variable.
    pub(crate) fn begin_wait(self: &Arc<Self>, variable: u32) -> Waiter {
        let mut state = self.lock();
        let ticket = state.queues.wait(variable);
        self.tell(state, 0);
        Waiter { scheduler: self.clone(), ticket: Some(ticket) }
    }

    /// Waits until nothing is pending, at most for `limit`; then gives the earliest failure that nobody knows, and clears all.
    pub(crate) fn wait_all(&self, limit: Option<Duration>) -> Option<Option<OperationFailure>> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.lock();
        while state.queues.pending() > 0 && !(state.closing && state.is_still()) {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state = self.sleep(state, left);
        }
        Some(state.queues.take_failures())
    }

    /// Lets what is ready run, and then the threads end.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.work.notify_all();
        self.over.notify_all();
    }
}

/// Ends an operation, which was on `thread` all the time, if that is one.
fn end(
    state: &mut State,
    operation: u32,
    thread: Option<u32>,
    began: Instant,
    result: Result<(), BoxedError>,
) {
    let (number, name) = state.queues.identity(operation);
    state.recorder.ended(number, name.as_ref(), thread, began, result.is_ok());
    state.queues.finish(operation, result.map_err(|error| OperationFailure::new(number, name, error)));
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> BoxedError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("its function panicked: {}", text.unwrap_or("it gave no reason")).into()
}

/// A wait for a variable. Dropping it gives the wait up.
pub(crate) struct Waiter {
    scheduler: Arc<Scheduler>,
    ticket: Option<u64>,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Waiter {
    /// What the wait has come to, within `limit`: the failure that spoiled the variable, if one has; `None` if the engine was
    /// closed before.
    pub(crate) fn poll(&mut self, limit: Option<Duration>) -> Waited {
        let Some(ticket) = self.ticket else { return Waited::Over(None) };
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.scheduler.lock();
        loop {
            if let Some(outcome) = state.queues.waited(ticket) {
                self.ticket = None;
                return Waited::Over(outcome);
            }
            if state.closing && state.is_still() {
                return Waited::Closed;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Waited::NotYet;
            }
            state = self.scheduler.sleep(state, left);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.filter(|_| !self.scheduler.is_forked()) {
            self.scheduler.with(|queues| queues.give_up(ticket));
        }
    }
}

/// What a wait has come to.
pub(crate) enum Waited {
    NotYet,
    Over(Option<OperationFailure>),
    /// The engine was closed, and what the variable waits for never ends.
    Closed,
}

/// The end of an operation whose function returns before it. Its holder ends the operation, on any thread.
///
/// If it is dropped unused, the operation fails.
#[derive(Debug)]
#[must_use = "the operation ends when this is used"]
pub struct OnComplete(Option<Ticket>);

struct Ticket {
    scheduler: Arc<Scheduler>,
    operation: u32,
    began: Instant,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl OnComplete {
    /// Ends the operation well.
    pub fn complete(mut self) {
        self.end(Ok(()));
    }

    /// Ends it as failed: the variables that it still mutates are spoiled.
    pub fn fail(mut self, error: impl Into<Box<dyn Error + Send + Sync>>) {
        self.end(Err(error.into()));
    }

    /// Whose operation it ends.
    pub(crate) fn scheduler(&self) -> Option<&Arc<Scheduler>> {
        self.0.as_ref().map(|ticket| &ticket.scheduler)
    }

    /// Lets later operations have a variable before the end, by its number in the engine.
    pub(crate) fn release_number(&self, variable: u32) -> Result<(), DependencyError> {
        let Some(Ticket { scheduler, operation, .. }) = &self.0 else { return Ok(()) };
        let mut state = scheduler.lock();
        let released = match state.queues.release(*operation, variable) {
            true => Ok(()),
            false => {
                let (operation, variable) =
                    (state.queues.label(*operation), state.queues.variable_label(variable));
                Err(DependencyError::Unused { operation, variable })
            }
        };
        scheduler.tell(state, 0);
        released
    }

    /// Its operation, by its number and name.
    #[doc(hidden)]
    pub fn label(&self) -> String {
        let label = |Ticket { scheduler, operation, .. }: &Ticket| scheduler.lock().queues.label(*operation);
        self.0.as_ref().map(label).unwrap_or_default()
    }

    fn end(&mut self, result: Result<(), BoxedError>) {
        let own = self.0.take().filter(|ticket| !ticket.scheduler.is_forked());
        if let Some(Ticket { scheduler, operation, began }) = own {
            let mut state = scheduler.lock();
            end(&mut state, operation, None, began, result);
            scheduler.tell(state, 0);
        }
    }
}

impl Drop for OnComplete {
    fn drop(&mut self) {
        self.end(Err(Unfinished.into()));
    }
}

/// An access, as the queues have it: what is mutated need not be named as read, and nothing twice.
pub(crate) fn accesses(reads: &[u32], mutates: &[u32]) -> Vec<VariableUse> {
    let mut all: Vec<VariableUse> = Vec::with_capacity(reads.len() + mutates.len());
    let written = mutates.iter().map(|variable| VariableUse { variable: *variable, writes: true });
    for access in
        written.chain(reads.iter().map(|variable| VariableUse { variable: *variable, writes: false }))
    {
        if all.iter().all(|other| other.variable != access.variable) {
            all.push(access);
        }
    }
    all
}
