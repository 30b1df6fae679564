//! Simulations of many ranks and of absurd sizes: what keeps up, what does not, and that plans and estimates stay cheap.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    plan::{Request, predicted},
    prepare::{Call, Sizing},
    simulate::{Calibration, Costs, MessageCount, Prediction, Rig, Workload, estimate, message_count},
    verify::{Verified, verify},
};

const MIB: usize = 1 << 20;
const GBIT_10: u64 = 1_250_000_000;
/// Four run at once, so these are two rounds; the 64 of a large model are sixteen, at the same rate.
const OPERATIONS: u32 = 8;
fn proved(algorithm: &str, workers: u32) -> Verified {
    let group = Group::of_size(workers);
    let algorithm: Algorithm = algorithm.parse().unwrap();
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &Layout::default()).unwrap();
    verify(schedule, Collective::AllReduce, &group).unwrap()
}

fn workload<'a>(verified: &'a Verified, machine: &Rig, bytes: usize, operations: u32) -> Workload<'a> {
    let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4);
    let sizing = Workload::sizing(machine, verified, 0);
    Workload { verified, call, sizing, operations, at_once: Workload::AT_ONCE, parts: None, segments: 0 }
}

fn machine(workers: u32, costs: Costs) -> Rig {
    Rig::with_ports((0..workers).collect(), GBIT_10, 30_000_000, costs)
}

/// Several all-reduces of 25 MiB: bytes/s of the bus for each rank, as nccl-tests define it.
fn bus(algorithm: &str, workers: u32, costs: Costs) -> (f64, Prediction) {
    let (verified, machine) = (proved(algorithm, workers), machine(workers, costs));
    let outcome = estimate(50_000, &workload(&verified, &machine, 25 * MIB, OPERATIONS), &machine).unwrap();
    let bytes = Collective::AllReduce.bus_share(workers) * f64::from(OPERATIONS) * (25 * MIB) as f64;
    (bytes / (outcome.total() as f64 / 1e12), outcome)
}

#[test]
fn links_carry_as_much_for_each_of_512_ranks_as_of_8() {
    let few = bus("radix(8)", 8, Costs::FREE).0;
    for (algorithm, workers) in [("radix(8,8)", 64), ("radix(8,8,8)", 512), ("radix(8,8,8,8)", 4096)] {
        let ratio = bus(algorithm, workers, Costs::FREE).0 / few;
        assert!((0.95..1.01).contains(&ratio), "{workers}: {ratio}");
    }
}

/// A buffer has a chunk for each rank, but those that go from one rank to another in a stage are one message.
#[test]
fn threads_keep_up_with_the_messages_of_many_ranks() {
    let few = bus("radix(8)", 8, Costs::DEFAULT).0;
    for (algorithm, workers) in
        [("radix(8,8)", 64), ("radix(8,8,8)", 512), ("radix(32,16)", 512), ("radix(8,8,8,8)", 4096)]
    {
        let (many, outcome) = bus(algorithm, workers, Costs::DEFAULT);
        assert!(many / few > 0.8, "{workers}: {}", many / few);
        let message = outcome.busiest_link_bytes() * u64::from(workers) / outcome.messages;
        assert!(message > 16 << 10, "{workers}: {message}");
    }
}

/// Proofs of thousands of ranks are timed by `make verify-large`; their cost follows from these numbers.
#[test]
fn coded_forms_of_many_ranks_send_as_many_messages_as_plain_ones_and_keep_one_place_more_for_each() {
    let size = 512;
    let [plain, coded] = ["radix", "coded(radix)"].map(|algorithm| proved(algorithm, size).cost().worker);
    assert_eq!((plain.sent.plain, coded.sent.coded), (2 * (size - 1), 2 * (size - 1)));
    assert_eq!((plain.received.plain, coded.received.coded), (2 * (size - 1), 2 * (size - 1)));
    assert_eq!((coded.sent.plain, coded.received.plain, coded.partners), (0, 0, plain.partners));
    assert!(coded.kept <= plain.kept + size + 2, "{plain:?} {coded:?}");
}

/// Where candidates are simulated, as for codecs: in a release 45 ms to 0.2 s, once for each class of sizes.
#[test]
fn simulated_candidates_of_64_ranks_go_through_few_messages() {
    let (group, hosts): (_, Vec<u32>) = (Group::of_size(64), (0..64).collect());
    for bytes in [4, 64 << 10, MIB, 25 * MIB, 1 << 30] {
        let request =
            Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4, &group);
        let request = Request { hosts: &hosts, ..request };
        let sizing = Sizing { hosts: 64, shared: false, segment_bytes: 0, most_staged: Workload::STAGED };
        let messages = predicted::planned_messages(&request, &Calibration::DEFAULT, sizing);
        assert!((1..200_000).contains(&messages), "{bytes}: {messages}");
    }
}

#[test]
fn absurd_sizes_are_estimated_from_as_few_messages_as_large_ones() {
    let by_shares = "weighted(radix,16,5,3)";
    for (algorithm, workers) in [("ring", 8), ("tree", 16), ("doubling", 64), (by_shares, 3)] {
        let (verified, machine) = (proved(algorithm, workers), machine(workers, Costs::DEFAULT));
        let [large, absurd] = [1 << 30, 16 << 40].map(|bytes| {
            let work = workload(&verified, &machine, bytes, 1);
            (
                message_count(10_000, &work, &machine).unwrap(),
                estimate(10_000, &work, &machine).unwrap().total(),
            )
        });
        let (MessageCount { least, .. }, MessageCount { whole, least: absurd_least }) = (large.0, absurd.0);
        assert!(least == absurd_least && whole > 1000 * least, "{algorithm}: {large:?} {absurd:?}");
        let ratio = absurd.1 as f64 / large.1 as f64 / 16384.0;
        assert!((0.9..1.02).contains(&ratio), "{algorithm}: {ratio}");
    }
}
