//! Messages between two ranks: which receive gets which, what they move, and what both ranks hear if something is wrong.

use crate::world::{Transport, World};
use herringbone::{Communicator, DType, Error, ErrorKind, MessageRequest, Pending, ReduceOp, Region};
use std::{
    sync::{Barrier, mpsc},
    thread,
    time::{Duration, Instant},
};

const TRANSPORTS: [Transport; 3] = [Transport::Local, Transport::Shm, Transport::Tcp];

/// Numbers of elements around what goes with an announcement, one frame, and several segments.
const COUNTS: [usize; 7] = [0, 1, 248, 249, 1025, 100_003, 1_000_000];

fn values(from: u32, tag: i64, count: usize) -> Vec<f32> {
    (0..count).map(|at| (from * 1000) as f32 + tag as f32 + at as f32).collect()
}

#[test]
fn messages_of_any_length_arrive() {
    for transport in TRANSPORTS {
        World::new(3, transport).run(|comm| {
            let (me, next, before) = (comm.rank(), (comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
            for (tag, count) in (0..).zip(COUNTS) {
                let sent = comm.send_async(values(me, tag, count), next, tag).unwrap();
                let mut got = vec![-1.0; count];
                assert_eq!(comm.recv(&mut got, before, tag).unwrap(), before);
                assert!(got == values(before, tag, count), "{count} over {transport:?}");
                sent.wait().unwrap();
            }
        });
    }
}

/// The receiver asks in the reverse order, and messages of one tag keep theirs.
#[test]
fn tags_may_be_asked_for_in_any_order() {
    for transport in TRANSPORTS {
        World::new(2, transport).run(|comm| {
            let of = |at: i64| values(0, at, if at % 2 == 0 { 3 } else { 5_000 });
            if comm.rank() == 0 {
                let sent: Vec<_> =
                    (0..60).map(|at| comm.send_async(of(at), 1, at / 2 % 15).unwrap()).collect();
                sent.into_iter().for_each(|work| drop(work.wait().unwrap()));
                return;
            }
            for round in 0..2 {
                for tag in (0..15).rev() {
                    for at in [30 * round + 2 * tag, 30 * round + 2 * tag + 1] {
                        let mut got = vec![0.0; of(at).len()];
                        comm.recv(&mut got, 0, tag).unwrap();
                        assert!(got == of(at), "message {at} over {transport:?}");
                    }
                }
            }
        });
    }
}

#[test]
fn both_may_send_first_and_receives_may_be_posted_first() {
    for transport in TRANSPORTS {
        World::new(2, transport).run(|comm| {
            let (me, other) = (comm.rank(), 1 - comm.rank());
            let posted = comm.recv_async::<f32>(300_000, other, 1).unwrap();
            // It blocks, and so does the other's: each is served by the receive that the other has posted.
            comm.send(&values(me, 1, 300_000), other, 1).unwrap();
            assert!(posted.wait().unwrap() == values(other, 1, 300_000));
            let sent = comm.send_async(values(me, 2, 300_000), other, 2).unwrap();
            let mut got = vec![0.0; 300_000];
            comm.recv(&mut got, other, 2).unwrap();
            assert!(got == values(other, 2, 300_000));
            sent.wait().unwrap();
        });
    }
}

#[test]
fn a_receive_from_any_rank_says_whose_message_it_got() {
    for transport in TRANSPORTS {
        World::new(4, transport).run(|comm| {
            if comm.rank() != 0 {
                for round in 0..20 {
                    let count = if round % 2 == 0 { 4 } else { 4_000 };
                    comm.send(&values(comm.rank(), round, count), 0, round % 2).unwrap();
                }
                return;
            }
            let mut next = [0i64, 1].map(|first| [first; 4]);
            for at in 0..60 {
                let tag = at % 2;
                let mut got = vec![0.0; if tag == 0 { 4 } else { 4_000 }];
                let from = comm.recv(&mut got, None, tag).unwrap();
                let round = &mut next[tag as usize][from as usize];
                assert!(got == values(from, *round, got.len()), "round {round} of rank {from}");
                *round += 2;
            }
            assert_eq!(next, [[0, 20, 20, 20], [1, 21, 21, 21]]);
        });
    }
}

#[test]
fn a_rank_can_send_to_itself() {
    for size in [1, 2] {
        World::new(size, Transport::Shm).run(|comm| {
            let me = comm.rank();
            for from in [Some(me), None] {
                let sent = comm.send_async(values(me, 5, 2_000), me, 5).unwrap();
                let mut got = vec![0.0; 2_000];
                assert_eq!(comm.recv(&mut got, from, 5).unwrap(), me);
                assert!(got == sent.wait().unwrap());
            }
            comm.barrier().unwrap();
        });
    }
}

/// Payload bytes that a rank has sent and received.
fn moved(comm: &Communicator) -> (u64, u64) {
    let stats = comm.stats();
    let ways = [stats.workers_shm, stats.workers_tcp];
    (ways.iter().map(|moved| moved.sent).sum(), ways.iter().map(|moved| moved.received).sum())
}

/// A message moves its bytes, an announcement of 64 bytes and an answer of 64 bytes.
#[test]
fn a_message_is_moved_once() {
    const K: u64 = 400_000;
    for transport in TRANSPORTS {
        World::new(3, transport).run(|comm| {
            let before = moved(comm);
            match comm.rank() {
                1 => comm.send(&vec![0u8; K as usize], 2, 0).unwrap(),
                2 => drop(comm.recv(&mut vec![0u8; K as usize], 1, 0).unwrap()),
                _ => {}
            }
            let after = moved(comm);
            let expected = [(0, 0), (K + 64, 64), (64, K + 64)][comm.rank() as usize];
            assert_eq!((after.0 - before.0, after.1 - before.1), expected);
            comm.barrier().unwrap();
        });
    }
}

fn mismatch(error: &Error) -> String {
    let ErrorKind::Mismatch { calls, .. } = error.kind() else { panic!("{error}") };
    let words: Vec<String> = calls.iter().map(|(ranks, call)| format!("{ranks:?} {call}")).collect();
    words.join("; ")
}

/// In the call itself, whatever the length, and the next message arrives.
#[test]
fn both_ranks_are_told_both_lengths() {
    for (transport, count) in
        TRANSPORTS.into_iter().flat_map(|transport| [(transport, 10), (transport, 9_000)])
    {
        World::new(3, transport).run(|comm| {
            let expected = format!(
                "[1] send of {count} f32 with tag 3 to rank 2; [2] recv of {} f32 with tag 3 from rank 1",
                count + 1
            );
            match comm.rank() {
                1 => {
                    let error = comm.send(&values(1, 0, count), 2, 3).unwrap_err();
                    assert_eq!(mismatch(&error), expected, "{error}");
                    comm.send(&values(1, 1, count), 2, 3).unwrap();
                }
                2 => {
                    let error = comm.recv(&mut vec![0.0f32; count + 1], 1, 3).unwrap_err();
                    assert_eq!(mismatch(&error), expected, "{error}");
                    let mut got = vec![0.0; count];
                    comm.recv(&mut got, None, 3).unwrap();
                    assert!(got == values(1, 1, count));
                }
                _ => {}
            }
            comm.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap();
        });
    }
    World::new(2, Transport::Shm).run(|comm| {
        let error = match comm.rank() {
            0 => comm.send(&[1i32; 4], 1, 0).unwrap_err(),
            _ => comm.recv(&mut [1.0f32; 4], 0, 0).unwrap_err(),
        };
        assert_eq!(mismatch(&error), "[0] send of 4 i32 to rank 1; [1] recv of 4 f32 from rank 0");
    });
}

/// What waits alone ends at its own timeout, leaves nothing behind, and later messages meet as if it had not been.
#[test]
fn what_nobody_answers_times_out_by_itself() {
    for transport in TRANSPORTS {
        World::new(2, transport).run(|comm| {
            let other = 1 - comm.rank();
            let limit = Duration::from_millis(300);
            let message = |count: usize, region: &Region| {
                MessageRequest::new(DType::F32, count, region.clone()).tag(9).timeout(limit)
            };
            let wait = |pending: Pending| {
                let error = pending.wait().unwrap_err();
                let ErrorKind::Timeout { missing, .. } = error.kind() else { panic!("{error}") };
                assert_eq!(missing, &[format!("rank {other}")], "{error}");
                error.to_string()
            };
            for count in [3, 30_000] {
                let region = Region::zeroed(4 * count);
                let began = Instant::now();
                let text = wait(comm.submit_recv(other, message(count, &region)).unwrap());
                assert!(
                    text.contains(&format!("recv of {count} f32 with tag 9 from rank {other}")),
                    "{text}"
                );
                wait(comm.submit_recv(None, message(count, &region)).unwrap());
                assert!(began.elapsed() >= 2 * limit);
                // Nobody receives while both wait for that.
                comm.barrier().unwrap();
                let text = wait(comm.submit_send(other, message(count, &region)).unwrap());
                assert!(text.contains(&format!("send of {count} f32 with tag 9 to rank {other}")), "{text}");
                comm.barrier().unwrap();
                let sent = comm.send_async(values(comm.rank(), 7, count), other, 9).unwrap();
                let mut got = vec![0.0; count];
                comm.recv(&mut got, other, 9).unwrap();
                assert!(got == values(other, 7, count), "not what was withdrawn");
                sent.wait().unwrap();
            }
        });
    }
}

/// What a rank has sent before it leaves still comes; what waits for more of it fails, from any rank if all have left.
#[test]
fn a_rank_that_has_left_sends_nothing_more() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (sender, receiver) = mpsc::channel::<()>();
        let receiver = std::sync::Mutex::new(receiver);
        World::new(3, transport).run(|comm| {
            if comm.rank() > 0 {
                comm.send(&values(comm.rank(), 0, 40_000), 0, 0).unwrap();
                if comm.rank() == 2 {
                    receiver.lock().unwrap().recv().unwrap();
                }
                return;
            }
            for from in [1, 2] {
                let mut got = vec![0.0; 40_000];
                comm.recv(&mut got, from, 0).unwrap();
                assert!(got == values(from, 0, 40_000));
            }
            let lost = |error: Error, rank| {
                let ErrorKind::PeerLost { ranks, .. } = error.kind() else { panic!("{error}") };
                assert_eq!(ranks, &[rank], "{error}");
            };
            lost(comm.recv(&mut [0.0f32], 1, 0).unwrap_err(), 1);
            lost(comm.send(&[0.0f32], 1, 0).unwrap_err(), 1);
            let any = comm.recv_async::<f32>(1, None, 0).unwrap();
            thread::sleep(Duration::from_millis(300));
            assert!(!any.is_done(), "rank 2 is there");
            sender.send(()).unwrap();
            let error = any.wait().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::PeerLost { .. }), "{error}");
        });
    }
}

