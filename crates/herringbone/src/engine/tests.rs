//! In which order messages leave, and what becomes of operations when a link breaks.

use super::*;
use crate::{
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
        group::Group as FoldGroup,
        plan::Guidance,
        prepare::{Call, Sizing},
        session::{
            Parameters,
            control::{Introduction, Message},
            fence::Member,
            handshake::Keys,
            lane::{EAGER_SLOTS, MESSAGE_PRIORITY},
            membership::{Process, Roster},
        },
        wire::{HEADER_BYTES, Header, Kind},
    },
    engine::{
        early::Content,
        group::Settings,
        outbox::{Event, Interest},
    },
    observe::{OperationState, Sink, TraceEvent},
    sys::{fork::Guarded, region::Region, segment::Segment},
    transport::{endpoint::Link, layout, tcp::TcpLink},
};
use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

/// More of these can be under way to a rank than a socket takes.
const MESSAGE_BYTES: usize = 4096;

/// Rank 0 of some ranks, and the others' ends of their sockets.
fn rank_0(ranks: u32, forced: Option<&str>) -> (Engine, Vec<UnixStream>) {
    let layout = layout::Layout { locals: 1, pool: 4 << 20, heap: 0 };
    let segment = Arc::new(Segment::create("links-test", layout.bytes()).unwrap());
    let staging = Staging::new(segment, layout.pool_at()..layout.pool_at() + layout.pool);
    let process = |_| Process { address: String::new(), host: 0, incarnation: 0 };
    let roster = Roster::founded((0..ranks).map(process).collect(), &[]).unwrap();
    let mut engine =
        Engine::new(MemberId::new(0), Endpoints::new(&roster), staging, false, EngineRules::DEFAULT);
    engine.add_group(group(0, ranks, forced));
    let ends = (1..ranks).map(|rank| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 16 * MESSAGE_BYTES).unwrap();
        engine.connect(
            MemberId::new(rank),
            Link::Tcp(TcpLink::new(Guarded::new(ours.into()).unwrap(), Keys::default())),
        );
        theirs
    });
    let ends = ends.collect();
    (engine, ends)
}

/// A group of all ranks.
fn group(id: u32, ranks: u32, forced: Option<&str>) -> Group {
    let all = || (0..ranks).collect::<Vec<u32>>();
    let ids = (0..ranks).map(MemberId::new).collect();
    let settings = Settings {
        guidance: Arc::new(Guidance {
            forced: forced.map(|name| name.parse().unwrap()),
            ..Guidance::default()
        }),
        sizing: Sizing { hosts: ranks, shared: false, segment_bytes: 0, most_staged: 3 << 20 },
        timeout: Duration::from_secs(60),
        ..Settings::new(id, 0, ids, all(), 0, all(), Arc::default())
    };
    Group::new(settings, Member::new(id, 0, (0..ranks).collect()))
}

/// Begins an operation.
fn begin(engine: &mut Engine, collective: Collective, count: usize) -> Arc<Completion> {
    let call = Call::new(collective, DType::U8, ReduceOp::Sum, count);
    let buffer = Region::zeroed(count);
    engine.issue(&Issue::new(0, call, buffer.clone(), buffer), &mut None).unwrap()
}

#[test]
fn what_a_broken_link_had_in_line_holds_no_operation_up() {
    let (mut engine, theirs) = rank_0(2, None);
    let operations: Vec<Arc<Completion>> =
        (0..60).map(|_| begin(&mut engine, Collective::Broadcast { root: 0 }, MESSAGE_BYTES)).collect();
    go_on(&mut engine);
    assert!(operations[0].is_done() && !operations[59].is_done(), "the socket takes some, not all");
    drop(theirs);
    go_on(&mut engine);
    let ends: Vec<_> = operations.iter().map(|operation| operation.result().map(|end| end.is_ok())).collect();
    assert_eq!(ends, [Some(true); 60]);
    assert_eq!(engine.runtime.ops.table.len(), 0);
}

#[test]
fn a_socket_that_cannot_be_watched_is_a_broken_link() {
    let (mut engine, _theirs) = rank_0(3, None);
    let [one, two] = [1, 2].map(MemberId::new);
    assert!(
        matches!(engine.runtime.out.interests[..], [Interest::New(first), Interest::New(then)] if (first, then) == (one, two))
    );
    engine.unwatched(one, &ErrorKind::PermissionDenied.into());
    let Link::Lost { reason, .. } = &engine.runtime.links.endpoints[one].link else { panic!("it is in use") };
    assert!(reason.contains("cannot be watched"), "{reason}");
    assert_eq!((engine.runtime.links.sockets, &engine.runtime.links.linked[..]), (1, &[two][..]));
    assert!(matches!(&engine.runtime.out.interests[..], [.., Interest::Gone(_)]));
}

