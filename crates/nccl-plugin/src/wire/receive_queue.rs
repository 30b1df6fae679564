//! The next bytes that each stream of a receiver has to read, and their destination.

use super::message::{HEADER_BYTES, HeaderProblem, header_stream, message_bytes, pieces};
use std::{collections::VecDeque, ops::Range};

/// What a stream is to read next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// So many bytes of the next header, at most.
    Header(usize),
    /// These bytes of the message of a slot.
    Payload { slot: usize, range: Range<usize> },
}

/// Why a connection cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageRefusal {
    /// The header is not that of the message that comes next.
    Header(HeaderProblem),
    /// The message is larger than the buffer that was posted for it; both in bytes.
    TooLong { message: usize, posted: usize },
}

/// A receive that no message has been assigned to.
#[derive(Clone, Copy, Debug)]
struct PostedReceive {
    slot: usize,
    bytes: usize,
}

/// A receive whose message's size is known.
#[derive(Clone, Copy, Debug, Default)]
struct OpenedMessage {
    bytes: usize,
    /// How many of its pieces are not read yet.
    left: usize,
    is_open: bool,
}

/// The receives that are posted, by stream.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    /// What each stream is to read of messages whose headers are read: slots and their bytes.
    streams: Vec<VecDeque<Want>>,
    posted: VecDeque<PostedReceive>,
    slots: Vec<OpenedMessage>,
    /// The number of the message whose header comes next.
    next: u32,
    header: [u8; HEADER_BYTES],
    /// How much of that header is read.
    header_bytes: usize,
}

impl ReceiveQueue {
    /// No receive, over so many streams and for so many requests at once.
    pub(crate) fn new(streams: usize, slots: usize) -> Self {
        Self {
            streams: vec![VecDeque::new(); streams],
            posted: VecDeque::new(),
            slots: vec![OpenedMessage::default(); slots],
            next: 0,
            header: [0; HEADER_BYTES],
            header_bytes: 0,
        }
    }

    /// A buffer of so many bytes is there for the message after those of all other receives.
    pub(crate) fn post(&mut self, slot: usize, bytes: usize) {
        self.slots[slot] = OpenedMessage::default();
        self.posted.push_back(PostedReceive { slot, bytes });
    }

    /// The stream that carries the next header.
    pub(crate) fn header_stream(&self) -> usize {
        header_stream(self.next, self.streams.len())
    }

    /// What a stream is to read next, if anything.
    pub(crate) fn want(&self, stream: usize) -> Option<Want> {
        let is_headers = stream == self.header_stream() && !self.posted.is_empty();
        let header = is_headers.then_some(Want::Header(HEADER_BYTES - self.header_bytes));
        self.streams[stream].front().cloned().or(header)
    }

    /// These bytes of the next header were read. Whether it is complete.
    ///
    /// # Errors
    /// If it is none, or its message does not fit.
    ///
    /// # Panics
    /// If these are more than were wanted.
    pub(crate) fn header_read(&mut self, bytes: &[u8]) -> Result<bool, MessageRefusal> {
        self.header[self.header_bytes..][..bytes.len()].copy_from_slice(bytes);
        self.header_bytes += bytes.len();
        let Some(receive) = self.posted.front().copied().filter(|_| self.header_bytes == HEADER_BYTES) else {
            return Ok(false);
        };
        let (number, posted) = (self.next, receive.bytes);
        let message = message_bytes(self.header, number).map_err(MessageRefusal::Header)?;
        if message > posted {
            return Err(MessageRefusal::TooLong { message, posted });
        }
        let mut left = 0;
        for piece in pieces(number, message, self.streams.len()) {
            let want = Want::Payload { slot: receive.slot, range: piece.range };
            self.streams[piece.stream].push_back(want);
            left += 1;
        }
        self.slots[receive.slot] = OpenedMessage { bytes: message, left, is_open: true };
        self.posted.pop_front();
        self.next = number.wrapping_add(1);
        self.header_bytes = 0;
        Ok(true)
    }

    /// A stream has read so many bytes of the payload that it wanted. Whether that is over.
    ///
    /// # Panics
    /// If it wanted no payload, or this is more.
    pub(crate) fn payload_read(&mut self, stream: usize, bytes: usize) -> bool {
        let queue = &mut self.streams[stream];
        let Some(Want::Payload { slot, range }) = queue.front_mut() else {
            panic!("a stream reads the payload that it wants")
        };
        range.start += bytes;
        assert!(range.start <= range.end, "a stream reads at most what it wants");
        if range.start < range.end {
            return false;
        }
        self.slots[*slot].left -= 1;
        queue.pop_front();
        true
    }

