//! Messages whose other rank ends: what waits for them says that this rank is lost, however far they have come.

use super::*;
use crate::{
    Error,
    completion::Completion,
    core::session::mailbox::Envelope,
    engine::messages::{Posted, ToOrFrom},
    execute::issue::WORLD_GROUP,
    sys::region::{Owned, Region},
    world::groups,
};
use std::sync::Arc;

/// A message that a rank has posted, and its buffer.
struct Waiting {
    completion: Arc<Completion>,
    _buffer: Owned<u8>,
}

/// Has a rank send or receive so many bytes.
fn post(world: &mut VirtualWorld, rank: u32, to_or_from: ToOrFrom, tag: i64, bytes: usize) -> Waiting {
    let buffer = Region::own(vec![0; bytes]);
    let envelope = Envelope { tag, dtype: DType::U8, count: bytes as u64 };
    let posted = Posted::new(envelope, buffer.region().clone(), ms(60_000));
    let now = world.clock.now();
    let posted = world.machine(rank as usize).engine.at(now).post_message(WORLD_GROUP, to_or_from, posted);
    world.settle(rank as usize);
    Waiting { completion: posted.expect("the group is open"), _buffer: buffer }
}

/// How a message has failed.
#[track_caller]
fn failed(world: &mut VirtualWorld, message: &Waiting) -> Error {
    let limit = world.now() + ms(10_000);
    assert!(world.run_until(limit, |_| message.completion.is_done()), "seed {}: it hangs", world.seed);
    message.completion.result().expect("it is done").expect_err("its other rank has ended")
}

/// The sender has said nothing, has announced another message, or is in the middle of this one.
#[test]
fn a_receive_whose_sender_dies_says_that_the_sender_is_lost() {
    const LONG: usize = 4 << 20;
    for seed in 0..30 {
        for sent in [None, Some((8, LONG)), Some((7, LONG))] {
            let mut world = begun(3, 0, seed);
            groups::open_channel(&mut world, [0, 2]);
            let received = post(&mut world, 0, ToOrFrom::From(Some(2)), 7, LONG);
            let sent = sent.map(|(tag, bytes)| post(&mut world, 2, ToOrFrom::To(0), tag, bytes));
            world.run_for(Duration::from_micros(50 * seed));
            if received.completion.is_done() {
                continue;
            }
            world.kill(2);
            drop(sent);
            let error = failed(&mut world, &received);
            let is_named = matches!(error.kind(), ErrorKind::PeerLost { ranks, .. } if *ranks == [2]);
            assert!(is_named, "seed {seed}: {error}");
        }
    }
}
