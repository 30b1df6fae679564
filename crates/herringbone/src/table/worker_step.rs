//! How many steps a worker has ended in a table, and which of its calls pushes.

use super::shared::lock;
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A worker's step in a table, which its threads share.
///
/// A call that pushes has the turn until its requests are answered, so no other push is among them, and the step ends once for all.
/// No answer to a push waits for another worker. A pull may wait for one, so it waits without the turn.
#[derive(Debug)]
pub(super) struct WorkerStep {
    state: Mutex<StepState>,
    changed: Condvar,
}

#[derive(Debug)]
struct StepState {
    /// How many steps have ended on all servers.
    ended: u64,
    is_taken: bool,
    /// The calls that wait for the turn, in the order in which they came.
    waiting: VecDeque<u64>,
    /// How many calls have waited.
    tickets: u64,
    /// One server may have taken the end of the step, and another one not.
    is_ending: bool,
    /// A call has failed: it is unknown which of its requests servers have taken, from this number on.
    unsettled: Option<u64>,
}

/// The turn to push, until this is dropped.
#[derive(Debug)]
pub(super) struct StepTurn<'a>(&'a WorkerStep);

/// No step begins to end before this is dropped.
pub(super) struct BetweenSteps<'a>(MutexGuard<'a, StepState>);

impl WorkerStep {
    pub(super) fn new(ended: u64) -> Self {
        let (waiting, tickets) = (VecDeque::new(), 0);
        let state = StepState { ended, is_taken: false, waiting, tickets, is_ending: false, unsettled: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// How many steps have ended on all servers.
    pub(super) fn ended(&self) -> u64 {
        lock(&self.state).ended
    }

    /// Waits for the turn to push: calls have it in the order in which they come. `None` if time is up before.
    pub(super) fn turn(&self, timeout: Duration) -> Option<StepTurn<'_>> {
        let mut state = lock(&self.state);
        let ticket = state.tickets;
        state.tickets += 1;
        state.waiting.push_back(ticket);
        let is_to_wait = |state: &StepState| state.is_taken || state.waiting.front() != Some(&ticket);
        let mut state = self.wait(state, timeout, is_to_wait);
        let has_turn = !is_to_wait(&state);
        state.is_taken |= has_turn;
        state.waiting.retain(|other| *other != ticket);
        if !has_turn {
            self.changed.notify_all();
        }
        has_turn.then(|| StepTurn(self))
    }

    /// Waits until all servers have the same step of this worker, unless a call has left it unsettled that has failed. `None` if time
    /// is up before.
    pub(super) fn between(&self, timeout: Duration) -> Option<BetweenSteps<'_>> {
        let is_moving = |state: &StepState| state.is_ending || state.unsettled.is_some() && state.is_taken;
        let state = self.wait(lock(&self.state), timeout, is_moving);
        (!is_moving(&state)).then_some(BetweenSteps(state))
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, StepState>,
        timeout: Duration,
        is_to_wait: impl Fn(&StepState) -> bool,
    ) -> MutexGuard<'a, StepState> {
        let waited = self.changed.wait_timeout_while(state, timeout, |state| is_to_wait(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl BetweenSteps<'_> {
    /// How many steps have ended on all servers.
    pub(super) fn ended(&self) -> u64 {
        self.0.ended
    }

    /// Whether no server has ended more.
    pub(super) fn is_settled(&self) -> bool {
        self.0.unsettled.is_none()
    }
}

impl StepTurn<'_> {
    /// How many steps had ended on all servers when this was last known.
    pub(super) fn ended(&self) -> u64 {
        self.0.ended()
    }

    /// The first request of which it is unknown whether servers have taken it.
    pub(super) fn unsettled(&self) -> Option<u64> {
        lock(&self.0.state).unsettled
    }

    /// Servers are told from now on that the step ends.
    pub(super) fn begin_end(&self) {
        lock(&self.0.state).is_ending = true;
    }

    /// All servers have as many ended steps of this worker.
    pub(super) fn settle(&self, ended: u64) {
        let mut state = lock(&self.0.state);
        (state.ended, state.unsettled) = (ended, None);
    }

    /// It is unknown what servers have taken, from a request on.
    pub(super) fn unsettle(&self, least: u64) {
        lock(&self.0.state).unsettled.get_or_insert(least);
    }
}

impl Drop for StepTurn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        (state.is_taken, state.is_ending) = (false, false);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn a_turn_is_one_calls_and_goes_to_the_first_that_waits() {
        let step = WorkerStep::new(3);
        let first = step.turn(SOON).unwrap();
        assert!(step.turn(SOON).is_none(), "this one gives up");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| step.turn(Duration::from_secs(20)).map(drop));
            while lock(&step.state).waiting.is_empty() {
                std::thread::yield_now();
            }
            drop(first);
            assert!(step.turn(Duration::from_secs(20)).is_some() && second.join().unwrap().is_some());
        });
        assert!(lock(&step.state).waiting.is_empty());
    }

    #[test]
    fn nobody_is_between_steps_while_one_ends_or_is_to_be_settled() {
        let step = WorkerStep::new(3);
        let turn = step.turn(SOON).unwrap();
        assert_eq!(step.between(SOON).unwrap().ended(), 3, "a push that ends nothing is in no way");
        turn.begin_end();
        assert!(step.between(SOON).is_none());
        turn.unsettle(9);
        turn.unsettle(12);
        drop(turn);
        assert!(!step.between(SOON).unwrap().is_settled());
        let turn = step.turn(SOON).unwrap();
        assert_eq!(turn.unsettled(), Some(9));
        assert!(step.between(SOON).is_none(), "it is being settled");
        turn.settle(4);
        assert!(step.between(SOON).is_some_and(|between| between.is_settled() && between.ended() == 4));
    }
}
