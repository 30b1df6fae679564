//! What has come before it is asked for.

use crate::world::{Transport, World};
use herringbone::{Communicator, ErrorKind};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Waits until something has come in a group. Panics after a minute.
fn arrives(pair: &Communicator) {
    let began = Instant::now();
    while !pair.has_arrived().unwrap() {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing has come");
        thread::yield_now();
    }
}

/// Links are made for it, and who is last to send is last to be seen.
#[test]
fn a_rank_sees_which_of_others_has_sent() {
    for transport in [Transport::Local, Transport::Shm, Transport::Tcp] {
        World::new(3, transport).run(|comm| {
            let me = comm.rank();
            let pairs = [1, 2].map(|other| {
                let is_in = me == 0 || me == other;
                is_in.then(|| comm.subgroup(&format!("to 0 from {other}"), &[0, other]).unwrap())
            });
            let mut value = [u64::from(me)];
            match (me, &pairs) {
                (0, [Some(first), Some(second)]) => {
                    arrives(second);
                    assert!(!first.has_arrived().unwrap(), "rank 1 has sent nothing");
                    second.broadcast(&mut value, 1).unwrap();
                    assert_eq!(value, [2]);
                    assert!(!second.has_arrived().unwrap(), "it was received");
                    comm.barrier().unwrap();
                    arrives(first);
                    first.broadcast(&mut value, 1).unwrap();
                    assert_eq!(value, [1]);
                }
                (1, [Some(pair), _]) => {
                    comm.barrier().unwrap();
                    pair.broadcast(&mut value, 1).unwrap();
                }
                (_, [_, Some(pair)]) => {
                    pair.broadcast(&mut value, 1).unwrap();
                    comm.barrier().unwrap();
                }
                _ => unreachable!("each rank has its groups"),
            }
            comm.barrier().unwrap();
        });
    }
}

/// What it sent before still comes.
#[test]
fn a_rank_that_has_left_sends_nothing_more() {
    for transport in [Transport::Shm, Transport::Tcp] {
        World::new(2, transport).run(|comm| {
            let pair = comm.subgroup("pair", &[0, 1]).unwrap();
            let mut value = [7 + u64::from(comm.rank())];
            if comm.rank() == 1 {
                pair.broadcast(&mut value, 1).unwrap();
                return;
            }
            arrives(&pair);
            pair.broadcast(&mut value, 1).unwrap();
            assert_eq!(value, [8]);
            let error = loop {
                match pair.has_arrived() {
                    Ok(arrived) => assert!(!arrived),
                    Err(error) => break error,
                }
                thread::yield_now();
            };
            assert!(matches!(error.kind(), ErrorKind::PeerLost { ranks, .. } if ranks == &[1]), "{error}");
        });
    }
}
