//! In which order messages leave, and what becomes of operations when a link breaks.

use super::*;
use crate::{
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
        session::fence::Member,
        wire::{HEADER_BYTES, Header, Kind},
    },
    engine::{
        begin::Issue,
        endpoint::Endpoint,
        group::{Group, Settings},
    },
    execute::prepare::{Call, Sizing},
    sys::{fork::Guarded, region::Region, segment::Segment},
    transport::tcp::TcpLink,
    work::Completion,
};
use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

/// More of these can be under way to a rank than a socket takes.
const MESSAGE_BYTES: usize = 4096;

/// Rank 0 of some ranks, and the others' ends of their sockets.
fn rank_0(ranks: u32, forced: Option<&str>) -> (Engine, Vec<UnixStream>) {
    let layout = shm::Layout { mates: 1, pool: 4 << 20, heap: 0 };
    let segment = Arc::new(Segment::create("links-test", layout.bytes()).unwrap());
    let staging = Staging::new(segment, layout.pool_at()..layout.pool_at() + layout.pool);
    let poller = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let endpoints = (0..ranks).map(|rank| Endpoint::new(format!("rank {rank}"), false)).collect();
    let mut engine = Engine::new(0, endpoints, staging, poller, false);
    let settings = Settings {
        id: 0,
        roster: (0..ranks).collect(),
        workers: ranks,
        me: 0,
        hosts: (0..ranks).collect(),
        sizing: Sizing { hosts: ranks, shared: false, segment_bytes: 0, most_staged: 3 << 20 },
        forced: forced.map(|name| name.parse().unwrap()),
        timeout: Duration::from_secs(60),
    };
    engine.add_group(Group::new(settings, Member::new(0, 0, (0..ranks).collect())));
    let ends = (1..ranks).map(|rank| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 16 * MESSAGE_BYTES).unwrap();
        engine.connect(rank, Link::Tcp(TcpLink::new(Guarded::new(ours.into()).unwrap())));
        theirs
    });
    let ends = ends.collect();
    (engine, ends)
}

/// Begins an operation.
fn begin(engine: &mut Engine, collective: Collective, count: usize) -> Arc<Completion> {
    let call = Call { collective, dtype: DType::U8, op: ReduceOp::Sum, count };
    let buffer = Region::zeroed(count);
    let issue = Issue { group: 0, call, priority: 0, input: buffer.clone(), output: buffer, timeout: None };
    engine.issue(&issue).unwrap()
}

#[test]
fn what_a_broken_link_had_in_line_holds_no_operation_up() {
    let (mut engine, theirs) = rank_0(2, None);
    let operations: Vec<Arc<Completion>> =
        (0..60).map(|_| begin(&mut engine, Collective::Broadcast { root: 0 }, MESSAGE_BYTES)).collect();
    while engine.turn() {}
    assert!(operations[0].is_done() && !operations[59].is_done(), "the socket takes some, not all");
    drop(theirs);
    while engine.turn() {}
    let ends: Vec<_> = operations.iter().map(|operation| operation.result().map(|end| end.is_ok())).collect();
    assert_eq!(ends, [Some(true); 60]);
    assert_eq!(engine.ops.len(), 0);
}

/// Takes what has come, and lets rank 0 go on, until no more comes.
fn drain(engine: &mut Engine, mut stream: &UnixStream) -> Vec<u8> {
    let mut taken = Vec::new();
    let mut room = [0; 1 << 16];
    loop {
        while engine.turn() {}
        match stream.read(&mut room) {
            Ok(bytes) => taken.extend_from_slice(&room[..bytes]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return taken;
            }
        }
    }
}

/// Rank 3 has nothing for as long as rank 1 has not taken all that is in flight, then rank 2.
#[test]
fn messages_leave_to_one_rank_after_the_other() {
    const PART: usize = 1 << 18;
    let (mut engine, theirs) = rank_0(4, Some("radix"));
    begin(&mut engine, Collective::AllReduce, 4 * PART);
    // The grant that each gets is what it would give.
    for mut stream in &theirs {
        let grant = drain(&mut engine, stream);
        assert_eq!(grant.len(), HEADER_BYTES);
        stream.write_all(&grant).unwrap();
    }
    while engine.turn() {}
    for (stream, parts) in theirs.iter().zip([1, 2, 3]) {
        assert_eq!(engine.stats.workers_tcp.sent as usize, parts * PART);
        let taken = drain(&mut engine, stream).len();
        assert!((PART..PART + PART / 8).contains(&taken), "{taken} of turn {parts}");
    }
}

