//! No wrong sum, ever: whatever two calls ranks confuse, all ranks get a typed error, and the group works afterwards.
//!
//! The calls are generated: every kind, root, type, operation, size, evenness of parts and urgency. Each is confused with each
//! other one, by one rank of 2, 3 and 4, alone, among other operations in flight, and in the wrong order.

use crate::world::{Over, Together, settle, sum, world};
use herringbone::{Collective, Communicator, DType, Error, ErrorKind, Pending, ReduceOp, Region, Request};

/// Elements of a message that goes at once, of one that does not, and of several segments.
const SIZES: [usize; 3] = [3, 4_000, 50_000];

/// Of how many pairs one is confused also in flight and in the wrong order: there an operation before the one that was found to
/// differ has a second to end.
const OTHER_WAYS: u32 = 19;

/// How many worlds share the pairs: they wait most of the time, for ranks that come to no end to say so.
const WORLDS: u32 = 8;

/// What a rank may call.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Call {
    collective: Collective,
    dtype: DType,
    op: ReduceOp,
    count: usize,
    urgent: bool,
    uneven: bool,
}

/// A way to confuse two calls, of which one rank makes the other one.
type Way = fn(&Communicator, bool, [Call; 2]) -> Result<(), Error>;

/// A call that a rank has made.
struct Made {
    call: Call,
    pending: Pending,
    output: Box<dyn FnOnce() -> Vec<u8>>,
}

impl Call {
    fn of(collective: Collective, count: usize) -> Self {
        Self { collective, dtype: DType::F32, op: ReduceOp::Sum, count, urgent: false, uneven: false }
    }

    /// All that are confused: of each kind and size, and with each of the other fields changed.
    fn all() -> Vec<Call> {
        let kinds = [
            Collective::AllReduce,
            Collective::Reduce { root: 0 },
            Collective::Reduce { root: 1 },
            Collective::Broadcast { root: 0 },
            Collective::Broadcast { root: 1 },
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Gather { root: 0 },
            Collective::Gather { root: 1 },
            Collective::Scatter { root: 0 },
            Collective::Scatter { root: 1 },
            Collective::AllToAll,
        ];
        let mut calls = vec![Call::of(Collective::Barrier, 0)];
        for collective in kinds {
            let [small, _, large] = SIZES.map(|count| Call::of(collective, count));
            calls.extend([small, large, Call { dtype: DType::I32, ..small }]);
            if matches!(collective, Collective::AllReduce | Collective::ReduceScatter) {
                calls.extend([Call { op: ReduceOp::Max, ..small }, Call { op: ReduceOp::Max, ..large }]);
            }
            if matches!(collective, Collective::AllGather | Collective::AllToAll) {
                calls.push(Call { uneven: true, ..small });
            }
        }
        let reduce = Call::of(Collective::AllReduce, SIZES[0]);
        calls
            .extend([reduce, Call { dtype: DType::I32, ..reduce }].map(|call| Call { urgent: true, ..call }));
        calls.extend([SIZES[0] + 1, SIZES[1], SIZES[2] + 1].map(|count| Call { count, ..reduce }));
        calls
    }

    fn make(self, comm: &Communicator) -> Result<Made, Error> {
        let Call { collective, dtype, op, count, .. } = self;
        let (size, rank) = (comm.size(), comm.rank());
        let [inputs, outputs] =
            [collective.input_elements(size, rank, count), collective.output_elements(size, rank, count)];
        let input: Vec<u8> = (0..inputs).flat_map(|at| self.bytes(value(rank, at))).collect();
        let (input, output) = (Region::own(input), Region::own(vec![0u8; outputs * dtype.bytes()]));
        let (from, to) = (input.region().clone(), output.region().clone());
        let mut request = Request::new(collective, dtype, count, from, to).op(op);
        if self.urgent {
            request = request.priority(1);
        }
        if self.uneven {
            let each = vec![count; size as usize];
            let own = if collective == Collective::AllGather { &each[..1] } else { &each[..] };
            request = request.parts(own, &each);
        }
        let pending = comm.submit(request)?;
        Ok(Made { call: self, pending, output: Box::new(|| output.take()) })
    }

    fn bytes(self, value: i32) -> [u8; 4] {
        if self.dtype == DType::I32 { value.to_le_bytes() } else { (value as f32).to_le_bytes() }
    }

    /// What an element of a rank's output has to be, if anything.
    fn expected(self, size: u32, rank: u32, at: usize) -> Option<i32> {
        let (part, within) = ((at / self.count.max(1)) as u32, at % self.count.max(1));
        let fold = |at| {
            let values = (0..size).map(|rank| value(rank, at));
            if self.op == ReduceOp::Max { values.max() } else { Some(values.sum()) }
        };
        let own = rank as usize * self.count + within;
        match self.collective {
            Collective::AllReduce => fold(at),
            Collective::Reduce { root } if root == rank => fold(at),
            Collective::ReduceScatter => fold(own),
            Collective::Broadcast { root } => Some(value(root, at)),
            Collective::Scatter { root } => Some(value(root, own)),
            Collective::AllGather => Some(value(part, within)),
            Collective::Gather { root } if root == rank => Some(value(part, within)),
            Collective::AllToAll => Some(value(part, own)),
            _ => None,
        }
    }

