//! What goes wrong is an error with NCCL's code and a line of the log, and never a hang or a write beyond a buffer.

use crate::{
    abi::constant,
    net::{Handle, LONG, Net, Pair, VERSIONS, connect_both, logged, pattern},
};
use std::{
    ffi::c_int,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream},
    ptr,
    time::Instant,
};

fn code(name: &str) -> c_int {
    constant(name) as c_int
}

/// Whether a warning has been logged that has all of these parts.
fn warned(parts: &[&str]) -> bool {
    logged().iter().any(|line| line.starts_with("WARN ") && parts.iter().all(|part| line.contains(part)))
}

/// Where a handle's receiver listens: family, port and address are at 11, 12 and 16, as `wire/greeting.rs` says.
fn address(handle: &Handle) -> SocketAddr {
    let octets: [u8; 16] = handle[16..32].try_into().unwrap();
    let ip = Ipv6Addr::from(octets);
    let ip = if handle[11] == 4 { IpAddr::from(ip.to_ipv4_mapped().unwrap()) } else { ip.into() };
    SocketAddr::new(ip, u16::from_le_bytes([handle[12], handle[13]]))
}

/// Whether the listener has hung up on a stranger.
fn is_hung_up(stranger: &mut TcpStream) -> bool {
    stranger.set_nonblocking(true).unwrap();
    let read = stranger.read(&mut [0]);
    !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The hello of one stream, as the same file has it.
fn hello(handle: &Handle, index: u8) -> Vec<u8> {
    let head = [&handle[..11], &[index], &[0; 4]].concat();
    [&head[..], &handle[32..48], &[7; 16]].concat()
}

/// A connection whose sender is the test: all its streams, and the receiver.
fn by_hand(net: &Net) -> (Vec<TcpStream>, crate::net::Pointer) {
    let mut handle = [0; 128];
    let (_, listener) = net.listen(0, &mut handle);
    let streams = (0..handle[10]).map(|index| {
        let mut stream = TcpStream::connect(address(&handle)).unwrap();
        stream.write_all(&hello(&handle, index)).unwrap();
        stream
    });
    let streams: Vec<TcpStream> = streams.collect();
    let begin = Instant::now();
    loop {
        let (code, receiver) = net.accept(listener);
        assert!(code == 0 && begin.elapsed() < LONG, "{:?}", logged());
        if !receiver.is_null() {
            return (streams, receiver);
        }
    }
}

/// A header of a message, as `wire/message.rs` has it.
fn header(number: u32, bytes: u64) -> Vec<u8> {
    [&b"hrbn"[..], &number.to_le_bytes(), &bytes.to_le_bytes()].concat()
}

#[test]
fn a_sender_that_closes_in_the_middle_is_a_remote_error() {
    for version in VERSIONS {
        let pair = Pair::new(version);
        let sent = pattern(3, 64 << 20);
        let mut into = vec![0; sent.len()];
        let (_send, receive) = (pair.send(&sent), pair.receive(&mut into));
        assert_eq!(pair.net.close("closeSend", pair.sender), 0);
        assert_eq!(pair.net.wait(receive), (code("ncclRemoteError"), 0));
        let local = address(&pair.handle).ip().to_string();
        assert!(warned(&["receiving from", &local, "closed the connection"]), "{:?}", logged());
        // It stays one.
        assert_eq!(pair.net.test(receive), (code("ncclRemoteError"), None));
        assert_eq!(pair.net.receive(pair.receiver, into.as_mut_ptr(), 1).0, code("ncclRemoteError"));
    }
}

#[test]
fn a_receiver_that_closes_in_the_middle_is_a_remote_error() {
    for version in VERSIONS {
        let pair = Pair::new(version);
        let sent = pattern(3, 64 << 20);
        let send = pair.send(&sent);
        assert_eq!(pair.net.close("closeRecv", pair.receiver), 0);
        assert_eq!(pair.net.wait(send), (code("ncclRemoteError"), 0));
        assert!(warned(&["sending to", &address(&pair.handle).to_string()]), "{:?}", logged());
    }
}

#[test]
fn a_message_larger_than_its_receive_is_an_error_and_touches_nothing() {
    for version in VERSIONS {
        let pair = Pair::new(version);
        let mut into = vec![9; 200_000];
        let (_, receive) = pair.net.receive(pair.receiver, into.as_mut_ptr(), 99_999);
        let sent = pattern(4, 100_000);
        pair.send(&sent);
        assert_eq!(pair.net.wait(receive), (code("ncclInvalidUsage"), 0));
        assert!(into.iter().all(|byte| *byte == 9), "it has written to the buffer");
        assert!(warned(&["sends 100000 bytes where 99999 were posted", "NCCL_PROTO"]), "{:?}", logged());
    }
}

#[test]
fn strangers_at_the_listening_port_are_ignored() {
    let net = Net::ready(12);
    let mut handle = [0; 128];
    let (_, listener) = net.listen(0, &mut handle);
    let there = address(&handle);
    let call = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(there).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let (mut wrong_token, mut wrong_index) = (hello(&handle, 0), hello(&handle, handle[10]));
    wrong_token[16] ^= 1;
    wrong_index.extend([0; 100]);
    let mut strangers =
        [call(&pattern(5, 1_000)), call(&pattern(6, 48)), call(&wrong_token), call(&wrong_index)];
    // These may still say more.
    let silent = [call(b""), call(b"GET / HTTP/1.0\r\n\r\n"), call(&hello(&handle, 0)[..20])];
    drop(call(b"short"));
    let begin = Instant::now();
    while !strangers.iter_mut().all(is_hung_up) {
        assert_eq!(net.accept(listener), (0, ptr::null_mut()), "strangers are no connection");
        assert!(begin.elapsed() < LONG, "strangers are kept");
    }
    let (sender, receiver) = connect_both(&net, &mut handle, listener);
    let mut into = [0; 2];
    let (_, receive) = net.receive(receiver, into.as_mut_ptr(), 2);
    let (_, send) = net.send(sender, b"ok".as_ptr(), 2);
    assert_eq!((net.wait(send), net.wait(receive)), ((0, 2), (0, 2)));
    assert!(logged().iter().any(|line| line.starts_with("INFO ") && line.contains("is ignored")));
    assert_eq!(net.close("closeListen", listener), 0);
    drop(silent);
}

/// More of them than a listener keeps do not keep the sender away.
#[test]
fn many_silent_strangers_are_forgotten() {
    let net = Net::ready(10);
    let mut handle = [0; 128];
    let (_, listener) = net.listen(0, &mut handle);
    let mut strangers = Vec::new();
    for _ in 0..300 {
        strangers.push(TcpStream::connect(address(&handle)).unwrap());
        assert_eq!(net.accept(listener), (0, ptr::null_mut()));
    }
    let begin = Instant::now();
    while !is_hung_up(&mut strangers[0]) {
        assert!(begin.elapsed() < LONG, "all of them are kept");
    }
    assert!(!is_hung_up(strangers.last_mut().unwrap()));
    connect_both(&net, &mut handle, listener);
}

#[test]
fn a_sender_that_dies_before_all_streams_are_there_is_a_remote_error() {
    let net = Net::ready(12);
    let mut handle = [0; 128];
    let (_, listener) = net.listen(0, &mut handle);
    let mut stream = TcpStream::connect(address(&handle)).unwrap();
    stream.write_all(&hello(&handle, 0)).unwrap();
    let begin = Instant::now();
    let mut other = handle;
    while net.connect(0, &mut other).1.is_null() {
        assert!(begin.elapsed() < LONG, "a connection hangs");
    }
    drop(stream);
    // The sender that came meanwhile is as welcome as ever.
    let (mut has_failed, mut has_other) = (false, false);
    while !(has_failed && has_other) {
        let (found, receiver) = net.accept(listener);
        assert!(found == 0 || found == code("ncclRemoteError"));
        has_failed |= found != 0;
        has_other |= !receiver.is_null();
        assert!(begin.elapsed() < LONG, "nobody notices, or another sender is lost, too");
    }
    assert!(warned(&["accepting from", "before all its streams were there"]), "{:?}", logged());
    connect_both(&net, &mut handle, listener);
}

#[test]
fn bytes_that_are_no_header_end_the_connection() {
    let net = Net::ready(12);
    for wrong in [pattern(6, 16), header(1, 5), header(0, u64::MAX)] {
        let (mut streams, receiver) = by_hand(&net);
        let mut into = vec![9; 100];
        let (_, receive) = net.receive(receiver, into.as_mut_ptr(), into.len());
        streams[0].write_all(&wrong).unwrap();
        let (found, _) = net.wait(receive);
        let expected = if wrong.ends_with(&[0xff; 8]) { "ncclInvalidUsage" } else { "ncclRemoteError" };
        assert_eq!(found, code(expected));
        assert!(into.iter().all(|byte| *byte == 9));
    }
    assert!(warned(&["receiving from", "not the header of the next message"]), "{:?}", logged());
}

/// Whatever a foreign sender does, byte by byte and stream by stream, the messages are as it says.
#[test]
fn a_message_that_comes_byte_by_byte_is_a_message() {
    let net = Net::ready(12);
    let (mut streams, receiver) = by_hand(&net);
    let mut into = [0; 3];
    for number in 0..6_u32 {
        let (_, receive) = net.receive(receiver, into.as_mut_ptr(), into.len());
        let count = streams.len();
        for byte in [header(number, 3), vec![number as u8, 1, 2]].concat() {
            assert_eq!(net.test(receive), (0, None));
            streams[number as usize % count].write_all(&[byte]).unwrap();
        }
        assert_eq!(net.wait(receive), (0, 3));
        assert_eq!(into, [number as u8, 1, 2]);
    }
}

#[test]
fn nobody_listening_is_a_remote_error_that_names_the_address() {
    let net = Net::ready(11);
    let mut handle = [0; 128];
    let (_, listener) = net.listen(0, &mut handle);
    assert_eq!(net.close("closeListen", listener), 0);
    let begin = Instant::now();
    let found = loop {
        let (code, comm) = net.connect(0, &mut handle);
        assert!(comm.is_null() && begin.elapsed() < LONG);
        if code != 0 {
            break code;
        }
    };
    assert_eq!(found, code("ncclRemoteError"));
    assert!(warned(&["connecting to", &address(&handle).to_string(), "refused"]), "{:?}", logged());
}

#[test]
fn a_handle_of_another_network_says_what_to_set() {
    let net = Net::ready(12);
    let mut handle = [0; 128];
    net.listen(0, &mut handle);
    let mut other = handle;
    other[8] = 9;
    assert_eq!(net.connect(0, &mut other).0, code("ncclInvalidUsage"));
    assert!(warned(&["speaks version 9", "install the same one"]), "{:?}", logged());
    assert_eq!(net.connect(0, &mut [0; 128]).0, code("ncclInvalidUsage"));
    assert!(warned(&["NCCL_NET=Herringbone on all ranks"]), "{:?}", logged());
}

#[test]
fn what_is_over_is_told_from_what_is_there() {
    let pair = Pair::new(12);
    let net = Net::ready(12);
    let mut into = [0; 1];
    let (receive, send) = (pair.receive(&mut into), pair.send(b"x"));
    pair.wait_all(&[receive, send]);
    let argument = code("ncclInvalidArgument");
    for request in [receive, send, ptr::null_mut(), ptr::without_provenance_mut(usize::MAX)] {
        assert_eq!(net.test(request), (argument, None), "{request:?}");
    }
    let (sender, receiver, listener) = (pair.sender, pair.receiver, pair.listener);
    assert_eq!(net.close("closeRecv", sender), argument, "a sendComm is no recvComm");
    pair.close();
    assert_eq!(net.close("closeSend", sender), argument);
    assert_eq!(net.send(sender, into.as_ptr(), 1).0, argument);
    assert_eq!(net.receive(receiver, into.as_mut_ptr(), 1).0, argument);
    assert_eq!(net.accept(listener).0, argument);
    assert!(warned(&["no sendComm that is open"]) && warned(&["no listenComm that is open"]));
}

#[test]
fn arguments_that_cannot_be_used_are_refused() {
    let pair = Pair::new(8);
    let argument = code("ncclInvalidArgument");
    assert_eq!(pair.net.send(pair.sender, ptr::null(), 4).0, argument);
    assert_eq!(pair.net.receive(pair.receiver, ptr::null_mut(), 4).0, argument);
    assert_eq!(pair.net.send(pair.sender, b"x".as_ptr(), (-1_i32) as usize).0, argument);
    assert!(warned(&["null for a buffer of 4 bytes"]) && warned(&["the size -1"]), "{:?}", logged());
    let mut into = [0; 4];
    let several = pair.net.receive_several(pair.receiver, 2, into.as_mut_ptr(), 4);
    assert_eq!(several.0, code("ncclInvalidUsage"));
    assert!(warned(&["groups 2 receives"]), "{:?}", logged());
    pair.close();
}
