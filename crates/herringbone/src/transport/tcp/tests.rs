//! Payloads that a link reads: into a user's buffer while that is there, checked, and never out of step.

use super::*;
use crate::{core::wire::Kind, execute::operation::OpKey, sys::region::Region};
use std::{io::Write, os::unix::net::UnixStream};

/// An engine with one operation that receives results.
struct Desk {
    output: Region,
    arrived: Vec<Header>,
}

impl Inbox for Desk {
    fn admit(&mut self, header: &Header, _: Option<&Fingerprint>) -> Result<Destination, Broken> {
        let at = header.index as usize;
        let op = OpKey { index: 0, version: 0 };
        Ok(Destination::User { op, range: at..at + header.length as usize })
    }

    fn with<R>(&self, destination: &mut Destination, _: usize, f: impl FnOnce(Option<Span<'_>>) -> R) -> R {
        let Destination::User { range, .. } = destination else { return f(None) };
        let access = self.output.access();
        f(access.as_ref().map(|access| access.span().slice(range.clone())))
    }

    fn arrived(&mut self, header: &Header, _: Destination) -> Result<(), Broken> {
        self.arrived.push(*header);
        Ok(())
    }

    fn matters(&self, _: &Header) -> bool {
        true
    }
}

/// A link, the socket at its other end, and who receives.
fn desk() -> (TcpLink, UnixStream, Desk) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let link = TcpLink::new(Guarded::new(ours.into()).unwrap());
    (link, theirs, Desk { output: Region::zeroed(60_000), arrived: Vec::new() })
}

fn payload() -> Vec<u8> {
    (0..40_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A message for an offset of the user's buffer.
fn frame(at: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = Header::new(Kind::Data, 0, 0, 0);
    (header.index, header.length) = (at, payload.len() as u32);
    header.payload_crc = crc32c::crc32c(payload);
    [&header.encode(crc32c::crc32c), payload].concat()
}

#[test]
fn a_result_arrives_in_pieces_in_the_users_buffer() {
    let (mut link, mut other, mut desk) = desk();
    let payload = payload();
    let bytes = [frame(7, &payload), frame(50_001, b"next")].concat();
    for piece in bytes.chunks(7_001) {
        other.write_all(piece).unwrap();
        assert!(link.receive(&mut desk).unwrap());
    }
    assert_eq!(desk.arrived.len(), 2);
    let output = desk.output.access().unwrap().span().to_vec();
    assert_eq!(output[7..40_007], payload);
    assert_eq!(output[50_001..50_005], *b"next");
    assert!(output[40_007..50_001].iter().all(|byte| *byte == 0));
}

#[test]
fn a_damaged_result_breaks_the_link() {
    for damaged in [64, 20_000, 40_063] {
        let (mut link, mut other, mut desk) = desk();
        let mut bytes = frame(0, &payload());
        bytes[damaged] ^= 1;
        other.write_all(&bytes).unwrap();
        assert_eq!(link.receive(&mut desk), Err(Broken::Corrupt), "byte {damaged}");
        assert!(desk.arrived.is_empty());
    }
}

#[test]
fn a_buffer_that_is_taken_back_is_left_alone_and_the_link_goes_on() {
    let (mut link, mut other, mut desk) = desk();
    let owned = Region::own(vec![0u8; 60_000]);
    desk.output = owned.region().clone();
    let bytes = frame(0, &payload());
    other.write_all(&bytes[..20_000]).unwrap();
    assert!(link.receive(&mut desk).unwrap());
    let taken = owned.take();
    assert_eq!(taken[..20_000 - HEADER_BYTES], bytes[HEADER_BYTES..20_000]);
    other.write_all(&bytes[20_000..]).unwrap();
    while desk.arrived.is_empty() {
        assert!(link.receive(&mut desk).unwrap());
    }
    assert!(taken[20_000 - HEADER_BYTES..].iter().all(|byte| *byte == 0));
    desk.output = Region::zeroed(8);
    other.write_all(&frame(1, b"more")).unwrap();
    assert!(link.receive(&mut desk).unwrap());
    assert_eq!(desk.output.access().unwrap().span().to_vec(), *b"\0more\0\0\0");
}
