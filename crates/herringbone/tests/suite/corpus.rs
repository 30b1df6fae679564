//! The cases of testdata/cases, held against the interpreter bit for bit.

mod case;
mod job;

use crate::world::{Reducers, Transport, World};
use case::Corpus;
use herringbone::Algorithm;
use job::Job;

const TRANSPORTS: [Transport; 3] = [Transport::Local, Transport::Shm, Transport::Tcp];
const SIZES: std::ops::RangeInclusive<u32> = 1..=8;
/// The least that a segment can be asked to be, so that there are many.
const SEGMENT_BYTES: usize = 4096;

/// Runs `cases` in worlds of every size over every transport, with `reducers(size)` reducers.
fn run(algorithm: Option<&str>, corpus: &Corpus, reducers: impl Fn(u32) -> usize) {
    let servers = Reducers::start(SIZES.map(&reducers).max().unwrap_or(0));
    for size in SIZES {
        let plan = World::new(size, Transport::Tcp).segment_bytes(SEGMENT_BYTES);
        let plan = plan.reducers(servers.first(reducers(size)));
        let plan = algorithm.iter().fold(plan, |plan, name| plan.forced(name));
        let cases = corpus.cases.iter().filter(|case| case.ranks.contains(&size));
        let jobs: Vec<Job> = cases.flat_map(|case| case.jobs(&plan)).collect();
        for transport in TRANSPORTS {
            if let Some(reason) = corpus.skipped(algorithm, transport) {
                println!("{algorithm:?} over {transport:?}: skipped, {reason}");
                continue;
            }
            let mut world = plan.clone();
            world.transport = transport;
            world.run(|comm| jobs.iter().for_each(|job| job.check(comm)));
        }
    }
}

const ALL_REDUCES: &str = include_str!("../../../../testdata/cases/all_reduce.toml");
const COLLECTIVES: &str = include_str!("../../../../testdata/cases/collectives.toml");

macro_rules! algorithms {
    ($($test:ident: $name:literal),* $(,)?) => {
        const NAMES: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                let server = ["reduction_server", "mixed"].contains(&$name);
                let reducers = |size: u32| if server { 1 + (size as usize - 1) % 4 } else { 0 };
                run(Some($name), &Corpus::parse(ALL_REDUCES), reducers);
            }
        )*
    };
}

algorithms! {
    all_reduce_by_radix: "radix",
    all_reduce_by_radix_2_2: "radix(2,2)",
    all_reduce_by_radix_4: "radix(4)",
    all_reduce_by_doubling: "doubling",
    all_reduce_by_one_shot: "one_shot",
    all_reduce_by_star: "star",
    all_reduce_by_tree: "tree",
    all_reduce_by_reduction_server: "reduction_server",
    all_reduce_by_ring: "ring",
    all_reduce_by_mixed: "mixed",
    all_reduce_by_chain: "chain",
    all_reduce_by_double_tree: "double_tree",
    all_reduce_by_trees: "trees",
    all_reduce_by_trees_of_mxnet: "trees(mxnet)",
    all_reduce_by_best_trees: "trees(best)",
    all_reduce_by_packed_trees: "trees(throughput)",
    // All ranks of these worlds share a host, so this proves that the choice falls back and says the right thing.
    all_reduce_by_hierarchical: "hierarchical",
}

#[test]
fn every_algorithm_is_run() {
    for algorithm in Algorithm::all() {
        let run = NAMES.iter().any(|name| name.parse().as_ref() == Ok(&algorithm));
        assert!(run || algorithm == Algorithm::hierarchical(), "{algorithm} is in no test");
    }
    assert!(NAMES.contains(&"hierarchical"));
}

#[test]
fn all_reduce_by_choice() {
    run(None, &Corpus::parse(ALL_REDUCES), |_| 0);
}

#[test]
fn collectives() {
    run(None, &Corpus::parse(COLLECTIVES), |_| 0);
}

/// Reducers are there, and the choice takes them for what is long.
#[test]
fn all_collectives_beside_reducers() {
    let mut corpus = Corpus::parse(ALL_REDUCES);
    corpus.cases.extend(Corpus::parse(COLLECTIVES).cases);
    corpus.skip_local("local worlds take no reducers: those are other processes");
    run(None, &corpus, |size| (size as usize + 1) % 4 + 1);
}
