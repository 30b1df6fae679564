//! What is counted: all-reduces in place of all ranks of a world, in one thread; or of one rank that waits for the others,
//! whose messages are there before it begins; or that one rank issues while many others are in flight.

use herringbone::{Collective, Communicator, Config, DType, Pending, ReduceOp, Region, Rendezvous, Request};
use herringbone_sys::kernel::Level;
use nix::sys::{ptrace, signal};
use std::{fmt, io::Write, time::Duration};

/// The first argument of the process that works.
pub(crate) const MARK: &str = "--work";
/// Sent by the process that works to itself, between operations.
pub(crate) const BETWEEN: signal::Signal = signal::Signal::SIGUSR1;
/// Operations until plans, links and rooms are made.
const WARM_UP: usize = 4;
/// Operations in flight beside one that is issued.
const BESIDE: usize = 2000;

/// A kind of all-reduce.
pub(crate) struct Case {
    pub(crate) ranks: u32,
    pub(crate) elements: usize,
    name: &'static str,
    /// How many operations are counted.
    pub(crate) operations: usize,
    /// How far instructions may be off, in percent.
    pub(crate) tolerance: u64,
    counted: Counted,
}

/// Which part of the operations is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// All of all ranks.
    All,
    /// One rank's calls, which return when the operation is over.
    Blocking,
    /// That one rank issues them, while [`BESIDE`] others are in flight.
    Issuing,
}

impl Case {
    const fn small(ranks: u32) -> Self {
        Self { ranks, elements: 1, name: "4 B", operations: 2, tolerance: 5, counted: Counted::All }
    }

    const fn large(ranks: u32) -> Self {
        Self { ranks, elements: 1 << 18, name: "1 MiB", operations: 2, tolerance: 10, counted: Counted::All }
    }

    const fn blocking(ranks: u32, elements: usize, name: &'static str) -> Self {
        Self { ranks, elements, name, operations: 12, tolerance: 5, counted: Counted::Blocking }
    }

    const fn issued(ranks: u32) -> Self {
        let name = "4 B, issued beside 2,000";
        Self { ranks, elements: 1, name, operations: 4, tolerance: 10, counted: Counted::Issuing }
    }

    /// Which instructions fold it on this CPU.
    pub(crate) fn level(&self) -> Level {
        Level::of(self.elements * DType::F32.bytes() * self.ranks as usize)
    }

    /// How many ranks the counted thread works for.
    pub(crate) fn counted_ranks(&self) -> u64 {
        if self.counted == Counted::All { u64::from(self.ranks) } else { 1 }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} ranks, {}", self.ranks, self.name))
    }
}

/// All that are counted.
pub(crate) const CASES: [Case; 8] = [
    Case::small(2),
    Case::small(4),
    Case::large(2),
    Case::large(4),
    Case::blocking(2, 1, "4 B, blocking"),
    Case::blocking(4, 1, "4 B, blocking"),
    Case::blocking(4, 256, "1 KiB, blocking"),
    Case::issued(2),
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
    let allocations = match case.counted {
        Counted::All => all_by_hand(case, &world),
        Counted::Blocking => one_waits(case, world),
        Counted::Issuing => one_issues(case, &world),
    };
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

fn one_issues(case: &Case, world: &[Communicator]) -> u64 {
    let buffers: Vec<Region> = (0..case.ranks).map(|rank| filled(case, rank as f32)).collect();
    let mut pending = Vec::new();
    (0..WARM_UP).for_each(|_| all_reduce(world, &buffers, &mut pending));
    let issued = BESIDE + 2 * case.operations;
    let buffers = |rank: u32| (0..issued).map(|_| filled(case, rank as f32)).collect::<Vec<Region>>();
    let (ours, mut pending) = (buffers(0), Vec::with_capacity(world.len() * issued));
    let mut next = ours.iter();
    let mut issue = || pending.extend(next.next().map(|buffer| submit(&world[0], buffer)));
    (0..BESIDE).for_each(|_| issue());
    // Now and then a list of what is in flight grows.
    let allocations = (0..case.operations).map(|_| allocation_counter::measure(&mut issue).count_total).min();
    let watched = watched();
    watched.between();
    watched.between();
    for _ in 0..case.operations {
        issue();
        watched.between();
    }
    for (rank, comm) in (1..).zip(&world[1..]) {
        pending.extend(buffers(rank).iter().map(|buffer| submit(comm, buffer)));
    }
    finish(world, &mut pending);
    let expected = vec![(case.ranks * (case.ranks - 1) / 2) as f32; case.elements];
    let is_right =
        |buffer: &Region| buffer.access().expect("not revoked").span().to_vec() == bytes(&expected);
    assert!(ours.iter().all(is_right), "{case}: a wrong sum");
    allocations.expect("operations that were counted")
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
    pending.extend(world.iter().zip(buffers).map(|(comm, buffer)| submit(comm, buffer)));
    finish(world, pending);
}

fn submit(comm: &Communicator, buffer: &Region) -> Pending {
    let (input, output, count) = (buffer.clone(), buffer.clone(), buffer.len() / DType::F32.bytes());
    let request = Request::new(Collective::AllReduce, DType::F32, count, input, output);
    comm.submit(request).expect("an operation that can be issued")
}

fn finish(world: &[Communicator], pending: &mut Vec<Pending>) {
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
