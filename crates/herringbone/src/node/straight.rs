//! A straight run, as its thread sees it: it looks, yields, dozes, and in the end makes an ordinary operation of it.

use super::Node;
use crate::{
    clock::Moment,
    completion::Completion,
    engine::{ops::Haste, straight::Runner},
    execute::straight::Pace,
};
use std::{
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

/// For how long a straight run may doze in all. A thread that dozes hears of one local rank only; an ordinary operation hears of
/// all there are.
const DOZE: Duration = Duration::from_millis(10);

/// How a straight run has waited, in all: one that has yielded in vain once dozes at once from then on.
#[derive(Default)]
struct Waits {
    since: Option<Moment>,
    yielded: u32,
    dozed: Duration,
}

impl Node {
    /// Runs straight through what has begun so. Returns `None` at its end, or how that can be learnt of.
    pub(super) fn run_straight<'a>(&'a self, mut runner: MutexGuard<'a, Runner>) -> Option<Arc<Completion>> {
        let mut waits = Waits::default();
        let completion = loop {
            match runner.run(self.patience.tries) {
                Pace::Done => {
                    runner.end(Moment::now());
                    break None;
                }
                Pace::Waiting if waits.dozed < DOZE => {
                    let Some(completion) = runner.follow() else { continue };
                    runner = self.wait_straight(runner, &mut waits);
                    if !runner.is_running(&completion) {
                        break Some(completion);
                    }
                    runner.has_dozed();
                }
                Pace::Waiting | Pace::Stuck => break runner.interrupt(),
            }
        };
        self.aftermath(runner);
        if let Some(since) = waits.since {
            self.waited.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        completion
    }

    /// Gives others the core, and the engine, until it is worth while to look again.
    fn wait_straight<'a>(
        &'a self,
        mut runner: MutexGuard<'a, Runner>,
        waits: &mut Waits,
    ) -> MutexGuard<'a, Runner> {
        waits.since.get_or_insert_with(Moment::now);
        if waits.yielded < self.patience.yields(Haste::Memory) {
            waits.yielded += 1;
            drop(runner);
            std::thread::yield_now();
            return self.lock_as_is();
        }
        let Some(doze) = runner.about_to_doze() else { return runner };
        drop(runner);
        let began = Moment::now();
        doze.doze(DOZE.saturating_sub(waits.dozed));
        waits.dozed += began.elapsed();
        self.lock_as_is()
    }
}
