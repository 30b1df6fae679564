//! The engine that programs hold, and their variables.

use super::{
    completer::Completer,
    failure::{DependencyError, OperationFailure},
    picture,
    queues::Pushed,
    recorder::Recorder,
    scheduler::{Function, OnComplete, Scheduler, Waited, Waiter, accesses},
    trace,
};
use crate::sys::fork;
use std::{
    collections::HashMap,
    error::Error,
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// With so many operations pending, a push waits.
const MOST_PENDING: usize = 1 << 16;

/// The result of a call of a dependency engine.
pub type DependencyResult<T> = std::result::Result<T, DependencyError>;

/// Runs functions on threads of its own, each as soon as the variables that it reads and mutates are free. Dropping it
/// closes it.
pub struct DependencyEngine {
    scheduler: Arc<Scheduler>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Tells operations that their collectives are over.
    pub(super) completer: Arc<Completer>,
    /// The variables of the communicators that were used, by their addresses.
    orders: Mutex<HashMap<usize, Variable>>,
    /// Whether nobody waits for its threads any more.
    is_left: AtomicBool,
}

/// A tag for something that operations read and mutate; the engine never sees the thing. Clones are the same variable.
///
/// It can be dropped at any time: operations that were pushed on it are not affected.
#[derive(Clone)]
pub struct Variable(Arc<Tag>);

struct Tag {
    scheduler: Arc<Scheduler>,
    number: u32,
}

impl Drop for Tag {
    fn drop(&mut self) {
        if !self.scheduler.is_forked() {
            self.scheduler.with(|queues| queues.abandon(self.number));
        }
    }
}

impl Variable {
    /// How many operations that mutate it have ended well so far; 0 in a forked child.
    pub fn version(&self) -> u64 {
        match self.0.scheduler.is_forked() {
            true => 0,
            false => self.0.scheduler.with(|queues| queues.version(self.0.number)),
        }
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "variable {}", self.0.number)
    }
}

/// The declarations of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uses<'a> {
    /// Its name in errors, pictures and traces.
    pub name: Option<&'a str>,
    /// The variables that it reads.
    pub reads: &'a [&'a Variable],
    /// The variables that it mutates; it can also read them.
    pub mutates: &'a [&'a Variable],
    /// The ready operation with the highest priority begins first.
    pub priority: i32,
}

impl DependencyEngine {
    /// An engine with `threads` threads, at least one.
    ///
    /// # Errors
    /// If the system has no room for the threads.
    pub fn new(threads: usize) -> io::Result<Self> {
        Self::new_around(threads, |live| live())
    }

    /// As [`new`](Self::new). Each thread calls `around` once, and passes it the thread's whole life, which `around`
    /// calls. So state that a thread needs for all functions, such as an interpreter's, is made once.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn new_around(
        threads: usize,
        around: impl Fn(&mut (dyn FnMut() + Send)) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        fork::watch()?;
        let scheduler = Arc::new(Scheduler::new(MOST_PENDING));
        let (none, completer, orders) = (Mutex::default(), Arc::default(), Mutex::default());
        let engine = Self { scheduler, threads: none, completer, orders, is_left: AtomicBool::new(false) };
        let around = Arc::new(around);
        for number in 0..threads.max(1) as u32 {
            let (scheduler, around) = (engine.scheduler.clone(), around.clone());
            let thread = thread::Builder::new().name(format!("herringbone-dep-{number}"));
            engine.scheduler.enlist();
            match thread.spawn(move || around(&mut || scheduler.work(number))) {
                Ok(thread) => engine.threads().push(thread),
                Err(error) => {
                    engine.scheduler.retire();
                    return Err(error);
                }
            }
        }
        Ok(engine)
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process is a forked child of the one that made the engine. The child has none of its threads: every
    /// call that can fail does, and the engine is empty.
    pub fn is_forked(&self) -> bool {
        self.scheduler.is_forked()
    }

    /// A new variable.
    pub fn var(&self) -> Variable {
        self.tag(None)
    }

    /// A new variable that pictures call so.
    pub fn named_var(&self, name: &str) -> Variable {
        self.tag(Some(name.into()))
    }

    /// The variable of a communicator, made when it is first asked for.
    pub(super) fn order(&self, communicator: usize) -> Variable {
        if self.is_forked() {
            return self.var();
        }
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.entry(communicator).or_insert_with(|| self.named_var("collectives")).clone()
    }

