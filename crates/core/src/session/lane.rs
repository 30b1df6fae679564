//! Permission to send: windows of segments for operations, eager slots for connections.
//!
//! A message enters a connection only if it has a slot at its receiver. (On the board of a host the next message
//! answers the last instead.) So a connection can always be drained, and no operation blocks another one behind it. A
//! receiver grants slots by **segments**: it reports how many it is done with, and its sender can be
//! [`depth`](Window::new) segments ahead. Messages of a few KiB do not wait for the first grant: each connection has
//! **eager** slots for them, which return as they are emptied.
//!
//! A message for a call that the receiver's program has not made yet keeps its slot until the program makes it. That
//! can take long, because the program might wait for an answer to a `send`. So the last slot of a connection is
//! reserved for [messages](MESSAGE_PRIORITY) of `send`. A receiver takes these whatever its program does, and the slot
//! returns.
//!
//! # Why waiting for a window cannot deadlock
//!
//! A segment is an instance of a whole proved schedule. It ends if all ranks begin it, for two reasons. The schedule
//! was proved over lanes that hold nothing. And nothing in it waits for another segment: each of its messages has its
//! own place at the receiver, and a step waits only for steps of its segment. Now let k be the first segment that a
//! rank never ends. All ranks end all segments before k, and then each begins k:
//!
//! * It has nothing else in flight. So its own window has room for it, and also for a **lot**. A lot is the number of
//!   segments that a rank begins at once if it reads messages in memory, and is never larger than the window.
//! * All its receivers are done with k segments, and have granted all but the last few of them: fewer than a quarter of the
//!   [lead](crate::prepare::Prepared::lead). Its window has at least the lead.
//!
//! So all ranks begin k, and it ends. A rank can use less of its window, down to the lead. The argument fails as soon
//! as a message waits for messages of other segments. Suppose that a rank sends to one receiver after the other, all
//! segments of a window each time. It stands still forever if its partner in memory begins in lots unrelated to the
//! window.
//!
//! `crates/core/tests/layouts` runs all algorithms on simulated machines in any order, and finds operations that do not
//! end.

/// Messages of at most this many bytes can be sent to a rank that has not issued the operation yet.
pub const EAGER_BYTES: usize = 4 << 10;
/// The same if all ranks share memory: the messages are in their frames.
pub const EAGER_BYTES_HERE: usize = 32 << 10;
/// The least segments that are in flight, however large they are, if the operation has that many.
pub const LEAST_DEPTH: u32 = 4;
/// How many eager messages can be at their receiver, per link and direction.
pub const EAGER_SLOTS: u16 = 64;
/// The same for a link through memory, which has a short round trip, and where each slot takes up cache.
pub const SHARED_SLOTS: u16 = 8;

/// The priority of messages. A rank begins its part when it hears of it, even if its program waits for another call.
pub const MESSAGE_PRIORITY: i32 = i32::MAX;
/// How many eager slots of a connection only messages take.
const KEPT_SLOTS: u16 = 1;

/// The grants of a receiver to a sender, for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    depth: u32,
    done: u32,
    open: bool,
}

/// A grant for segments that were never sent, or for fewer than before: the other side breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a grant of {granted} segments, between {done} granted before and {begun} begun")]
pub struct NotGranted {
    /// The granted segments.
    pub granted: u32,
    /// The segments granted before.
    pub done: u32,
    /// How many segments this sender has begun.
    pub begun: u32,
}

impl Window {
    /// A window of `depth` segments. It is `open` at once if the slots belong to the sender (shared memory) or are
    /// granted for good (reducers). Otherwise the receiver's first grant opens it, when it has issued the operation.
    pub fn new(depth: u32, open: bool) -> Self {
        Self { depth, done: 0, open }
    }

    /// The receiver is done with its first `granted` segments, of `begun` that this sender has begun.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn grant(&mut self, granted: u32, begun: u32) -> Result<(), NotGranted> {
        if granted < self.done || granted > begun {
            return Err(NotGranted { granted, done: self.done, begun });
        }
        (self.done, self.open) = (granted, true);
        Ok(())
    }

    /// Whether there are slots for a segment.
    pub fn has_room(self, segment: u32) -> bool {
        segment < self.done.saturating_add(self.depth)
    }

    /// Whether messages that are not eager can be sent.
    pub fn is_open(self) -> bool {
        self.open
    }

    /// How many segments the receiver is done with.
    pub fn done(self) -> u32 {
        self.done
    }
}