    /// Whether it cannot be right before all other ranks have made it.
    fn needs_all(self, rank: u32) -> bool {
        match self.collective {
            Collective::Reduce { root } | Collective::Gather { root } => root == rank,
            Collective::Broadcast { .. } | Collective::Scatter { .. } => false,
            _ => true,
        }
    }
}

fn value(rank: u32, at: usize) -> i32 {
    (rank as i32 + 1) * (at % 5 + 1) as i32
}

impl Made {
    /// How it ended; a result that it gives is right.
    fn end(self, comm: &Communicator) -> Result<Call, Error> {
        self.pending.wait()?;
        let output = (self.output)();
        for (at, found) in output.as_chunks::<4>().0.iter().enumerate() {
            let expected = self.call.expected(comm.size(), comm.rank(), at);
            let is_right = expected.is_none_or(|value| self.call.bytes(value) == *found);
            assert!(is_right, "rank {}: element {at} of {:?} is {found:?}", comm.rank(), self.call);
        }
        Ok(self.call)
    }
}

fn is_mismatch(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Mismatch { .. })
}

/// What the calls of a rank have come to: its error, if it has one.
fn outcome(comm: &Communicator, made: Vec<Result<Made, Error>>, what: &str) -> Result<(), Error> {
    let mut first = Ok(());
    for made in made {
        if let Err(error) = made.and_then(|made| made.end(comm)) {
            assert!(is_mismatch(error.kind()), "{what}: {error}");
            first = Err(error);
        }
    }
    first
}

/// One rank calls `other` where the rest call `call`.
fn alone(comm: &Communicator, is_odd: bool, [call, other]: [Call; 2]) -> Result<(), Error> {
    let own = if is_odd { other } else { call };
    let ended = own.make(comm).and_then(|made| made.end(comm));
    if ended.is_ok() {
        assert!(!own.needs_all(comm.rank()), "rank {} has a result of {call:?} and {other:?}", comm.rank());
    }
    ended.map(drop)
}

/// The same between right calls, all in flight.
fn in_flight(comm: &Communicator, is_odd: bool, [call, other]: [Call; 2]) -> Result<(), Error> {
    let right = Call::of(Collective::AllReduce, SIZES[1]);
    let own = if is_odd { other } else { call };
    let calls = [right, right, own, right, right];
    outcome(comm, calls.map(|call| call.make(comm)).into(), &format!("{call:?} and {other:?} in flight"))
}

/// Both calls, which one rank makes in the other order.
fn swapped(comm: &Communicator, is_odd: bool, [call, other]: [Call; 2]) -> Result<(), Error> {
    let calls = if is_odd { [other, call] } else { [call, other] };
    outcome(comm, calls.map(|call| call.make(comm)).into(), &format!("{call:?} and {other:?} swapped"))
}

/// Each call with each other one, as far as they are this world's share; the rank that differs changes from pair to pair.
fn confuse(comm: &Communicator, together: &Together, share: u32) {
    let calls = Call::all();
    let ways: [Way; 3] = [alone, in_flight, swapped];
    let mut number = 0;
    for (at, call) in calls.iter().enumerate() {
        for other in &calls[at + 1..] {
            number += 1;
            if number % WORLDS != share {
                continue;
            }
            let odd = number / WORLDS % comm.size();
            let is_odd = comm.rank() == odd;
            let what = format!("{call:?} and on rank {odd} {other:?}");
            for way in &ways[..if (number / WORLDS).is_multiple_of(OTHER_WAYS) { 3 } else { 1 }] {
                together.wait();
                let first = way(comm, is_odd, [*call, *other]);
                let error = settle(comm, first, is_mismatch);
                let text = error.to_string();
                assert!(text.contains("the ranks disagree about operation"), "{what}: {text}");
                let ErrorKind::Mismatch { calls, .. } = error.kind() else { unreachable!("settled with it") };
                assert!(calls.iter().any(|(ranks, _)| ranks.contains(&odd)), "{what}: {text}");
                sum(comm, SIZES[number as usize % 3]).unwrap_or_else(|error| panic!("after {what}: {error}"));
            }
        }
    }
    assert!(number > 1000, "{number} pairs");
}

fn over(over: Over) {
    for ranks in [2, 3, 4] {
        std::thread::scope(|scope| {
            for share in 0..WORLDS {
                scope.spawn(move || {
                    let together = Together::new(ranks);
                    world(ranks, over, |comm| confuse(comm, &together, share));
                });
            }
        });
    }
}

#[test]
fn of_calls_over_shared_memory() {
    over(Over::Shm);
}

#[test]
fn of_calls_over_tcp() {
    over(Over::Tcp);
}

#[test]
fn of_calls_through_a_reducer() {
    over(Over::Reducer);
}
