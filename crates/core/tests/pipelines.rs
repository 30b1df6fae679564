//! How operations are cut: deep schedules into as many segments as fill their pipelines, all others as the number of their chunks says.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    prepare::{Call, Prepared, Sizing, prepare},
    simulate::{Costs, Rig, SECOND, Workload, simulate},
    verify::{Verified, verify},
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const ALL_REDUCE: Collective = Collective::AllReduce;
const BROADCAST: Collective = Collective::Broadcast { root: 1 };
const REDUCE: Collective = Collective::Reduce { root: 1 };

/// The proof of an algorithm's schedule on hosts of so many workers, if it has one.
fn proved(
    algorithm: &str,
    collective: Collective,
    workers: u32,
    per_host: u32,
    reducers: u32,
) -> Option<Verified> {
    let (algorithm, group): (Algorithm, _) = (algorithm.parse().unwrap(), Group::of_size(workers));
    let hosts: Vec<u32> = (0..workers).map(|rank| rank / per_host).collect();
    let layout = Layout { reducers, hosts: &hosts, links: None };
    let schedule = algorithm.schedule(collective, &group, &layout).ok()?;
    Some(verify(schedule, collective, &group).unwrap())
}

/// What a rank runs for a buffer of so many bytes over links.
fn cut(verified: &Verified, bytes: usize, rank: u32, most_staged: usize) -> Prepared {
    let call = Call::new(verified.collective(), DType::F32, ReduceOp::Sum, bytes / 4);
    let hosts = verified.schedule().workers();
    let sizing = Sizing { hosts, shared: false, segment_bytes: 0, most_staged };
    prepare(verified, &verified.schedule().program(rank), rank, call, None, sizing, |_| false).unwrap()
}

/// How many times as long as its busiest port sends or receives a call takes, if threads are free.
fn over_the_bound(verified: &Verified, bytes: usize, per_host: u32, rate: u64) -> f64 {
    let workers = verified.schedule().workers();
    let machine =
        Rig::with_ports((0..workers).map(|rank| rank / per_host).collect(), rate, 50_000_000, Costs::FREE);
    let call = Call::new(verified.collective(), DType::F32, ReduceOp::Sum, bytes / 4);
    let sizing = Workload::sizing(&machine, verified, 0);
    let work = Workload { verified, call, sizing, operations: 1, at_once: 1, parts: None, segments: 0 };
    let outcome = simulate(&work, &machine, &mut |_| ()).unwrap();
    let bound = outcome.busiest_link_bytes() as f64 / rate as f64;
    outcome.total() as f64 / SECOND as f64 / bound
}

/// Algorithms, how many workers a host has, and what they do of all_reduce, broadcast and reduce.
const SCHEDULES: [(&str, u32); 12] = [
    ("radix", 1),
    ("radix(2,2,2,2)", 1),
    ("ring", 1),
    ("hierarchical", 2),
    ("doubling", 1),
    ("one_shot", 1),
    ("star", 1),
    ("tree", 1),
    ("chain", 1),
    ("double_tree", 1),
    ("trees", 1),
    ("trees(throughput)", 1),
];

