//! What becomes of operations when a link breaks.

use super::*;
use crate::{
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
        session::fence::Member,
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
use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

/// More of these can be under way to a rank than a socket takes.
const MESSAGE_BYTES: usize = 4096;

/// Rank 0 of two, and rank 1's end of their socket.
fn rank_0() -> (Engine, UnixStream) {
    let layout = shm::Layout { mates: 1, pool: 4 << 20, heap: 0 };
    let segment = Arc::new(Segment::create("links-test", layout.bytes()).unwrap());
    let staging = Staging::new(segment, layout.pool_at()..layout.pool_at() + layout.pool);
    let poller = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let endpoints = (0..2).map(|rank| Endpoint::new(format!("rank {rank}"), false)).collect();
    let mut engine = Engine::new(0, endpoints, staging, poller, false);
    let settings = Settings {
        id: 0,
        roster: vec![0, 1],
        workers: 2,
        me: 0,
        hosts: vec![0, 1],
        sizing: Sizing { hosts: 2, shared: false, segment_bytes: 0, most_staged: usize::MAX },
        forced: None,
        timeout: Duration::from_secs(60),
    };
    engine.add_group(Group::new(settings, Member::new(0, 0, vec![0, 1])));
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 16 * MESSAGE_BYTES).unwrap();
    engine.connect(1, Link::Tcp(TcpLink::new(Guarded::new(ours.into()).unwrap())));
    (engine, theirs)
}

/// Begins a broadcast of rank 0.
fn broadcast(engine: &mut Engine) -> Arc<Completion> {
    let call = Call {
        collective: Collective::Broadcast { root: 0 },
        dtype: DType::U8,
        op: ReduceOp::Sum,
        count: MESSAGE_BYTES,
    };
    let buffer = Region::zeroed(MESSAGE_BYTES);
    let issue = Issue { group: 0, call, priority: 0, input: buffer.clone(), output: buffer, timeout: None };
    engine.issue(&issue).unwrap()
}

#[test]
fn what_a_broken_link_had_in_line_holds_no_operation_up() {
    let (mut engine, theirs) = rank_0();
    let operations: Vec<Arc<Completion>> = (0..60).map(|_| broadcast(&mut engine)).collect();
    while engine.turn() {}
    assert!(operations[0].is_done() && !operations[59].is_done(), "the socket takes some, not all");
    drop(theirs);
    while engine.turn() {}
    let ends: Vec<_> = operations.iter().map(|operation| operation.result().map(|end| end.is_ok())).collect();
    assert_eq!(ends, [Some(true); 60]);
    assert_eq!(engine.ops.len(), 0);
}
