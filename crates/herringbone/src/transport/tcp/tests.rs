//! Payloads that a link reads: into a user's buffer while that is there, checked, and never out of step.

use super::*;
use crate::{
    core::wire::{Fingerprint, HEADER_BYTES, Header, Kind},
    sys::region::Region,
    transport::{Destination, Inbox, ticket::OpKey},
};
use std::{io::Write, os::unix::net::UnixStream};

/// An engine with one operation that receives results.
struct Desk {
    output: Region,
    arrived: Vec<Header>,
}

impl Inbox for Desk {
    fn admit(&mut self, header: &Header, _: Option<&Fingerprint>) -> Result<Destination, Broken> {
        let at = header.index as usize;
        let op = OpKey { number: 0, place: 0 };
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

fn receive(link: &mut TcpLink, desk: &mut Desk) -> Result<bool, Broken> {
    let mut incoming = link.take_incoming().unwrap();
    let result = incoming.receive(desk);
    link.put_back(incoming);
    result
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
        assert!(receive(&mut link, &mut desk).unwrap());
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
        assert_eq!(receive(&mut link, &mut desk), Err(Broken::Corrupt), "byte {damaged}");
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
    assert!(receive(&mut link, &mut desk).unwrap());
    let taken = owned.take();
    assert_eq!(taken[..20_000 - HEADER_BYTES], bytes[HEADER_BYTES..20_000]);
    other.write_all(&bytes[20_000..]).unwrap();
    while desk.arrived.is_empty() {
        assert!(receive(&mut link, &mut desk).unwrap());
    }
    assert!(taken[20_000 - HEADER_BYTES..].iter().all(|byte| *byte == 0));
    desk.output = Region::zeroed(8);
    other.write_all(&frame(1, b"more")).unwrap();
    assert!(receive(&mut link, &mut desk).unwrap());
    assert_eq!(desk.output.access().unwrap().span().to_vec(), *b"\0more\0\0\0");
}

/// Payloads of zeroes, and of no checksum.
struct Zeroes;

impl Memory for Zeroes {
    fn with<R>(&self, payload: &Payload, f: impl FnOnce(Option<Span<'_>>) -> R) -> R {
        f(Some(Span::of(&mut vec![0; payload.len()])))
    }

    fn checksum(&mut self, _: &Outgoing) -> u32 {
        0
    }
}

/// A small message is written with the large one after it; who has it may answer while most of that is still here.
#[test]
fn a_message_is_handed_over_when_its_own_bytes_are() {
    let (mut link, _other, _) = desk();
    for (segment, bytes) in [(0, 100), (1, 8 << 20)] {
        let mut header = Header::new(Kind::Data, 0, 0, 0);
        (header.segment, header.length) = (segment, bytes);
        let token = Token { op: OpKey { number: 0, place: 0 }, segment, instr: 0 };
        let payload = Payload::Staged(0..bytes as usize);
        link.send(Outgoing { header, fingerprint: None, payload, priority: 0, done: Some(token) }, false);
    }
    let mut done = Vec::new();
    while link.has_room {
        link.flush(&mut Zeroes, || 0, |token| done.push(token.segment)).unwrap();
    }
    assert_eq!(done, [0]);
    assert_eq!(link.give_up().iter().map(|token| token.segment).collect::<Vec<_>>(), [1]);
}
