//! Links of one direction, and pairs without a link of their own that share switches: times against those by hand.
#![cfg(feature = "topology-readers")]

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    plan::missing_link,
    prepare::Call,
    simulate::{Costs, Prediction, Resource, Rig, SECOND, Workload, simulate},
    topology::{LinkMatrix, Switches, Topology, read},
    verify::verify,
};
use std::fs;

const MEGABYTES: f64 = 24.0;

/// A machine of MXNet's Figure 2.
fn figure(name: &str) -> Topology {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/topologies/mxnet_figure2.json");
    read(&fs::read_to_string(path).unwrap(), Some(name)).unwrap()
}

fn rig(topology: &Topology) -> Rig {
    let links = LinkMatrix::of(topology).unwrap();
    Rig { switches: Switches::of(topology), ..Rig::with_links(&links, 0, Costs::FREE) }
}

/// An all-reduce of 24 MB where threads are free.
fn run(algorithm: &str, rig: &Rig) -> Prediction {
    let (algorithm, workers): (Algorithm, _) = (algorithm.parse().unwrap(), rig.hosts.len() as u32);
    let group = Group::of_size(workers);
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &Layout::default()).unwrap();
    let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
    let count = (MEGABYTES * 1e6) as usize / 4;
    let work = Workload {
        verified: &verified,
        call: Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, count),
        sizing: Workload::sizing(rig, &verified, 0),
        operations: 1,
        at_once: Workload::AT_ONCE,
        parts: None,
        segments: 0,
    };
    simulate(&work, rig, &mut |_| ()).unwrap()
}

fn milliseconds(outcome: &Prediction) -> f64 {
    1e3 * outcome.total() as f64 / SECOND as f64
}

/// How long something carries so many buffers at 12 GB/s, or another rate, and that the simulation says the same.
fn check_busy(outcome: &Prediction, place: Resource, buffers: f64, rate: f64) -> f64 {
    let expected = buffers * MEGABYTES / rate;
    let used = outcome.used.iter().find(|used| used.place == place);
    let busy = used.map_or(0.0, |used| 1e3 * used.busy as f64 / SECOND as f64);
    assert!((busy / expected - 1.0).abs() < 0.01, "{place:?}: {busy} ms, by hand {expected}");
    expected
}

/// Two GPUs behind each switch: what either sends to any other, and gets, goes through it.
#[test]
fn a_ring_and_a_star_over_pcie_share_switches() {
    let rig = rig(&figure("pcie_4"));
    // Both GPUs of a switch send 2 x 3/4 of the buffer.
    let ring = run("ring", &rig);
    let busy = check_busy(&ring, Resource::SwitchOut(0), 3.0, 12.0);
    check_busy(&ring, Resource::SwitchInto(1), 3.0, 12.0);
    assert!((1.0..1.15).contains(&(milliseconds(&ring) / busy)), "{} and {busy}", milliseconds(&ring));
    // Rank 0 gets 3 buffers and sends 3; rank 1 behind the same switch sends and gets one.
    let star = run("star", &rig);
    let busy = check_busy(&star, Resource::SwitchOut(0), 4.0, 12.0);
    check_busy(&star, Resource::SwitchInto(0), 4.0, 12.0);
    check_busy(&star, Resource::SwitchOut(1), 2.0, 12.0);
    assert!((1.0..2.0).contains(&(milliseconds(&star) / busy)), "{} and {busy}", milliseconds(&star));
    assert!(milliseconds(&ring) < milliseconds(&star));
}

/// Of the ring of ranks two pairs have no NVLink; of the star three, which all come through rank 0's switch.
#[test]
fn pairs_without_an_nvlink_go_over_pcie_beside_it() {
    let rig = rig(&figure("nvlink_and_pcie_8"));
    let ring = run("ring", &rig);
    let busy = check_busy(&ring, Resource::SwitchOut(1), 1.75, 12.0);
    check_busy(&ring, Resource::SwitchInto(0), 1.75, 12.0);
    check_busy(&ring, Resource::Link { from: 0, to: 1 }, 1.75, 25.0);
    assert!((1.0..1.15).contains(&(milliseconds(&ring) / busy)), "{} and {busy}", milliseconds(&ring));
    let star = run("star", &rig);
    let busy = check_busy(&star, Resource::SwitchInto(0), 3.0, 12.0);
    check_busy(&star, Resource::Link { from: 3, to: 0 }, 1.0, 50.0);
    assert!((1.0..2.0).contains(&(milliseconds(&star) / busy)), "{} and {busy}", milliseconds(&star));
    // All of the buffer's ways over PCIe alone: the ring sends twice as much through each switch, and the star more.
    let pcie = self::rig(&figure("pcie_8"));
    check_busy(&run("ring", &pcie), Resource::SwitchOut(1), 3.5, 12.0);
    check_busy(&run("star", &pcie), Resource::SwitchInto(0), 8.0, 12.0);
}

#[test]
fn a_ring_needs_links_of_one_direction_only() {
    let ring = |a: usize| (0..4).map(|b| f32::from(u8::from((a + 1) % 4 == b))).collect();
    let links = LinkMatrix::of_weights(&(0..4).map(ring).collect::<Vec<Vec<f32>>>()).unwrap();
    let outcome = run("ring", &Rig::with_links(&links, 0, Costs::FREE));
    let busy = check_busy(&outcome, Resource::Link { from: 3, to: 0 }, 1.5, 1.0);
    assert!((1.0..1.05).contains(&(milliseconds(&outcome) / busy)), "{} and {busy}", milliseconds(&outcome));
    // What sends elsewhere is named.
    let group = Group::of_size(4);
    let missing = |name: &str| {
        let algorithm: Algorithm = name.parse().unwrap();
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &Layout::default()).unwrap();
        missing_link(&schedule, &links)
    };
    assert_eq!((missing("ring"), missing("star")), (None, Some([0, 2])));
}

#[test]
fn switches_are_those_of_all_ranks() {
    let switches = Switches::of(&figure("nvlink_and_pcie_8")).unwrap();
    assert_eq!(switches.of_rank, [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!((switches.out, switches.into), (vec![12.0; 4], vec![12.0; 4]));
    assert_eq!(Switches::of(&read("0 1\n1 0\n", None).unwrap()), None);
}
