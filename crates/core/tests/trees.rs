//! Trees as schedules: proved for any group and any links, in the order that they promise.
#![cfg(feature = "topology-readers")]

use herringbone_core::algorithm::{Algorithm, Layout, Unsupported};
use herringbone_core::collective::Collective;
use herringbone_core::element::{DType, ReduceOp};
use herringbone_core::group::Group;
use herringbone_core::interpret::interpret;
use herringbone_core::schedule::Step;
use herringbone_core::topology::trees::{TreeMode, TreeRequest, all_reduce_bound, plan};
use herringbone_core::topology::{LinkMatrix, read};
use herringbone_core::verify::{Order, Verified, verify};
use std::fs;

const NAMES: [&str; 4] = ["trees", "trees(mxnet)", "trees(best)", "trees(throughput)"];

fn proved(name: &str, collective: Collective, group: &Group, links: Option<&LinkMatrix>) -> Verified {
    let algorithm: Algorithm = name.parse().unwrap();
    let context = || format!("{name}, {collective}, keys {:?}", group.keys());
    let layout = Layout { links, ..Layout::default() };
    let schedule = algorithm.schedule(collective, group, &layout);
    let schedule = schedule.unwrap_or_else(|error| panic!("{}: {error}", context()));
    let verified =
        verify(schedule, collective, group).unwrap_or_else(|error| panic!("{}: {error}", context()));
    assert!(name != "trees" || verified.order() == Order::Fixed, "{}", context());
    verified
}

/// A matrix of the shared ones.
fn matrix(name: &str) -> LinkMatrix {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/topologies/link_matrices.json");
    LinkMatrix::of(&read(&fs::read_to_string(path).unwrap(), Some(name)).unwrap()).unwrap()
}

#[test]
fn every_kind_is_proved_for_any_group() {
    for size in 1..=64 {
        let group = Group::of_size(size);
        for name in NAMES {
            let verified = proved(name, Collective::AllReduce, &group, None);
            if size > 1 && name != "trees(throughput)" {
                assert_eq!(verified.cut().chunks(), size, "{name} of {size}");
            }
        }
        let root = size / 2;
        for name in ["trees", "trees(best)"] {
            proved(name, Collective::Reduce { root }, &group, None);
            proved(name, Collective::Broadcast { root }, &group, None);
        }
        assert_eq!(proved("trees(best,single)", Collective::AllReduce, &group, None).cut().chunks(), 1);
    }
}

#[test]
fn canonical_trees_are_proved_for_irregular_groups() {
    let keys: [&[u32]; 6] = [
        &[5],
        &[0, u32::MAX],
        &[0, 1, 2, 0x8000_0000],
        &[3, 9, 11, 12, 40],
        &[8, 16, 24, 32, 40, 48],
        &[0, 1, 2, 4, 5, 6, 8, 16, 17, 20, 33],
    ];
    for keys in keys {
        let group = Group::with_keys(keys.to_vec()).unwrap();
        for name in NAMES {
            proved(name, Collective::AllReduce, &group, None);
        }
        for root in 0..group.size() {
            proved("trees", Collective::Reduce { root }, &group, None);
            proved("trees", Collective::Broadcast { root }, &group, None);
        }
    }
}

/// No schedule sends over a link of weight 0, up or down.
#[test]
fn schedules_go_over_links_that_are_there() {
    for name in
        ["derived_dgx1v_weights_nvlink_only", "derived_dgx1v_first6_nvlink_only", "derived_pcie8_all_nonp2p"]
    {
        let links = matrix(name);
        let group = Group::of_size(links.size() as u32);
        for algorithm in ["trees(mxnet)", "trees(best)", "trees(throughput)", "trees(best,single)", "trees"] {
            if algorithm == "trees" && name.contains("first6") {
                continue;
            }
            let verified = proved(algorithm, Collective::AllReduce, &group, Some(&links));
            for rank in 0..group.size() {
                let program = verified.program(rank);
                for step in program.steps() {
                    if let Step::Send { to, .. } = *step {
                        let linked = |to: &u32| links.weight(rank as usize, *to as usize) > 0.0;
                        assert!(program.lanes(to).iter().all(linked), "{algorithm} on {name}, rank {rank}");
                    }
                }
            }
        }
    }
}

/// Trees in the canonical order leave no more to the slowest link than the tree in the order of ranks, where that has one.
#[test]
fn canonical_trees_are_as_good_as_the_tree_of_ranks() {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut better = 0;
    for case in 0..200 {
        let size = 3 + case % 10;
        let mut rows = vec![vec![0.0f32; size]; size];
        for (a, b) in (0..size).flat_map(|b| (0..b).map(move |a| (a, b))) {
            let weight = 1.0 + random(6) as f32;
            (rows[a][b], rows[b][a]) = (weight, weight);
        }
        let (links, group) = (LinkMatrix::of_weights(&rows).unwrap(), Group::of_size(size as u32));
        let ours = busiest(&proved("trees", Collective::AllReduce, &group, Some(&links)), &links);
        let theirs = busiest(&proved("tree", Collective::AllReduce, &group, None), &links);
        assert!(ours <= theirs + 1e-6, "{rows:?}: {ours} and {theirs}");
        better += usize::from(ours < 0.9 * theirs);
    }
    assert!(better > 50, "{better} of 200");
}