/// A frame that another rank sends about the operation that a grant is for.
fn word(grant: &[u8], kind: Kind, number: u16) -> Vec<u8> {
    let grant = Header::decode(grant.first_chunk().unwrap(), crc32c::crc32c).unwrap();
    Header { kind, index: number, ..grant }.encode(crc32c::crc32c).to_vec()
}

/// What kinds of frames came.
fn kinds(taken: &[u8]) -> Vec<Kind> {
    let header = |bytes: &[u8; HEADER_BYTES]| Header::decode(bytes, crc32c::crc32c).unwrap().kind;
    taken.as_chunks().0.iter().map(header).collect()
}

/// Rank 1 has nothing before it clears it and rank 2 has taken what is its.
#[test]
fn a_turn_begins_when_it_is_cleared_and_the_one_before_is_taken() {
    const PART: usize = 1 << 18;
    let (mut engine, theirs) = rank_0(4, Some("radix(2,2)"));
    begin(&mut engine, Collective::AllGather, PART);
    let invited: Vec<Vec<u8>> = theirs.iter().map(|stream| drain(&mut engine, stream)).collect();
    let expected = [&[Kind::Grant][..], &[Kind::Grant, Kind::Clear], &[]];
    assert_eq!(invited.iter().map(|taken| kinds(taken)).collect::<Vec<_>>(), expected);
    let mut sends_after = |rank: usize, kind: Kind, number: u16| {
        let word = word(&invited[rank - 1], kind, number);
        (&theirs[rank - 1]).write_all(&word).unwrap();
        let [to_1, to_2] = [0, 1].map(|at| drain(&mut engine, &theirs[at]).len() / PART);
        (to_1, to_2)
    };
    assert_eq!(sends_after(2, Kind::Grant, 0), (0, 0));
    assert_eq!(sends_after(1, Kind::Grant, 0), (0, 0));
    assert_eq!(sends_after(1, Kind::Clear, 1), (0, 0));
    assert_eq!(sends_after(2, Kind::Clear, 0), (0, 1));
    assert_eq!(sends_after(2, Kind::Taken, 0), (1, 0));
}

/// Else rank 1 would take the message for a breach of the protocol, and rank 0 for lost; or wait for ever.
#[test]
fn a_turn_whose_last_receiver_is_lost_begins_when_it_is_cleared() {
    const PART: usize = 1 << 18;
    for cleared_before in [false, true] {
        let (mut engine, mut theirs) = rank_0(4, Some("radix(2,2)"));
        begin(&mut engine, Collective::AllGather, PART);
        let invited: Vec<Vec<u8>> = theirs.iter().map(|stream| drain(&mut engine, stream)).collect();
        let sends_after = |engine: &mut Engine, mut stream: &UnixStream, rank: usize, kind, number| {
            stream.write_all(&word(&invited[rank - 1], kind, number)).unwrap();
            drain(engine, stream).len() / PART
        };
        assert_eq!(sends_after(&mut engine, &theirs[1], 2, Kind::Grant, 0), 0);
        assert_eq!(sends_after(&mut engine, &theirs[1], 2, Kind::Clear, 0), 1);
        assert_eq!(sends_after(&mut engine, &theirs[0], 1, Kind::Grant, 0), 0);
        if cleared_before {
            assert_eq!(sends_after(&mut engine, &theirs[0], 1, Kind::Clear, 1), 0);
        }
        drop(theirs.remove(1));
        assert_eq!(drain(&mut engine, &theirs[0]).len() / PART, usize::from(cleared_before));
        if !cleared_before {
            assert_eq!(sends_after(&mut engine, &theirs[0], 1, Kind::Clear, 1), 1);
        }
    }
}
