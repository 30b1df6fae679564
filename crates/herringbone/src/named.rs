//! Operations with names, which ranks submit in any order: Horovod's way to call collectives.
//!
//! A [`NamedController`] has a thread that agrees with the other ranks' threads which operations all of them are ready
//! for. It runs these, many small ones as one. [`core::named`](crate::core::named) decides what is agreed, and in which
//! order. A thread that has nothing to report sleeps until another rank's thread has: that thread's call wakes it.

mod adasum;
mod autotune;
mod cycle;
mod fusion;
mod queue;
mod run;
mod scale;
mod shared;
mod timeline;
mod work;

use crate::{
    Communicator, Error, Result,
    communicator::called::resting_group,
    core::named::{Negotiator, NegotiatorSettings, StallSettings, Tuning},
};
use autotune::Autotune;
pub use autotune::AutotuneOptions;
use cycle::Cycles;
pub use queue::NamedSubmission;
use queue::Queue;
use shared::SharedState;
use std::{
    path::Path,
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};
use timeline::Timeline;
pub use work::{NamedFailure, NamedResult, NamedWork};
use work::{NamedState, WaitListener};

/// How long a controller that shuts down waits for the other ranks.
const PATIENCE: Duration = Duration::from_secs(10);

/// Settings that are equal on all ranks of a controller.
#[derive(Clone, Debug)]
pub struct NamedOptions {
    /// The least time from one agreement to the next.
    pub cycle: Duration,
    /// How many bytes are fused into one operation at most.
    pub threshold: u64,
    /// How many operations are remembered, so that a bit of each rank is enough to agree about them again.
    pub capacity: usize,
    /// After this time rank 0 names the ranks that have not submitted the others' operations; zero for never.
    pub stall_warning: Duration,
    /// After this the ranks shut down; zero for never.
    pub stall_shutdown: Duration,
    /// Whether tensors of different groups are fused.
    pub across_groups: bool,
    /// Whether the first two are tuned, and how.
    pub autotune: Option<AutotuneOptions>,
}

impl Default for NamedOptions {
    fn default() -> Self {
        Self {
            cycle: Duration::from_millis(1),
            threshold: 128 << 20,
            capacity: 1024,
            stall_warning: Duration::from_secs(60),
            stall_shutdown: Duration::ZERO,
            across_groups: true,
            autotune: None,
        }
    }
}

/// One rank's controller of named operations. Dropping it shuts all ranks' down.
#[derive(Debug)]
pub struct NamedController {
    shared: Arc<SharedState>,
}

impl NamedController {
    /// Makes one on groups of its own. All ranks of the communicator call it, with the same options.
    ///
    /// # Errors
    /// If the communicator is closed, or the system has no thread left.
    pub fn new(communicator: &Communicator, options: &NamedOptions) -> Result<Self> {
        let (rank, size) = (communicator.rank(), communicator.size());
        let agreement = resting_group(communicator, "agreement")?;
        let ranks: Vec<u32> = (0..size).collect();
        let data = format!("named operations of group {:08x}", agreement.parts().1.number());
        let data = communicator.subgroup(&data, &ranks)?;
        let settings = NegotiatorSettings {
            capacity: options.capacity,
            stall: StallSettings { warning: options.stall_warning, shutdown: options.stall_shutdown },
            tuning: Tuning { threshold: options.threshold, cycle: options.cycle },
            across_groups: options.across_groups,
        };
        let queue = Queue::new(Negotiator::new(rank, size, settings), size);
        let shared = Arc::new(SharedState::new(agreement, queue));
        let tune = |how| Autotune::new(settings.tuning, options.capacity > 0, how);
        let autotune = options.autotune.as_ref().filter(|_| rank == 0).map(tune).transpose()?;
        let cycles = Cycles::new(shared.clone(), data, autotune);
        let name = format!("herringbone-named-{rank}");
        let thread = std::thread::Builder::new().name(name).spawn(move || cycles.run());
        thread.map_err(|error| Error::io("starting the thread of a controller", error))?;
        Ok(Self { shared })
    }

    /// Submits an operation. Its memory must not be touched until it is over.
    ///
    /// # Errors
    /// If it cannot be submitted, or the controller has ended. The other ranks do not learn of it.
    pub fn submit(&self, submission: NamedSubmission) -> Result<NamedWork, NamedFailure> {
        if let Err(error) = self.shared.check_usable() {
            // As in `Communicator::checked`: to drop what it keeps may need a lock that a thread of the parent held.
            std::mem::forget(submission);
            return Err(error.into());
        }
        let now = self.shared.began.elapsed();
        let mut queue = self.shared.queue();
        let state = queue.submit(submission, now)?;
        Ok(self.follow(queue, state))
    }

    /// This rank has no more data: it contributes zeros to allreduces until all ranks have joined, which the work waits for.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn join(&self) -> Result<NamedWork, NamedFailure> {
        self.shared.check_usable()?;
        let mut queue = self.shared.queue();
        let state = queue.join()?;
        Ok(self.follow(queue, state))
    }

    fn follow(&self, queue: MutexGuard<'_, Queue>, state: Arc<NamedState>) -> NamedWork {
        self.shared.wake(queue);
        let shared: Arc<dyn WaitListener> = self.shared.clone();
        NamedWork { state, listener: Arc::downgrade(&shared) }
    }

    /// Writes all later events to a file, on rank 0; an earlier file is ended.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn start_timeline(&self, path: &Path, marks_cycles: bool) -> Result<()> {
        self.stop_timeline();
        if self.shared.agreement.rank() == 0 && self.shared.check_usable().is_ok() {
            *self.shared.timeline() = Some(Timeline::begin(path, marks_cycles)?);
        }
        Ok(())
    }

    /// Ends the file.
    pub fn stop_timeline(&self) {
        if self.shared.check_usable().is_ok() {
            self.shared.timeline().take().into_iter().for_each(Timeline::finish);
        }
    }

    /// Shuts the controllers of all ranks down: agreed operations run, and all others fail. Waits until that is done,
    /// but not for ranks that do not come.
    pub fn shut_down(&self) {
        if self.shared.check_usable().is_err() {
            return;
        }
        let mut queue = self.shared.queue();
        if queue.end.is_none() {
            queue.negotiator.shut_down();
        }
        self.shared.wake(queue);
        let has_not_ended = |queue: &mut Queue| queue.end.is_none();
        let wait = self.shared.has_ended.wait_timeout_while(self.shared.queue(), PATIENCE, has_not_ended);
        let (queue, waited) = wait.unwrap_or_else(PoisonError::into_inner);
        drop(queue);
        if waited.timed_out() {
            self.shared.agreement.abort();
            self.shared.end(queue::shut_down());
        }
        self.stop_timeline();
    }

    /// The counters since the start, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        if self.shared.check_usable().is_err() {
            return Vec::new();
        }
        let queue = self.shared.queue();
        let counted = queue.negotiator.counters();
        vec![
            ("cycles", queue.cycles),
            ("agreements", counted.agreements),
            ("uncached_requests", counted.uncached_requests),
            ("cache_hits", counted.cache_hits),
            ("responses", counted.responses),
            ("fused_tensors", counted.fused_tensors),
            ("bytes_to_coordinator", counted.bytes_to_coordinator),
        ]
    }
}

impl Drop for NamedController {
    fn drop(&mut self) {
        self.shut_down();
    }
}