/// The most buffers by weight that a link carries in one direction.
fn busiest(verified: &Verified, links: &LinkMatrix) -> f64 {
    let size = links.size();
    let mut sent = vec![0u32; size * size];
    for rank in 0..size {
        let program = verified.program(rank as u32);
        for step in program.steps() {
            if let Step::Send { to, .. } = *step {
                program.lanes(to).iter().for_each(|to| sent[rank * size + *to as usize] += 1);
            }
        }
    }
    let load = |(at, sent): (usize, &u32)| f64::from(*sent) / f64::from(links.weight(at / size, at % size));
    let worst = sent.iter().enumerate().filter(|(_, sent)| **sent > 0).map(load).fold(0.0, f64::max);
    worst / f64::from(verified.cut().chunks())
}

/// The time that is told of trees is that of their schedule: sends up and down over the busiest direction of a link.
#[test]
fn the_time_of_trees_is_that_of_an_all_reduce() {
    for name in
        ["derived_dgx1v_weights_nvlink_only", "derived_dgx1v_first6_nvlink_only", "derived_pcie8_all_nonp2p"]
    {
        let links = matrix(name);
        let group = Group::of_size(links.size() as u32);
        for mode in [TreeMode::Best, TreeMode::Throughput] {
            let set = plan(&links, &TreeRequest::of(mode)).unwrap();
            let algorithm = format!("trees({})", mode.name());
            let busy = busiest(&proved(&algorithm, Collective::AllReduce, &group, Some(&links)), &links);
            let (time, part) = (set.all_reduce_time(&links), set.part_of_bound(&links));
            assert!((time - busy).abs() < 1e-12, "{algorithm} on {name}: {time} and {busy}");
            assert!((part - all_reduce_bound(&links) / busy).abs() < 1e-12 && part <= 1.0 + 1e-9, "{part}");
        }
    }
}

/// Where ranks 0 and 1 are not linked, no canonical tree goes without their link; planned trees do.
#[test]
fn what_is_impossible_says_why() {
    let ask = |name: &str, links: Option<&LinkMatrix>, size: u32| {
        let algorithm: Algorithm = name.parse().unwrap();
        let layout = Layout { links, ..Layout::default() };
        algorithm.schedule(Collective::AllReduce, &Group::of_size(size), &layout).map(drop)
    };
    let line = |weight: f32| {
        LinkMatrix::of_weights(&[vec![0.0, 0.0, 1.0], vec![0.0, 0.0, weight], vec![1.0, weight, 0.0]])
            .unwrap()
    };
    assert_eq!(ask("trees", Some(&line(1.0)), 3), Err(Unsupported::NoCanonicalTree));
    assert_eq!(ask("trees(best)", Some(&line(1.0)), 3), Ok(()));
    let apart = ask("trees(best)", Some(&line(0.0)), 3).unwrap_err();
    assert!(matches!(&apart, Unsupported::NoTrees { reason } if reason.contains("rank 1")), "{apart}");
    assert_eq!(
        ask("trees(best)", Some(&line(1.0)), 4),
        Err(Unsupported::UnknownLinks { known: 3, workers: 4 })
    );
    assert_eq!(ask("trees", None, 65), Err(Unsupported::TooManyForTrees { workers: 65 }));
}

/// Own orders give what they say, and canonical trees what every canonical algorithm gives.
#[test]
fn interpreted_they_sum_up() {
    for size in [2u32, 3, 6, 8] {
        let group = Group::of_size(size);
        let value = |rank: u32, at: u32| 0.1 * rank as f32 + (at * at) as f32 * 1.7e-3 - 3.0;
        let inputs: Vec<Vec<u8>> =
            (0..size).map(|rank| (0..501).flat_map(|at| value(rank, at).to_le_bytes()).collect()).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let run = |name: &str| {
            let verified = proved(name, Collective::AllReduce, &group, None);
            interpret(&verified, DType::F32, ReduceOp::Sum, 501, &inputs).unwrap()
        };
        let expected = run("radix");
        assert_eq!(run("trees"), expected);
        for name in NAMES {
            let outputs = run(name);
            assert!(
                outputs.iter().all(|output| *output == outputs[0]),
                "{name}: all ranks get the same bits"
            );
            for (ours, theirs) in outputs[0].chunks(4).zip(expected[0].chunks(4)) {
                let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
                assert!((number(ours) - number(theirs)).abs() < 1e-2, "{name} of {size}");
            }
        }
    }
}
