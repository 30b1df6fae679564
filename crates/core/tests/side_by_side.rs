//! Schedules whose chunks lie side by side: what goes from one rank to another in a stage is one message.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    prepare::{Call, Kind, Loc, Prepared, Sizing, prepare},
    schedule::{ChunkRun, Form, Schedule},
    verify::{Order, Verified, VerifyError, verify},
};
use std::collections::HashMap;

fn proved(algorithm: &str, workers: u32, per_host: u32) -> Verified {
    let algorithm: Algorithm = algorithm.parse().unwrap();
    let (group, hosts): (_, Vec<u32>) =
        (Group::of_size(workers), (0..workers).map(|rank| rank / per_host).collect());
    let layout = Layout { reducers: 0, hosts: &hosts, links: None };
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
    verify(schedule, Collective::AllReduce, &group)
        .unwrap_or_else(|error| panic!("{algorithm} {workers}: {error}"))
}

/// All ranks' programs of a call over links.
fn programs(verified: &Verified, call: Call, most_staged: usize) -> Vec<Prepared> {
    let workers = verified.schedule().workers();
    let sizing = Sizing { hosts: workers, shared: false, segment_bytes: 0, most_staged };
    let prepared = |me| {
        let program = verified.schedule().program(me);
        prepare(verified, &program, me, call, None, sizing, |_| false).unwrap()
    };
    (0..workers).map(prepared).collect()
}

/// With factors that divide the ranks, a rank sends each peer of a stage one message in each half.
#[test]
fn a_rank_sends_each_peer_of_a_stage_one_message() {
    for (algorithm, workers, per_host, messages) in [
        ("radix(2,2)", 4, 1, 4),
        ("radix(2,2,2)", 8, 1, 6),
        ("radix(4,4)", 16, 1, 12),
        ("radix(4,4,4)", 64, 1, 18),
        ("radix(8,8)", 64, 1, 28),
        ("radix(2,2,2,2,2,2)", 64, 1, 12),
        ("hierarchical", 32, 4, 20),
    ] {
        let verified = proved(algorithm, workers, per_host);
        let (cost, label) = (verified.cost(), format!("{algorithm} {workers}"));
        assert!(verified.schedule().side_by_side(), "{label}");
        assert_eq!(
            (cost.worker.messages, cost.messages),
            (messages, u64::from(messages * workers)),
            "{label}"
        );
        assert_eq!(cost.worker.sent.count(), 2 * (workers - 1), "{label}: as many chunks as ever");
    }
    assert!(!proved("radix", 8, 1).schedule().side_by_side(), "each message is of one chunk");
}

/// Off powers of two, too, they are far fewer than chunks where ranks are many.
#[test]
fn irregular_groups_send_few_messages() {
    for (algorithm, workers) in [("radix(8,8,8)", 100), ("radix(4,4,4,4)", 250), ("radix(16,16)", 201)] {
        let cost = proved(algorithm, workers, 1).cost().worker;
        assert!(
            2 * cost.messages < cost.sent.count(),
            "{algorithm} {workers}: {} of {}",
            cost.messages,
            cost.sent.count()
        );
    }
    assert!(
        !proved("radix(4,4)", 13, 1).schedule().side_by_side(),
        "few ranks, and nodes that are not alike"
    );
}

/// The same with a message for each chunk is a proven schedule, too, which moves as much.
#[test]
fn chunk_by_chunk_it_is_the_same_all_reduce() {
    for (algorithm, workers, per_host) in [
        ("radix(2,2,2)", 8, 1),
        ("radix(4,2)", 8, 1),
        ("radix(4;2,2)", 16, 1),
        ("radix(4;2,2)", 70, 1),
        ("hierarchical", 16, 4),
    ] {
        let verified = proved(algorithm, workers, per_host);
        let schedule = verified.schedule();
        let programs = (0..workers).map(|rank| schedule.program(rank).chunk_by_chunk().into_owned());
        let single = Schedule::listed(workers, schedule.cut().clone(), programs.collect());
        let single = verify(single, Collective::AllReduce, verified.group()).unwrap();
        let (one, other) = (verified.cost().worker, single.cost().worker);
        assert_eq!(
            (single.order(), one.sent, one.received),
            (Order::Fixed, other.sent, other.received),
            "{algorithm}"
        );
        assert!(one.messages < other.messages, "{algorithm}");
    }
}

