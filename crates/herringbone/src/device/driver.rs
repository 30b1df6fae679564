//! The thread that stages: it hears of calls, of the engine's ends and of complete events, and does what its lines decide.

use super::{
    line::{StagedPurpose, StagingLine, Started},
    shared::{CLOSE, DeviceShared, LineKey, WAKE, lock},
};
use crate::Pending;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{Receiver, Sender},
    },
    time::{Duration, Instant},
};

/// The first number of an operation of the engine.
const FIRST: u64 = 2;

/// How long the thread sleeps between looks at its events: from a copy of a few KB to what a process of many groups can afford.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];

/// An operation of the engine that runs.
struct Travelling {
    key: LineKey,
    purpose: StagedPurpose,
    pending: Pending,
}

/// Drives until the group is closed and nothing is left, or the group's timeout has passed since.
pub(super) fn drive(shared: Arc<DeviceShared>, receiver: &Receiver<u64>, sender: Sender<u64>) {
    let mut driver =
        Driver { shared, sender, lines: BTreeMap::new(), travelling: BTreeMap::new(), next: FIRST };
    let mut closing: Option<Instant> = None;
    let mut nap = NAPS[0];
    loop {
        let is_idle = driver.lines.values().all(StagingLine::is_idle);
        if closing.is_some_and(|deadline| is_idle || Instant::now() >= deadline) {
            return;
        }
        let looks = driver.lines.values().any(StagingLine::awaits_events);
        let first = match (looks, closing) {
            (true, _) => receiver.recv_timeout(nap).ok(),
            (false, Some(deadline)) => {
                receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
            }
            (false, None) => receiver.recv().ok(),
        };
        let has_heard = first.is_some();
        for token in first.into_iter().chain(receiver.try_iter()) {
            match token {
                WAKE => driver.take_in(),
                CLOSE => closing = Some(Instant::now() + driver.shared.patience()),
                token => driver.ended(token),
            }
        }
        let has_moved = driver.look();
        nap = if has_heard || has_moved { NAPS[0] } else { (nap * 2).min(NAPS[1]) };
    }
}

struct Driver {
    shared: Arc<DeviceShared>,
    sender: Sender<u64>,
    lines: BTreeMap<LineKey, StagingLine>,
    travelling: BTreeMap<u64, Travelling>,
    /// The next operation's token.
    next: u64,
}

impl Driver {
    /// Takes what callers have submitted.
    fn take_in(&mut self) {
        let submissions = std::mem::take(&mut *lock(&self.shared.inbox));
        for submission in submissions {
            let key = submission.key;
            let new = || StagingLine::new(self.shared.clone());
            self.lines.entry(key).or_insert_with(new).push(submission);
            self.act(key);
        }
    }

    /// An operation of the engine has ended.
    fn ended(&mut self, token: u64) {
        let Some(Travelling { key, purpose, pending }) = self.travelling.remove(&token) else { return };
        if let Some(line) = self.lines.get_mut(&key) {
            line.ended(purpose, &pending);
            self.act(key);
        }
    }

    /// Looks at the events of all lines. Returns whether one was complete.
    fn look(&mut self) -> bool {
        let keys: Vec<LineKey> = self.lines.keys().copied().collect();
        let mut has_moved = false;
        for key in keys {
            if self.lines.get_mut(&key).is_some_and(StagingLine::look) {
                has_moved = true;
                self.act(key);
            }
        }
        has_moved
    }

    /// Does what a line has decided.
    fn act(&mut self, key: LineKey) {
        let Some(line) = self.lines.get_mut(&key) else { return };
        while let Some(Started { purpose, pending }) = line.act() {
            let token = self.next;
            self.next += 1;
            // First, because the operation may have ended.
            let listener = self.sender.clone();
            let operation = pending.clone();
            self.travelling.insert(token, Travelling { key, purpose, pending });
            operation.notify(listener, token);
        }
    }
}
