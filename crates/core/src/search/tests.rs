//! What is found where ports are unequal, and links are slow or missing, beside the list's best.

use super::*;
use crate::{
    collective::Collective,
    element::{DType, ReduceOp},
    group::FoldOrder,
    interpret::interpret,
    plan::{Request, predicted},
    schedule::Schedule,
    simulate::Calibration,
    topology::{LinkMatrix, Port, Ports, Wiring},
};
use alloc::{string::ToString, vec};

/// Machines, and how they are linked.
struct Case {
    name: &'static str,
    hosts: Vec<u32>,
    order: FoldOrder,
    wiring: Wiring,
}

/// What the list and the search come to.
struct Compared {
    list: Option<Listed>,
    found: FoundSchedule,
}

const BYTES: usize = 4 << 20;

/// The rates of links in GB/s by their ends.
fn links(ranks: usize, rate: impl Fn(usize, usize) -> f32) -> Wiring {
    let row = |from: usize| (0..ranks).map(|to| if from == to { 0.0 } else { rate(from, to) }).collect();
    let rows: Vec<Vec<f32>> = (0..ranks).map(row).collect();
    LinkMatrix::of_weights(&rows).unwrap().into()
}

/// Ports in Mbit/s, of the host of each rank.
fn ports(rates: &[u64]) -> Wiring {
    let port = |rate: &u64| Port { out: rate * 125_000, into: rate * 125_000 };
    Wiring { ports: Some(Ports::new(rates.iter().map(port).collect(), 0).unwrap()), ..Wiring::default() }
}

fn case(name: &'static str, ranks: usize, wiring: Wiring) -> Case {
    Case { name, hosts: (0..ranks as u32).collect(), order: FoldOrder::Ranks, wiring }
}

fn slow_pairs() -> Case {
    let rate = |from: usize, to: usize| if from / 2 == to / 2 { 0.1 } else { 1.0 };
    case("two slow pairs", 4, links(4, rate))
}

/// Eight ranks whose links to others than their neighbours have a rate, and maybe a link of the ring, too.
fn ring(others: f32, broken: Option<f32>) -> Wiring {
    links(8, move |from, to| match from.abs_diff(to) {
        1 => 1.0,
        7 => broken.unwrap_or(1.0),
        _ => others,
    })
}

fn compare(case: &Case, seed: u64, rounds: u32) -> Compared {
    let group = case.order.group(&case.hosts, &[]);
    let request = Request {
        hosts: &case.hosts,
        links: case.wiring.links.as_ref(),
        ports: case.wiring.ports.as_ref(),
        ..Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, BYTES / 4, &group)
    };
    let rig = predicted::machine(&request, &Calibration::default(), 0);
    let hosts = Sizing::distinct(&case.hosts);
    let sizing = Sizing { hosts, shared: false, segment_bytes: 0, most_staged: Workload::STAGED };
    let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, BYTES / 4);
    let problem = Problem { group: &group, rig: &rig, call, sizing };
    let list = listed(&problem, &request).into_iter().find(|listed| listed.order == Order::Fixed);
    let mut search = ScheduleSearch::new(problem, seed).unwrap();
    for _ in 0..rounds {
        search.round();
    }
    assert_eq!(search.rounds(), rounds);
    Compared { list, found: search.into_best().unwrap() }
}

#[test]
fn what_is_found_beats_the_list_where_links_or_ports_are_unequal() {
    let cases = [
        (slow_pairs(), 30),
        (case("ports of 1, 2, 4 and 8", 4, ports(&[1000, 2000, 4000, 8000])), 85),
        (case("a ring with slow links besides", 8, ring(0.1, None)), 70),
        (Case { hosts: vec![0, 0, 0, 1, 2, 2], ..case("hosts of 3, 1 and 2", 6, ports(&[4000; 6])) }, 90),
    ];
    for (case, percent) in cases {
        let Compared { list, found } = compare(&case, 1, 6);
        let list = list.expect(case.name);
        let case = case.name;
        assert!(100 * found.time < percent * list.time, "{case}: {} ps, {list:?}", found.time);
        assert_eq!(found.verified.order(), Order::Fixed);
    }
}