/// In each segment the chunks lie side by side, all segments are the buffer, and both ends of a message agree how long it is.
#[test]
fn segments_are_pieces_of_the_buffer() {
    let calls = [(DType::F32, ReduceOp::Sum), (DType::Bf16, ReduceOp::Sum), (DType::I8, ReduceOp::Average)];
    for (algorithm, workers, per_host) in
        [("radix(2,2,2)", 8, 1), ("radix(4,4,4)", 67, 1), ("radix(2,4)", 6, 1), ("hierarchical", 16, 4)]
    {
        let verified = proved(algorithm, workers, per_host);
        for ((dtype, op), count) in
            calls.into_iter().flat_map(|call| [0, 1, 17, 333, 100_003, 5 << 20].map(|count| (call, count)))
        {
            let call = Call::new(Collective::AllReduce, dtype, op, count);
            let programs = programs(&verified, call, 7 << 20);
            let label = format!("{algorithm} {workers}, {count} {dtype}");
            let first = &programs[0];
            let mut at = 0;
            for segment in 0..first.segments {
                for chunk in 0..first.chunks() {
                    let elements = first.elements(ChunkRun::one(chunk), segment);
                    assert_eq!(elements.start, at, "{label}: chunk {chunk} of segment {segment}");
                    at = elements.end;
                }
            }
            assert_eq!(at, count, "{label}");
            agree(&programs, &label);
        }
    }
}

/// Each message is as long for its sender as for its receiver, and what a stage holds lies apart in it.
fn agree(programs: &[Prepared], label: &str) {
    let lengths = |prepared: &Prepared, run, form| -> Vec<usize> {
        (0..prepared.segments).map(|segment| prepared.bytes(run, segment, form)).collect()
    };
    let mut sent = HashMap::new();
    for (rank, prepared) in programs.iter().enumerate() {
        for step in &prepared.steps {
            let Kind::Send(send) = &step.kind else { continue };
            for lane in &prepared.lanes[send.lanes.start as usize..send.lanes.end as usize] {
                let to = prepared.peers[lane.peer as usize].rank;
                sent.insert((rank as u32, to, lane.index), lengths(prepared, send.from.run(), send.form));
            }
        }
    }
    for (rank, prepared) in programs.iter().enumerate() {
        for head in &prepared.heads {
            let from = prepared.peers[head.peer as usize].rank;
            let expected = sent.remove(&(from, rank as u32, head.index));
            assert_eq!(Some(lengths(prepared, head.run, head.form)), expected, "{label}: {from} to {rank}");
        }
        assert!(prepared.staging_bytes(prepared.depth) <= 7 << 20, "{label}");
        in_stage(prepared, label);
    }
    assert!(sent.is_empty(), "{label}");
}

/// What steps write to a stage lies in it, and where messages are kept, nothing else is written.
fn in_stage(prepared: &Prepared, label: &str) {
    for segment in [0, prepared.segments - 1] {
        let kept = |head: &&herringbone_core::prepare::Head| !head.placed;
        let heads = prepared
            .heads
            .iter()
            .filter(kept)
            .map(|head| head.offset..head.offset + prepared.bytes(head.run, segment, head.form));
        let heads: Vec<_> = heads.collect();
        for step in &prepared.steps {
            let (into, form) = match &step.kind {
                Kind::Fold(fold) => (fold.into, fold.form),
                Kind::Recv { into, .. } => (*into, Form::Plain),
                _ => continue,
            };
            let Loc::Staged(staged) = into else { continue };
            let range = prepared.staged(staged, segment, form);
            assert!(range.end <= prepared.stage_bytes, "{label}");
            let overlaps = heads.iter().any(|head| head.start < range.end && range.start < head.end);
            assert!(!overlaps || range.is_empty(), "{label}");
        }
    }
}

fn refused(collective: Collective, header: &str, ranks: [&str; 2]) -> String {
    let text = format!("schedule workers=2 reducers=0 {header}\nrank 0\n{}\nrank 1\n{}", ranks[0], ranks[1]);
    let schedule = Schedule::parse(&text).unwrap();
    assert_eq!(Schedule::parse(&schedule.to_string()).unwrap(), schedule, "{text}");
    verify(schedule, collective, &Group::of_size(2)).unwrap_err().to_string()
}

