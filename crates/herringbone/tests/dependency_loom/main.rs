//! The scheduler of the dependency engine with loom: every order in which its threads can take the lock and be woken.
//!
//! It compiles the files of the scheduler once more, with loom's locks in the place of the standard library's.
#![allow(dead_code, unreachable_pub, reason = "not all that the library uses and shows is used here")]
#![allow(clippy::absurd_extreme_comparisons, reason = "loom's number of yields is 0")]

#[path = "../../src/dependency/failure.rs"]
mod failure;
#[path = "../../src/dependency/queues.rs"]
mod queues;
#[path = "../../src/dependency/recorder.rs"]
mod recorder;
#[path = "../../src/dependency/scheduler.rs"]
mod scheduler;

/// What the scheduler is synchronised with, here by loom.
mod sync {
    pub(crate) use loom::{
        sync::{Condvar, Mutex, MutexGuard},
        thread,
    };

    /// loom tries the order in which a thread sleeps at once.
    pub(crate) const YIELDS: usize = 0;

    /// All of loom's threads are one, so none is known to be inside.
    pub(crate) fn set_inside(_: usize) -> usize {
        0
    }

    pub(crate) fn inside() -> usize {
        0
    }
}

use queues::Pushed;
use scheduler::{Function, OnComplete, Scheduler, Waited, accesses};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

/// Runs `program` with so many threads of the engine, in every order with at most three switches that need not be.
fn in_every_order(threads: u32, limit: usize, program: fn(&Arc<Scheduler>)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let scheduler = Arc::new(Scheduler::new(limit));
        let spawn = |number| {
            let scheduler = scheduler.clone();
            loom::thread::spawn(move || scheduler.work(number))
        };
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        program(&scheduler);
        scheduler.close();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        scheduler.clear();
        assert_eq!(scheduler.with(|queues| queues.pending()), 0);
    });
}

fn variable(scheduler: &Scheduler) -> u32 {
    scheduler.with(|queues| queues.variable(None))
}

fn push(scheduler: &Scheduler, reads: &[u32], mutates: &[u32], body: Function) {
    let accesses = accesses(reads, mutates);
    assert!(scheduler.push(Pushed { name: None, priority: 0, accesses, body }));
}

fn now(function: impl FnOnce() -> Result<(), &'static str> + Send + 'static) -> Function {
    Function::Now(Box::new(|| function().map_err(Into::into)))
}

#[test]
fn writes_run_in_the_order_of_their_pushes_and_a_wait_sees_them() {
    in_every_order(2, 8, |scheduler| {
        let tag = variable(scheduler);
        let value = Arc::new(AtomicU32::new(1));
        for step in 2..4 {
            let value = value.clone();
            let run = now(move || {
                let old = value.load(Ordering::Relaxed);
                value.store(old * 10 + step, Ordering::Relaxed);
                Ok(())
            });
            push(scheduler, &[], &[tag], run);
        }
        assert!(matches!(scheduler.begin_wait(tag).poll(None), Waited::Over(None)));
        assert_eq!(value.load(Ordering::Relaxed), 123);
    });
}

#[test]
fn a_failure_reaches_the_wait_through_what_is_skipped() {
    in_every_order(2, 8, |scheduler| {
        let (a, b) = (variable(scheduler), variable(scheduler));
        push(scheduler, &[], &[a], now(|| Err("no")));
        push(scheduler, &[a], &[b], now(|| panic!("it is skipped")));
        let Waited::Over(Some(failure)) = scheduler.begin_wait(b).poll(None) else { panic!("b is spoiled") };
        assert_eq!(failure.operation(), 0);
        assert!(scheduler.wait_all(None).flatten().is_some() && scheduler.wait_all(None).flatten().is_none());
    });
}

/// Whoever ends an operation from elsewhere wakes those that sleep.
#[test]
fn a_completion_from_elsewhere_loses_no_wake_up() {
    in_every_order(1, 8, |scheduler| {
        let tag = variable(scheduler);
        let kept: Arc<Mutex<Option<OnComplete>>> = Arc::default();
        let keep = kept.clone();
        push(
            scheduler,
            &[],
            &[tag],
            Function::Later(Box::new(move |done| *keep.lock().unwrap() = Some(done))),
        );
        push(scheduler, &[tag], &[], now(|| Ok(())));
        let elsewhere = loom::thread::spawn(move || {
            loop {
                let done = kept.lock().unwrap().take();
                match done {
                    Some(done) => return done.complete(),
                    None => loom::thread::yield_now(),
                }
            }
        });
        assert!(scheduler.wait_all(None).flatten().is_none());
        elsewhere.join().unwrap();
    });
}

#[test]
fn a_push_that_waits_for_room_goes_on() {
    in_every_order(1, 2, |scheduler| {
        for _ in 0..4 {
            push(scheduler, &[], &[], now(|| Ok(())));
        }
        assert!(scheduler.wait_all(None).flatten().is_none());
    });
}
