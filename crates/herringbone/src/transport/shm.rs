//! A link through shared memory: frames in rings. Small payloads go with their frames, in the ring's cell or in a ring
//! next to it; others stay in their sender's memory.
//!
//! Messages to all local ranks can be written once, on the process's [`Board`].

use super::{
    Broken,
    frame::{Body, Frame, Incoming, Next, Wanted},
    lane::{CELLS, RecvHalf, SendHalf},
    layout::{Layout, SLEEPING},
};
use crate::{
    core::session::lane::SHARED_SLOTS,
    sys::{
        doorbell,
        doorbell::Bell,
        segment::{Segment, Words},
        span::Span,
    },
};
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, atomic::Ordering},
};

const _: () = assert!(SHARED_SLOTS as usize <= CELLS / 2);

/// One end of a link between two ranks that map each other's segments.
pub(crate) struct ShmLink {
    out: SendHalf,
    inn: RecvHalf,
    /// The other's board; where there are only two, nobody uses one.
    board: Option<RecvHalf>,
    layout: Layout,
    mine: Arc<Segment>,
    my_local: usize,
    theirs: Arc<Segment>,
    asleep: Words,
    bell: Arc<Bell>,
    waiting: VecDeque<Waiting>,
    /// Whether something waits for room: for the other to know, who makes room.
    full: Words,
    their_full: Words,
    /// Whether something was pushed, or room made, since the other was last [told](Self::announce).
    unannounced: bool,
    made_room: bool,
}

/// From where an incoming frame is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Lane,
    Board,
}

/// What a process writes once for all its local ranks: frames that each of them reads. In use once all of them do, if
/// there are several, and as long as all stay.
#[derive(Default)]
pub(crate) struct Board {
    tails: Vec<Words>,
    out: Option<SendHalf>,
    closed: bool,
}

impl Board {
    /// A local rank reads it from now on.
    pub(crate) fn read_by(&mut self, link: &ShmLink) {
        let ShmLink { layout, my_local, mine, theirs, .. } = link;
        self.tails.push(theirs.words(layout.board_tail(*my_local)));
        if self.tails.len() == layout.locals - 1 && link.board.is_some() && !self.closed {
            self.out =
                Some(SendHalf::new(mine, layout.lane_at(*my_local), self.tails.drain(..), layout.locals));
        }
    }

    /// A local rank does not read it any more, or not from where it stands: it is of no use for good.
    pub(crate) fn close(&mut self) {
        (self.closed, self.out) = (true, None);
        self.tails.clear();
    }

    /// Whether so many receivers, all of them local ranks, are all its readers.
    pub(crate) fn is_read_by(&self, receivers: usize) -> bool {
        self.out.as_ref().is_some_and(|out| out.readers() == receivers)
    }

    /// Writes a frame for all to read, which [neither](Frame::address) is eager nor has credits. Returns whether there was
    /// room for it.
    pub(crate) fn post(&mut self, frame: &Frame<'_>) -> bool {
        self.out.as_mut().is_some_and(|out| out.send(frame.words(), frame.carried))
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("in_use", &self.out.is_some()).finish_non_exhaustive()
    }
}

/// A frame that found no room in its ring, with its payload if that goes to the ring beside it.
struct Waiting {
    words: Vec<u64>,
    carried: Option<Vec<u8>>,
}

impl ShmLink {
    /// `local` and `my_local` are the two ranks' positions among the ranks of their host.
    pub(crate) fn new(
        mine: &Arc<Segment>,
        theirs: Arc<Segment>,
        layout: Layout,
        my_local: usize,
        local: usize,
        bell: Arc<Bell>,
    ) -> Self {
        let tail = |range| [theirs.words(range)];
        let board = || RecvHalf::new(&theirs, layout.lane_at(local), mine.words(layout.board_tail(local)));
        Self {
            out: SendHalf::new(mine, layout.lane_at(local), tail(layout.tail(my_local)), layout.locals),
            inn: RecvHalf::new(&theirs, layout.lane_at(my_local), mine.words(layout.tail(local))),
            board: (layout.locals > 2).then(board),
            layout,
            mine: mine.clone(),
            my_local,
            asleep: theirs.words(SLEEPING),
            bell,
            waiting: VecDeque::new(),
            full: mine.words(layout.full(local)),
            their_full: theirs.words(layout.full(my_local)),
            theirs,
            unannounced: false,
            made_room: false,
        }
    }