/// The bound is the bytes of the port that a simulation finds to carry most; of `star` it is the root's. At 10 Gbit/s the latency of
/// 50 us counts: a chain of 16 is 30 of them long.
#[test]
fn every_schedule_comes_near_the_bound_of_its_busiest_port() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (name, per_host) in SCHEDULES {
        for (collective, workers) in [ALL_REDUCE, BROADCAST, REDUCE]
            .into_iter()
            .flat_map(|collective| [4, 5, 8, 13, 16].map(|size| (collective, size)))
        {
            let Some(verified) = proved(name, collective, workers, per_host, 0) else { continue };
            for rate in [62_500_000, 1_250_000_000] {
                let ratio = over_the_bound(&verified, 25 * MIB, per_host, rate);
                seen += 1;
                if !(0.999..1.15).contains(&ratio) {
                    wrong.push(format!("{name} {collective} of {workers} at {rate} B/s: {ratio:.3}"));
                }
            }
        }
    }
    assert!(seen >= 150, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Longer chains have messages of 32 KiB, because smaller ones cost threads more than links gain: 800 segments are what 25 MiB have,
/// and the last rank begins when so many of them are over as the chain has links.
#[test]
fn long_chains_take_their_length_in_the_smallest_messages() {
    for (workers, most) in [(32, 1.1), (64, 1.15)] {
        for collective in [ALL_REDUCE, BROADCAST] {
            let ratio =
                over_the_bound(&proved("chain", collective, workers, 1, 0).unwrap(), 25 * MIB, 1, 62_500_000);
            assert!((1.0..most).contains(&ratio), "{collective} of {workers}: {ratio:.3}");
        }
    }
}

/// All ranks cut alike, into messages that are not small, whose windows fit the memory that there is.
#[test]
fn deep_schedules_are_cut_alike_within_memory() {
    let deep = ["chain", "tree", "star", "double_tree", "trees(throughput)", "radix"];
    for (name, workers) in deep.into_iter().flat_map(|name| [3, 8, 21, 64].map(|workers| (name, workers))) {
        for (collective, bytes) in [ALL_REDUCE, BROADCAST, REDUCE]
            .into_iter()
            .flat_map(|collective| [0, 4, 100 * KIB, MIB, 25 * MIB, 1 << 30].map(|bytes| (collective, bytes)))
        {
            let Some(verified) = proved(name, collective, workers, 1, 0) else { continue };
            for most_staged in [3_670_016, 58_720_256] {
                let all: Vec<Prepared> =
                    (0..workers).map(|rank| cut(&verified, bytes, rank, most_staged)).collect();
                let label = format!("{name} {collective} of {workers}, {bytes} B, {most_staged} B of memory");
                let first = (all[0].segments, all[0].depth, all[0].lead);
                assert!(all.iter().all(|rank| (rank.segments, rank.depth, rank.lead) == first), "{label}");
                assert!(
                    all.iter().all(|rank| rank.staging_bytes(rank.depth) <= most_staged),
                    "{label}: {first:?}"
                );
                let chunks = verified.schedule().cut().chunks() as usize;
                // Of one segment less, which would be as many as fit.
                let message = bytes / chunks / (all[0].segments as usize - 1).max(1);
                assert!(
                    message >= 16 * KIB || all[0].segments == 1 || most_staged < 4 * MIB,
                    "{label}: {message} B"
                );
            }
        }
    }
}

/// What ranks keep at work while others have not begun does not grow.
#[test]
fn schedules_that_are_not_deep_are_cut_by_their_chunks_alone() {
    let sizes = [4, 64 * KIB, MIB, 25 * MIB, 100 * MIB];
    let lines = SHALLOW.iter().flat_map(|(name, per_host, reducers)| {
        [2, 4, 8, 13, 16, 64].into_iter().filter_map(move |workers| {
            let verified = proved(name, ALL_REDUCE, workers, *per_host, reducers * workers)?;
            let cuts = sizes.map(|bytes| {
                let cut = cut(&verified, bytes, 0, 58_720_256);
                format!(" {}/{}/{}", cut.segments, cut.depth, cut.stage_bytes)
            });
            Some(format!("{name} {workers}:{}\n", cuts.concat()))
        })
    });
    assert_eq!(lines.collect::<String>(), CUTS);
}

/// The algorithms whose ranks send other chunks while one is on its way, workers of a host, and reducers for a worker.
const SHALLOW: [(&str, u32, u32); 8] = [
    ("radix", 1, 0),
    ("radix(2,2,2,2,2,2)", 1, 0),
    ("radix(4,4,4)", 1, 0),
    ("ring", 1, 0),
    ("hierarchical", 2, 0),
    ("doubling", 1, 0),
    ("one_shot", 1, 0),
    ("reduction_server", 1, 1),
];

/// By name and number of workers: the segments, those in flight and a segment's staging memory for 4 B, 64 KiB, 1, 25 and 100 MiB.
const CUTS: &str = "\
radix 2: 1/1/128 2/2/16384 15/15/35008 25/7/524288 100/7/524288
radix 4: 1/1/384 1/1/49152 7/7/112512 15/4/1310784 58/4/1356096
radix 8: 1/1/896 1/1/57344 3/3/305984 15/4/1529472 58/4/1582336
radix 13: 1/1/1536 1/1/60672 3/3/323328 15/4/1613568 58/4/1668864
radix 16: 1/1/1920 1/1/122880 3/3/328320 15/4/1638720 58/4/1695360
radix 64: 1/1/8064 1/1/129024 1/1/1032192 15/4/1721664 58/4/1782144
radix(2,2,2,2,2,2) 2: 1/1/128 2/2/16384 15/15/35008 25/7/524288 100/7/524288
radix(2,2,2,2,2,2) 4: 1/1/64 2/2/40960 10/10/131008 17/4/1927488 67/4/1956288
radix(2,2,2,2,2,2) 8: 1/1/64 1/1/90112 7/7/205888 15/4/2402880 58/4/2485824
radix(2,2,2,2,2,2) 13: 1/1/2112 1/1/106176 3/3/565824 15/4/2823744 58/4/2920512
radix(2,2,2,2,2,2) 16: 1/1/64 1/1/94208 6/6/251072 15/4/2512064 58/4/2598784
radix(2,2,2,2,2,2) 64: 1/1/64 1/1/97280 4/4/389120 15/4/2593920 58/4/2683456
radix(4,4,4) 2: 1/1/128 2/2/16384 15/15/35008 25/7/524288 100/7/524288
radix(4,4,4) 4: 1/1/384 1/1/49152 7/7/112512 15/4/1310784 58/4/1356096
radix(4,4,4) 8: 1/1/64 1/1/73728 6/6/196416 15/4/1965888 58/4/2033856
radix(4,4,4) 13: 1/1/1984 1/1/96064 3/3/511936 15/4/2554816 58/4/2642368
radix(4,4,4) 16: 1/1/64 1/1/77824 4/4/311296 15/4/2075008 58/4/2146752
radix(4,4,4) 64: 1/1/64 1/1/80896 3/3/431232 15/4/2156800 58/4/2231424
ring 2: 1/1/128 2/2/16384 15/15/35008 25/7/524288 100/7/524288
ring 4: 1/1/512 1/1/81920 7/7/187520 15/4/2184640 58/4/2260160
ring 8: 1/1/1024 1/1/73728 3/3/393408 15/4/1966464 58/4/2034432
ring 13: 1/1/1664 1/1/70784 3/3/377216 15/4/1882496 58/4/1947008
ring 16: 1/1/2048 1/1/131072 3/3/372096 15/4/1857216 58/4/1921408
ring 64: 1/1/8192 1/1/131072 1/1/1064960 15/4/1776320 58/4/1838720
hierarchical 4: 1/1/64 2/2/40960 10/10/131008 17/4/1927488 67/4/1956288
hierarchical 8: 1/1/64 1/1/90112 6/6/240192 15/4/2402880 58/4/2485824
hierarchical 13: 1/1/2048 1/1/101120 3/3/538880 15/4/2689280 58/4/2781440
hierarchical 16: 1/1/64 1/1/94208 3/3/502336 15/4/2511872 58/4/2598592
hierarchical 64: 1/1/64 1/1/97280 2/2/778240 15/4/2592768 58/4/2682816
doubling 2: 1/1/128 4/4/32768 16/16/131072 50/14/1048576 200/14/1048576
doubling 4: 1/1/192 4/4/49152 16/16/196608 50/14/1572864 200/14/1572864
doubling 8: 1/1/320 4/4/81920 16/16/327680 50/14/2621440 200/14/2621440
doubling 13: 1/1/384 4/4/98304 16/16/393216 50/11/3145728 200/11/3145728
doubling 16: 1/1/384 4/4/98304 16/16/393216 50/11/3145728 200/11/3145728
doubling 64: 1/1/512 4/4/131072 16/16/524288 50/8/4194304 200/8/4194304
one_shot 2: 1/1/128 4/4/32768 16/16/131072 50/14/1048576 200/14/1048576
one_shot 4: 1/1/256 4/4/65536 16/16/262144 50/14/2097152 200/14/2097152
one_shot 8: 1/1/512 4/4/131072 16/16/524288 50/12/4194304 200/12/4194304
one_shot 13: 1/1/832 4/4/212992 16/16/851968 50/8/6815744 200/8/6815744
one_shot 16: 1/1/1024 4/4/262144 16/16/1048576 50/6/8388608 200/6/8388608
one_shot 64: 1/1/4096 4/4/1048576 16/13/4194304 117/4/14340096 465/4/14434304
reduction_server 2: 1/1/128 2/2/32768 32/10/32768 267/10/98304 1067/10/98304
reduction_server 4: 1/1/256 1/1/65536 16/10/65536 134/10/195840 534/10/196608
reduction_server 8: 1/1/512 1/1/65536 8/8/131072 67/8/391680 267/8/393216
reduction_server 13: 1/1/832 1/1/65728 5/5/210496 64/7/410176 165/4/635648
reduction_server 16: 1/1/1024 1/1/65536 4/4/262144 64/7/409600 134/4/783360
reduction_server 64: 1/1/4096 1/1/65536 1/1/1048576 25/4/1048576 100/4/1048576
";