/// No algorithm of the canonical order goes over them.
#[test]
fn missing_links_are_gone_round() {
    let grid = |from: usize, to: usize| {
        let is_linked = from / 3 == to / 3 && from.abs_diff(to) == 1 || from.abs_diff(to) == 3;
        if is_linked { 1.0 } else { 0.0 }
    };
    for case in [
        case("a ring", 8, ring(0.0, None)),
        case("a ring with a broken link", 8, ring(0.0, Some(0.0))),
        case("two rows of three", 6, links(6, grid)),
    ] {
        let Compared { list, found } = compare(&case, 1, 3);
        assert_eq!(list, None, "{}", case.name);
        let links = case.wiring.links.as_ref().unwrap();
        assert_eq!(crate::plan::missing_link(found.verified.schedule(), links), None, "{}", case.name);
    }
}

#[test]
fn where_all_is_equal_the_list_is_about_as_good() {
    let Compared { list, found } = compare(&case("alike", 4, links(4, |_, _| 1.0)), 1, 4);
    let least = list.unwrap().time;
    assert!(found.time > least / 100 * 95 && found.time < least / 100 * 105, "{} {least}", found.time);
}

#[test]
fn a_seed_and_rounds_fix_what_is_found() {
    let text = |seed| compare(&slow_pairs(), seed, 4).found.verified.schedule().to_string();
    assert_eq!(text(3), text(3));
    assert_eq!(Schedule::parse(&text(3)).unwrap().to_string(), text(3), "it can be read back");
}

/// Whatever is drawn: each draft is proved (`judge` says so), and has the bits of radix.
#[test]
fn all_drafts_are_right_whatever_the_machines() {
    let mut random = SplitMix::new(5);
    for ranks in (2..10).chain([16]) {
        let order = if ranks % 3 == 0 { FoldOrder::Hosts } else { FoldOrder::Ranks };
        let mut hosts = vec![0; ranks];
        for rank in 1..ranks {
            hosts[rank] = hosts[rank - 1] + u32::from(random.below(3) > 0);
        }
        let mut rows = vec![vec![0.0f32; ranks]; ranks];
        for (from, to) in (0..ranks).flat_map(|from| (0..from).map(move |to| (from, to))) {
            if from - to == 1 || random.below(2) == 0 {
                let rate = [0.1, 1.0, 4.0][random.below(3)];
                (rows[from][to], rows[to][from]) = (rate, rate);
            }
        }
        let wiring = LinkMatrix::of_weights(&rows).unwrap().into();
        let case = Case { name: "drawn", hosts, order, wiring };
        let Compared { found, .. } = compare(&case, ranks as u64, 6);
        let group = order.group(&case.hosts, &[]);
        let inputs: Vec<Vec<u8>> = (0..ranks)
            .map(|_| (0..37).flat_map(|_| ((random.below(1 << 20) as f32) * 1e-3).to_le_bytes()).collect())
            .collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let radix = crate::algorithm::Algorithm::radix(vec![]);
        let radix = radix.schedule(Collective::AllReduce, &group, &crate::algorithm::Layout::default());
        let radix = verify(radix.unwrap(), Collective::AllReduce, &group).unwrap();
        let sums = |verified: &Verified| interpret(verified, DType::F32, ReduceOp::Sum, 37, &inputs).unwrap();
        assert_eq!(sums(&found.verified), sums(&radix), "{ranks}");
    }
}

#[test]
fn what_cannot_be_searched_is_said() {
    let rig =
        |ranks: u32| Rig::with_ports((0..ranks).collect(), 1_000_000_000, 0, Calibration::default().costs);
    let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, 1 << 10);
    let sizing = Sizing { hosts: 2, shared: false, segment_bytes: 0, most_staged: Workload::STAGED };
    let refused =
        |group: &Group, rig: &Rig| ScheduleSearch::new(Problem { group, rig, call, sizing }, 1).unwrap_err();
    assert_eq!(refused(&Group::of_size(1), &rig(1)), Unsearchable::Ranks { ranks: 1 });
    assert_eq!(refused(&Group::of_size(65), &rig(65)), Unsearchable::Ranks { ranks: 65 });
    let several = Group::of_size(3).with_inputs(&[1, 2]).unwrap();
    assert_eq!(refused(&several, &rig(2)), Unsearchable::SeveralInputs);
    let rows = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]].map(Vec::from);
    let apart = LinkMatrix::of_weights(&rows).unwrap();
    let apart = Rig::with_links(&apart, 0, Calibration::default().costs);
    assert_eq!(refused(&Group::of_size(3), &apart), Unsearchable::Apart);
}
