//! The next bytes that each stream of a sender has to write.

use super::message::{HEADER_BYTES, header, header_stream, pieces};
use std::{collections::VecDeque, ops::Range};

/// What one stream carries of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendItem {
    /// The request that the message belongs to.
    pub(crate) slot: usize,
    header: [u8; HEADER_BYTES],
    /// From where on the header is still to be written: all of it is where this stream does not carry it.
    header_from: usize,
    /// Which bytes of the message are still to be written.
    pub(crate) payload: Range<usize>,
}

impl SendItem {
    /// What is still to be written of the header.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header[self.header_from..]
    }

    fn left(&self) -> usize {
        self.header().len() + self.payload.len()
    }
}

/// The messages that are being sent, by stream.
#[derive(Debug)]
pub(crate) struct SendQueue {
    streams: Vec<VecDeque<SendItem>>,
    /// The number of the next message.
    next: u32,
    /// How many items of each slot are not written yet.
    left: Vec<usize>,
}

impl SendQueue {
    /// No message, over so many streams and for so many requests at once.
    pub(crate) fn new(streams: usize, slots: usize) -> Self {
        Self { streams: vec![VecDeque::new(); streams], next: 0, left: vec![0; slots] }
    }

    /// A message of so many bytes is to be sent after all others.
    pub(crate) fn post(&mut self, slot: usize, bytes: usize) {
        let (number, count) = (self.next, self.streams.len());
        self.next = number.wrapping_add(1);
        let header = header(number, bytes as u64);
        let first = SendItem { slot, header, header_from: 0, payload: 0..0 };
        self.streams[header_stream(number, count)].push_back(first);
        self.left[slot] = 1;
        for piece in pieces(number, bytes, count) {
            let queue = &mut self.streams[piece.stream];
            // The first piece goes with the header.
            match queue.back_mut().filter(|_| piece.range.start == 0) {
                Some(item) => item.payload = piece.range,
                None => {
                    queue.push_back(SendItem {
                        slot,
                        header,
                        header_from: HEADER_BYTES,
                        payload: piece.range,
                    });
                    self.left[slot] += 1;
                }
            }
        }
    }

    /// What a stream is to write next, if it is to write.
    pub(crate) fn front(&self, stream: usize) -> Option<&SendItem> {
        self.streams[stream].front()
    }

    /// Whether a stream has more to write than its front.
    pub(crate) fn has_more(&self, stream: usize) -> bool {
        self.streams[stream].len() > 1
    }

    /// A stream has written so many bytes of its front. Whether that is over.
    ///
    /// # Panics
    /// If it has no front, or this is more.
    pub(crate) fn written(&mut self, stream: usize, bytes: usize) -> bool {
        let queue = &mut self.streams[stream];
        let item = queue.front_mut().expect("a stream writes its front");
        let of_header = bytes.min(item.header().len());
        item.header_from += of_header;
        item.payload.start += bytes - of_header;
        assert!(item.payload.start <= item.payload.end, "a stream writes at most its front");
        if item.left() > 0 {
            return false;
        }
        self.left[item.slot] -= 1;
        queue.pop_front();
        true
    }

    /// Whether the whole message of a slot is written.
    pub(crate) fn is_written(&self, slot: usize) -> bool {
        self.left[slot] == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_written_once_all_streams_have_written_their_items() {
        let mut queue = SendQueue::new(2, 2);
        queue.post(0, 100_000);
        queue.post(1, 0);
        let front = queue.front(0).unwrap().clone();
        assert_eq!((front.header().len(), front.payload.clone()), (16, 0..50_048));
        assert_eq!(queue.front(1).unwrap().payload, 50_048..100_000);
        assert!(queue.has_more(1) && !queue.has_more(0));
        assert!(!queue.written(0, 10));
        assert_eq!(queue.front(0).unwrap().header(), &front.header()[10..]);
        assert!(!queue.written(0, 7));
        assert_eq!(queue.front(0).unwrap().payload, 1..50_048);
        assert!(queue.written(0, 50_047));
        assert!(!queue.is_written(0) && queue.front(0).is_none());
        assert!(queue.written(1, 49_952) && queue.is_written(0));
        assert_eq!(queue.front(1).unwrap().header(), header(1, 0));
        assert!(queue.written(1, 16) && queue.is_written(1));
    }

    #[test]
    #[should_panic(expected = "at most its front")]
    fn nothing_writes_more_than_there_is() {
        let mut queue = SendQueue::new(1, 1);
        queue.post(0, 1);
        queue.written(0, 18);
    }
}