    /// The sender's memory at a checked range: a message's payload.
    pub(crate) fn payload(&self, at: usize, length: usize) -> Option<Span<'_>> {
        let end = at.checked_add(length)?;
        (end <= self.theirs.len()).then(|| self.theirs.span(at..end))
    }

    /// The other's segment.
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.theirs
    }

    /// Sends a frame.
    pub(crate) fn send(&mut self, frame: &Frame<'_>) {
        if !self.waiting.is_empty() || !self.out.send(frame.words(), frame.carried) {
            let carried = frame.carried.map(Span::to_vec);
            self.waiting.push_back(Waiting { words: frame.words().to_vec(), carried });
            self.full[0].store(1, Ordering::Relaxed);
        }
        self.unannounced = true;
    }

    /// Pushes frames that had no room before. Returns whether any was pushed.
    pub(crate) fn flush(&mut self) -> bool {
        let mut moved = false;
        while let Some(Waiting { words, carried }) = self.waiting.front()
            && self.out.send(words, carried.as_deref().map(Span::of_shared))
        {
            self.waiting.pop_front();
            (moved, self.unannounced) = (true, true);
        }
        if moved && self.waiting.is_empty() {
            self.full[0].store(0, Ordering::Relaxed);
        }
        moved
    }

    /// Whether something was pushed, or room made, that the other may sleep through.
    pub(crate) fn is_unannounced(&self) -> bool {
        self.unannounced || self.made_room
    }

    /// Wakes the other if it sleeps through what was pushed, or while something waits for the room that was made: before it
    /// went to sleep it said so, and then looked whether there is room. After [`doorbell::published`].
    pub(crate) fn announce(&mut self) {
        let pushed = std::mem::take(&mut self.unannounced);
        let has_room = std::mem::take(&mut self.made_room);
        if pushed || has_room && self.their_full[0].load(Ordering::Relaxed) != 0 {
            // A bell that cannot be rung costs its owner a nap at most.
            let _rung = doorbell::wake_published(&self.asleep[0], &self.bell);
        }
    }

    /// Something is on the board that the other may sleep through.
    pub(crate) fn was_posted(&mut self) {
        self.unannounced = true;
    }

    /// Whether everything is in the ring.
    pub(crate) fn is_flushed(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next frame from a source, if there is one. It stays the next until it is [taken](Self::take).
    pub(crate) fn peek(&self, source: Source) -> Result<Option<Incoming>, Broken> {
        let Some(board) = self.board.as_ref().filter(|_| source == Source::Board) else {
            return if source == Source::Lane { self.inn.peek() } else { Ok(None) };
        };
        match board.peek()? {
            Some((header, _)) if header.eager || header.credits > 0 => {
                Err(Broken::Protocol("a frame for one rank in the ring that all ranks of the host read"))
            }
            Some((_, None | Some(Body::At(_) | Body::Direct(_) | Body::Placed))) => Err(Broken::Protocol(
                "a frame without its message in the ring that all ranks of the host read",
            )),
            next => Ok(next),
        }
    }

    /// Whether the next frame from a source is this one.
    pub(crate) fn next_is(&self, source: Source, wanted: &Wanted) -> Next {
        match (source, &self.board) {
            (Source::Lane, _) => self.inn.next_is(wanted),
            (Source::Board, Some(board)) => board.next_is(wanted),
            (Source::Board, None) => Next::None,
        }
    }

    /// Is done with the next frame from a source and what it carries, of which the other is to be [told](Self::announce).
    pub(crate) fn take(&mut self, source: Source) {
        match (source, &mut self.board) {
            (Source::Lane, _) => {
                self.inn.take();
                self.made_room = true;
            }
            (Source::Board, Some(board)) => board.take(),
            (Source::Board, None) => {}
        }
    }
}

