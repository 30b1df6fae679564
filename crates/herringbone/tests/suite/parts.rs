//! Collectives that move parts: parts that differ in length, what they move, and ranks that do not agree about lengths.

use crate::world::{Transport, World};
use herringbone::{
    Collective, Communicator, DType, ErrorKind, ReduceOp, Region, Request,
    core::{
        algorithm::{Algorithm, Layout},
        collective::UnevenParts,
        group::Group,
        interpret::interpret_uneven,
        verify::verify,
    },
};
use std::time::Duration;

const TRANSPORTS: [Transport; 3] = [Transport::Local, Transport::Shm, Transport::Tcp];

/// How many elements a rank has for another one.
type Lengths = fn(u32, u32) -> usize;

const LENGTHS: [Lengths; 5] = [
    |from, to| ((3 * from + 5 * to) % 7) as usize,
    |from, to| if (from + to) % 2 == 0 { 0 } else { 5_000 + (from * 1000 + to) as usize },
    // One rank has many segments, others one.
    |from, _| if from == 1 { 90_001 } else { 3 },
    |_, to| if to == 0 { 70_003 } else { 0 },
    |_, _| 0,
];

/// The lengths of a rank's input and output.
pub(crate) fn parts_of(
    collective: Collective,
    size: u32,
    me: u32,
    lengths: Lengths,
) -> (Vec<usize>, Vec<usize>) {
    let from_all = |to| (0..size).map(|from| lengths(from, to)).collect();
    let to_all = |from| (0..size).map(|to| lengths(from, to)).collect();
    match collective {
        Collective::Gather { root } if me == root => (vec![lengths(me, root)], from_all(root)),
        Collective::Gather { root } => (vec![lengths(me, root)], vec![]),
        Collective::Scatter { root } if me == root => (to_all(root), vec![lengths(root, me)]),
        Collective::Scatter { root } => (vec![], vec![lengths(root, me)]),
        Collective::AllGather => (vec![lengths(me, 0)], from_all(0)),
        _ => (to_all(me), from_all(me)),
    }
}

/// Numbers that say whose they are.
fn values(rank: u32, count: usize) -> Vec<u8> {
    (0..count).flat_map(|at| (at as u16).wrapping_add(rank as u16 * 977).to_le_bytes()).collect()
}

fn collectives(root: u32) -> [Collective; 4] {
    [Collective::AllToAll, Collective::AllGather, Collective::Gather { root }, Collective::Scatter { root }]
}

/// What every rank must hold, by the interpreter.
fn expected(collective: Collective, size: u32, lengths: Lengths) -> Vec<Vec<u8>> {
    let group = Group::of_size(size);
    let schedule = Algorithm::OneShot.schedule(collective, &group, &Layout::default()).unwrap();
    let verified = verify(schedule, collective, &group).unwrap();
    let parts = |me| {
        let (input, output) = parts_of(collective, size, me, lengths);
        UnevenParts::new(collective, size, me, &input, &output).unwrap()
    };
    let parts: Vec<UnevenParts> = (0..size).map(parts).collect();
    let inputs: Vec<Vec<u8>> =
        (0..).zip(&parts).map(|(rank, parts)| values(rank, parts.input_elements())).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    interpret_uneven(&verified, DType::F16, &parts, &inputs).unwrap()
}

#[test]
fn parts_that_differ_arrive_as_they_are() {
    for size in 1..=5 {
        let cases: Vec<_> = collectives(size / 2)
            .into_iter()
            .flat_map(|collective| LENGTHS.map(|lengths| (collective, lengths)))
            .map(|(collective, lengths)| (collective, lengths, expected(collective, size, lengths)))
            .collect();
        for (transport, preferred) in
            TRANSPORTS.into_iter().flat_map(|transport| [(transport, 0), (transport, 4096)])
        {
            World::new(size, transport).segment_bytes(preferred).staging_bytes(8 << 20).run(|comm| {
                for (collective, lengths, expected) in &cases {
                    let (input, output) = parts_of(*collective, size, comm.rank(), *lengths);
                    let given = Region::own(values(comm.rank(), input.iter().sum()));
                    let taken = Region::own(vec![0u8; 2 * output.iter().sum::<usize>()]);
                    let (from, into) = (given.region().clone(), taken.region().clone());
                    let request = Request::new(*collective, DType::F16, 0, from, into);
                    comm.execute(request.parts(&input, &output)).unwrap();
                    let label = format!("{collective} of {size} over {transport:?}, rank {}", comm.rank());
                    assert!(taken.take() == expected[comm.rank() as usize], "{label}");
                }
            });
        }
    }
}

