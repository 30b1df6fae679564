//! An engine and the threads that take turns in driving it.
//!
//! A thread that waits for an operation drives the engine. It takes turns, spins a little, yields, and then sleeps
//! until a socket, a local rank's bell or a death wakes it. Only one thread sleeps on the poller; others sleep until an
//! operation ends or the poller is free. If no thread waits, a background thread drives. It is woken only when work is
//! submitted that no thread drives, or when the thread that drove leaves work behind.

mod poller;
mod spin;
mod straight;

use crate::{
    Result,
    clock::Moment,
    completion::Completion,
    engine::{
        Engine,
        ops::WaitKind,
        outbox::Event,
        refused::Refused,
        straight::{Begun, Runner},
    },
    execute::issue::Issue,
    sys::{
        doorbell::{self, Bell},
        fork,
        segment::Segment,
    },
    transport::{layout, stats::Stats},
};
use poller::Poller;
use spin::SpinLimits;
use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Turns that are taken without letting go of the engine.
const AT_ONCE: u32 = 10;
/// The longest sleep: a bound on what a lost wake-up could cost.
const NAP: Duration = Duration::from_millis(100);
/// How often the background thread looks whether it was forgotten.
const REST: Duration = Duration::from_secs(1);
/// How often a call looks whether a fence is over.
const UNFREEZE: Duration = Duration::from_millis(1);
/// How long others may take nothing of what is left to send when a process leaves.
pub(crate) const FLUSH: Duration = Duration::from_secs(10);
/// How long a caller waits for the flight record that a failure has its process write.
const RECORD: Duration = Duration::from_millis(500);
/// How often it looks.
const LOOK_FOR_RECORD: Duration = Duration::from_millis(1);
/// How long others may take to close their ends.
const HANG_UP: Duration = Duration::from_secs(1);

/// Where the engine's requests go.
pub(crate) trait EventHandler: Send + Sync {
    /// Called without the engine's lock.
    fn handle(&self, events: Vec<Event>);
}

/// An engine that several threads may drive.
pub(crate) struct Node {
    runner: Mutex<Runner>,
    poller: Poller,
    bell: Arc<Bell>,
    segment: Arc<Segment>,
    spin: SpinLimits,
    /// Whether some thread sleeps, or is about to sleep, on the poller.
    poller_taken: Mutex<bool>,
    /// Told when an operation ended, or the poller is free.
    changed: Condvar,
    /// Told when there is something for the background thread to do.
    work: Condvar,
    users: AtomicU32,
    sleepers: AtomicU32,
    /// Whether nobody waited for anything when an operation last ended, and none was issued since.
    idle: AtomicBool,
    /// Nanoseconds that callers spent waiting.
    waited: AtomicU64,
    /// Whether a thread sleeps on the poller, or looks a last time before it does.
    napping: AtomicBool,
    closing: AtomicBool,
    /// Whether there was a failure whose flight record is not written yet.
    unwritten: Arc<AtomicBool>,
    /// The generation of processes that it belongs to.
    born: u64,
    handler: Box<dyn EventHandler>,
}

