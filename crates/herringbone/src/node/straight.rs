//! A straight run, as its thread sees it: it looks, yields, and in the end makes an ordinary operation of it.

use super::Node;
use crate::{
    clock::Moment,
    completion::Completion,
    engine::{ops::WaitKind, straight::Runner},
    execute::straight::StraightProgress,
};
use std::sync::{Arc, MutexGuard, atomic::Ordering};

impl Node {
    /// Runs straight through what has begun so. Returns `None` at its end, or how that can be learnt of.
    pub(super) fn run_straight<'a>(&'a self, mut runner: MutexGuard<'a, Runner>) -> Option<Arc<Completion>> {
        let (mut yielded, mut waits) = (0, None);
        let completion = loop {
            match runner.run(self.spin.tries) {
                StraightProgress::Done => {
                    runner.end(Moment::now());
                    break None;
                }
                StraightProgress::Waiting if yielded < self.spin.yields(WaitKind::Memory) => {
                    let Some(completion) = runner.follow() else { continue };
                    waits.get_or_insert_with(Moment::now);
                    // Gives others the core, and the engine.
                    drop(runner);
                    std::thread::yield_now();
                    yielded += 1;
                    runner = self.lock_as_is();
                    if !runner.is_running(&completion) {
                        break Some(completion);
                    }
                }
                StraightProgress::Waiting | StraightProgress::Stuck => break runner.interrupt(),
            }
        };
        self.release_and_handle(runner);
        if let Some(since) = waits {
            self.waited.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        completion
    }
}
