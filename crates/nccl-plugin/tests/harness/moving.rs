//! Messages of all sizes arrive as they were sent, whatever the order of calls.

use crate::{
    abi::constant,
    net::{Net, Pair, VERSIONS, connect_both, logged, pattern},
};
use std::{ptr, thread};

/// Around what changes how a message travels: nothing, one byte, one piece and two, all streams, and NCCL's largest chunks.
const SIZES: [usize; 9] = [0, 1, 7, 4_097, 65_536, 65_537, 262_145, 1_048_575, 16 << 20];

#[test]
fn messages_of_all_sizes_arrive_as_they_were_sent() {
    for version in VERSIONS {
        let pair = Pair::new(version);
        for (seed, bytes) in SIZES.into_iter().enumerate() {
            let sent = pattern(seed, bytes);
            let mut received = vec![0; bytes];
            let requests = [pair.receive(&mut received), pair.send(&sent)];
            assert_eq!(pair.wait_all(&requests), [bytes, bytes], "version {version}");
            assert!(received == sent, "version {version}: {bytes} bytes differ");
        }
        pair.close();
    }
}

/// What is sent first is received first, also if others are asked about before it.
#[test]
fn several_requests_at_once_complete_in_any_order_of_tests() {
    for version in VERSIONS {
        let pair = Pair::new(version);
        for round in 0..20 {
            let sizes: Vec<usize> = (0..8).map(|index| SIZES[(round + index * 5) % 8]).collect();
            let sent: Vec<Vec<u8>> = sizes.iter().map(|bytes| pattern(round, *bytes)).collect();
            let mut received: Vec<Vec<u8>> = sizes.iter().map(|bytes| vec![0; bytes + round]).collect();
            let mut requests = Vec::new();
            // In some rounds the receives come first, in some the sends.
            if round % 2 == 0 {
                requests.extend(received.iter_mut().map(|into| pair.receive(into)));
                requests.extend(sent.iter().map(|data| pair.send(data)));
            } else {
                requests.extend(sent.iter().map(|data| pair.send(data)));
                requests.extend(received.iter_mut().map(|into| pair.receive(into)));
            }
            if round % 3 == 0 {
                requests.reverse();
            }
            let found = pair.wait_all(&requests);
            assert_eq!(found.iter().sum::<usize>(), 2 * sizes.iter().sum::<usize>());
            for (into, data) in received.iter().zip(&sent) {
                assert!(into[..data.len()] == data[..] && into[data.len()..].iter().all(|byte| *byte == 0));
            }
        }
        pair.close();
    }
}

#[test]
fn a_receive_may_be_larger_than_its_message_and_says_how_large_that_was() {
    let pair = Pair::new(12);
    let mut into = vec![9; 1_000];
    let requests = [pair.receive(&mut into), pair.send(b"short")];
    assert_eq!(pair.wait_all(&requests), [5, 5]);
    assert!(into.starts_with(b"short") && into[5..].iter().all(|byte| *byte == 9));
    pair.close();
}

/// A sender whose receiver has posted nothing is neither complete nor in error.
#[test]
fn a_send_waits_for_its_receive() {
    let pair = Pair::new(11);
    let sent = pattern(1, 64 << 20);
    let send = pair.send(&sent);
    for _ in 0..1_000 {
        assert_eq!(pair.net.test(send), (0, None), "nobody has room for all of it");
    }
    let mut into = vec![0; sent.len()];
    let receive = pair.receive(&mut into);
    assert_eq!(pair.wait_all(&[receive, send]), [sent.len(), sent.len()]);
    assert!(into == sent);
    pair.close();
}

/// A comm has as many requests as NCCL starts. What is more has to wait, and then goes.
#[test]
fn more_requests_than_a_comm_has_are_none_until_one_is_complete() {
    let most = constant("NCCL_NET_MAX_REQUESTS") as usize;
    let pair = Pair::new(8);
    let mut into = vec![vec![0; 4]; most];
    let mut receives: Vec<_> = into.iter_mut().map(|into| pair.receive(into)).collect();
    let mut more = [0; 4];
    assert_eq!(pair.net.receive(pair.receiver, more.as_mut_ptr(), 4), (0, ptr::null_mut()));
    let first = pair.send(b"0000");
    pair.wait_all(&[first, receives[0]]);
    receives[0] = pair.receive(&mut more);
    let data: Vec<[u8; 4]> = (1..=most as u32).map(u32::to_le_bytes).collect();
    let sends: Vec<_> = data.iter().map(|data| pair.send(data)).collect();
    pair.wait_all(&[sends, receives].concat());
    assert_eq!(into[0], b"0000");
    assert!((1..most).all(|index| into[index] == data[index - 1]));
    assert_eq!(more, data[most - 1]);
    pair.close();
}