const SIDE: &str = "cut=even:2 side_by_side";
/// Two ranks that each fold both chunks at once.
const FOLDS: [&str; 2] = [
    "slots plain plain\nsend u0 -> 1 x2\nrecv c0 s0 <- 1 x2\nfinish c0 u0 = u0 s0+ x2",
    "slots plain plain\nsend u0 -> 0 x2\nrecv c0 s0 <- 0 x2\nfinish c0 u0 = s0 u0+ x2",
];

#[test]
fn a_schedule_of_two_chunks_at_once_is_proved() {
    let text = format!("schedule workers=2 reducers=0 {SIDE}\nrank 0\n{}\nrank 1\n{}", FOLDS[0], FOLDS[1]);
    let schedule = Schedule::parse(&text).unwrap();
    assert_eq!(Schedule::parse(&schedule.to_string()).unwrap(), schedule);
    let cost = verify(schedule, Collective::AllReduce, &Group::of_size(2)).unwrap().cost();
    assert_eq!((cost.messages, cost.worker.sent.count(), cost.worker.longest), (2, 2, 2));
}

#[test]
fn what_cannot_be_one_message_is_refused_with_its_reason() {
    let all_reduce = Collective::AllReduce;
    let [mine, other] = FOLDS;
    for (header, ranks, reason) in [
        ("cut=even:2", FOLDS, "stands for 2 chunks, which do not lie side by side"),
        (SIDE, [&mine.replace("c0 s0 <- 1 x2", "c0 s0 <- 1"), other], "of 2 chunks, not 1"),
        (SIDE, [&mine.replace("send u0 -> 1 x2", "send u0 -> 1"), other], "of 1 chunks, not 2"),
        (SIDE, [&mine.replace("send u0 -> 1 x2", "send u0 -> 1 x3"), other], "there is no chunk 2, only 2"),
        (SIDE, [&mine.replace("plain plain", "plain"), other], "there is no slot 1"),
        (
            SIDE,
            [&mine.replace("plain plain", "plain acc"), other],
            "s1 is acc, and the slot of the step's first",
        ),
        (SIDE, [&mine.replace("send u0", "copy s0 = u1\nsend u0"), other], "s0 gets chunk 0 after chunk 1"),
        ("cut=blocks:2 side_by_side", FOLDS, "they are coded each by itself"),
        (
            SIDE,
            [&mine.replace("send u0 -> 1 x2", "finish c0 u0 = u0\nsend u0 -> 1 x2"), other],
            "some of the 2 chunks from u0",
        ),
    ] {
        let error = refused(all_reduce, header, ranks);
        assert!(error.contains(reason), "{ranks:?}: {error}");
    }
    let sends = ["send u0 -> 1 x2", "recv c0 u0 <- 0 x2"];
    let error = refused(Collective::Broadcast { root: 0 }, SIDE, sends);
    assert!(error.contains("only an all_reduce can choose"), "{error}");
}

/// An order of its own would give other bits with another number of segments.
#[test]
fn only_sums_in_the_canonical_order_lie_side_by_side() {
    let ring: Algorithm = "ring".parse().unwrap();
    let group = Group::of_size(4);
    let schedule = ring.schedule(Collective::AllReduce, &group, &Layout::default()).unwrap();
    let error = verify(schedule.with_chunks_side_by_side(), Collective::AllReduce, &group).unwrap_err();
    assert!(matches!(error, VerifyError::SideBySide { .. }), "{error}");
}

#[test]
fn spans_that_are_none_are_refused_where_they_stand() {
    for (span, expected) in
        [("x0", "at least 1"), ("x65536", "at most 65535"), ("x", "at most 65535"), ("xx", "at most")]
    {
        let text = format!("schedule workers=1 reducers=0 {SIDE}\nrank 0\n  send u0 -> 1 {span}");
        let error = Schedule::parse(&text).unwrap_err();
        assert_eq!((error.line(), error.column()), (3, if span == "x0" { 16 } else { 17 }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
