//! The lock-free parts with loom: every order in which threads can run and see each other's writes.
//!
//! It compiles their files once more, with loom's atomics in the place of the machine's.
#![allow(dead_code, unreachable_pub, reason = "not all that the library uses and shows is used here")]

#[path = "../src/doorbell/flag.rs"]
mod flag;
#[path = "../src/ring.rs"]
mod ring;

/// What the rings and the flag are made of, here loom's.
mod sync {
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// A sequentially consistent fence.
    pub fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

use flag::{announce_sleep, awake, must_ring, published};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use ring::{Consumer, MESSAGE_WORDS, Producer, cells_words};
use std::sync::Arc as Shared;
use sync::AtomicU64;

type Words = Shared<[AtomicU64]>;
type Sender = Producer<Words, Words>;
type Receiver = Consumer<Words, Words>;

fn words(count: usize) -> Words {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn ring(capacity: usize) -> (Sender, Receiver) {
    let (cells, tail) = (words(cells_words(capacity)), words(1));
    (Producer::new(cells.clone(), [tail.clone()]), Consumer::new(cells, tail))
}

fn push(to: &mut Sender, message: &[u64]) {
    while !to.try_push(message) {
        thread::yield_now();
    }
}

fn pop(from: &mut Receiver) -> Vec<u64> {
    let mut room = [0; MESSAGE_WORDS];
    loop {
        if let Some(message) = from.peek(&mut room) {
            let message = message.to_vec();
            assert!(from.take());
            return message;
        }
        thread::yield_now();
    }
}

/// More messages than the ring holds, so that cells are used again: each arrives once, whole and in order. The slots
/// beside the cells show what a tail orders: what the consumer did before it took a message comes before whatever the
/// producer does once it has room again.
#[test]
fn messages_are_neither_lost_nor_torn_nor_reordered() {
    loom::model(|| {
        let (mut to, mut from) = ring(2);
        let slots = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let beside = Arc::clone(&slots);
        thread::spawn(move || {
            for n in 1..=4 {
                while !to.has_room() {
                    thread::yield_now();
                }
                // SAFETY: loom checks it.
                beside[n as usize % 2].with_mut(|slot| unsafe { *slot = n });
                assert!(to.try_push(&[n, 10 * n]));
            }
        });
        for n in 1..=4 {
            while !from.has_message() {
                thread::yield_now();
            }
            // SAFETY: as above.
            slots[n as usize % 2].with(|slot| assert_eq!(unsafe { *slot }, n));
            assert_eq!(pop(&mut from), [n, 10 * n]);
        }
        assert!(!from.has_message());
    });
}

/// A stretch of memory that one message after the other has for its payload, in a ring with room for both: it is written
/// again only once the message is seen taken.
#[test]
fn a_payload_is_never_written_while_it_is_read() {
    loom::model(|| {
        let (mut to, mut from) = ring(2);
        let stretch = Arc::new(UnsafeCell::new(0));
        let read = Arc::clone(&stretch);
        thread::spawn(move || {
            for n in 1..=3 {
                while to.look() < n - 1 {
                    thread::yield_now();
                }
                // SAFETY: loom checks it.
                stretch.with_mut(|stretch| unsafe { *stretch = n });
                assert!(to.try_push(&[n]));
            }
        });
        for n in 1..=3 {
            while !from.has_message() {
                thread::yield_now();
            }
            // SAFETY: as above.
            read.with(|stretch| assert_eq!(unsafe { *stretch }, n));
            assert_eq!(pop(&mut from), [n]);
        }
    });
}

/// One writer and two readers of a slot, which is written again after both have granted it. loom fails the test if an
/// access to the slot is not ordered with a write to it.
#[test]
fn a_slot_is_never_written_while_it_is_read() {
    loom::model(|| {
        let slot = Arc::new(UnsafeCell::new(0));
        let mut ends = Vec::new();
        for _ in 0..2 {
            let ((to, mut from), (mut grants, granted)) = (ring(1), ring(1));
            ends.push((to, granted));
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let payload = pop(&mut from)[0];
                // SAFETY: loom checks it.
                slot.with(|slot| assert_eq!(unsafe { *slot }, payload));
                push(&mut grants, &[]);
            });
        }
        // SAFETY: as above.
        let write = |payload| slot.with_mut(|slot| unsafe { *slot = payload });
        write(1);
        ends.iter_mut().for_each(|(to, _)| push(to, &[1]));
        ends.iter_mut().for_each(|(_, granted)| assert!(pop(granted).is_empty()));
        write(2);
    });
}

/// A board of one cell with two readers, and the slot beside it: it is written again only after both have read it. Only the
/// orders with at most two preemptions, for all of them are too many.
#[test]
fn a_board_is_never_written_while_it_is_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (cells, tails) = (words(cells_words(1)), [words(1), words(1)]);
        let mut board = Producer::new(cells.clone(), tails.clone());
        let slot = Arc::new(UnsafeCell::new(0));
        // SAFETY: loom checks it.
        let write = |n| slot.with_mut(|slot| unsafe { *slot = n });
        write(1);
        assert!(board.try_push(&[1]));
        for tail in tails {
            let (mut from, slot) = (Consumer::new(cells.clone(), tail), Arc::clone(&slot));
            thread::spawn(move || {
                // SAFETY: as above.
                slot.with(|slot| assert_eq!(unsafe { *slot }, 1));
                assert_eq!(pop(&mut from), [1]);
            });
        }
        while !board.has_room() {
            thread::yield_now();
        }
        write(2);
        assert!(board.try_push(&[2]));
    });
}

/// An eventfd, as far as the protocol uses it.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn wait_and_drain(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// A sleeper that hears of its publishers' messages only by looking or by being rung; a lost wake-up is a deadlock,
/// which loom reports.
fn sleep_until_all_is_heard(publishers: usize) {
    let sleeper = Arc::new((AtomicU64::new(0), Bell::default()));
    let mut rings = Vec::new();
    for _ in 0..publishers {
        let (mut to, from) = ring(1);
        rings.push(from);
        let sleeper = Arc::clone(&sleeper);
        thread::spawn(move || {
            assert!(to.try_push(&[]));
            published();
            if must_ring(&sleeper.0) {
                sleeper.1.ring();
            }
        });
    }
    let (flag, bell) = &*sleeper;
    let mut missing = publishers;
    let mut all_heard = || {
        missing -= rings.iter_mut().map(|from| usize::from(from.take())).sum::<usize>();
        missing == 0
    };
    while !all_heard() {
        announce_sleep(flag);
        if all_heard() {
            break;
        }
        bell.wait_and_drain();
        awake(flag);
    }
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| sleep_until_all_is_heard(1));
}

/// As above; with three threads only the orders with at most three preemptions, for all of them are too many.
#[test]
fn no_wake_up_is_lost_between_two_publishers() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| sleep_until_all_is_heard(2));
}
