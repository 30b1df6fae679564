//! Simulated times: against bounds and formulas, and one rank's against all ranks'.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    prepare::Call,
    simulate::{Cores, Costs, Machine, Outcome, SECOND, Work, simulate, simulate_up_to},
    verify::{Verified, verify},
};

const MBIT_500: u64 = 62_500_000;
const MIB: usize = 1 << 20;

fn proved(algorithm: &str, workers: u32, reducers: u32, hosts: &[u32]) -> Verified {
    let (algorithm, group): (Algorithm, _) = (algorithm.parse().unwrap(), Group::of_size(workers));
    let layout = Layout { reducers, hosts, links: None };
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
    verify(schedule, Collective::AllReduce, &group).unwrap()
}

fn all_reduce(bytes: usize) -> Call {
    Call { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: bytes / 4 }
}

fn run(verified: &Verified, machine: &Machine, bytes: usize, operations: u32) -> Outcome {
    let sizing = Work::sizing(machine, verified, 0);
    let work = Work { verified, call: all_reduce(bytes), sizing, operations, at_once: Work::AT_ONCE };
    simulate(&work, machine, &mut |_| ())
}

fn machine(members: u32, rate: u64) -> Machine {
    Machine::with_ports((0..members).collect(), rate, 50_000_000, Costs::DEFAULT)
}

#[test]
fn one_rank_stands_for_all() {
    for (algorithm, n) in [
        ("radix", 8),
        ("radix", 64),
        ("radix", 200),
        ("radix(8,8)", 64),
        ("radix(8,8,4)", 256),
        ("ring", 64),
        ("doubling", 64),
        ("radix(2,2,2,2,2,2)", 64),
    ] {
        let verified = proved(algorithm, n, 0, &[]);
        for rate in [125_000_000, 12_500_000_000] {
            for mib in [1usize, 4] {
                let machine = machine(n, rate);
                let sizing = Work::sizing(&machine, &verified, 0);
                let work = Work {
                    verified: &verified,
                    call: all_reduce(mib * MIB),
                    sizing,
                    operations: 1,
                    at_once: Work::AT_ONCE,
                };
                let [one, all] = [0, u64::MAX].map(|most| simulate_up_to(most, &work, &machine, &mut |_| ()));
                println!(
                    "{algorithm} {n} {mib} {rate}: {:.4} {} {:?} {:?}",
                    one.total() as f64 / all.total() as f64,
                    one.by_symmetry,
                    one.messages == all.messages,
                    (one.busiest().unwrap().place, all.busiest().unwrap().place)
                );
            }
        }
    }
}
