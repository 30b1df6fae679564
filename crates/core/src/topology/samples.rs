//! How much a link carries, from batches of messages that its receiver times.
//!
//! A busy machine stops a receiver for milliseconds. Messages that have arrived in that time are read at once. So a
//! batch that is timed from that moment looks too fast, and a stop within a batch makes it look too slow. Therefore:
//!
//! * messages on their way fill the link while the receiver is stopped: a quarter to half of a batch is on its way at a time;
//! * the clock runs from the message in the middle of a batch to its last one. The first half uses up the saved tokens
//!   of a token bucket, and lets TCP begin;
//! * a batch is used only if it and its later half take long enough, and if a batch of four times as many bytes is not
//!   much faster. A small batch also takes long if the receiver is stopped all the time;
//! * the link carries the median of several batches.

use alloc::vec::Vec;

/// Messages on their way at a time, and in the first batch.
pub const MESSAGES_IN_FLIGHT: u64 = 8;
/// Bytes of a message, at most.
pub const LARGEST_MESSAGE: u64 = 1 << 20;
/// Bytes of a message of the first batch, and at least.
const SMALLEST_MESSAGE: u64 = 2 << 10;
/// A link's speed is the median of so many batches.
const SAMPLES: usize = 5;
/// By how much a batch is larger or smaller than the one before it, at most.
const GROWTH: f64 = 8.0;
/// By how much a batch is larger than the first one that counts.
const PROBE: f64 = 4.0;
/// How much faster it is, at least, if the first one does not count after all.
const FASTER: f64 = 1.5;

/// Messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageBatch {
    /// How many.
    pub messages: u64,
    /// The bytes of each message.
    pub bytes: u64,
}

/// When a receiver had which messages of a batch, in nanoseconds since it asked for the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTimes {
    /// The first message.
    pub first: u64,
    /// Half of the messages, rounded down.
    pub half: u64,
    /// All of them.
    pub all: u64,
}

/// The batches of one direction of a link, one after the other.
#[derive(Clone, Debug)]
pub struct LinkSamples {
    /// How long a batch is to take, in nanoseconds.
    target: u64,
    /// How long all of them may take together.
    limit: u64,
    /// How many messages a batch has, unless messages are then too small or too large.
    messages: u64,
    next: MessageBatch,
    spent: u64,
    /// Bytes per second of the batches that count.
    speeds: Vec<u64>,
    /// Whether a batch of more bytes was no faster.
    is_settled: bool,
    /// The batch of the most bytes.
    largest: LargestBatch,
}

#[derive(Clone, Copy, Debug, Default)]
struct LargestBatch {
    bytes: u64,
    nanoseconds: u64,
}

impl MessageBatch {
    /// Bytes of all messages.
    pub fn total(self) -> u64 {
        self.messages.saturating_mul(self.bytes)
    }
}

impl LinkSamples {
    /// `target` and `limit` are the nanoseconds of one batch and of all together; `round_trip` is the time of an empty
    /// message there and back.
    pub fn new(target: u64, limit: u64, round_trip: u64) -> Self {
        // Twice what is on its way within a round trip.
        let messages = MESSAGES_IN_FLIGHT.saturating_mul(target) / round_trip.saturating_mul(2).max(1);
        Self {
            target,
            limit,
            messages: messages.clamp(2 * MESSAGES_IN_FLIGHT, 4 * MESSAGES_IN_FLIGHT),
            next: MessageBatch { messages: MESSAGES_IN_FLIGHT, bytes: SMALLEST_MESSAGE },
            spent: 0,
            speeds: Vec::new(),
            is_settled: false,
            largest: LargestBatch::default(),
        }
    }

    /// The batch to send, unless the speed is known or the time is over.
    pub fn next(&self) -> Option<MessageBatch> {
        let is_known = self.is_settled && self.speeds.len() >= SAMPLES;
        let is_over = self.spent >= self.limit && self.largest.bytes > 0;
        (!is_known && !is_over).then_some(self.next)
    }

    /// Takes the times of the batch that [`next`](Self::next) gave. Returns whether the batch is used.
    pub fn add(&mut self, times: BatchTimes) -> bool {
        let (batch, BatchTimes { first, half, all }) = (self.next, times);
        let (whole, later) = (all.saturating_sub(first), all.saturating_sub(half));
        self.spent = self.spent.saturating_add(all.max(1));
        if batch.total() >= self.largest.bytes {
            self.largest = LargestBatch { bytes: batch.total(), nanoseconds: all.max(1) };
        }
        let counts = whole >= self.target / 2 && later >= self.target / 4;
        let bytes = (batch.messages - batch.messages / 2) * batch.bytes;
        let speed = if counts { per_second(bytes, later) } else { per_second(batch.total(), all) };
        let is_probe = !self.is_settled && !self.speeds.is_empty();
        if is_probe && speed as f64 > FASTER * self.bytes_per_second() as f64 {
            self.speeds.clear();
        } else if is_probe {
            self.is_settled = true;
        }
        if counts {
            self.speeds.push(speed);
        }
        let is_first = counts && !self.is_settled;
        let factor = (self.target as f64 / all.max(1) as f64).clamp(1.0 / GROWTH, GROWTH);
        self.next = self.of_about(batch.total() as f64 * if is_first { PROBE } else { factor });
        counts
    }

