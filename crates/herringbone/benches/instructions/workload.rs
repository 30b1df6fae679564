//! What is counted: all-reduces in place of all ranks of a world, in one thread.

use herringbone::{Collective, Communicator, Config, DType, Pending, ReduceOp, Region, Rendezvous, Request};
use nix::sys::{ptrace, signal};
use std::{fmt, io::Write};

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
}

impl Case {
    const fn small(ranks: u32) -> Self {
        Self { ranks, elements: 1, name: "4 B", operations: 2, tolerance: 5 }
    }

    const fn large(ranks: u32) -> Self {
        Self { ranks, elements: 1 << 18, name: "1 MiB", operations: 2, tolerance: 10 }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} ranks, {}", self.ranks, self.name))
    }
}

/// All that are counted.
pub(crate) const CASES: [Case; 4] = [Case::small(2), Case::small(4), Case::large(2), Case::large(4)];

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
    let watched = Watched(cfg!(target_arch = "x86_64") && ptrace::traceme().is_ok());
    let config = Config::new(0, case.ranks, Rendezvous::Tcp(String::new())).manual_progress(true);
    let world = herringbone::local_with(config).expect("a world of threads");
    let buffers: Vec<Region> = (0..case.ranks).map(|rank| filled(case, rank as f32)).collect();
    let mut pending = Vec::with_capacity(world.len());
    (0..WARM_UP).for_each(|_| all_reduce(&world, &buffers, &mut pending));
    let allocated = allocation_counter::measure(|| all_reduce(&world, &buffers, &mut pending));
    watched.between();
    watched.between();
    for _ in 0..case.operations {
        all_reduce(&world, &buffers, &mut pending);
        watched.between();
    }
    check(case, &buffers);
    println!("{}", allocated.count_total);
    std::io::stdout().flush().expect("somebody reads");
}

fn filled(case: &Case, value: f32) -> Region {
    Region::own(vec![value; case.elements]).region().clone()
}

fn all_reduce(world: &[Communicator], buffers: &[Region], pending: &mut Vec<Pending>) {
    for (comm, buffer) in world.iter().zip(buffers) {
        let request = Request {
            collective: Collective::AllReduce,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            count: buffer.len() / DType::F32.bytes(),
            priority: 0,
            input: buffer.clone(),
            output: buffer.clone(),
            timeout: None,
        };
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
fn check(case: &Case, buffers: &[Region]) {
    let ranks = case.ranks as f32;
    let operations = (WARM_UP + 1 + case.operations) as i32;
    let expected = (ranks * (ranks - 1.0) / 2.0 * ranks.powi(operations - 1)).to_ne_bytes();
    for buffer in buffers {
        let bytes = buffer.access().expect("a buffer that is not revoked").span().to_vec();
        assert!(bytes.chunks(4).all(|bytes| bytes == expected), "{case}: a wrong sum");
    }
}