    /// How many bytes the message of a slot has, once all of them are read.
    pub(crate) fn received(&self, slot: usize) -> Option<usize> {
        let message = &self.slots[slot];
        (message.is_open && message.left == 0).then_some(message.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{message::header, send_queue::SendQueue},
        *,
    };
    use proptest::prelude::*;

    #[test]
    fn nothing_is_read_before_a_receive_is_posted() {
        let mut queue = ReceiveQueue::new(3, 1);
        assert!((0..3).all(|stream| queue.want(stream).is_none()));
        queue.post(0, 0);
        assert_eq!(queue.want(0), Some(Want::Header(16)));
        assert_eq!((queue.want(1), queue.received(0)), (None, None));
        assert_eq!(queue.header_read(&header(0, 0)[..5]), Ok(false));
        assert_eq!(queue.want(0), Some(Want::Header(11)));
        assert_eq!(queue.header_read(&header(0, 0)[5..]), Ok(true));
        assert_eq!((queue.received(0), queue.want(0)), (Some(0), None));
    }

    #[test]
    fn what_does_not_fit_and_what_is_no_header_is_refused() {
        let refused = |header: [u8; HEADER_BYTES]| {
            let mut queue = ReceiveQueue::new(2, 1);
            queue.post(0, 10);
            let refusal = queue.header_read(&header).unwrap_err();
            assert_eq!(queue.received(0), None);
            assert!((0..2).all(|stream| !matches!(queue.want(stream), Some(Want::Payload { .. }))));
            refusal
        };
        assert_eq!(refused(header(0, 11)), MessageRefusal::TooLong { message: 11, posted: 10 });
        assert_eq!(refused(header(1, 10)), MessageRefusal::Header(HeaderProblem::OfAnother));
        assert_eq!(refused([0; HEADER_BYTES]), MessageRefusal::Header(HeaderProblem::NotOne));
        let largest = MessageRefusal::TooLong { message: usize::MAX, posted: 10 };
        assert_eq!(refused(header(0, u64::MAX)), largest);
    }

    #[test]
    fn a_slot_that_is_used_again_has_not_received_yet() {
        let mut queue = ReceiveQueue::new(1, 1);
        for number in 0..2 {
            queue.post(0, 1);
            assert_eq!(queue.received(0), None);
            queue.header_read(&header(number, 1)).unwrap();
            assert_eq!(queue.received(0), None);
            assert!(queue.payload_read(0, 1));
            assert_eq!(queue.received(0), Some(1));
        }
    }

    /// Moves at most `most` bytes of stream `stream` from one end to the other, as a socket would. Whether any were there.
    fn carry(
        out: &mut SendQueue,
        into: &mut ReceiveQueue,
        stream: usize,
        most: usize,
        log: &mut Vec<Want>,
    ) -> bool {
        let (Some(item), Some(want)) = (out.front(stream).cloned(), into.want(stream)) else { return false };
        let count = match &want {
            Want::Header(left) => {
                let count = most.min(*left).min(item.header().len());
                into.header_read(&item.header()[..count]).unwrap();
                count
            }
            Want::Payload { slot, range } => {
                assert!(item.header().is_empty(), "the receiver reads a header as payload");
                let count = most.min(range.len()).min(item.payload.len());
                assert_eq!((item.slot, item.payload.start), (*slot, range.start));
                log.push(Want::Payload { slot: *slot, range: range.start..range.start + count });
                into.payload_read(stream, count);
                count
            }
        };
        out.written(stream, count);
        true
    }

    proptest! {
        /// Whatever the order in which streams move, and however little at once, every byte ends where it belongs.
        #[test]
        fn both_ends_agree_on_every_byte(
            sizes in proptest::collection::vec(0_usize..300_000, 1..20),
            streams in 1_usize..9,
            moves in proptest::collection::vec((0_usize..8, 1_usize..100_000), 400),
        ) {
            let mut out = SendQueue::new(streams, sizes.len());
            let mut into = ReceiveQueue::new(streams, sizes.len());
            for (slot, bytes) in sizes.iter().enumerate() {
                out.post(slot, *bytes);
                into.post(slot, bytes + slot);
            }
            let mut log = Vec::new();
            for (stream, most) in moves {
                carry(&mut out, &mut into, stream % streams, most, &mut log);
            }
            while (0..streams).any(|stream| carry(&mut out, &mut into, stream, 1 << 30, &mut log)) {}
            for (slot, bytes) in sizes.iter().enumerate() {
                prop_assert!(out.is_written(slot));
                prop_assert_eq!(into.received(slot), Some(*bytes));
                let mut moved: Vec<_> = log.iter().filter_map(|want| match want {
                    Want::Payload { slot: own, range } if *own == slot => Some(range.clone()),
                    _ => None,
                }).collect();
                moved.sort_by_key(|range| (range.start, range.end));
                let end = moved.iter().try_fold(0, |end, range| (range.start == end).then_some(range.end));
                prop_assert_eq!(end, Some(*bytes));
            }
        }
    }
}
