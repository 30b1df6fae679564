//! A ring of small messages between processes: one producer, no lock, no compare-and-swap. It has one consumer, or
//! several that each see all messages: a **board**.
//!
//! Each side writes to its own segment only. The **cells** are in the producer's: 16 words, two cache lines. The first
//! word, the *stamp*, is `number << 4 | length`; messages are numbered from 1. A **tail** lies in each consumer's
//! segment: how many messages it has taken. Both must be zero at first.
//!
//! # Why it is right
//! Let message `n` lie in cell `(n - 1) mod capacity`.
//! * *No message is lost or reordered.* The producer writes `n` only if it has seen tails of at least
//!   `n - capacity`, so the message that lay there was taken, by all. A consumer waits for stamp `n` and nothing else; until
//!   the producer stores it, the cell's stamp is 0 or that of message `n - capacity`.
//! * *No message is torn.* The words are stored before the stamp, and the consumer's load of the stamp acquires what
//!   the producer's store released. So the consumer reads the words of `n` or later ones. Not later ones: the producer
//!   stores words of `n + capacity` only after it has acquired tails of at least `n`, which each consumer released
//!   after it had read the words.
//! * *A faulty partner does no harm beyond the messages.* The consumer takes an index from its own count and a length
//!   from four bits. A producer that writes other stamps is never heard again. The producer believes a tail only within
//!   the messages that it has sent; any other means "full".
//!
//! # Payload rings
//! Payloads that go with messages but do not fit their cells can lie in a ring of bytes next to the cells. The producer
//! fills a stretch before it pushes the message with its place. It fills the stretch again only when it has
//! [seen](Producer::look) that all have taken that message. The argument about words in cells holds for it, with the
//! stretch in the place of the cell.
//!
//! # Slots: one writer, many readers
//! A payload that does not fit a cell lies in a **slot** of the writer's segment, read in place by all its readers. The
//! writer fills the slot, then pushes one message to each reader's ring. A reader that has used the payload pushes a
//! grant to the ring back. The writer fills the slot again only when it has popped a grant from every reader it named.
//! Each pop acquires what the push released. So each reader's reads of the payload come after the writer's stores, and
//! the next stores come after all those reads. A payload is never torn, although it has no lock and no sequence of its
//! own. All models are tried in every order by `tests/loom.rs`.

use crate::sync::{AtomicU64, Ordering};
use std::ops::Deref;

/// Words of a cell: the stamp and the message.
const CELL_WORDS: usize = 16;
/// Bits of the stamp that hold the length.
const LENGTH_BITS: u32 = 4;

/// The longest message, in words.
pub const MESSAGE_WORDS: usize = CELL_WORDS - 1;

/// Words for a tail: two cache lines, since processors fetch them in pairs.
pub const TAIL_WORDS: usize = 16;

/// Words for the cells of a ring of `capacity` messages; best placed at a multiple of 16 words.
///
/// # Panics
/// If `capacity` is not a power of two.
pub const fn cells_words(capacity: usize) -> usize {
    assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two");
    capacity * CELL_WORDS
}

/// The position of the words of a message in cell `position`, counted in words from the first cell.
#[inline]
pub const fn message_at(position: usize) -> usize {
    position * CELL_WORDS + 1
}

/// The sending end.
#[derive(Debug)]
pub struct Producer<C, T> {
    cells: C,
    tails: Box<[T]>,
    capacity: u64,
    /// Messages sent.
    sent: u64,
    /// The least of the tails seen last; `sent - capacity <= taken <= sent`.
    taken: u64,
}

/// The receiving end.
#[derive(Debug)]
pub struct Consumer<C, T> {
    cells: C,
    tail: T,
    capacity: u64,
    /// Messages taken.
    taken: u64,
}