/// Nobody waits in a group of ranks of which one had died when it was made.
#[test]
fn a_group_with_a_dead_member_is_lost_from_the_start() {
    let (mut engine, _theirs) = rank_0(3, None);
    engine.runtime.links.endpoints[MemberId::new(2)].dead = true;
    engine.add_group(group(7, 3, None));
    let call = Call::new(Collective::Barrier, DType::U8, ReduceOp::Sum, 0);
    let issue = Issue::new(7, call, Region::zeroed(0), Region::zeroed(0));
    let Err(Refused::Failed(error)) = engine.issue(&issue, &mut None) else { panic!("it was issued") };
    assert!(matches!(error.kind(), crate::ErrorKind::PeerLost { ranks, .. } if ranks == &[2]), "{error}");
    assert!(
        matches!(&engine.runtime.out.events[..], [Event::ToHub(Message::Dispute(dispute))] if dispute.group == 7),
        "the others are told"
    );
}

/// A group's lines take calls that are the group's, also where nothing is under way in the group itself.
#[test]
fn the_lines_of_a_group_end_with_it() {
    for ends in [Engine::abort_group, Engine::end_group, Engine::drop_group] {
        let (mut engine, _theirs) = rank_0(2, None);
        engine.add_group(group(7, 2, None));
        assert!(engine.add_line(7, 8, "a line").unwrap());
        engine.add_group(group(8, 2, None));
        assert!(engine.takes_calls(8));
        ends(&mut engine, 7);
        assert!(!engine.takes_calls(8));
    }
}

/// Else a worker's message could have a reducer make a list of any length.
#[test]
fn a_group_with_other_reducers_than_were_agreed_is_refused() {
    let (mut engine, _theirs) = rank_0(2, None);
    let parameters = Parameters { reducers: vec!["10.0.0.9:7070".to_owned()], ..Parameters::default() };
    let mut introduction = Introduction {
        group: 7,
        generation: 0,
        epoch: 0,
        members: [0, 1].map(MemberId::new).into(),
        reducer: 0,
        reducers: u32::MAX,
        hosts: vec![0, 1],
        fold: FoldGroup::of_size(2),
        parameters: parameters.digest(),
    };
    for (reducers, is_taken) in [(u32::MAX, false), (2, false), (1, true)] {
        introduction.reducers = reducers;
        engine.runtime.groups.learn_parameters(7, parameters.clone()).unwrap();
        assert_eq!(
            introduced::join(&mut engine.runtime, MemberId::new(1), &introduction).is_ok(),
            is_taken,
            "{reducers} reducers"
        );
    }
}

/// A sink that writes down whom it is told to be lost.
#[derive(Clone, Debug, Default)]
struct LossSink(Arc<std::sync::Mutex<Vec<(MemberId, String)>>>);

impl Sink for LossSink {
    fn event(&mut self, _: Duration, happening: &TraceEvent<'_>) {
        if let TraceEvent::Lost { endpoint, reason } = *happening {
            self.0.lock().unwrap().push((endpoint, reason.to_owned()));
        }
    }
}

#[test]
fn a_listener_hears_of_a_rank_that_is_lost() {
    let (mut engine, _theirs) = rank_0(3, None);
    let lost = LossSink::default();
    engine.runtime.out.observer.listen(Box::new(lost.clone()), Moment::exact);
    begin(&mut engine, Collective::AllGather, 1);
    engine.lose(MemberId::new(2), "ended, hung or left", false);
    assert_eq!(lost.0.lock().unwrap()[..], [(MemberId::new(2), "ended, hung or left".to_owned())]);
    let states: Vec<_> = engine.runtime.out.observer.recent().iter().map(|recent| recent.state).collect();
    assert_eq!(states, [OperationState::Failed("PeerLost")]);
}

/// The frames that are in some bytes, with their payloads, of which the checksums are right.
fn frames(mut bytes: &[u8]) -> Vec<(Header, &[u8])> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::decode(head, crc32c::crc32c).unwrap();
        let (payload, rest) = rest.split_at(header.length as usize);
        assert!(payload.is_empty() || crc32c::crc32c(payload) == header.payload_crc, "{header:?} is damaged");
        frames.push((header, payload));
        bytes = rest;
    }
    frames
}

/// Fails all operations that have not ended.
fn fail_all(engine: &mut Engine) {
    let error = Error::new(crate::ErrorKind::Closed);
    let running = engine.runtime.ops.table.keys().into_iter();
    running.for_each(|key| engine.runtime.fail(key, &error, false));
    engine.catch_up();
}