/// Many at once, of lengths that change from call to call and that need more memory together than there is.
#[test]
fn many_are_under_way_at_once() {
    for transport in [Transport::Shm, Transport::Tcp] {
        World::new(3, transport).staging_bytes(8 << 20).run(|comm| {
            let me = comm.rank() as usize;
            let length = |round: usize, from: usize, to: usize| (round * 7919 + from * 31 + to * 17) % 40_000;
            let round = |round: usize| {
                let input: Vec<usize> = (0..3).map(|to| length(round, me, to)).collect();
                let output: Vec<usize> = (0..3).map(|from| length(round, from, me)).collect();
                let given = Region::own(vec![me as i32; input.iter().sum()]);
                let taken = Region::own(vec![-1i32; output.iter().sum()]);
                let (from, into) = (given.region().clone(), taken.region().clone());
                let request = Request::new(Collective::AllToAll, DType::I32, 0, from, into);
                (comm.submit(request.parts(&input, &output)).unwrap(), taken, output)
            };
            let rounds: Vec<_> = (0..40).map(round).collect();
            for (pending, taken, output) in rounds {
                pending.wait().unwrap();
                let expected = output.iter().enumerate().flat_map(|(from, count)| vec![from as i32; *count]);
                assert_eq!(taken.take(), expected.collect::<Vec<i32>>());
            }
        });
    }
}

/// Payload bytes that a rank has sent and received.
fn moved(comm: &Communicator) -> (u64, u64) {
    let stats = comm.stats();
    let ways = [stats.workers_shm, stats.workers_tcp];
    (ways.iter().map(|moved| moved.sent).sum(), ways.iter().map(|moved| moved.received).sum())
}

#[test]
fn each_part_is_moved_once() {
    const K: usize = 40_000;
    for transport in TRANSPORTS {
        World::new(4, transport).run(|comm| {
            let (n, rank) = (comm.size() as usize, comm.rank());
            let of_root = |length: usize| if rank == 2 { length } else { 0 };
            let count = |call: &dyn Fn() -> herringbone::Result<()>| {
                let before = moved(comm);
                call().unwrap();
                let after = moved(comm);
                (after.0 - before.0, after.1 - before.1)
            };
            let k = K as u64;
            let others = 3 * k;
            let gathered = count(&|| comm.gather(&vec![1u8; K], &mut vec![0; of_root(n * K)], 2));
            assert_eq!(gathered, if rank == 2 { (0, others) } else { (k, 0) });
            let scattered = count(&|| comm.scatter(&vec![1u8; of_root(n * K)], &mut vec![0; K], 2));
            assert_eq!(scattered, if rank == 2 { (others, 0) } else { (0, k) });
            let exchanged = count(&|| comm.all_to_all(&vec![1u8; n * K], &mut vec![0; n * K]));
            assert_eq!(exchanged, (others, others));
            let (to, from) = ([0, 1, 2, 3].map(|to| to * K), [rank as usize * K; 4]);
            let uneven =
                count(&|| comm.all_to_all_uneven(&vec![1u8; 6 * K], &to, &mut vec![0; 4 * from[0]], &from));
            assert_eq!(uneven, (6 * k - u64::from(rank) * k, others * u64::from(rank)));
        });
    }
}