/// A group that is closed lets its messages end; one that is aborted fails them.
#[test]
fn groups_end_with_their_messages() {
    for transport in TRANSPORTS {
        World::new(2, transport).run(|comm| {
            let (me, other) = (comm.rank(), 1 - comm.rank());
            for round in 0..20 {
                let group = comm.subgroup(&format!("closed {round}"), &[0, 1]).unwrap();
                let sent = group.send_async(values(me, 0, 5_000), other, 0).unwrap();
                let got = group.recv_async::<f32>(5_000, other, 0).unwrap();
                group.close().unwrap();
                assert!(matches!(group.send(&[1u8], other, 0).unwrap_err().kind(), ErrorKind::Closed));
                assert!(got.wait().unwrap() == values(other, 0, 5_000));
                sent.wait().unwrap();
                let group = comm.subgroup(&format!("aborted {round}"), &[0, 1]).unwrap();
                let waits = group.recv_async::<f32>(1, None, 0).and_then(|waits| {
                    group.abort();
                    waits.wait()
                });
                // The other one may have aborted it before.
                let error = waits.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::PeerLost { .. }), "{error}");
            }
            comm.barrier().unwrap();
        });
    }
}

/// Before two ranks have met, what one of them has announced can be taken back without a trace.
#[test]
fn what_is_withdrawn_is_not_delivered_when_ranks_meet() {
    for (transport, count) in
        TRANSPORTS.into_iter().flat_map(|transport| [(transport, 3), (transport, 30_000)])
    {
        World::new(2, transport).run(|comm| {
            if comm.rank() == 0 {
                let region = Region::zeroed(4 * count);
                let message =
                    MessageRequest::new(DType::F32, count, region).timeout(Duration::from_millis(300));
                let error = comm.submit_send(1, message).unwrap().wait().unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
                comm.barrier().unwrap();
                comm.send(&values(0, 1, count), 1, 0).unwrap();
            } else {
                comm.barrier().unwrap();
                let mut got = vec![0.0; count];
                comm.recv(&mut got, 0, 0).unwrap();
                assert!(got == values(0, 1, count), "{count} over {transport:?}");
            }
        });
    }
}

