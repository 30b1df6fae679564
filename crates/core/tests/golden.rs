//! Small schedules as they are kept in testdata/schedules.

use herringbone_core::algorithm::{Algorithm, Layout};
use herringbone_core::collective::Collective;
use herringbone_core::group::Group;
use herringbone_core::schedule::Schedule;
use herringbone_core::verify::verify;
use std::{collections::BTreeSet, fs, path::PathBuf};

const ALL_REDUCE: Collective = Collective::AllReduce;
const SERVED: &str = "hierarchical(radix,reduction_server)";

#[test]
fn golden_schedules() {
    let by_rank = |algorithm, collective, size| (algorithm, collective, size, Layout::default());
    let two_hosts = Layout { reducers: 0, hosts: &[0, 0, 1, 1], links: None };
    let golden = [
        ("ring-4", by_rank("ring", ALL_REDUCE, 4)),
        ("radix-4", by_rank("radix", ALL_REDUCE, 4)),
        ("radix-5", by_rank("radix", ALL_REDUCE, 5)),
        ("radix-2-2-4", by_rank("radix(2,2)", ALL_REDUCE, 4)),
        ("radix-reduce_scatter-4", by_rank("radix", Collective::ReduceScatter, 4)),
        ("radix-all_gather-4", by_rank("radix", Collective::AllGather, 4)),
        ("radix-reduce-2-4", by_rank("radix", Collective::Reduce { root: 2 }, 4)),
        ("radix-broadcast-2-4", by_rank("radix", Collective::Broadcast { root: 2 }, 4)),
        ("doubling-4", by_rank("doubling", ALL_REDUCE, 4)),
        ("one_shot-4", by_rank("one_shot", ALL_REDUCE, 4)),
        ("one_shot-all_to_all-3", by_rank("one_shot", Collective::AllToAll, 3)),
        ("star-4", by_rank("star", ALL_REDUCE, 4)),
        ("tree-4", by_rank("tree", ALL_REDUCE, 4)),
        ("trees-4", by_rank("trees", ALL_REDUCE, 4)),
        ("trees-best-4", by_rank("trees(best)", ALL_REDUCE, 4)),
        ("trees-best-single-5", by_rank("trees(best,single)", ALL_REDUCE, 5)),
        ("trees-reduce-2-4", by_rank("trees", Collective::Reduce { root: 2 }, 4)),
        ("tree-reduce-2-4", by_rank("tree", Collective::Reduce { root: 2 }, 4)),
        ("tree-broadcast-2-4", by_rank("tree", Collective::Broadcast { root: 2 }, 4)),
        (
            "reduction_server-3x2",
            ("reduction_server", ALL_REDUCE, 3, Layout { reducers: 2, ..Layout::default() }),
        ),
        ("weighted-radix-4", by_rank("weighted(radix,16x2,5,0)", ALL_REDUCE, 4)),
        (
            "coded-weighted-reduction_server-3x3",
            (
                "coded(weighted(reduction_server,16,0,3))",
                ALL_REDUCE,
                3,
                Layout { reducers: 3, ..Layout::default() },
            ),
        ),
        ("weighted-radix-2-2-4", by_rank("weighted(radix(2,2),16x3,3)", ALL_REDUCE, 4)),
        ("hierarchical-2x2", ("hierarchical", ALL_REDUCE, 4, two_hosts)),
        ("radix-4-gather-2-2-4", by_rank("radix(4;2,2)", ALL_REDUCE, 4)),
        (
            "hierarchical-radix-reduction_server-2x2x1",
            (SERVED, ALL_REDUCE, 4, Layout { reducers: 1, ..two_hosts }),
        ),
        ("hierarchical-radix-doubling-2x2", ("hierarchical(radix,doubling)", ALL_REDUCE, 4, two_hosts)),
    ];
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/schedules"));
    for (name, (algorithm, collective, size, layout)) in golden {
        let group = Group::of_size(size);
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let verified =
            verify(algorithm.schedule(collective, &group, &layout).unwrap(), collective, &group).unwrap();
        let (schedule, path) = (verified.schedule(), folder.join(name).with_extension("txt"));
        let text = schedule.to_string();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(
            text, kept,
            "{name} changed: see what it does now, then UPDATE_GOLDEN=1 cargo test golden"
        );
        assert!(kept.parse::<Schedule>().unwrap() == *schedule, "{name} is what its text says");
    }
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let known: BTreeSet<String> = golden.iter().map(|(name, _)| format!("{name}.txt")).collect();
    assert_eq!(files.collect::<BTreeSet<_>>(), known, "every file has its schedule");
}