impl fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmLink").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::session::lane::EAGER_BYTES_HERE;
    use crate::core::wire::{Header, Kind};
    use crate::transport::{frame::Common, lane::PAYLOAD_BYTES, layout};

    const LAYOUT: Layout = Layout { locals: 3, pool: 4096, heap: 0 };

    fn segments() -> [Arc<Segment>; 3] {
        std::array::from_fn(|_| Arc::new(Segment::create("board-test", LAYOUT.bytes()).unwrap()))
    }

    fn link(segments: &[Arc<Segment>; 3], me: usize, local: usize) -> ShmLink {
        let bell = Arc::new(Bell::new().unwrap());
        ShmLink::new(&segments[me], segments[local].clone(), LAYOUT, me, local, bell)
    }

    /// Rank 0's board, and the others' links to rank 0.
    fn board(segments: &[Arc<Segment>; 3]) -> (Board, [ShmLink; 2]) {
        let mut board = Board::default();
        for local in [1, 2] {
            assert!(!board.is_read_by(1) && !board.is_read_by(2), "not all read it yet");
            board.read_by(&link(segments, 0, local));
        }
        (board, [1, 2].map(|local| link(segments, local, 0)))
    }

    fn message(sequence: u64) -> Common {
        Common::of(&Header::new(Kind::Data, 7, 0, sequence))
    }

    #[test]
    fn what_is_posted_is_there_for_all_until_they_have_taken_it() {
        for bytes in [0, 4, 80, 81, 4096, 4100, EAGER_BYTES_HERE] {
            let segments = segments();
            let (mut board, mut readers) = board(&segments);
            assert!(!board.is_read_by(1) && board.is_read_by(2));
            let mut post = |sequence: u64| {
                let mut payload = vec![sequence as u8; bytes];
                board.post(&Frame::carrying(&message(sequence), Span::of(&mut payload)))
            };
            let posted = (0..).take_while(|sequence| post(*sequence)).count() as u64;
            assert_eq!(posted, CELLS.min(PAYLOAD_BYTES / bytes.next_multiple_of(128).max(1)) as u64);
            for reader in &mut readers {
                assert!(!post(posted), "one has taken nothing");
                for sequence in 0..posted {
                    let wanted = |sequence| Wanted::new(&message(sequence), bytes, 0);
                    assert!(matches!(reader.next_is(Source::Board, &wanted(sequence + 1)), Next::Other));
                    let Next::Wanted { at, .. } = reader.next_is(Source::Board, &wanted(sequence)) else {
                        panic!("message {sequence} of {bytes} bytes is not there");
                    };
                    let (header, _) = reader.peek(Source::Board).unwrap().unwrap();
                    assert_eq!((header.sequence, header.length as usize), (sequence, bytes));
                    assert_eq!(reader.payload(at, bytes).unwrap().to_vec(), vec![sequence as u8; bytes]);
                    reader.take(Source::Board);
                }
                assert!(reader.peek(Source::Board).unwrap().is_none());
                assert!(reader.peek(Source::Lane).unwrap().is_none());
            }
            assert!(post(posted));
            board.close();
            assert!(!board.is_read_by(2));
        }
    }

    /// Even if a ring holds few messages, a sender that waits for room is woken.
    #[test]
    fn who_sleeps_for_want_of_room_is_woken_when_there_is_some() {
        for bytes in [81, 4096, EAGER_BYTES_HERE] {
            let segments = segments();
            let bell = Arc::new(Bell::new().unwrap());
            let mut sender = link(&segments, 0, 1);
            let theirs = segments[0].clone();
            let mut receiver = ShmLink::new(&segments[1], theirs, LAYOUT, 1, 0, bell.clone());
            let mut take = || {
                receiver.take(Source::Lane);
                doorbell::published();
                receiver.announce();
            };
            let mut send = |sequence| {
                let mut payload = vec![0; bytes];
                sender.send(&Frame::carrying(&message(sequence), Span::of(&mut payload)));
                sender.is_flushed()
            };
            assert!(send(0));
            doorbell::announce_sleep(layout::sleeping(&segments[0]));
            take();
            assert!(!bell.drain().unwrap(), "nothing waits");
            assert!((1..=CELLS as u64 + 1).any(|sequence| !send(sequence)), "a ring without end");
            take();
            assert!(bell.drain().unwrap(), "{bytes}: nobody said that there is room");
            while !sender.is_flushed() {
                sender.flush();
                take();
            }
            doorbell::announce_sleep(layout::sleeping(&segments[0]));
            let _rung = bell.drain();
            take();
            assert!(!bell.drain().unwrap(), "nothing waits any more");
        }
    }

    #[test]
    fn what_does_not_belong_on_a_board_is_refused() {
        let mut payload = [1; 4];
        let mut addressed = |eager, credits| {
            let mut frame = Frame::carrying(&message(1), Span::of(&mut payload));
            frame.address(0, eager, credits);
            let segments = segments();
            let (mut board, [reader, _]) = board(&segments);
            board.post(&frame);
            reader.peek(Source::Board).map(drop)
        };
        assert!(addressed(false, 0).is_ok());
        assert!(matches!(addressed(true, 0), Err(Broken::Protocol(_))));
        assert!(matches!(addressed(false, 2), Err(Broken::Protocol(_))));
        let segments = segments();
        let (mut board, [reader, _]) = board(&segments);
        board.post(&Frame::new(&Header::new(Kind::Grant, 7, 0, 1), None));
        assert!(matches!(reader.peek(Source::Board), Err(Broken::Protocol(_))));
    }
}