impl<C, T> Producer<C, T>
where
    C: Deref<Target = [AtomicU64]>,
    T: Deref<Target = [AtomicU64]>,
{
    /// The sending end over `cells` (see [`cells_words`]; ours to write) and the consumers' `tails` (the first word of each
    /// is read). A ring has one.
    ///
    /// # Panics
    /// If `cells` is not a power of two of cells, or there is no tail, or an empty one.
    pub fn new(cells: C, tails: impl IntoIterator<Item = T>) -> Self {
        let tails: Box<[T]> = tails.into_iter().collect();
        assert!(!tails.is_empty(), "a ring has a consumer");
        let capacity = tails.iter().map(|tail| capacity(&cells, tail)).fold(0, u64::max);
        Producer { cells, tails, capacity, sent: 0, taken: 0 }
    }

    /// Sends `message`, unless the ring is full.
    ///
    /// # Panics
    /// If it is longer than [`MESSAGE_WORDS`].
    #[inline]
    #[must_use = "a full ring takes nothing"]
    pub fn try_push(&mut self, message: &[u64]) -> bool {
        assert!(message.len() <= MESSAGE_WORDS, "a message of {} words; a cell holds 15", message.len());
        if !self.has_room() {
            return false;
        }
        let cell = cell(&self.cells, self.capacity, self.sent);
        for (word, value) in cell[1..].iter().zip(message) {
            word.store(*value, Ordering::Relaxed);
        }
        self.sent += 1;
        cell[0].store(self.sent << LENGTH_BITS | message.len() as u64, Ordering::Release);
        true
    }

    /// How many consumers there are.
    pub fn consumers(&self) -> usize {
        self.tails.len()
    }

    /// The number of the cell that the next message goes to.
    #[inline]
    pub fn position(&self) -> usize {
        position(self.capacity, self.sent)
    }

    /// Whether [`try_push`](Self::try_push) would send now. Looks at the tails only when the ring is full as far as known.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        if self.sent - self.taken == self.capacity {
            self.look();
        }
        self.sent - self.taken < self.capacity
    }

    /// How many messages all consumers have taken, as far as known.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Looks at the tails. Returns how many messages all consumers have taken; not more than were sent.
    pub fn look(&mut self) -> u64 {
        let outstanding = self.sent - self.taken;
        let taken = |tail: &T| tail[0].load(Ordering::Acquire).wrapping_sub(self.taken);
        let least = self.tails.iter().map(taken).map(|more| if more <= outstanding { more } else { 0 });
        self.taken += least.min().unwrap_or(0);
        self.taken
    }
}

impl<C, T> Consumer<C, T>
where
    C: Deref<Target = [AtomicU64]>,
    T: Deref<Target = [AtomicU64]>,
{
    /// A receiving end over the producer's `cells` and a `tail` of ours (its first word is written).
    ///
    /// # Panics
    /// If `cells` is not a power of two of cells, or `tail` is empty.
    pub fn new(cells: C, tail: T) -> Self {
        let capacity = capacity(&cells, &tail);
        Consumer { cells, tail, capacity, taken: 0 }
    }

    /// The next message, if there is one, copied into `into`. It stays the next until it is [taken](Self::take).
    #[inline]
    pub fn peek<'a>(&self, into: &'a mut [u64; MESSAGE_WORDS]) -> Option<&'a [u64]> {
        let words = self.next_words()?;
        for (value, word) in into.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        Some(&into[..words.len()])
    }

    /// The next message in its place, if there is one; its producer leaves it alone until it is [taken](Self::take).
    #[inline]
    pub fn next_words(&self) -> Option<&[AtomicU64]> {
        let cell = cell(&self.cells, self.capacity, self.taken);
        self.next_len(cell).map(|len| &cell[1..1 + len])
    }

    /// Moves on to the message after the next. Returns whether the next one was there; otherwise nothing changes.
    ///
    /// Actions of this end before the call come before all actions of the other end after it has [seen](Producer::look)
    /// the call. So memory that goes with a message can be used until the message is taken.
    #[inline]
    pub fn take(&mut self) -> bool {
        let there = self.has_message();
        if there {
            self.taken += 1;
            self.tail[0].store(self.taken, Ordering::Release);
        }
        there
    }

    /// The number of the next message's cell.
    pub fn position(&self) -> usize {
        position(self.capacity, self.taken)
    }

    /// Whether there is a message; a sleeper checks this after it has announced its sleep.
    pub fn has_message(&self) -> bool {
        self.next_len(cell(&self.cells, self.capacity, self.taken)).is_some()
    }

    /// The length of the next message, once its stamp says that it is there.
    #[inline]
    fn next_len(&self, cell: &[AtomicU64]) -> Option<usize> {
        let stamp = cell[0].load(Ordering::Acquire);
        let len = stamp & ((1 << LENGTH_BITS) - 1);
        (stamp >> LENGTH_BITS == self.taken + 1).then_some(len as usize)
    }
}

/// How many messages `cells` hold.
fn capacity(cells: &[AtomicU64], tail: &[AtomicU64]) -> u64 {
    let capacity = cells.len() / CELL_WORDS;
    assert_eq!(cells.len(), cells_words(capacity), "a ring consists of whole cells");
    assert!(!tail.is_empty(), "a tail is at least a word");
    capacity as u64
}

/// The cell of the message after `before` others.
#[inline]
fn cell(cells: &[AtomicU64], capacity: u64, before: u64) -> &[AtomicU64] {
    let start = position(capacity, before) * CELL_WORDS;
    &cells[start..start + CELL_WORDS]
}

/// The number of the cell of the message after `before` others.
fn position(capacity: u64, before: u64) -> usize {
    (before & (capacity - 1)) as usize
}