impl Node {
    /// `ranks_here`: how many ranks share this machine's cores, as far as is known.
    pub(crate) fn new(
        engine: Engine,
        bell: Arc<Bell>,
        ranks_here: usize,
        handler: Box<dyn EventHandler>,
    ) -> std::io::Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            segment: engine.runtime.ops.staging.segment().clone(),
            unwritten: engine.runtime.out.observer.alarm.unwritten(),
            runner: Mutex::new(Runner::new(engine)),
            poller: Poller::new(&bell)?,
            bell,
            spin: SpinLimits::of(ranks_here, cores),
            poller_taken: Mutex::default(),
            changed: Condvar::new(),
            work: Condvar::new(),
            users: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            idle: AtomicBool::new(true),
            waited: AtomicU64::new(0),
            napping: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            born: fork::generation(),
            handler,
        }))
    }

    /// Whether this is a child of the process that made it.
    pub(crate) fn is_forked(&self) -> bool {
        fork::generation() != self.born
    }

    /// Runs `f` on the engine, then handles the events that it raised.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let mut runner = self.lock_as_is();
        let result = f(self.engine(&mut runner));
        self.release_and_handle(runner);
        result
    }

    /// Runs `f` on the engine. Returns the events that it raised, which the caller handles, but for those of failures.
    pub(crate) fn asked(&self, f: impl FnOnce(&mut Engine)) -> Vec<Event> {
        let mut runner = self.lock_as_is();
        f(self.engine(&mut runner));
        let mut events = self.release(runner);
        if events.pop_if(|last| matches!(last, Event::Failed)).is_some() {
            self.handler.handle(vec![Event::Failed]);
        }
        events
    }

    /// As [`with`](Self::with), unless another thread has the engine.
    pub(crate) fn with_if_free<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        let mut runner = self.try_lock()?;
        let result = f(self.engine(&mut runner));
        self.release_and_handle(runner);
        Some(result)
    }

    /// Checks timeouts. A straight run never times out, because in time it becomes an ordinary operation.
    pub(crate) fn tick(&self) {
        let mut runner = self.lock_as_is();
        runner.as_it_is().at(Moment::now()).tick();
        self.release_and_handle(runner);
    }

    /// The engine, unless another thread has it, with a straight run that may be going on in it.
    fn try_lock(&self) -> Option<MutexGuard<'_, Runner>> {
        match self.runner.try_lock() {
            Ok(runner) => Some(runner),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.after_panic(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The engine, with a straight run that may be going on in it.
    fn lock_as_is(&self) -> MutexGuard<'_, Runner> {
        self.runner.lock().unwrap_or_else(|poisoned| self.after_panic(poisoned))
    }

    /// A thread has panicked while it held the engine: all operations fail, so that no thread waits for them.
    fn after_panic<'a>(&'a self, poisoned: PoisonError<MutexGuard<'a, Runner>>) -> MutexGuard<'a, Runner> {
        self.runner.clear_poison();
        let mut runner = poisoned.into_inner();
        runner.as_it_is().at(Moment::now()).break_down();
        runner
    }

    /// The engine at this moment. A straight run in it continues as an ordinary operation.
    fn engine<'a>(&self, runner: &'a mut Runner) -> &'a mut Engine {
        let (engine, interrupted) = runner.engine();
        if interrupted {
            self.idle.store(false, Ordering::SeqCst);
        }
        engine.at(Moment::now())
    }

    fn release_and_handle(&self, runner: MutexGuard<'_, Runner>) {
        let events = self.release(runner);
        if !events.is_empty() {
            self.handler.handle(events);
        }
    }

    /// Releases the engine, and wakes the threads whose operations have ended. Returns the events that it raised.
    fn release(&self, mut runner: MutexGuard<'_, Runner>) -> Vec<Event> {
        let engine = runner.as_it_is();
        self.poller.watch(engine);
        let finished = engine.take_finished();
        if finished {
            self.idle.store(engine.is_idle(), Ordering::SeqCst);
        }
        let mut events = std::mem::take(&mut engine.runtime.out.events);
        if engine.runtime.out.observer.alarm.take() {
            events.push(Event::Failed);
        }
        drop(runner);
        if finished && self.sleepers.load(Ordering::SeqCst) > 0 {
            let _taken = self.poller_taken();
            self.changed.notify_all();
        }
        if finished && self.napping.load(Ordering::SeqCst) {
            self.wake();
        }
        events
    }

    fn poller_taken(&self) -> MutexGuard<'_, bool> {
        self.poller_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues an operation. Unless the caller is about to wait for it, the background thread is told.
    pub(crate) fn submit(&self, issue: &Issue, waits: bool) -> Result<Arc<Completion>> {
        let completion = self.issue(issue)?;
        if !waits && !completion.is_done() {
            self.leave_to_background();
        }
        Ok(completion)
    }

    /// Issues an operation for a thread that waits for it next. A small one runs straight through if nothing else is under
    /// way, and most are over then: `None`.
    pub(crate) fn begin(&self, issue: Issue) -> Result<Option<Arc<Completion>>> {
        let mut runner = self.lock_as_is();
        let completion = match runner.begin(issue, Moment::now()) {
            Ok(Begun::Straight) => self.run_straight(runner),
            begun => {
                self.release_and_handle(runner);
                match begun? {
                    Begun::No(issue) => return self.submit(&issue, true).map(Some),
                    Begun::Ordinary(completion) => Some(completion),
                    Begun::Straight => None,
                }
            }
        };
        if completion.is_none() && !self.idle.load(Ordering::SeqCst) {
            self.leave_to_background();
        }
        // One that began straight goes on like any other.
        Ok(completion.inspect(|_| self.idle.store(false, Ordering::SeqCst)))
    }

    /// Has the engine exchange a message. Unless the caller is about to wait for it, the background thread is told.
    pub(crate) fn post_message(
        &self,
        waits: bool,
        call: impl FnOnce(&mut Engine) -> Result<Arc<Completion>>,
    ) -> Result<Arc<Completion>> {
        let completion = self.with(|engine| {
            self.idle.store(false, Ordering::SeqCst);
            call(engine)
        })?;
        if !waits && !completion.is_done() {
            self.leave_to_background();
        }
        Ok(completion)
    }

    /// Has the background thread drive, unless somebody does, who will look again before leaving.
    fn leave_to_background(&self) {
        if self.users.load(Ordering::SeqCst) == 0 {
            let _taken = self.poller_taken();
            self.work.notify_one();
        }
    }

    fn issue(&self, issue: &Issue) -> Result<Arc<Completion>> {
        let mut frozen = None;
        loop {
            let issued = self.with(|engine| {
                self.idle.store(false, Ordering::SeqCst);
                engine.issue(issue, &mut frozen)
            });
            match issued {
                Ok(completion) => return Ok(completion),
                Err(Refused::Failed(error) | Refused::Counted(error)) => return Err(error),
                Err(Refused::Frozen) => std::thread::sleep(UNFREEZE),
            }
        }
    }

    /// Waits until the operations that are under way have ended, as long as anything moves. Returns those that have not: how many,
    /// and the name of one.
    pub(crate) fn see_to_the_end(&self) -> Option<(usize, String)> {
        let (mut seen, mut since) = (None, Instant::now());
        loop {
            let (unfinished, moved) =
                self.with(|engine| (engine.unfinished(), engine.runtime.out.observer.stats.moved()));
            let unfinished = unfinished?;
            let now = Some((unfinished.0, moved));
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() >= FLUSH {
                return Some(unfinished);
            }
            if !self.turn() {
                std::thread::sleep(UNFREEZE);
            }
        }
    }

    /// Hands what is in line to the kernel and to local ranks, as long as they go on taking it. Returns whether that is all.
    #[must_use]
    pub(crate) fn flush_out(&self) -> bool {
        let mut moved = Instant::now();
        while moved.elapsed() < FLUSH && !self.with(|engine| engine.is_flushed()) {
            if self.turn() {
                moved = Instant::now();
            } else {
                std::thread::sleep(UNFREEZE);
            }
        }
        self.with(|engine| engine.is_flushed())
    }

    /// Says on all sockets that nothing more will come, and reads on until the others have said so too: a socket that
    /// is closed with unread data takes back what is still on its way out.
    pub(crate) fn hang_up(&self) {
        let began = Instant::now();
        self.with(|engine| {
            engine.say_goodbye_to_reducers();
            engine.runtime.links.hang_up();
        });
        while began.elapsed() < HANG_UP && !self.with(|engine| engine.runtime.links.is_hung_up()) {
            if !self.turn() {
                std::thread::sleep(UNFREEZE);
            }
        }
    }

    /// Moves what can move, unless another thread is at it. Returns whether anything did.
    pub(crate) fn turn(&self) -> bool {
        let Some(mut runner) = self.try_lock() else { return false };
        let engine = self.engine(&mut runner);
        let moved = self.poller.serve_ready(engine) | engine.turn();
        self.release_and_handle(runner);
        moved
    }

    /// Takes turns until something moves, up to as many as may be taken before others have to get a chance. Returns
    /// whether anything moved, and what can be expected if not.
    fn turns(&self, most: u32) -> (bool, Option<WaitKind>) {
        let Some(mut runner) = self.try_lock() else { return (false, None) };
        let engine = self.engine(&mut runner);
        let moved = (0..most).any(|_| self.poller.serve_ready(engine) | engine.turn());
        let wait_kind = engine.wait_kind();
        self.release_and_handle(runner);
        (moved, Some(wait_kind))
    }

    /// Drives until an operation is over, or for at most `limit`.
    pub(crate) fn wait(&self, completion: &Completion, limit: Option<Duration>) {
        self.wait_until_over(completion, limit);
        if self.unwritten.load(Ordering::Relaxed) {
            self.wait_for_the_record(limit);
        }
    }

    /// A caller may exit on the error, so the record of what was under way is written before.
    #[cold]
    fn wait_for_the_record(&self, limit: Option<Duration>) {
        let (began, longest) = (Instant::now(), limit.map_or(RECORD, |limit| limit.min(RECORD)));
        while self.unwritten.load(Ordering::SeqCst) && began.elapsed() < longest {
            std::thread::sleep(LOOK_FOR_RECORD);
        }
        self.unwritten.store(false, Ordering::SeqCst);
    }

    /// Failures are events from now on.
    pub(crate) fn arm(&self) {
        self.with(|engine| engine.runtime.out.observer.alarm.arm());
    }

    /// The flight record of all failures so far is written, or will never be.
    pub(crate) fn record_is_written(&self) {
        self.unwritten.store(false, Ordering::SeqCst);
    }

    fn wait_until_over(&self, completion: &Completion, limit: Option<Duration>) {
        if completion.is_done() {
            return;
        }
        let (waits, limited) = (Moment::now(), limit.map(|limit| (Instant::now(), limit)));
        let is_late = || limited.is_some_and(|(began, limit)| began.elapsed() >= limit);
        self.users.fetch_add(1, Ordering::SeqCst);
        self.drive(|| completion.is_done() || is_late(), limit);
        self.users.fetch_sub(1, Ordering::SeqCst);
        self.waited.fetch_add(waits.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if !self.idle.load(Ordering::SeqCst) {
            self.leave_to_background();
        }
    }

    /// The bytes moved so far.
    pub(crate) fn stats(&self) -> Stats {
        Stats { waiting: self.waited(), ..self.with(|engine| engine.counted()) }
    }

    /// How long callers have waited so far, summed over threads.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    /// Whether its threads end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn drive(&self, done: impl Fn() -> bool, limit: Option<Duration>) {
        let nap = limit.map_or(NAP, |limit| limit.min(NAP));
        let (mut turns, mut yielded) = (0, 0);
        while !done() {
            let most = AT_ONCE.min(self.spin.spins.saturating_sub(turns)).max(1);
            let (moved, wait_kind) = self.turns(most);
            turns += most;
            if moved {
                (turns, yielded) = (0, 0);
            } else if turns < self.spin.spins && wait_kind != Some(WaitKind::Stream) {
                std::hint::spin_loop();
            } else if wait_kind.is_none_or(|wait_kind| yielded < self.spin.yields(wait_kind)) {
                yielded += 1;
                std::thread::yield_now();
            } else {
                // What sockets bring in the end of a long wait is followed by another one.
                while self.sleep(&done, nap) == Some(WaitKind::Stream) && !done() {}
                (turns, yielded) = (self.spin.spins, 0);
            }
        }
    }

    /// Sleeps until something may have changed, and sees to it. Returns what can be expected next, if this thread knows.
    fn sleep(&self, done: &impl Fn() -> bool, nap: Duration) -> Option<WaitKind> {
        let mut taken = self.poller_taken();
        if *taken {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if !done() {
                let (taken, _timed_out) =
                    self.changed.wait_timeout(taken, nap).unwrap_or_else(PoisonError::into_inner);
                drop(taken);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        *taken = true;
        drop(taken);
        self.napping.store(true, Ordering::SeqCst);
        doorbell::announce_sleep(layout::sleeping(&self.segment));
        let moved = self.with(Engine::turn);
        let nap = if moved { Duration::ZERO } else { nap };
        let next = if done() { None } else { self.poll(nap) };
        doorbell::awake(layout::sleeping(&self.segment));
        self.napping.store(false, Ordering::SeqCst);
        *self.poller_taken() = false;
        // Whoever found the poller taken has said so under its lock.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
        next
    }

    fn poll(&self, nap: Duration) -> Option<WaitKind> {
        let found = self.poller.sleep(nap);
        doorbell::awake(layout::sleeping(&self.segment));
        // An interrupted or failed sleep is a short one.
        let (sockets, rung) = found?;
        if rung {
            let _rung = self.bell.drain();
        }
        Some(self.with(|engine| {
            for (endpoint, (room, readable)) in sockets {
                engine.serve(endpoint, room, readable);
            }
            engine.turn();
            engine.wait_kind()
        }))
    }

    /// Wakes the thread that sleeps on the poller.
    pub(crate) fn wake(&self) {
        // A bell that cannot be rung costs a nap at most.
        let _rung = self.bell.ring();
    }

    /// Starts the thread that drives when nobody waits.
    pub(crate) fn drive_in_background(self: &Arc<Self>, name: String) -> std::io::Result<JoinHandle<()>> {
        let node = self.clone();
        std::thread::Builder::new().name(name).spawn(move || node.background())
    }

    fn background(&self) {
        while !self.closing.load(Ordering::SeqCst) {
            let mut taken = self.poller_taken();
            while !self.closing.load(Ordering::SeqCst) && self.has_no_background_work() {
                taken = self.work.wait_timeout(taken, REST).unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(taken);
            self.drive(|| self.closing.load(Ordering::SeqCst) || self.has_no_background_work(), None);
        }
    }

    /// Whether the background thread has nothing to do; a straight run has its own thread.
    fn has_no_background_work(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0 || self.lock_as_is().as_it_is().is_idle()
    }

    /// Ends the background thread.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake();
        let _taken = self.poller_taken();
        self.changed.notify_all();
        self.work.notify_all();
    }

    /// Drives until the node is closed: a reducer's thread.
    pub(crate) fn drive_for_ever(&self) {
        self.drive(|| self.closing.load(Ordering::SeqCst), None);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}