#[test]
fn ranks_that_do_not_agree_are_told_both_lengths() {
    for transport in TRANSPORTS {
        World::new(3, transport).run(|comm| {
            comm.barrier().unwrap();
            for (sent, taken) in [(5, 3), (3, 5), (0, 7), (7, 0), (90_000, 2), (2, 90_000)] {
                let length = |from: u32, to: u32, odd: usize| if (from, to) == (2, 0) { odd } else { 4 };
                let sends: Vec<usize> = (0..3).map(|to| length(comm.rank(), to, sent)).collect();
                let receives: Vec<usize> = (0..3).map(|from| length(from, comm.rank(), taken)).collect();
                let input = vec![1u8; sends.iter().sum()];
                let mut output = vec![0u8; receives.iter().sum()];
                let result = comm.all_to_all_uneven(&input, &sends, &mut output, &receives);
                // The sender may have all that it needs before the receiver notices: then its next call says so.
                let error = match result {
                    Ok(()) if comm.rank() != 0 => comm.barrier().unwrap_err(),
                    result => result.unwrap_err(),
                };
                assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
                for said in [
                    format!("with {sent} elements for rank 0"),
                    format!("with {taken} elements from rank 2"),
                    "rank 2 called all_to_all of uneven parts of u8".to_owned(),
                ] {
                    assert!(error.to_string().contains(&said), "{error}");
                }
                // A rank whose call failed is as many calls ahead as one that was told later.
                if comm.rank() == 0 || error.operation().is_some_and(|call| call.starts_with("all_to_all")) {
                    let late = comm.barrier();
                    assert!(late.is_ok() || matches!(late.unwrap_err().kind(), ErrorKind::Mismatch { .. }));
                }
            }
            let mut sum = [1];
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [3], "the group goes on");
        });
    }
}

#[test]
fn an_even_call_and_an_uneven_one_do_not_meet() {
    World::new(2, Transport::Shm).run(|comm| {
        let (input, mut output) = ([1u8; 2], [0u8; 2]);
        let result = match comm.rank() {
            0 => comm.all_to_all(&input, &mut output),
            _ => comm.all_to_all_uneven(&input, &[1, 1], &mut output, &[1, 1]),
        };
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains("all_to_all of 1 u8"), "{error}");
        assert!(error.to_string().contains("all_to_all of uneven parts of u8"), "{error}");
    });
}

#[test]
fn what_does_not_fit_is_refused_here_and_the_group_goes_on() {
    World::new(2, Transport::Local).run(|comm| {
        let (input, mut output) = ([1u8; 4], [0u8; 4]);
        let refused = [
            comm.all_to_all_uneven(&input, &[2, 2], &mut output, &[4]),
            comm.all_to_all_uneven(&input, &[2, 3], &mut output, &[2, 2]),
            comm.gather(&input, &mut output, 2),
            comm.scatter(&input, &mut output, comm.rank()),
            comm.all_to_all(&input[..3], &mut output),
        ];
        for error in refused.map(Result::unwrap_err) {
            let kind = error.kind();
            let fits = matches!(kind, ErrorKind::BufferSize { .. } | ErrorKind::Unsupported { .. });
            assert!(fits, "{error}");
        }
        comm.all_to_all(&input, &mut output).unwrap();
        comm.barrier().unwrap();
    });
}

#[test]
fn parts_move_in_the_background() {
    World::new(3, Transport::Shm).run(|comm| {
        let rank = comm.rank() as i32;
        let gathered = comm.gather_async(vec![rank; 2], 1).unwrap();
        let whole = if rank == 1 { vec![4, 5, 6] } else { vec![] };
        let scattered = comm.scatter_async(whole, 1, 1).unwrap();
        let exchanged = comm.all_to_all_async(vec![rank, rank + 10, rank + 20]).unwrap();
        assert_eq!(exchanged.wait().unwrap(), [0, 1, 2].map(|from| from + 10 * rank));
        assert_eq!(scattered.wait().unwrap(), [4 + rank]);
        assert_eq!(gathered.wait().unwrap(), if rank == 1 { vec![0, 0, 1, 1, 2, 2] } else { vec![] });
    });
}

/// A rank that leaves once its own calls have ended, or late, harms nobody who needs no more of it.
#[test]
fn a_rank_may_leave_when_its_part_has_gone() {
    for transport in [Transport::Shm, Transport::Tcp] {
        World::new(3, transport).run(|comm| {
            comm.barrier().unwrap();
            if comm.rank() > 0 {
                std::thread::sleep(Duration::from_millis(300));
            }
            let counts = [3, 60_000, 9];
            let length = counts[comm.rank() as usize];
            let (input, mut output) = (vec![comm.rank() as u8; length], vec![9u8; 60_012]);
            comm.all_gather_uneven(&input, &mut output, &counts).unwrap();
            assert!(output[..3] == [0; 3] && output[3..60_003].iter().all(|value| *value == 1));
        });
    }
}
