//! Faults that no engine can make up for, done by the world: its checks find each of them.

use super::{Setup, VirtualWorld, calls::Task, exact::verdict, machine::QueuedCall};
use crate::{
    Collective, DType, ReduceOp,
    core::algorithm::Algorithm,
    core::prepare::Call,
    core::wire::{FINGERPRINT_BYTES, HEADER_BYTES, Header, Kind as FrameKind},
    transport::tcp::virtual_link::{LinkConditions, PipeEnd, Tamper},
};
use std::{ops::Range, time::Duration};

/// What comes of a world whose link from rank 0 to rank 1 is tampered with like this.
fn tampered(tamper: Option<Tamper>) -> Result<(), String> {
    // Messages are written whole.
    let conditions = LinkConditions { buffer: 4 << 20, ..LinkConditions::default() };
    let setup = Setup { conditions, forced: Some(Algorithm::radix(vec![])), ..Setup::of(3, 0) };
    let mut world = VirtualWorld::new(setup, 0);
    let sum = |world: &mut VirtualWorld| {
        // Integers: of a float the last bit may not count in a sum.
        let (collective, op) = (Collective::AllReduce, ReduceOp::Sum);
        let call = Call::new(collective, DType::I32, op, 20_000);
        let queued = QueuedCall::new(Task::new(call, 3, &mut world.rng), None);
        world.call(0..3, &queued);
        verdict(world)
    };
    sum(&mut world)?;
    let PipeEnd { link, side } = world.link(0, 1).expect("a link");
    tamper.into_iter().for_each(|tamper| link.tamper(side, tamper));
    sum(&mut world)
}

/// The first data frame with a payload that a write holds in full: its header, where it lies, and where its payload does.
fn first_frame(bytes: &[u8]) -> Option<(Header, Range<usize>, usize)> {
    let mut at = 0;
    while let Some(head) = bytes.get(at..)?.first_chunk::<HEADER_BYTES>() {
        let header = Header::decode(head, crc32c::crc32c).ok()?;
        let fingerprint = if header.fingerprint { FINGERPRINT_BYTES } else { 0 };
        let payload = at + HEADER_BYTES + fingerprint;
        let end = payload + header.length as usize;
        if header.kind == FrameKind::Data && header.length > 0 && end <= bytes.len() {
            return Some((header, at..end, payload));
        }
        at = end;
    }
    None
}

/// A tamper that does this to the first data frame, once.
fn once(mut f: impl FnMut(&mut Vec<u8>, (Header, usize), Range<usize>) + Send + 'static) -> Tamper {
    let mut done = false;
    Box::new(move |mut bytes| {
        if let Some((header, range, payload)) = first_frame(&bytes).filter(|_| !done) {
            done = true;
            f(&mut bytes, (header, payload), range);
        }
        bytes
    })
}

#[test]
fn without_a_fault_nothing_is_found() {
    tampered(None).unwrap();
    tampered(Some(Box::new(|bytes| bytes))).unwrap();
    tampered(Some(once(|_, _, _| {}))).unwrap();
}

/// A tamper that does this to the payload of the first data frame, whose checksums are right all the same.
pub(super) fn payload_once(f: impl Fn(&mut Vec<u8>) + Send + 'static) -> Tamper {
    once(move |bytes, (mut header, payload), range| {
        let mut changed = bytes[payload..range.end].to_vec();
        f(&mut changed);
        header.length = changed.len() as u32;
        header.payload_crc = crc32c::crc32c(&changed);
        bytes.splice(payload..range.end, changed);
        bytes[range.start..range.start + HEADER_BYTES].copy_from_slice(&header.encode(crc32c::crc32c));
    })
}

#[test]
fn a_wrong_number_is_found() {
    let found = tampered(Some(payload_once(|bytes| bytes[0] ^= 1)));
    assert!(found.unwrap_err().contains("has a wrong result on rank"));
}

#[test]
fn a_frame_that_comes_twice_is_found() {
    let found = tampered(Some(once(|bytes, _, range| {
        let again = bytes[range.clone()].to_vec();
        bytes.splice(range.end..range.end, again);
    })));
    assert!(found.is_err());
}

/// As if a packet overtook another one.
#[test]
fn bytes_in_the_wrong_order_are_found() {
    let found = tampered(Some(once(|bytes, _, range| bytes[range].rotate_left(1000))));
    assert!(found.is_err());
}

/// A rank to which time does not pass never gives up.
#[test]
fn a_timer_that_does_not_expire_is_found() {
    let mut ends = [false, true].map(|is_timeless| {
        let mut world = VirtualWorld::new(Setup::of(3, 0), 0);
        world.machine(1).is_timeless = is_timeless;
        world.hang(2);
        let timeout = Some(Duration::from_secs(1));
        let queued = QueuedCall::new(Task::sum(3, 3, &mut world.rng), timeout);
        world.call([1], &queued);
        world.run_to_the_end(Duration::from_secs(5))
    });
    ends.sort_unstable();
    assert_eq!(ends, [false, true]);
}

/// A rank that is not told of a decision does not learn why its call failed.
#[test]
fn a_decision_that_is_lost_is_found() {
    use crate::{ErrorKind, core::session::control::Message};
    let reported = |loses: bool| {
        let mut world = VirtualWorld::new(Setup::of(3, 0), 0);
        if loses {
            world.network.filter =
                Some(Box::new(|to, message| to != 1 || !matches!(message, Message::Decide(_))));
        }
        for rank in 0..3 {
            let count = if rank == 1 { 4 } else { 3 };
            let timeout = Some(Duration::from_secs(1));
            let queued = QueuedCall::new(Task::sum(count, 3, &mut world.rng), timeout);
            world.call([rank], &queued);
        }
        world.run_to_the_end(Duration::from_secs(10));
        let end = world.machine(1).ends().pop().flatten();
        matches!(end, Some(Err(error)) if matches!(error.kind(), ErrorKind::Mismatch { .. }))
    };
    assert!(reported(false) && !reported(true));
}