#[test]
fn a_size_that_nobody_wants_is_not_written() {
    let pair = Pair::new(10);
    let mut into = [0; 3];
    let requests = [pair.receive(&mut into), pair.send(b"abc")];
    for request in requests {
        while pair.net.test_without_size(request) != (0, true) {}
    }
    assert_eq!(&into, b"abc");
    pair.close();
}

#[test]
fn memory_of_the_host_is_registered_and_no_other() {
    for version in VERSIONS {
        let pair = Pair::new(version);
        let mut data = vec![0; 4_096];
        for comm in [pair.sender, pair.receiver] {
            assert_eq!(pair.net.register(comm, &mut data, constant("NCCL_PTR_HOST")), 0);
            let refused = pair.net.register(comm, &mut data, 2);
            assert_eq!(i64::from(refused), constant("ncclInternalError"));
        }
        let (code, request) = pair.net.flush(pair.receiver, data.as_mut_ptr());
        assert!(code == 0 && request.is_null(), "there is nothing to flush");
        pair.close();
    }
}

/// One listener may have several senders, and a handle is used once for each.
#[test]
fn a_listener_takes_one_sender_after_another() {
    let pair = Pair::new(12);
    for seed in 0..3 {
        let mut handle = pair.handle;
        let (sender, receiver) = connect_both(&pair.net, &mut handle, pair.listener);
        assert_eq!(handle, pair.handle, "the handle is as it was");
        let sent = pattern(seed, 100_000);
        let mut into = vec![0; sent.len()];
        let (_, receive) = pair.net.receive(receiver, into.as_mut_ptr(), into.len());
        let (_, send) = pair.net.send(sender, sent.as_ptr(), sent.len());
        pair.wait_all(&[receive, send]);
        assert!(into == sent);
        assert_eq!((pair.net.close("closeSend", sender), pair.net.close("closeRecv", receiver)), (0, 0));
    }
    pair.close();
}

/// A connection may be made before anybody accepts it, and messages sent.
#[test]
fn a_sender_does_not_wait_for_accept() {
    let net = Net::ready(12);
    let mut handle = [0; 128];
    let (_, listener) = net.listen(0, &mut handle);
    assert!(net.accept(listener) == (0, ptr::null_mut()), "nobody has come");
    let sender = loop {
        let (code, comm) = net.connect(0, &mut handle);
        assert_eq!(code, 0, "{:?}", logged());
        if !comm.is_null() {
            break comm;
        }
    };
    let (_, send) = net.send(sender, b"early".as_ptr(), 5);
    assert_eq!(net.wait(send), (0, 5));
    let receiver = loop {
        let (code, comm) = net.accept(listener);
        assert_eq!(code, 0, "{:?}", logged());
        if !comm.is_null() {
            break comm;
        }
    };
    let mut into = [0; 5];
    let (_, receive) = net.receive(receiver, into.as_mut_ptr(), 5);
    assert_eq!(net.wait(receive), (0, 5));
    assert_eq!(&into, b"early");
}

/// NCCL has one thread that moves data and others that make connections.
#[test]
fn threads_use_comms_of_their_own_at_once() {
    thread::scope(|threads| {
        for (seed, version) in VERSIONS.into_iter().enumerate() {
            threads.spawn(move || {
                for round in 0..10 {
                    let pair = Pair::new(version);
                    let sent = pattern(seed * 10 + round, 300_000);
                    let mut into = vec![0; sent.len()];
                    pair.wait_all(&[pair.send(&sent), pair.receive(&mut into)]);
                    assert!(into == sent);
                    pair.close();
                }
            });
        }
    });
}