/// Else its receiver would take the connection for damaged, and all groups would lose it.
#[test]
fn a_message_that_has_left_in_part_leaves_in_full_though_its_operation_fails() {
    let (mut engine, theirs) = rank_0(2, Some("radix"));
    let mut bytes: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    Region::lend(&mut bytes, |buffer| {
        let call = Call::new(Collective::AllReduce, DType::U8, ReduceOp::Sum, 1 << 20);
        engine.issue(&Issue::new(0, call, buffer.clone(), buffer.clone()), &mut None).unwrap();
        // The grant that the other gets is what it would give.
        let grant = drain(&mut engine, &theirs[0]);
        (&theirs[0]).write_all(&grant).unwrap();
        go_on(&mut engine);
        let Link::Tcp(link) = &engine.runtime.links.endpoints[MemberId::new(1)].link else {
            panic!("no link")
        };
        assert!(!link.is_flushed(), "the socket takes some, not all");
        fail_all(&mut engine);
    });
    let next = begin(&mut engine, Collective::Broadcast { root: 0 }, MESSAGE_BYTES);
    let taken = drain(&mut engine, &theirs[0]);
    let mut lengths: Vec<usize> = frames(&taken).iter().map(|(_, payload)| payload.len()).collect();
    assert_eq!((next.is_done(), lengths.pop()), (true, Some(MESSAGE_BYTES)));
    assert!((1..=8).contains(&lengths.len()), "{lengths:?} of sixteen");
}

/// Else what is left of the second one could come to memory that is another operation's by then.
#[test]
fn a_message_that_comes_twice_in_one_read_closes_its_link() {
    let (mut engine, theirs) = rank_0(2, Some("radix"));
    let operation = begin(&mut engine, Collective::AllReduce, 1 << 20);
    // What the other gets is what it would send.
    let grant = drain(&mut engine, &theirs[0]);
    (&theirs[0]).write_all(&grant).unwrap();
    let sent = drain(&mut engine, &theirs[0]);
    let (header, payload) = frames(&sent).swap_remove(0);
    let message = &sent[..HEADER_BYTES + payload.len()];
    assert_eq!((header.kind, header.eager), (Kind::Data, false));
    (&theirs[0]).write_all(message).unwrap();
    (&theirs[0]).write_all(&message[..message.len() - 1]).unwrap();
    go_on(&mut engine);
    let Link::Lost { reason, .. } = &engine.runtime.links.endpoints[MemberId::new(1)].link else {
        panic!("it is in use")
    };
    assert!(reason.contains("twice") && !operation.is_done(), "{reason}");
}

/// Each link has so many slots for eager messages, and no other link is harmed where one has more.
#[test]
fn nobody_has_more_eager_messages_here_than_slots() {
    let (mut engine, _theirs) = rank_0(3, None);
    let header = Header { eager: true, ..Header::new(Kind::Data, 0, 0, 0) };
    let Runtime { backlog, links, .. } = &mut engine.runtime;
    let mut park = |rank| backlog.park(MemberId::new(rank), header, Content::Bytes(Vec::new()), links);
    (0..EAGER_SLOTS).for_each(|_| park(1).unwrap());
    assert!(park(1).is_err());
    assert_eq!(park(2), Ok(()));
}

/// Slots and word of slots: nothing is lost with frames that never leave.
#[test]
fn what_is_cancelled_takes_no_slots_with_it() {
    let (mut engine, theirs) = rank_0(2, None);
    let returned = 5;
    (0..60).for_each(|_| drop(begin(&mut engine, Collective::Broadcast { root: 0 }, MESSAGE_BYTES)));
    (0..returned).for_each(|_| assert!(!engine.runtime.links.endpoints[MemberId::new(1)].emptied(true)));
    (0..3).for_each(|_| drop(begin(&mut engine, Collective::Broadcast { root: 0 }, MESSAGE_BYTES)));
    fail_all(&mut engine);
    begin(&mut engine, Collective::Broadcast { root: 0 }, MESSAGE_BYTES);
    let taken = drain(&mut engine, &theirs[0]);
    let sent = frames(&taken);
    let introduction: u16 = sent.iter().map(|(header, _)| header.credits).sum();
    assert_eq!(introduction, returned);
    let eager = sent.iter().filter(|(header, _)| header.eager).count();
    assert!((2..60).contains(&eager), "{eager} of 64");
    let free = (0..EAGER_SLOTS)
        .filter(|_| engine.runtime.links.endpoints[MemberId::new(1)].take_eager(MESSAGE_PRIORITY))
        .count();
    assert_eq!(eager + free, usize::from(EAGER_SLOTS));
}

/// Lets rank 0 go on until nothing moves; any socket may have something to read, or take something again.
fn go_on(engine: &mut Engine) {
    loop {
        let mut moved = engine.turn();
        for index in engine.runtime.links.linked.clone() {
            moved |= engine.serve(index, true, true);
        }
        if !moved {
            return;
        }
    }
}

/// Takes what has come, and lets rank 0 go on, until no more comes.
fn drain(engine: &mut Engine, mut stream: &UnixStream) -> Vec<u8> {
    let mut taken = Vec::new();
    let mut room = [0; 1 << 16];
    loop {
        go_on(engine);
        match stream.read(&mut room) {
            Ok(bytes) => taken.extend_from_slice(&room[..bytes]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return taken;
            }
        }
    }
}
