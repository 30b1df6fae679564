//! A straight run, as its thread sees it: it looks, yields, dozes, and in the end makes an ordinary operation of it.

use super::Node;
use crate::{
    clock::Moment,
    completion::Completion,
    engine::{Engine, links::Haste},
    execute::straight::Pace,
};
use std::{
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

/// For how long a straight run may doze in all. Who dozes hears of one host-mate only; an ordinary operation hears of all there
/// is.
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
    pub(super) fn run_straight<'a>(&'a self, mut engine: MutexGuard<'a, Engine>) -> Option<Arc<Completion>> {
        let mut waits = Waits::default();
        let completion = loop {
            match engine.run_straight(self.patience.tries) {
                Pace::Done => break None,
                Pace::Waiting if waits.dozed < DOZE => {
                    let Some(completion) = engine.follow_straight() else { continue };
                    engine = self.wait_straight(engine, &mut waits);
                    if !engine.is_straight(&completion) {
                        break Some(completion);
                    }
                    engine.has_dozed();
                }
                Pace::Waiting | Pace::Stuck => break engine.interrupt(),
            }
        };
        self.aftermath(engine);
        if let Some(since) = waits.since {
            self.waited.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        completion
    }

    /// Gives others the core, and the engine, until it is worth while to look again.
    fn wait_straight<'a>(
        &'a self,
        mut engine: MutexGuard<'a, Engine>,
        waits: &mut Waits,
    ) -> MutexGuard<'a, Engine> {
        waits.since.get_or_insert_with(Moment::now);
        if waits.yielded < self.patience.yields(Haste::Memory) {
            waits.yielded += 1;
            drop(engine);
            std::thread::yield_now();
            return self.lock_as_is();
        }
        let Some(doze) = engine.about_to_doze() else { return engine };
        drop(engine);
        let began = Moment::now();
        doze.doze(DOZE.saturating_sub(waits.dozed));
        waits.dozed += began.elapsed();
        self.lock_as_is()
    }
}