    fn tag(&self, name: Option<Arc<str>>) -> Variable {
        // In a forked child it is of no use, and never looked up.
        let number = match self.is_forked() {
            true => u32::MAX,
            false => self.scheduler.with(|queues| queues.variable(name)),
        };
        Variable(Arc::new(Tag { scheduler: self.scheduler.clone(), number }))
    }

    /// Pushes a function that reads and mutates the data of these variables. It runs on a thread of the engine; one
    /// that panics has failed.
    ///
    /// # Errors
    /// [`Closed`](DependencyError::Closed), [`Forked`](DependencyError::Forked), or [`Foreign`](DependencyError::Foreign).
    pub fn push(
        &self,
        function: impl FnOnce() -> Result<(), Box<dyn Error + Send + Sync>> + Send + 'static,
        reads: &[&Variable],
        mutates: &[&Variable],
        priority: i32,
    ) -> DependencyResult<()> {
        self.push_as(Uses { name: None, reads, mutates, priority }, function)
    }

    /// Pushes a function whose operation ends when [`OnComplete`] is used, which can be after it returns and on any
    /// thread.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_async(
        &self,
        function: impl FnOnce(OnComplete) + Send + 'static,
        reads: &[&Variable],
        mutates: &[&Variable],
        priority: i32,
    ) -> DependencyResult<()> {
        self.push_async_as(Uses { name: None, reads, mutates, priority }, function)
    }

    /// As [`push`](Self::push), with a name.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_as(
        &self,
        uses: Uses<'_>,
        function: impl FnOnce() -> Result<(), Box<dyn Error + Send + Sync>> + Send + 'static,
    ) -> DependencyResult<()> {
        self.enter(uses, Function::Now(Box::new(function)))
    }

    /// As [`push_async`](Self::push_async), with a name.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_async_as(
        &self,
        uses: Uses<'_>,
        function: impl FnOnce(OnComplete) + Send + 'static,
    ) -> DependencyResult<()> {
        self.enter(uses, Function::Later(Box::new(function)))
    }

    fn enter(&self, uses: Uses<'_>, body: Function) -> DependencyResult<()> {
        self.check_usable()?;
        uses.reads.iter().chain(uses.mutates).try_for_each(|variable| self.check_own(variable))?;
        let numbers =
            |variables: &[&Variable]| variables.iter().map(|variable| variable.0.number).collect::<Vec<_>>();
        let accesses = accesses(&numbers(uses.reads), &numbers(uses.mutates));
        let entry = Pushed { name: uses.name.map(Arc::from), priority: uses.priority, accesses, body };
        if self.scheduler.push(entry) { Ok(()) } else { Err(DependencyError::Closed) }
    }

    fn check_usable(&self) -> DependencyResult<()> {
        if self.is_forked() { Err(DependencyError::Forked) } else { Ok(()) }
    }

    /// Waits, for at most `limit`, until a push would not wait for room; whether it would not. Else a push waits as long as it
    /// takes.
    pub fn wait_for_room(&self, limit: Duration) -> bool {
        self.is_forked() || self.scheduler.wait_for_room(Some(limit))
    }

    fn check_own(&self, variable: &Variable) -> DependencyResult<()> {
        if Arc::ptr_eq(&variable.0.scheduler, &self.scheduler) {
            Ok(())
        } else {
            Err(DependencyError::Foreign)
        }
    }

    /// Waits until all earlier operations that mutate `variable` are over.
    ///
    /// # Errors
    /// [`Failed`](DependencyError::Failed) if the variable is spoiled. This clears it for later operations.
    pub fn wait(&self, variable: &Variable) -> DependencyResult<()> {
        let mut waiting = self.begin_wait(variable)?;
        loop {
            if let Some(result) = waiting.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Begins a wait for `variable`, as [`wait`](Self::wait), that can be waited for in parts.
    ///
    /// # Errors
    /// Errors of this call.
    pub fn begin_wait(&self, variable: &Variable) -> DependencyResult<VariableWait> {
        self.check_wait()?;
        self.check_own(variable)?;
        Ok(VariableWait(self.scheduler.begin_wait(variable.0.number)))
    }

    /// Waits until nothing is pending.
    ///
    /// # Errors
    /// [`Failed`](DependencyError::Failed) with the first unreported failure, in the order of pushes. Nothing is
    /// spoiled any more then.
    pub fn wait_all(&self) -> DependencyResult<()> {
        loop {
            if let Some(result) = self.wait_all_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// As [`wait_all`](Self::wait_all), for at most `limit`; `None` if something is pending then.
    pub fn wait_all_for(&self, limit: Duration) -> Option<DependencyResult<()>> {
        if let Err(error) = self.check_wait() {
            return Some(Err(error));
        }
        let failure = self.scheduler.wait_all(Some(limit))?;
        Some(failure.map_or(Ok(()), |failure| Err(DependencyError::Failed(failure))))
    }

    fn check_wait(&self) -> DependencyResult<()> {
        self.check_usable()?;
        if self.scheduler.is_inside() { Err(DependencyError::Inside) } else { Ok(()) }
    }

    /// How many operations are not over.
    pub fn pending(&self) -> usize {
        if self.is_forked() { 0 } else { self.scheduler.with(|queues| queues.pending()) }
    }

    /// The first failure, in the order of pushes, that no wait has reported. It stays unreported.
    pub fn unreported(&self) -> Option<OperationFailure> {
        if self.is_forked() { None } else { self.scheduler.with(|queues| queues.unreported()) }
    }

    /// Runs what can run, and ends the threads. Operations that wait for one that has not ended then never run.
    ///
    /// A function of the engine can call it; then the threads end after that function.
    pub fn close(&self) {
        while !self.close_for(Duration::MAX) {}
    }

    /// As [`close`](Self::close), and waits for the threads for at most `limit`; whether they have ended.
    pub fn close_for(&self, limit: Duration) -> bool {
        if self.is_forked() {
            return true;
        }
        self.scheduler.close();
        if self.scheduler.is_inside() || self.is_left.load(Ordering::Relaxed) {
            return true;
        }
        if !self.scheduler.wait_for_threads(limit) {
            return false;
        }
        let own = thread::current().id();
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // Functions that panic are caught, so a thread has nothing to tell.
            let _ended = thread.join();
        }
        self.completer.close();
        true
    }

    /// As [`close`](Self::close), but waits for no thread, now or later: a running function continues alone.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        self.close();
    }

    /// The queues at this moment, as an SVG. It has a row for each variable with the operations that use it, reads in
    /// green and mutations in red, in the order of their pushes.
    pub fn picture(&self) -> String {
        let queues =
            if self.is_forked() { Vec::new() } else { self.scheduler.with(|queues| queues.snapshot()) };
        picture::picture(&queues)
    }

    /// Records all later functions, for [`trace`](Self::trace).
    pub fn record(&self) {
        if !self.is_forked() {
            self.scheduler.with_recorder(Recorder::begin);
        }
    }

    /// The functions that have run since [`record`](Self::record), at most the last 131,072 operations, as a trace that
    /// Perfetto and chrome://tracing open. It has a row for each thread, and rows for operations that ended later than
    /// their functions.
    pub fn trace(&self) -> String {
        match self.is_forked() {
            true => trace::written(&Recorder::default()),
            false => self.scheduler.with_recorder(|recorder| trace::written(recorder)),
        }
    }
}

impl Drop for DependencyEngine {
    fn drop(&mut self) {
        self.close();
        if !self.is_forked() {
            self.completer.close();
        }
    }
}

impl fmt::Debug for DependencyEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DependencyEngine").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

impl OnComplete {
    /// Lets later operations have `variable` before this operation's end, as it is now. The end of the operation then
    /// does not spoil it.
    ///
    /// # Errors
    /// [`Foreign`](DependencyError::Foreign), [`Unused`](DependencyError::Unused) or [`Forked`](DependencyError::Forked).
    pub fn release(&self, variable: &Variable) -> DependencyResult<()> {
        let Some(scheduler) = self.scheduler() else { return Ok(()) };
        if scheduler.is_forked() {
            return Err(DependencyError::Forked);
        }
        if !Arc::ptr_eq(scheduler, &variable.0.scheduler) {
            return Err(DependencyError::Foreign);
        }
        self.release_number(variable.0.number)
    }
}

/// A wait for a variable, begun with [`DependencyEngine::begin_wait`]. Dropping it gives the wait up.
#[derive(Debug)]
pub struct VariableWait(Waiter);

impl VariableWait {
    /// Waits for at most `limit`; `None` if it is not over then.
    pub fn wait_for(&mut self, limit: Duration) -> Option<DependencyResult<()>> {
        match self.0.poll(Some(limit)) {
            Waited::NotYet => None,
            Waited::Over(None) => Some(Ok(())),
            Waited::Over(Some(failure)) => Some(Err(DependencyError::Failed(failure))),
            Waited::Closed => Some(Err(DependencyError::Closed)),
        }
    }
}