/// Also where nobody sends to a rank any more, as all ranks leave.
#[test]
fn a_rank_that_leaves_ends_its_own_receives() {
    for transport in TRANSPORTS {
        World::new(2, transport).run(|comm| {
            comm.barrier().unwrap();
            let waits = [Some(1 - comm.rank()), None].map(|from| comm.recv_async::<f32>(1, from, 4).unwrap());
            comm.close().unwrap();
            for work in waits {
                let error = work.wait().unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::PeerLost { .. }), "{error}");
            }
        });
    }
}

/// More than a rank may announce: they wait at their sender, and answers pass them.
#[test]
fn many_messages_wait_for_their_receiver() {
    World::new(2, Transport::Shm).run(|comm| {
        const MANY: i64 = 17_000;
        if comm.rank() == 0 {
            let sent: Vec<_> = (0..MANY).map(|tag| comm.send_async(vec![tag], 1, tag).unwrap()).collect();
            comm.recv(&mut [0u8], 1, 0).unwrap();
            sent.into_iter().for_each(|work| drop(work.wait().unwrap()));
        } else {
            comm.send(&[1u8], 0, 0).unwrap();
            for tag in 0..MANY {
                let mut got = [0];
                comm.recv(&mut got, None, tag).unwrap();
                assert_eq!(got, [tag]);
            }
        }
    });
}

