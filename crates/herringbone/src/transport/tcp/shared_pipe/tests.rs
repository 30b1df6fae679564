//! Bytes come out as they went in, nobody sleeps through them, and a partner that breaks the rules does no harm.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::unix::net::UnixStream;

struct Ends {
    maker: SharedPipe,
    other: SharedPipe,
    segment: Arc<Segment>,
}

fn ends() -> Ends {
    let sockets = UnixStream::pair().unwrap();
    let [one, two] = [sockets.0, sockets.1].map(|socket| Guarded::new(OwnedFd::from(socket)).unwrap());
    let segment = Arc::new(Segment::create("pipe-test", SEGMENT_BYTES).unwrap());
    let same = |bell: &Bell| Bell::from_fd(bell.fd().try_clone_to_owned().unwrap()).unwrap();
    let [first, second] = [Bell::new().unwrap(), Bell::new().unwrap()];
    let parts = SharedParts { segment: segment.clone(), own_bell: same(&second), their_bell: same(&first) };
    let maker = SharedParts { segment: segment.clone(), own_bell: first, their_bell: second };
    Ends {
        maker: SharedPipe::new(one, maker, MemorySide::Maker).unwrap(),
        other: SharedPipe::new(two, parts, MemorySide::Other).unwrap(),
        segment,
    }
}

fn is_readable(pipe: &SharedPipe, milliseconds: i64) -> bool {
    let limit = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    poll(&mut [PollFd::from_borrowed_fd(pipe.fd().unwrap(), PollFlags::IN)], Some(&limit)).unwrap() == 1
}

fn read(pipe: &SharedPipe, space: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; space];
    let (head, tail) = bytes.split_at_mut(space / 3 + 1);
    let read = pipe.read(Span::of(head), Some(Span::of(tail)))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Reads as the poller says, and nothing of what is there twice or never.
#[test]
fn nobody_sleeps_through_bytes_or_room() {
    let Ends { maker, other, .. } = ends();
    let all: Vec<u8> = (0..5 * RING_BYTES + 77).map(|at| ((at * 7) >> 3) as u8).collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut at, mut size) = (0, 1);
            while at < all.len() {
                size = size * 5 % 300_007 + 1;
                let end = (at + size).min(all.len());
                let middle = at + (end - at) / 2;
                let parts = [IoVec::Bytes(&all[at..middle]), IoVec::Bytes(&all[middle..end])];
                match maker.write(&parts, false) {
                    Ok(written) => at += written,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        assert!(is_readable(&maker, 20_000), "nobody said that there is room");
                        assert_eq!(read(&maker, 1).unwrap_err().kind(), io::ErrorKind::WouldBlock);
                    }
                }
            }
        });
        let (mut found, mut size) = (Vec::new(), 1);
        while found.len() < all.len() {
            assert!(is_readable(&other, 20_000), "{} of {} bytes", found.len(), all.len());
            size = size * 3 % 200_003 + 1;
            match read(&other, size) {
                Ok(bytes) => found.extend(bytes),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        writer.join().unwrap();
        assert!(found == all);
    });
}

#[test]
fn what_was_written_is_read_before_the_end() {
    let Ends { maker, other, .. } = ends();
    assert_eq!(maker.write(&[IoVec::Bytes(b"last words")], false).unwrap(), 10);
    drop(maker);
    assert!(is_readable(&other, 0));
    assert_eq!(read(&other, 4).unwrap(), b"last");
    assert!(is_readable(&other, 0));
    assert_eq!(read(&other, 20).unwrap(), b" words");
    assert!(is_readable(&other, 0));
    assert_eq!(read(&other, 20).unwrap(), b"");
}

#[test]
fn counts_that_cannot_be_are_refused() {
    for (written, taken) in [(RING_BYTES as u64 + 1, 1), (u64::MAX, 1 << 20), (1 << 63, 1 << 63)] {
        let Ends { maker, other, segment } = ends();
        let words = segment.atomics(0..2 * WORDS);
        words[WRITTEN].store(written, Ordering::Relaxed);
        assert_eq!(read(&other, 10).unwrap_err().kind(), io::ErrorKind::InvalidData);
        words[READ].store(taken, Ordering::Relaxed);
        let refused = maker.write(&[IoVec::Bytes(b"x")], false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
