//! Payloads that a link reads: into a user's buffer while that is there, checked, and never out of step. Frames that it refuses.

use super::*;
use crate::core::execution::SegmentStep;
use crate::{
    core::{
        codec::CodecCode,
        session::Role,
        session::handshake::{
            Client, Expected, Hello, Identity, NONCE_BYTES, Policy, Purpose, Server, Versions,
        },
        wire::{FINGERPRINT_BYTES, Fingerprint, HEADER_BYTES, Header, Kind},
    },
    sys::region::Region,
    transport::{Destination, Inbox, ticket::OpKey},
};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

/// An engine with one operation that receives results.
struct ResultInbox {
    output: Region,
    arrived: Vec<Header>,
}

impl Inbox for ResultInbox {
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
fn inbox() -> (TcpLink, UnixStream, ResultInbox) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let link = TcpLink::new(Guarded::new(ours.into()).unwrap(), Keys::default());
    (link, theirs, ResultInbox { output: Region::zeroed(60_000), arrived: Vec::new() })
}

fn receive(link: &mut TcpLink, inbox: &mut ResultInbox) -> Result<bool, Broken> {
    let mut incoming = link.take_incoming().unwrap();
    let result = incoming.receive(inbox);
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
    let (mut link, mut other, mut inbox) = inbox();
    let payload = payload();
    let bytes = [frame(7, &payload), frame(50_001, b"next")].concat();
    for piece in bytes.chunks(7_001) {
        other.write_all(piece).unwrap();
        assert!(receive(&mut link, &mut inbox).unwrap());
    }
    assert_eq!(inbox.arrived.len(), 2);
    let output = inbox.output.access().unwrap().span().to_vec();
    assert_eq!(output[7..40_007], payload);
    assert_eq!(output[50_001..50_005], *b"next");
    assert!(output[40_007..50_001].iter().all(|byte| *byte == 0));
}

#[test]
fn a_damaged_result_breaks_the_link() {
    for damaged in [64, 20_000, 40_063] {
        let (mut link, mut other, mut inbox) = inbox();
        let mut bytes = frame(0, &payload());
        bytes[damaged] ^= 1;
        other.write_all(&bytes).unwrap();
        assert_eq!(receive(&mut link, &mut inbox), Err(Broken::Corrupt), "byte {damaged}");
        assert!(inbox.arrived.is_empty());
    }
}

#[test]
fn a_buffer_that_is_taken_back_is_left_alone_and_the_link_goes_on() {
    let (mut link, mut other, mut inbox) = inbox();
    let owned = Region::own(vec![0u8; 60_000]);
    inbox.output = owned.region().clone();
    let bytes = frame(0, &payload());
    other.write_all(&bytes[..20_000]).unwrap();
    assert!(receive(&mut link, &mut inbox).unwrap());
    let taken = owned.take();
    assert_eq!(taken[..20_000 - HEADER_BYTES], bytes[HEADER_BYTES..20_000]);
    other.write_all(&bytes[20_000..]).unwrap();
    while inbox.arrived.is_empty() {
        assert!(receive(&mut link, &mut inbox).unwrap());
    }
    assert!(taken[20_000 - HEADER_BYTES..].iter().all(|byte| *byte == 0));
    inbox.output = Region::zeroed(8);
    other.write_all(&frame(1, b"more")).unwrap();
    assert!(receive(&mut link, &mut inbox).unwrap());
    assert_eq!(inbox.output.access().unwrap().span().to_vec(), *b"\0more\0\0\0");
}

/// Payloads of zeroes.
struct Zeroes;