/// Rank 1 calls the collectives that rank 0 waits in only once its message was taken: small ones, of which some lie at rank 1
/// already, and large ones, which take all memory for messages between hosts. Rank 0 allows rank 1 to send for each of many small
/// ones, and not again with each message.
#[test]
fn messages_pass_collectives_that_their_sender_has_not_called() {
    let both = [3, 100_003].repeat(10);
    let cases = [(100, 10, both.clone()), (40, 250_000, both), (2_000, 10, vec![3; 300])];
    for (transport, (many, count, lengths)) in
        TRANSPORTS.into_iter().flat_map(|transport| cases.clone().map(|case| (transport, case)))
    {
        let issued = Barrier::new(2);
        World::new(2, transport).staging_bytes(8 << 20).run(|comm| {
            let me = comm.rank();
            let sums = || -> Vec<_> {
                let ones = (0..many).map(|_| vec![1f32; count]);
                ones.map(|ones| comm.all_reduce_async(ones, ReduceOp::Sum).unwrap()).collect()
            };
            let lengths = || (0..).zip(lengths.iter().copied());
            comm.barrier().unwrap();
            if me == 0 {
                let received = lengths().map(|(tag, length)| comm.recv_async::<f32>(length, 1, tag).unwrap());
                let received: Vec<_> = received.collect();
                let early = sums();
                issued.wait();
                for ((tag, length), work) in lengths().zip(received) {
                    assert!(
                        work.wait().unwrap() == values(1, tag, length),
                        "message {tag} over {transport:?}"
                    );
                }
                early.into_iter().for_each(|work| assert_eq!(work.wait().unwrap(), vec![2.0; count]));
            } else {
                issued.wait();
                let sent =
                    lengths().map(|(tag, length)| comm.send_async(values(1, tag, length), 0, tag).unwrap());
                let sent: Vec<_> = sent.collect();
                sent.into_iter().for_each(|work| drop(work.wait().unwrap()));
                sums().into_iter().for_each(|work| assert_eq!(work.wait().unwrap(), vec![2.0; count]));
            }
        });
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Many at once between all ranks, beside collectives, with little memory; receives are posted in any order.
#[test]
fn many_messages_at_once_arrive_beside_collectives() {
    for (transport, seed) in TRANSPORTS.into_iter().flat_map(|transport| [(transport, 1), (transport, 2)]) {
        World::new(4, transport).staging_bytes(8 << 20).run(|comm| {
            let me = comm.rank();
            // All ranks roll the same: sender, receiver, tag, length.
            let mut rng = Rng(seed);
            let plan: Vec<(u32, u32, i64, usize)> = (0..300)
                .map(|_| {
                    let (from, to) = (rng.below(4) as u32, rng.below(4) as u32);
                    let (tag, most) = (rng.below(3) as i64, 1 << rng.below(17));
                    (from, to, tag, rng.below(most) as usize)
                })
                .collect();
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (at, (from, to, tag, count)) in plan.iter().enumerate() {
                let content = || values(*from, at as i64, *count);
                if *from == me {
                    sent.push(comm.send_async(content(), *to, *tag).unwrap());
                }
                if *to == me {
                    got.push((comm.recv_async::<f32>(*count, *from, *tag).unwrap(), content()));
                }
                if at % 50 == 0 {
                    let mut ones = vec![1i64; 10_000];
                    comm.all_reduce(&mut ones, ReduceOp::Sum).unwrap();
                    assert_eq!(ones, vec![4; 10_000]);
                }
            }
            for (at, (work, expected)) in got.into_iter().rev().enumerate() {
                assert!(work.wait().unwrap() == expected, "receive {at} of rank {me} over {transport:?}");
            }
            sent.into_iter().for_each(|work| drop(work.wait().unwrap()));
        });
    }
}
