//! Simulations of many ranks and absurd sizes: bandwidth keeps up, and planning and estimates stay cheap.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    plan::{self, Request, predicted},
    prepare::{Call, Sizing},
    simulate::{Calibration, Costs, Effort, Prediction, Rig, Workload, effort, estimate, simulate},
    verify::{Verified, verify},
};

const MIB: usize = 1 << 20;
const GBIT_10: u64 = 1_250_000_000;
const OPERATIONS: u32 = 64;

fn proved(algorithm: &Algorithm, workers: u32) -> Verified {
    let group = Group::of_size(workers);
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &Layout::default()).unwrap();
    verify(schedule, Collective::AllReduce, &group).unwrap()
}

fn workload<'a>(verified: &'a Verified, machine: &Rig, bytes: usize, operations: u32) -> Workload<'a> {
    let call =
        Call { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: bytes / 4 };
    let sizing = Workload::sizing(machine, verified, 0);
    Workload { verified, call, sizing, operations, at_once: Workload::AT_ONCE, segments: 0 }
}

fn machine(workers: u32) -> Rig {
    Rig::with_ports((0..workers).collect(), GBIT_10, 30_000_000, Costs::DEFAULT)
}

/// What the plan chooses for lone workers.
fn planned(workers: u32, bytes: usize) -> Algorithm {
    let group = Group::of_size(workers);
    let request = Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4, &group);
    let hosts: Vec<u32> = (0..workers).collect();
    plan::choose(&Request { hosts: &hosts, ..request }).unwrap().algorithm
}

/// GB/s of the bus, as nccl-tests define it.
fn bus(workers: u32, algorithm: &Algorithm) -> (f64, Prediction) {
    let (verified, machine) = (proved(algorithm, workers), machine(workers));
    let outcome = simulate(&workload(&verified, &machine, 25 * MIB, OPERATIONS), &machine, &mut |_| ());
    let share = Collective::AllReduce.bus_share(workers);
    (share * f64::from(OPERATIONS) * (25 * MIB) as f64 / (outcome.total() as f64 / 1e12) / 1e9, outcome)
}

#[test]
#[ignore]
fn print() {
    for workers in [8u32, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096] {
        for algorithm in ["plan", "radix", "twos", "fours", "eights"] {
            let bits = workers.ilog2();
            let algorithm = match algorithm {
                "plan" => planned(workers, 25 * MIB),
                "radix" => Algorithm::radix(vec![]),
                "twos" => Algorithm::radix(vec![2; bits as usize]),
                "fours" => Algorithm::radix(vec![4; bits.div_ceil(2) as usize]),
                _ => Algorithm::radix(vec![8; bits.div_ceil(3) as usize]),
            };
            if workers > 512 && algorithm == Algorithm::radix(vec![]) {
                continue;
            }
            let begin = std::time::Instant::now();
            let group = Group::of_size(workers);
            if algorithm.schedule(Collective::AllReduce, &group, &Layout::default()).is_err() {
                continue;
            }
            let (bus, outcome) = bus(workers, &algorithm);
            println!("{workers} {algorithm}: {bus:.3} GB/s, sym {}, messages {}, staged {}, {:?}", outcome.by_symmetry, outcome.messages, outcome.staged, begin.elapsed());
        }
    }
}
