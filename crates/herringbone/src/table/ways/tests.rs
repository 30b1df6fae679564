//! Requests that fail, and requests that go again.

use super::*;
use crate::{
    core::{
        session::{Role, handshake::Keys},
        table::ValueCodec,
    },
    sys::{fork::Guarded, span::Span},
    table::calls::CallFailure,
    transport::tcp::TcpLink,
};
use std::os::unix::net::UnixStream;

/// A call of a range, which servers say nobody owns.
fn unanswered(ways: &mut RequestWays, range: u32) -> Arc<TableCall> {
    let call = TableCall::new();
    call.opens();
    let message = RequestMessage::new(range, TableRequest::Locate, KeyForm::Whole, Span::of_shared(&[]));
    ways.send(Sent { range, call: call.clone(), place: 0..0, message: message.unwrap() });
    ways.answered(1, ways.last, TableAnswer::Elsewhere { owner: None, is_lost: false }, &[]);
    call
}

#[test]
fn a_call_that_waits_for_servers_that_refuse_each_other_fails_with_why() {
    let mut ways = RequestWays::new(3, true);
    ways.servers[1].absent = None;
    ways.set_patience(Duration::ZERO);
    let call = unanswered(&mut ways, 0);
    ways.give_up_lost();
    assert!(call.failure().is_none(), "a group may form yet");
    ways.is_other(2, "it has another --replicas");
    ways.give_up_lost();
    match call.failure() {
        Some(CallFailure::Lost { reason, .. }) => assert_eq!(reason, "it has another --replicas"),
        other => panic!("{other:?}"),
    }
}

/// The other end of a connection, which knows lists of keys.
struct ServerEnd {
    link: MessageLink,
    known: KnownKeys,
}

impl ServerEnd {
    /// One to which `ways` has a new connection.
    fn of(ways: &mut RequestWays, server: u32) -> Self {
        let (here, there) = UnixStream::pair().unwrap();
        let link = |socket: UnixStream| {
            socket.set_nonblocking(true).unwrap();
            TcpLink::new(Guarded::new(socket.into()).unwrap(), Keys::default())
        };
        let identity = Identity { role: Role::TableServer, job: 0, rank: server, world: 2, incarnation: 7 };
        ways.connected(server, MessageLink::of_worker(link(here)), &identity);
        Self { link: MessageLink::of_server(link(there)), known: KnownKeys::default() }
    }

    /// What has come: each request's number, its bytes, its keys and the values behind it.
    fn receive(&mut self, ways: &mut RequestWays, server: u32) -> Vec<ReceivedPush> {
        ways.flush(server).unwrap();
        let mut received = Vec::new();
        self.link.receive(&mut received).unwrap();
        let read = |ReceivedPayload { number, payload }: ReceivedPayload| {
            let behind = &payload[RequestAddress::BYTES..];
            let (request, values) = TableRequest::decode_knowing(behind, &mut self.known).unwrap();
            let keys = request.keys().unwrap().iter().collect();
            ReceivedPush { number, bytes: payload.len(), keys, values: values.to_vec() }
        };
        received.into_iter().map(read).collect()
    }
}

#[derive(Debug, PartialEq)]
struct ReceivedPush {
    number: u64,
    bytes: usize,
    keys: Vec<u64>,
    values: Vec<u8>,
}

/// Sends a push of 100 keys, whose values are all `value`.
fn push(ways: &mut RequestWays, first: u64, value: u8) {
    let keys = RowKeys::Listed((first..first + 100).collect());
    let request = TableRequest::Push { table: 1, step: 0, ends: false, codec: ValueCodec::PLAIN, keys };
    let (form, values) = (ways.form(0, &request), [value; 400]);
    let message = RequestMessage::new(0, request, form, Span::of_shared(&values)).unwrap();
    let call = TableCall::new();
    call.opens();
    ways.send(Sent { range: 0, call, place: 0..0, message });
}

/// How many bytes pushes have on the way, and whether each has its own keys and values.
fn sizes(received: &[ReceivedPush]) -> Vec<usize> {
    for ReceivedPush { number, keys, values, .. } in received {
        let first = 1000 * ((number - 1) % 2);
        assert_eq!(*keys, (first..first + 100).collect::<Vec<u64>>(), "push {number}");
        assert_eq!(*values, [*number as u8; 400], "push {number}");
    }
    received.iter().map(|push| push.bytes).collect()
}

#[test]
fn what_goes_again_has_its_keys_as_the_connection_that_it_goes_over_knows_them() {
    let mut ways = RequestWays::new(2, true);
    let push_four = |ways: &mut RequestWays, from: u8| {
        (from..from + 4).for_each(|number| push(ways, 1000 * u64::from((number - 1) % 2), number));
    };
    let mut first = ServerEnd::of(&mut ways, 0);
    push_four(&mut ways, 1);
    // The head of a request, and the number of a list; the first of each list has its length and its keys, too.
    let (known, taught) = (5 + 1 + 4 + 8 + 1 + 1 + 1 + 8 + 400, 4 + 800);
    let fresh = [known + taught, known + taught, known, known];
    assert_eq!(sizes(&first.receive(&mut ways, 0)), fresh);
    // The connection is lost: all go again on the next one, where nothing is known.
    ways.lost(0, "cut");
    let mut again = ServerEnd::of(&mut ways, 0);
    ways.send_again();
    assert_eq!(sizes(&again.receive(&mut ways, 0)), fresh);
    // One that is put in line before the connection is lost, and never leaves it, has taught nothing.
    ways.lost(0, "cut");
    let _unread = ServerEnd::of(&mut ways, 0);
    ways.send_again();
    ways.lost(0, "cut");
    let mut again = ServerEnd::of(&mut ways, 0);
    ways.send_again();
    assert_eq!(sizes(&again.receive(&mut ways, 0)), fresh);
    // They are sent elsewhere, where nothing is known, either; and back, where all is.
    let mut other = ServerEnd::of(&mut ways, 1);
    let elsewhere = |owner| TableAnswer::Elsewhere { owner: Some(owner), is_lost: false };
    (1..=4).for_each(|number| ways.answered(0, number, elsewhere(1), &[]));
    ways.send_again();
    assert_eq!(sizes(&other.receive(&mut ways, 1)), fresh);
    ways.answered(1, 1, elsewhere(0), &[]);
    ways.send_again();
    assert_eq!(sizes(&again.receive(&mut ways, 0)), [known; 4]);
}