/// The eager slots of a connection, seen from one end: the slots at the other end, and the slots here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    slots: u16,
    free: u16,
    owed: u16,
    /// Whether the other end is to be told of them by a frame of its own.
    tells: bool,
}

impl Credits {
    /// A new connection with `slots` eager slots at each end.
    pub fn new(slots: u16) -> Self {
        Self { slots, free: slots, owed: 0, tells: false }
    }

    /// Takes a slot at the other end, if there is one for an operation of this priority.
    #[must_use = "without a slot nothing can be sent"]
    pub fn take(&mut self, priority: i32) -> bool {
        let free = self.has_any(priority);
        self.free -= u16::from(free);
        free
    }

    /// Whether there is a slot at the other end for an operation of this priority.
    pub fn has_any(self, priority: i32) -> bool {
        let kept = if priority == MESSAGE_PRIORITY { 0 } else { KEPT_SLOTS };
        self.free > kept
    }

    /// The other end has emptied slots. A claim of more slots than there are is capped.
    pub fn returned(&mut self, credits: u16) {
        self.free = self.free.saturating_add(credits).min(self.slots);
    }

    /// A slot here was emptied, and `parked` messages occupy others. Returns whether a frame of its own should report
    /// this to the other end, because half of its slots are empty, or it has no slot left for a message. This is `true`
    /// once, however long the frame takes to leave.
    pub fn owe(&mut self, parked: u16) -> bool {
        self.owed = self.owed.saturating_add(1);
        let has_none = self.owed.saturating_add(parked) >= self.slots;
        let tells = self.owed >= self.slots / 2 || has_none;
        tells && !core::mem::replace(&mut self.tells, tells)
    }

    /// The number of emptied slots to report in the next frame.
    pub fn settle(&mut self) -> u16 {
        self.tells = false;
        core::mem::take(&mut self.owed)
    }

    /// Whether the other end might have a slot left here, with `parked` messages in slots.
    pub fn has_slot(self, parked: u16) -> bool {
        parked < self.slots
    }

    /// Whether the other end might have run out of slots because of `parked` messages here.
    pub fn is_crowded(self, parked: u16) -> bool {
        parked.saturating_add(self.owed) >= self.slots / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_slides_and_never_back() {
        let mut window = Window::new(4, false);
        assert!(!window.is_open() && window.has_room(3) && !window.has_room(4));
        assert_eq!(window.grant(0, 4), Ok(()));
        assert!(window.is_open());
        assert_eq!(window.grant(2, 4), Ok(()));
        assert!(window.has_room(5) && !window.has_room(6));
        assert_eq!(window.grant(1, 4), Err(NotGranted { granted: 1, done: 2, begun: 4 }));
        assert_eq!(window.grant(5, 4), Err(NotGranted { granted: 5, done: 2, begun: 4 }));
        assert_eq!(window.done(), 2);
    }

    #[test]
    fn slots_come_back_once() {
        let (mut sender, mut receiver) = (Credits::new(4), Credits::new(4));
        assert!((0..4).all(|_| sender.take(MESSAGE_PRIORITY)));
        assert!(!sender.take(MESSAGE_PRIORITY));
        assert!(receiver.is_crowded(4));
        assert!(!receiver.owe(0));
        assert!(receiver.owe(0));
        assert!(!receiver.owe(0), "the other end is told once");
        sender.returned(receiver.settle());
        assert_eq!(receiver.settle(), 0);
        assert!((0..3).all(|_| sender.take(MESSAGE_PRIORITY)) && !sender.take(MESSAGE_PRIORITY));
        sender.returned(u16::MAX);
        assert!((0..4).all(|_| sender.take(MESSAGE_PRIORITY)) && !sender.take(MESSAGE_PRIORITY));
    }

    #[test]
    fn messages_find_a_slot_again_and_again_whatever_lies_in_the_others() {
        for slots in [SHARED_SLOTS, EAGER_SLOTS] {
            let (mut sender, mut receiver) = (Credits::new(slots), Credits::new(slots));
            let parked = (0..).take_while(|_| sender.take(MESSAGE_PRIORITY - 1)).count() as u16;
            assert_eq!(parked, slots - KEPT_SLOTS);
            for carried in 0..100 {
                assert!(sender.take(MESSAGE_PRIORITY), "{carried} of {slots}");
                assert!(receiver.owe(parked), "{carried} of {slots}");
                sender.returned(receiver.settle());
            }
        }
    }
}
