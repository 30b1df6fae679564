//! The model of sums that are under way together, held against the simulator, which runs them together.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    prepare::Call,
    simulate::{Calibration, Prediction, Rig, Workload, simulate},
    training::{Bucket, BucketCost, TrainingStep, timeline},
    verify::{Verified, verify},
};

fn simulated(verified: &Verified, bytes: usize, operations: u32) -> Prediction {
    let schedule = verified.schedule();
    let known = Calibration { port: 1_250_000_000, ..Calibration::default() };
    let machine = Rig::with_ports((0..schedule.ranks()).collect(), known.port, known.latency, known.costs);
    let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4);
    let sizing = Workload::sizing(&machine, verified, 0);
    let at_once = Workload::AT_ONCE;
    let work = Workload { verified, call, sizing, operations, at_once, parts: None, segments: 0 };
    simulate(&work, &machine, &mut |_| ()).unwrap()
}

/// Buckets of one length that are ready at once are as many operations that are called at once: from 8 MiB on the times differ by less than
/// a tenth.
#[test]
fn sums_at_once_take_what_the_simulator_says_of_operations_at_once() {
    let step = TrainingStep { forward: 0, backward: 0, after: 0, cores: None };
    for (name, workers, reducers) in [
        ("ring", 8, 0),
        ("double_tree", 8, 0),
        ("reduction_server", 6, 6),
        ("radix", 8, 0),
        ("star", 5, 0),
        ("tree", 16, 0),
    ] {
        let algorithm: Algorithm = name.parse().unwrap();
        let group = Group::of_size(workers);
        let layout = Layout { reducers, ..Layout::default() };
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
        let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
        for bytes in [8 << 20, 25 << 20] {
            let one = simulated(&verified, bytes, 1);
            let busy = one.busiest().unwrap().busy;
            let cost = BucketCost { time: one.total(), busy, cores: 0 };
            let buckets = [Bucket { kind: 0, bytes: bytes as u64, ready: 0 }; 4];
            let modelled = timeline(&step, &buckets, Workload::AT_ONCE, |_| cost).total as f64;
            let together = simulated(&verified, bytes, 4).total() as f64;
            let ratio = modelled / together;
            assert!((0.9..1.1).contains(&ratio), "{name} of {workers}, {bytes} B: {ratio}");
        }
    }
}
