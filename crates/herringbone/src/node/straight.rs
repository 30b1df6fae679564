//! A straight run, as its thread sees it: it looks, yields, and in the end makes an ordinary operation of it.

use super::Node;
use crate::{
    clock::Moment,
    completion::Completion,
    engine::{Engine, links::Haste},
    execute::straight::Pace,
};
use std::sync::{Arc, MutexGuard, atomic::Ordering};

impl Node {
    /// Runs straight through what has begun so. Returns `None` at its end, or how that can be learnt of.
    pub(super) fn run_straight<'a>(&'a self, mut engine: MutexGuard<'a, Engine>) -> Option<Arc<Completion>> {
        let (mut yielded, mut waits) = (0, None);
        let completion = loop {
            match engine.run_straight(self.patience.tries) {
                Pace::Done => break None,
                Pace::Waiting if yielded < self.patience.yields(Haste::Memory) => {
                    let Some(completion) = engine.follow_straight() else { continue };
                    waits.get_or_insert_with(Moment::now);
                    // Gives others the core, and the engine.
                    drop(engine);
                    std::thread::yield_now();
                    yielded += 1;
                    engine = self.lock_as_is();
                    if !engine.is_straight(&completion) {
                        break Some(completion);
                    }
                }
                Pace::Waiting | Pace::Stuck => break engine.interrupt(),
            }
        };
        self.aftermath(engine);
        if let Some(since) = waits {
            self.waited.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        completion
    }
}
