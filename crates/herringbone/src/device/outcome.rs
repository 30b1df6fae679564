//! The end of a staged operation, shared by the staging thread and the waiting threads.

use crate::{
    Communicator, Error, ErrorKind, Result,
    core::group::Rank,
    node::Node,
    sys::device::{Accelerator, AcceleratorError, DeviceEvent, DeviceStream, DeviceWord},
};
use std::{
    fmt, io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::{Duration, Instant},
};

/// An accelerator's failure as an error of the group's.
pub(super) fn error_of(error: &AcceleratorError) -> Error {
    Error::io("moving a tensor between the device and the host", io::Error::other(error.to_string()))
}

/// The end of a staged operation.
pub(super) struct StagedOutcome {
    accelerator: Arc<dyn Accelerator>,
    node: Arc<Node>,
    rank: Rank,
    /// What errors call it.
    operation: &'static str,
    over: AtomicBool,
    /// Where streams wait, if they can.
    pub(super) word: Option<DeviceWord>,
    /// What an earlier call has failed with, if nobody knew of it when this one was made.
    earlier: Option<Error>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    landed: Landed,
    result: Option<Result<()>>,
    source: Option<u32>,
    listeners: Vec<(Sender<u64>, u64)>,
    /// Whether a caller knows of the failure.
    seen: bool,
}

/// How a stream is made to wait for the result.
#[derive(Clone, Default)]
enum Landed {
    /// The last copy is not queued.
    #[default]
    No,
    /// It is queued before this event.
    Before(DeviceEvent),
    /// Nothing is copied to the accelerator, and all else is done.
    Nothing,
    Failed(Error),
}

impl StagedOutcome {
    /// The end of a call of the communicator on this accelerator; `earlier` is an earlier call's failure, which no caller has seen.
    pub(super) fn new(
        communicator: &Communicator,
        accelerator: Arc<dyn Accelerator>,
        earlier: Option<Error>,
        operation: &'static str,
    ) -> Arc<Self> {
        let node = communicator.parts().0.node.clone();
        let (rank, word) = (communicator.rank(), accelerator.take_word());
        let (over, state, changed) = (AtomicBool::new(false), Mutex::default(), Condvar::new());
        Arc::new(Self { accelerator, node, rank, operation, over, word, earlier, state, changed })
    }

    /// A forked child has no thread that could end the operation, and its copy of the lock may be held for ever.
    fn check_usable(&self) -> Result<()> {
        match self.node.is_forked() && !self.over.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Forked).about(self.rank, self.operation)),
            false => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last copy is queued before this event, which this then owns; without one nothing is copied.
    pub(super) fn land(&self, before: Option<DeviceEvent>) {
        let mut state = self.lock();
        if matches!(state.landed, Landed::No) {
            state.landed = before.map_or(Landed::Nothing, Landed::Before);
        }
        self.changed.notify_all();
    }

    /// It has failed: streams that wait for it go on, and nobody else waits.
    pub(super) fn fail(&self, error: &Error) {
        let mut state = self.lock();
        let mut before = Landed::No;
        if !matches!(state.landed, Landed::Failed(_)) {
            before = std::mem::replace(&mut state.landed, Landed::Failed(error.clone()));
        }
        if let Some(word) = self.word {
            self.accelerator.set_value(word);
        }
        self.changed.notify_all();
        drop(state);
        // This drops memory, whose owner may ask for the outcome.
        if let Landed::Before(event) = before {
            self.accelerator.release(event);
        }
    }

    /// Nothing touches its memory any more.
    pub(super) fn finish(&self, result: Result<()>) {
        let mut state = self.lock();
        if state.result.is_none() {
            state.result = Some(result);
            self.over.store(true, Ordering::Release);
            for (listener, token) in state.listeners.drain(..) {
                // A listener that has gone away does not want to know.
                let _gone = listener.send(token);
            }
        }
        self.changed.notify_all();
    }

    pub(super) fn set_source(&self, source: Option<u32>) {
        self.lock().source = source;
    }

    /// The failure, if no caller knows of it; one does then.
    pub(super) fn unseen_failure(&self) -> Option<Error> {
        let mut state = self.lock();
        let error = match &state.landed {
            Landed::Failed(error) if !state.seen => error.clone(),
            _ => return None,
        };
        state.seen = true;
        Some(error)
    }

    /// Whether it has failed or ended.
    pub(super) fn is_over(&self) -> bool {
        self.lock().result.is_some()
    }
}

impl Drop for StagedOutcome {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Landed::Before(event) = state.landed {
            self.accelerator.release(event);
        }
    }
}

/// A running operation on an accelerator's memory. Dropping it does not stop the operation; clones are the same operation.
#[derive(Clone)]
#[must_use = "an operation's errors are seen by waiting for it"]
pub struct StagedPending(pub(super) Arc<StagedOutcome>);