impl Memory for Zeroes {
    fn with<R>(&self, payload: &Payload, f: impl FnOnce(Option<Span<'_>>) -> R) -> R {
        f(Some(Span::of(&mut vec![0; payload.len()])))
    }

    fn checksum(&mut self, frame: &Outgoing) -> u32 {
        crc32c::crc32c(&vec![0; frame.payload.len()])
    }
}

/// A small message is written with the large one after it; who has it may answer while most of that is still here.
#[test]
fn a_message_is_handed_over_when_its_own_bytes_are() {
    let (mut link, _other, _) = inbox();
    for (segment, bytes) in [(0, 100), (1, 8 << 20)] {
        let mut header = Header::new(Kind::Data, 0, 0, 0);
        (header.segment, header.length) = (segment, bytes);
        let token = Token { op: OpKey { number: 0, place: 0 }, ready: SegmentStep { segment, step: 0 } };
        let payload = Payload::Staged(0..bytes as usize);
        link.send(Outgoing { header, fingerprint: None, payload, priority: 0, done: Some(token) }, false);
    }
    let mut done = Vec::new();
    while link.has_room {
        link.flush(&mut Zeroes, || 0, |token| done.push(token.ready.segment)).unwrap();
    }
    assert_eq!(done, [0]);
    assert_eq!(link.give_up().iter().map(|token| token.ready.segment).collect::<Vec<_>>(), [1]);
}

/// The keys of both ends of a connection whose caller drew this nonce.
fn keys(nonce: [u8; NONCE_BYTES]) -> [Keys; 2] {
    let identity = Identity { role: Role::Worker, job: 1, rank: 0, world: 1, incarnation: 1 };
    let versions = Versions::CURRENT;
    let expected = Expected { role: Role::Worker, rank: None, incarnation: None };
    let hello = Hello { identity, purpose: Purpose::Data, versions };
    let mut client = Client::new(hello, expected, b"token", nonce);
    let mut server = Server::new(b"token", [0; NONCE_BYTES], Policy { versions, job: None, world: None });
    server.receive(&client.transmit().unwrap()).unwrap();
    client.receive(&server.transmit().unwrap()).unwrap();
    let claim = server.receive(&client.transmit().unwrap()).unwrap().done.unwrap();
    let (welcome, of_server) = claim.accept(identity);
    let of_client = client.receive(&welcome).unwrap().done.unwrap();
    [of_client.keys, of_server.keys]
}

/// What a link with these keys writes: three messages, of which the second has a fingerprint.
fn written(keys: Keys) -> [Vec<u8>; 3] {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut link = TcpLink::new(Guarded::new(ours.into()).unwrap(), keys);
    let fingerprint = Fingerprint {
        sequence: 0,
        collective: 0,
        dtype: 0,
        op: 0,
        order: 0,
        root: 0,
        count: 8,
        plan: 0,
        priority: 0,
        mark: 0,
        codec: CodecCode::default(),
    };
    for index in 0..3 {
        let mut header = Header::new(Kind::Data, 0, 0, 0);
        (header.index, header.length, header.fingerprint) = (index, 8, index == 1);
        let fingerprint = header.fingerprint.then_some(fingerprint);
        let payload = Payload::Staged(0..8);
        link.send(Outgoing { header, fingerprint, payload, priority: 0, done: None }, false);
    }
    link.flush(&mut Zeroes, || 0, |_| {}).unwrap();
    [0, FINGERPRINT_BYTES, 0].map(|more| {
        let mut frame = vec![0; HEADER_BYTES + more + 8];
        theirs.read_exact(&mut frame).unwrap();
        frame
    })
}

/// What a link with these keys makes of such frames, and the numbers of those that it takes.
fn taken(keys: Keys, frames: &[&Vec<u8>]) -> (Result<bool, Broken>, Vec<u16>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut link = TcpLink::new(Guarded::new(ours.into()).unwrap(), keys);
    let mut inbox = ResultInbox { output: Region::zeroed(60_000), arrived: Vec::new() };
    // In pieces that end within headers and fingerprints, which are read again then.
    let bytes: Vec<u8> = frames.iter().copied().flatten().copied().collect();
    for piece in bytes.chunks(50) {
        theirs.write_all(piece).unwrap();
        if let Err(broken) = receive(&mut link, &mut inbox) {
            return (Err(broken), inbox.arrived.iter().map(|header| header.index).collect());
        }
    }
    (Ok(true), inbox.arrived.iter().map(|header| header.index).collect())
}

#[test]
fn frames_that_come_once_and_in_turn_are_taken() {
    let [ours, theirs] = keys([1; NONCE_BYTES]);
    for (from, to) in [(ours, theirs), (theirs, ours)] {
        let [a, b, c] = written(from);
        assert_eq!(taken(to, &[&a, &b, &c]), (Ok(true), vec![0, 1, 2]));
    }
}

#[test]
fn a_frame_that_comes_again_early_or_late_breaks_the_link() {
    let [ours, theirs] = keys([1; NONCE_BYTES]);
    let [a, b, c] = written(ours);
    for (frames, good) in [
        (vec![&a, &a, &b, &c], vec![0]),
        (vec![&a, &b, &b, &c], vec![0, 1]),
        (vec![&a, &b, &a], vec![0, 1]),
        (vec![&b, &a, &c], vec![]),
        (vec![&a, &c, &b], vec![0]),
        (vec![&a, &c], vec![0]),
    ] {
        assert_eq!(taken(theirs, &frames), (Err(Broken::Corrupt), good));
    }
}

#[test]
fn frames_of_another_connection_or_direction_break_the_link() {
    let [ours, theirs] = keys([1; NONCE_BYTES]);
    let [other, _] = keys([2; NONCE_BYTES]);
    let [a, b, _] = written(ours);
    for foreign in [other, theirs, Keys::default()].map(written) {
        assert_eq!(taken(theirs, &[&foreign[0]]), (Err(Broken::Corrupt), vec![]));
        assert_eq!(taken(theirs, &[&a, &foreign[1]]), (Err(Broken::Corrupt), vec![0]));
        assert_eq!(taken(theirs, &[&a, &b, &foreign[2]]), (Err(Broken::Corrupt), vec![0, 1]));
    }
}

/// The fingerprint is checked by itself, so it has to have the seal as well.
#[test]
fn a_fingerprint_of_another_connection_breaks_the_link() {
    let [ours, theirs] = keys([1; NONCE_BYTES]);
    let [other, _] = keys([2; NONCE_BYTES]);
    let ([a, mut b, _], [_, foreign, _]) = (written(ours), written(other));
    let place = HEADER_BYTES..HEADER_BYTES + FINGERPRINT_BYTES;
    b[place.clone()].copy_from_slice(&foreign[place]);
    assert_eq!(taken(theirs, &[&a, &b]), (Err(Broken::Corrupt), vec![0]));
}
