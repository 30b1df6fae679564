//! Rings and boards of messages as one thread or two see them. `loom.rs` tries what threads can do to each other.

use herringbone_sys::{
    ring::{Consumer, MESSAGE_WORDS, Producer, TAIL_WORDS, cells_words, message_at},
    segment::Segment,
    sync::{AtomicU64, Ordering},
};
use std::sync::Arc;
use std::thread;

fn zeroes(words: usize) -> Arc<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn messages_keep_their_order_length_and_words_through_segments() {
    const MESSAGES: u64 = 20_000;
    let producers = Arc::new(Segment::create("cells", cells_words(8) * 8).unwrap());
    let consumers = Arc::new(Segment::create("tail", TAIL_WORDS * 8).unwrap());
    let mut producer = Producer::new(producers.words(0..cells_words(8)), [consumers.words(0..TAIL_WORDS)]);
    let mut consumer = Consumer::new(producers.words(0..cells_words(8)), consumers.words(0..TAIL_WORDS));
    thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..MESSAGES {
                let message = [n; MESSAGE_WORDS];
                while !producer.try_push(&message[..n as usize % 16]) {
                    thread::yield_now();
                }
            }
        });
        let mut room = [0; MESSAGE_WORDS];
        for n in 0..MESSAGES {
            let message = loop {
                if consumer.has_message() {
                    break consumer.peek(&mut room).unwrap();
                }
                thread::yield_now();
            };
            assert_eq!(message, &[n; MESSAGE_WORDS][..n as usize % 16]);
            assert!(consumer.take());
        }
    });
    assert!(!consumer.has_message());
}

#[test]
fn a_full_ring_takes_nothing_until_a_message_was_taken() {
    let (cells, tail) = (zeroes(cells_words(2)), zeroes(1));
    let mut producer = Producer::new(Arc::clone(&cells), [Arc::clone(&tail)]);
    let mut consumer = Consumer::new(cells, tail);
    let mut room = [0; MESSAGE_WORDS];
    let mut pop = |consumer: &mut Consumer<_, _>| {
        let message = consumer.peek(&mut room).map(<[u64]>::to_vec);
        assert_eq!(consumer.take(), message.is_some());
        message
    };
    assert!(producer.try_push(&[1]) && producer.try_push(&[]) && !producer.try_push(&[3]));
    assert_eq!(pop(&mut consumer), Some(vec![1]));
    assert!(producer.try_push(&[3]) && !producer.has_room());
    assert_eq!(pop(&mut consumer), Some(vec![]));
    assert_eq!(pop(&mut consumer), Some(vec![3]));
    assert_eq!(pop(&mut consumer), None);
    assert!(producer.has_room());
}

#[test]
fn a_tail_that_no_consumer_could_have_written_counts_as_full() {
    let (cells, tail) = (zeroes(cells_words(2)), zeroes(1));
    let mut producer = Producer::new(cells, [Arc::clone(&tail)]);
    assert!(producer.try_push(&[]) && producer.try_push(&[]));
    for lie in [3, u64::MAX, 1 << 63] {
        tail[0].store(lie, Ordering::Relaxed);
        assert!(!producer.try_push(&[]));
    }
    tail[0].store(1, Ordering::Relaxed);
    assert!(producer.try_push(&[]));
}

#[test]
fn stamps_out_of_turn_are_not_messages() {
    let (cells, tail) = (zeroes(cells_words(4)), zeroes(1));
    let mut consumer = Consumer::new(Arc::clone(&cells), tail);
    let mut room = [0; MESSAGE_WORDS];
    for stamp in [2 << 4, u64::MAX, 15] {
        cells[0].store(stamp, Ordering::Relaxed);
        assert_eq!(consumer.peek(&mut room), None);
        assert!(!consumer.take());
    }
    cells[0].store(1 << 4 | 15, Ordering::Relaxed);
    assert_eq!(consumer.peek(&mut room).unwrap().len(), MESSAGE_WORDS);
}

#[test]
fn a_message_stays_where_its_position_says_until_it_is_taken() {
    let (cells, tail) = (zeroes(cells_words(2)), zeroes(1));
    let mut producer = Producer::new(Arc::clone(&cells), [Arc::clone(&tail)]);
    let mut consumer = Consumer::new(Arc::clone(&cells), tail);
    let mut room = [0; MESSAGE_WORDS];
    for n in 1..=5 {
        assert_eq!(producer.position(), consumer.position());
        assert!(producer.try_push(&[n]));
        for _ in 0..2 {
            assert_eq!(consumer.peek(&mut room), Some(&[n][..]));
            assert_eq!(cells[message_at(consumer.position())].load(Ordering::Relaxed), n);
        }
        assert!(consumer.take());
    }
}

#[test]
fn a_board_waits_for_the_slowest_reader() {
    let (cells, tails) = (zeroes(cells_words(2)), [zeroes(1), zeroes(1), zeroes(1)]);
    let mut producer = Producer::new(Arc::clone(&cells), tails.clone());
    let mut readers = tails.clone().map(|tail| Consumer::new(Arc::clone(&cells), tail));
    let mut room = [0; MESSAGE_WORDS];
    assert!(producer.try_push(&[1]) && producer.try_push(&[2]) && !producer.has_room());
    for reader in &mut readers {
        assert!(!producer.has_room());
        assert_eq!(reader.peek(&mut room), Some(&[1][..]));
        assert!(reader.take());
    }
    assert!(producer.try_push(&[3]) && !producer.has_room());
    assert!(readers.iter_mut().all(|reader| reader.take() && reader.take() && !reader.take()));
    tails[1][0].store(u64::MAX, Ordering::Relaxed);
    assert!(!producer.has_room(), "a tail that no consumer could have written counts as full");
}

#[test]
#[should_panic(expected = "power of two")]
fn a_capacity_is_a_power_of_two() {
    let _ = Producer::new(zeroes(3 * cells_words(1)), [zeroes(1)]);
}