    /// The rate of the link, in bytes per second, at least 1: the median of the batches that are used. If none is, this
    /// is the average of the batch with the most bytes.
    pub fn bytes_per_second(&self) -> u64 {
        let mut speeds = self.speeds.clone();
        speeds.sort_unstable();
        let LargestBatch { bytes, nanoseconds } = self.largest;
        let middle = speeds.get(speeds.len().saturating_sub(1) / 2);
        middle.copied().unwrap_or_else(|| per_second(bytes, nanoseconds)).max(1)
    }

    fn of_about(&self, bytes: f64) -> MessageBatch {
        let each = ((bytes / self.messages as f64) as u64).clamp(SMALLEST_MESSAGE, LARGEST_MESSAGE);
        MessageBatch { messages: ((bytes / each as f64) as u64).max(MESSAGES_IN_FLIGHT), bytes: each }
    }
}

fn per_second(bytes: u64, nanoseconds: u64) -> u64 {
    let bytes = u128::from(bytes) * 1_000_000_000 / u128::from(nanoseconds.max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::random::SplitMix;
    use super::*;
    use alloc::{vec, vec::Vec};

    const MILLISECOND: u64 = 1_000_000;
    const TARGET: u64 = 100 * MILLISECOND;

    /// A link, and a receiver that is stopped from time to time.
    struct Receiver {
        bytes_per_second: f64,
        round_trip: f64,
        /// Bytes that an idle link lets through at once.
        bucket: f64,
        /// Begin and end of each stop.
        stops: Vec<[f64; 2]>,
        now: f64,
    }

    impl Receiver {
        fn steady(bytes_per_second: f64) -> Self {
            Self { bytes_per_second, round_trip: 1e5, bucket: 0.0, stops: vec![], now: 0.0 }
        }

        /// Stops of up to 100 ms, one in 350 ms.
        fn stopped(bytes_per_second: f64, random: &mut SplitMix) -> Self {
            let mut receiver = Self::steady(bytes_per_second);
            let mut at = 0.0;
            while at < 20e9 {
                at += random.unit() * (600 * MILLISECOND) as f64;
                let end = at + random.unit() * (100 * MILLISECOND) as f64;
                receiver.stops.push([at, end]);
                at = end;
            }
            receiver
        }

        fn awake(&self, at: f64) -> f64 {
            let stop = self.stops.iter().find(|[begin, end]| (*begin..*end).contains(&at));
            stop.map_or(at, |[_, end]| *end)
        }

        /// When each message of a batch is received: a message leaves only if the receiver has taken the one that is 8 before it.
        fn receive(&mut self, batch: MessageBatch) -> BatchTimes {
            let asked = self.now;
            let mut taken: Vec<f64> = vec![];
            let mut arrived = asked + self.round_trip;
            for message in 0..batch.messages as usize {
                let room = match message.checked_sub(MESSAGES_IN_FLIGHT as usize) {
                    None => asked + self.round_trip,
                    Some(before) => taken[before] + self.round_trip,
                };
                let saved = self.bucket.min(batch.bytes as f64);
                self.bucket -= saved;
                let lasts = (batch.bytes as f64 - saved) / self.bytes_per_second * 1e9;
                arrived = arrived.max(room) + lasts;
                taken.push(self.awake(arrived.max(taken.last().copied().unwrap_or(asked))));
            }
            self.now = *taken.last().unwrap();
            let at = |count: usize| (taken[count - 1] - asked) as u64;
            BatchTimes { first: at(1), half: at(taken.len() / 2), all: at(taken.len()) }
        }

        fn measured(&mut self) -> f64 {
            let mut samples = LinkSamples::new(TARGET, 10 * TARGET, self.round_trip as u64);
            while let Some(batch) = samples.next() {
                let times = self.receive(batch);
                samples.add(times);
            }
            samples.bytes_per_second() as f64 / self.bytes_per_second
        }
    }

    #[test]
    fn steady_links_of_any_speed_are_right() {
        for rate in [125e3, 1.25e6, 12.5e6, 125e6, 1.25e9, 12.5e9] {
            for round_trip in [1e4, 1e6, 2e7] {
                let found = Receiver { round_trip, ..Receiver::steady(rate) }.measured();
                let is_thin = rate * round_trip / 1e9 < 4e6;
                assert!(!is_thin || (found - 1.0).abs() < 0.05, "{rate} B/s, {round_trip} ns: {found}");
            }
        }
    }

    #[test]
    fn a_bucket_that_lets_much_through_at_first_is_no_speed() {
        for bucket in [64e3, 1e6, 4e6] {
            let found = Receiver { bucket, ..Receiver::steady(25e6) }.measured();
            assert!((found - 1.0).abs() < 0.02, "{bucket}: {found}");
        }
    }

    /// The median forgives the batches that a stop spoils. One batch of few messages, of which the later half counts, does not.
    #[test]
    fn a_receiver_that_is_stopped_now_and_then_is_right_for_most_links() {
        let mut random = SplitMix::new(57);
        let (mut off, mut worst) = (0, 0.0f64);
        for _ in 0..200 {
            let found = Receiver::stopped(62.5e6, &mut random).measured();
            off += usize::from((found - 1.0).abs() > 0.09);
            worst = worst.max(found);
        }
        assert!(off <= 4 && worst < 1.3, "{off} of 200 are off by more than 9 %, the fastest {worst} times");
        let mut single = 0;
        for _ in 0..200 {
            let mut receiver = Receiver::stopped(62.5e6, &mut random);
            let batch = MessageBatch { messages: 18, bytes: LARGEST_MESSAGE };
            let BatchTimes { half, all, .. } = receiver.receive(batch);
            let found = per_second(9 * LARGEST_MESSAGE, all - half) as f64 / 62.5e6;
            single += usize::from((found - 1.0).abs() > 0.09);
        }
        assert!(single > 20, "{single} of 200");
    }

    /// Batches of a few KiB take as long as a batch is to take, for half a second.
    #[test]
    fn a_receiver_that_is_stopped_at_first_does_not_make_the_link_slow() {
        let ms = |at: u64| (at * MILLISECOND) as f64;
        for rate in [1.25e6, 62.5e6, 1.25e9] {
            let stops = (0..4).map(|stop| [ms(130 * stop), ms(130 * stop + 125)]).collect();
            let found = Receiver { stops, ..Receiver::steady(rate) }.measured();
            assert!((found - 1.0).abs() < 0.09, "{rate} B/s: {found}");
        }
    }

    #[test]
    fn batches_that_end_too_soon_do_not_count() {
        let mut samples = LinkSamples::new(TARGET, 10 * TARGET, 1000);
        let ms = |ms: u64| ms * MILLISECOND;
        assert!(!samples.add(BatchTimes { first: 10, half: 20, all: 30 }));
        // The whole batch is long, and its later half was read at once.
        assert!(!samples.add(BatchTimes { first: 10, half: ms(100), all: ms(100) + 10 }));
        // The receiver began late, and all had arrived.
        assert!(!samples.add(BatchTimes { first: ms(90), half: ms(90) + 10, all: ms(120) }));
        let batch = samples.next().unwrap();
        assert!(samples.add(BatchTimes { first: 10, half: ms(50), all: ms(100) }));
        let later = (batch.messages - batch.messages / 2) * batch.bytes;
        assert_eq!(samples.bytes_per_second(), later * 20);
        // Four times the bytes in the same time: the link is not as slow as that.
        assert_eq!(samples.next().unwrap().total(), 4 * batch.total());
        assert!(samples.add(BatchTimes { first: 10, half: ms(50), all: ms(100) }));
        assert_eq!(samples.bytes_per_second(), 4 * later * 20);
    }

    #[test]
    fn the_time_is_limited_and_even_then_there_is_a_speed() {
        let mut samples = LinkSamples::new(TARGET, 3 * TARGET, 1000);
        assert_eq!(samples.bytes_per_second(), 1);
        for _ in 0..3 {
            let times = BatchTimes { first: 0, half: TARGET, all: TARGET };
            assert!(samples.next().is_some() && !samples.add(times));
        }
        assert_eq!(samples.next(), None);
        assert!(samples.bytes_per_second() > 1);
        // The medians of fewer batches than are wanted.
        let mut samples = LinkSamples::new(TARGET, 2 * TARGET, 1000);
        let batch = samples.next().unwrap();
        samples.add(BatchTimes { first: 0, half: TARGET, all: 2 * TARGET });
        assert_eq!(samples.next(), None);
        assert_eq!(samples.bytes_per_second(), batch.total() / 2 * 10);
    }
}
