//! Whether operations end: the simulator as a model checker. `make layouts` runs all algorithms on all layouts; here are some of
//! them, and those that stood still once.

mod cell;

use cell::{Cell, Chance, SIMULATOR, algorithms, layouts};
use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    execution::Rules,
    group::Group,
    prepare::Call,
    simulate::{Costs, RandomOrder, Rig, Workload},
    verify::verify,
};

impl Cell {
    /// One of this type and size, with nothing left to chance but the order of work and which buffers are mapped.
    pub(crate) fn said(name: &str, hosts: &[u32], (dtype, bytes): (DType, usize), seed: u64) -> Self {
        let (algorithm, group): (Algorithm, _) = (name.parse().unwrap(), Group::of_size(hosts.len() as u32));
        let layout = Layout { reducers: 0, hosts, links: None };
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
        let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
        let call = Call::new(Collective::AllReduce, dtype, ReduceOp::Sum, bytes / dtype.bytes());
        let random_order = (seed > 0).then_some(RandomOrder { seed, rules: Rules::DEFAULT });
        let rig = Rig { random_order, ..Rig::with_ports(hosts.to_vec(), 0, 50_000_000, Costs::DEFAULT) };
        let sizing = Workload::sizing(&rig, &verified, 0);
        Self {
            name: name.to_owned(),
            seed,
            hosts: hosts.to_vec(),
            verified,
            call,
            sizing,
            operations: (1, 1),
            rig,
        }
    }

    /// The same with a fault: no rank begins fewer segments at once than this.
    pub(crate) fn with_lots_of(mut self, segments: u32) -> Self {
        self.rig.random_order =
            Some(RandomOrder { seed: self.seed, rules: Rules { lot: Some(segments), ..Rules::DEFAULT } });
        self
    }
}

/// Some of the cells of `make layouts`, another one of each algorithm for each number.
const CELLS: u64 = 6;

#[test]
fn operations_end_on_any_layout_in_any_order() {
    let (layouts, mut tried) = (layouts(0), 0);
    for (at, algorithm) in (0..).zip(algorithms()) {
        for number in 0..CELLS {
            let seed = at * CELLS + number;
            let hosts = &layouts[Chance::new(seed).below(layouts.len() as u64) as usize];
            let Some(cell) = Cell::drawn(&algorithm, hosts, seed) else { continue };
            cell.run(SIMULATOR).unwrap_or_else(|problem| panic!("{problem}"));
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}

/// A rank all of whose partners share its memory begins several segments at once, and its partner also sends over links.
#[test]
fn trees_with_ranks_that_only_talk_to_their_own_host_end_at_any_size() {
    for name in ["tree", "trees(single)", "trees(mxnet,single)", "double_tree", "star", "chain"] {
        for (dtype, mib) in [(DType::F32, 14), (DType::F32, 25), (DType::Bf16, 8), (DType::Bf16, 25)] {
            for (hosts, seed) in
                [(&[0, 0, 1, 1, 2, 2][..], 0), (&[0, 0, 1, 1, 2, 2], 1), (&[0, 0, 0, 1, 2, 2], 2)]
            {
                let cell = Cell::said(name, hosts, (dtype, mib << 20), seed);
                cell.run(SIMULATOR).unwrap_or_else(|problem| panic!("{problem}"));
            }
        }
    }
}

/// What is checked here would be found: ranks that never begin fewer segments than their windows hold, and one more, stand still.
#[test]
fn ranks_that_begin_more_than_their_windows_hold_are_found_and_named() {
    let cell = Cell::said("tree", &[0, 0, 1, 1], (DType::F32, 64 << 20), 1).with_lots_of(1000);
    let problem = cell.run(SIMULATOR).unwrap_err();
    assert!(problem.contains("it never ends on ranks 0 (operation 0: of "), "{problem}");
    assert!(problem.contains(" segments 0 begun, 0 done), 1 (operation 0: "), "{problem}");
}