impl StagedPending {
    /// Has the stream wait for the result: what is queued on it from now on sees that.
    ///
    /// The host does not wait if streams can wait for values. Else it waits until the last copy is queued, for at most `limit`, and
    /// this returns `None` if it is not by then. If the operation fails later, the stream continues, the result is undefined, and the
    /// error comes with [`result`](Self::result) and with the group's [next call](Self::earlier_failure).
    pub fn wait_on_stream(&self, stream: &DeviceStream, limit: Duration) -> Option<Result<()>> {
        if let Err(error) = self.0.check_usable() {
            return Some(Err(error));
        }
        let deadline = Instant::now().checked_add(limit);
        let accelerator = &self.0.accelerator;
        let mut state = self.0.lock();
        loop {
            match &state.landed {
                Landed::Failed(error) => {
                    let error = error.clone();
                    state.seen = true;
                    return Some(Err(error));
                }
                Landed::Nothing => return Some(Ok(())),
                Landed::Before(event) => {
                    return Some(accelerator.wait(stream, *event).map_err(|error| error_of(&error)));
                }
                Landed::No => {}
            }
            if let Some(word) = self.0.word {
                return Some(accelerator.wait_value(stream, word).map_err(|error| error_of(&error)));
            }
            state = self.wait_for_change(state, deadline)?;
        }
    }

    /// What an earlier call of the group has failed with, if nobody had asked for it when this one was made. This call was made
    /// all the same, so that the ranks stay in step, and has a result of its own.
    pub fn earlier_failure(&self) -> Option<Error> {
        self.0.earlier.as_ref().map(Error::of_earlier_call)
    }

    /// Waits until the result is in the accelerator's memory, for at most `limit`. Returns `None` if it is not by then. In a forked
    /// child it is [`ErrorKind::Forked`](crate::ErrorKind::Forked), if it was not over when that was made.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<()>> {
        if let Err(error) = self.0.check_usable() {
            return Some(Err(error));
        }
        let deadline = Instant::now().checked_add(limit);
        let mut state = self.0.lock();
        loop {
            if let Some(result) = state.result.clone() {
                state.seen = true;
                return Some(result);
            }
            state = self.wait_for_change(state, deadline)?;
        }
    }

    /// `None` once the deadline has passed.
    fn wait_for_change<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> Option<MutexGuard<'a, State>> {
        let Some(deadline) = deadline else {
            return Some(self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
        };
        let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some(self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Whether the operation is over, and nothing touches its memory. This looks at the accelerator, so it is true as soon as the
    /// result is there, and [`result`](Self::result) may come a moment later.
    pub fn is_done(&self) -> bool {
        if self.0.check_usable().is_err() {
            return false;
        }
        let state = self.0.lock();
        match (&state.result, &state.landed) {
            (Some(_), _) => true,
            (None, Landed::Before(event)) => matches!(self.0.accelerator.query(*event), Ok(true)),
            (None, _) => false,
        }
    }

    /// The result once the operation is over, and the failure as soon as there is one.
    pub fn result(&self) -> Option<Result<()>> {
        self.0.check_usable().ok()?;
        let mut state = self.0.lock();
        let result = match &state.landed {
            Landed::Failed(error) => Some(Err(error.clone())),
            _ => state.result.clone(),
        };
        state.seen |= result.as_ref().is_some_and(Result::is_err);
        result
    }

    /// The rank whose message a receive has got, once it has.
    pub fn source(&self) -> Option<u32> {
        self.0.lock().source
    }

    /// Has `token` sent to `listener` when the operation is over; at once if it is already.
    pub fn notify(&self, listener: Sender<u64>, token: u64) {
        let mut state = self.0.lock();
        if state.result.is_none() {
            state.listeners.push((listener, token));
        } else {
            let _gone = listener.send(token);
        }
    }
}

impl fmt::Debug for StagedPending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagedPending").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Config, Rendezvous,
        device::{DeviceGroup, fake::FakeAccelerator, shared::lock},
        local_with,
    };
    use std::thread;

    #[test]
    fn a_failure_that_comes_while_failures_are_asked_for_is_told_the_next_time() {
        let ranks = local_with(Config::new(0, 1, Rendezvous::Tcp(String::new()))).unwrap();
        let fake = FakeAccelerator::new(false, None);
        let group = DeviceGroup::new(ranks[0].clone(), fake.clone()).unwrap();
        let shared = &group.shared;
        let [failing, held] = [(); 2].map(|()| StagedOutcome::new(&ranks[0], fake.clone(), None, "a call"));
        lock(&shared.unseen).extend([failing.clone(), held.clone()]);
        let waits = held.lock();
        thread::scope(|scope| {
            let asked = scope.spawn(|| shared.unseen_failure());
            // It has asked the first by now, and waits for the second.
            thread::sleep(Duration::from_millis(100));
            let error = Error::new(ErrorKind::Closed);
            failing.fail(&error);
            failing.finish(Err(error));
            drop(waits);
            assert!(asked.join().unwrap().is_none());
        });
        assert!(shared.unseen_failure().is_some());
        held.finish(Ok(()));
    }
}
