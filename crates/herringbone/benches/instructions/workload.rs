//! What is counted: all-reduces in place of all ranks of a world, in one thread; or of one rank that waits for the others,
//! whose messages are there before it begins.

use herringbone::{Collective, Communicator, Config, DType, Pending, ReduceOp, Region, Rendezvous, Request};
use nix::sys::{ptrace, signal};
use std::{fmt, io::Write, time::Duration};

/// The first argument of the process that works.
pub(crate) const MARK: &str = "--work";
/// Sent by the process that works to itself, between operations.
pub(crate) const BETWEEN: signal::Signal = signal::Signal::SIGUSR1;
/// Operations until plans, links and rooms are made.
const WARM_UP: usize = 4;

/// A kind of all-reduce.
pub(crate) struct Case {
    pub(crate) ranks: u32,
    pub(crate) elements: usize,
    name: &'static str,
    /// How many operations are counted.
    pub(crate) operations: usize,
    /// How far instructions may be off, in percent.
    pub(crate) tolerance: u64,
    /// Whether one rank is counted, in calls that return when the operation is over.
    blocking: bool,
}

impl Case {
    const fn small(ranks: u32) -> Self {
        Self { ranks, elements: 1, name: "4 B", operations: 2, tolerance: 5, blocking: false }
    }

    const fn large(ranks: u32) -> Self {
        Self { ranks, elements: 1 << 18, name: "1 MiB", operations: 2, tolerance: 10, blocking: false }
    }

    const fn blocking(ranks: u32, elements: usize, name: &'static str) -> Self {
        Self { ranks, elements, name, operations: 4, tolerance: 5, blocking: true }
    }

    /// How many ranks the counted thread works for.
    pub(crate) fn counted_ranks(&self) -> u64 {
        if self.blocking { 1 } else { u64::from(self.ranks) }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} ranks, {}", self.ranks, self.name))
    }
}

/// All that are counted.
pub(crate) const CASES: [Case; 7] = [
    Case::small(2),
    Case::small(4),
    Case::large(2),
    Case::large(4),
    Case::blocking(2, 1, "4 B, blocking"),
    Case::blocking(4, 1, "4 B, blocking"),
    Case::blocking(4, 256, "1 KiB, blocking"),
];

/// How long the counted rank waits until the others must have sent what they send.
const UNTIL_SENT: Duration = Duration::from_millis(60);

/// Whether somebody counts.
#[derive(Clone, Copy)]
struct Watched(bool);

impl Watched {
    fn between(self) {
        if self.0 {
            signal::raise(BETWEEN).expect("a signal to this process");
        }
    }
}

/// Works through a case, and says how many allocations an operation takes.
pub(crate) fn run(case: &Case) {
    let config = Config::new(0, case.ranks, Rendezvous::Tcp(String::new())).manual_progress(true);
    let world = herringbone::local_with(config).expect("a world of threads");
    let allocations = if case.blocking { one_waits(case, world) } else { all_by_hand(case, &world) };
    println!("{allocations}");
    std::io::stdout().flush().expect("somebody reads");
}

fn watched() -> Watched {
    Watched(cfg!(target_arch = "x86_64") && ptrace::traceme().is_ok())
}

fn all_by_hand(case: &Case, world: &[Communicator]) -> u64 {
    let watched = watched();
    let buffers: Vec<Region> = (0..case.ranks).map(|rank| filled(case, rank as f32)).collect();
    let mut pending = Vec::with_capacity(world.len());
    (0..WARM_UP).for_each(|_| all_reduce(world, &buffers, &mut pending));
    let allocated = allocation_counter::measure(|| all_reduce(world, &buffers, &mut pending));
    watched.between();
    watched.between();
    for _ in 0..case.operations {
        all_reduce(world, &buffers, &mut pending);
        watched.between();
    }
    buffers.iter().for_each(|buffer| check(case, &buffer.access().expect("not revoked").span().to_vec()));
    allocated.count_total
}

fn one_waits(case: &Case, mut world: Vec<Communicator>) -> u64 {
    let first = world.remove(0);
    std::thread::scope(|scope| {
        for comm in world {
            scope.spawn(move || {
                let mut buffer = vec![comm.rank() as f32; case.elements];
                (0..WARM_UP + 1 + case.operations).for_each(|_| wait_for(&comm, &mut buffer));
                check(case, &bytes(&buffer));
            });
        }
        let mut buffer = vec![0.0; case.elements];
        (0..WARM_UP).for_each(|_| wait_for(&first, &mut buffer));
        std::thread::sleep(UNTIL_SENT);
        let allocated = allocation_counter::measure(|| wait_for(&first, &mut buffer));
        std::thread::sleep(UNTIL_SENT);
        let watched = watched();
        watched.between();
        std::thread::sleep(UNTIL_SENT);
        watched.between();
        for _ in 0..case.operations {
            wait_for(&first, &mut buffer);
            std::thread::sleep(UNTIL_SENT);
            watched.between();
        }
        check(case, &bytes(&buffer));
        allocated.count_total
    })
}

fn wait_for(comm: &Communicator, buffer: &mut [f32]) {
    comm.all_reduce(buffer, ReduceOp::Sum).expect("an operation that ends well");
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn filled(case: &Case, value: f32) -> Region {
    Region::own(vec![value; case.elements]).region().clone()
}

fn all_reduce(world: &[Communicator], buffers: &[Region], pending: &mut Vec<Pending>) {
    for (comm, buffer) in world.iter().zip(buffers) {
        let (input, output, count) = (buffer.clone(), buffer.clone(), buffer.len() / DType::F32.bytes());
        let request = Request::new(Collective::AllReduce, DType::F32, count, input, output);
        pending.push(comm.submit(request).expect("an operation that can be issued"));
    }
    while !pending.iter().all(Pending::is_done) {
        for comm in world {
            comm.progress();
        }
    }
    for pending in pending.drain(..) {
        pending.wait().expect("an operation that ends well");
    }
}

/// The sum of all ranks, multiplied by their number in each operation but the first: powers of two times a small number,
/// which f32 has exactly.
fn check(case: &Case, bytes: &[u8]) {
    let ranks = case.ranks as f32;
    let operations = (WARM_UP + 1 + case.operations) as i32;
    let expected = (ranks * (ranks - 1.0) / 2.0 * ranks.powi(operations - 1)).to_ne_bytes();
    assert!(bytes.chunks(4).all(|bytes| bytes == expected), "{case}: a wrong sum");
}
