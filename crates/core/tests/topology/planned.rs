//! Trees on the shared matrices, beside MXNet's figures, brute force and the bound.

use super::{MATRICES, TEXTS, links};
use herringbone_core::topology::LinkMatrix;
use herringbone_core::topology::trees::{
    FoundBy, TreeFigures, TreeMode, TreeRequest, TreeSet, all_reduce_bound, bound, plan,
};

fn planned(links: &LinkMatrix, mode: TreeMode) -> TreeSet {
    plan(links, &TreeRequest::of(mode)).unwrap()
}

fn clustered(links: &LinkMatrix, seed: u64) -> TreeSet {
    plan(links, &TreeRequest { seed: Some(seed), ..TreeRequest::of(TreeMode::Mxnet) }).unwrap()
}

fn all_links() -> impl Iterator<Item = (&'static str, LinkMatrix)> {
    MATRICES.iter().chain(&TEXTS).map(|name| (*name, links(name)))
}

fn ceil_log2(size: usize) -> u32 {
    size.next_power_of_two().ilog2()
}

/// Numbers that are the same in each run.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A matrix that is connected: `density` of 8 links are there.
    pub(super) fn links(&mut self, size: usize, density: u64, symmetric: bool) -> LinkMatrix {
        let mut rows = vec![vec![0.0f32; size]; size];
        for (a, b) in (0..size).flat_map(|b| (0..b).map(move |a| (a, b))) {
            if self.below(8) < density || b == a + 1 {
                let mut weight = || 1.0 + self.below(3) as f32;
                rows[a][b] = weight();
                rows[b][a] = if symmetric { rows[a][b] } else { weight() };
            }
        }
        LinkMatrix::of_weights(&rows).unwrap()
    }
}

/// The figures that MXNet's own planner gives for a p3.16xlarge.
#[test]
fn the_exhaustive_search_is_mxnets() {
    let links = links("derived_dgx1v_weights_nvlink_only");
    let set = planned(&links, TreeMode::Mxnet);
    let weights: Vec<f64> = set.trees().iter().map(|tree| tree.weight(&links)).collect();
    assert_eq!(weights, [20.0, 19.0, 16.0, 20.0, 18.0, 17.0, 16.0, 19.0]);
    let figures = set.figures(&links);
    assert_eq!((figures.max_link_use, figures.links_used), (5, 16));
    // The leaves 0 3 4 7 1 2 5 6.
    let edges = [[0, 1], [0, 4], [1, 5], [0, 3], [4, 7], [1, 2], [5, 6]];
    assert_eq!(set.trees()[0].edges(), edges);
    let figures = planned(&super::links("derived_nvswitch8_uniform"), TreeMode::Mxnet).figures(&links);
    assert_eq!((figures.max_link_use, figures.links_used), (3, 28));
}

/// The weights of CUDA 9.2, where the driver's ranks are wrong: 14 each, and no link in more than 4 trees.
#[test]
fn wrong_ranks_are_mended_by_peer_access() {
    let (ranks, peers) = (links("dgx1v_p3_16xlarge_raw"), links("p3_16xlarge_p2p_matrix"));
    let peers: Vec<bool> = peers.weights().iter().map(|weight| *weight > 0.0).collect();
    let flat: Vec<Vec<f32>> = peers.chunks(8).map(|row| row.iter().map(|_| 1.0).collect()).collect();
    let mended = LinkMatrix::of_weights(&flat).unwrap().by_mxnet_rules(Some(&peers));
    assert!(
        mended.weights().iter().zip(&peers).all(|(weight, peer)| *weight == if *peer { 2.0 } else { 0.0 })
    );
    let set = planned(&mended, TreeMode::Mxnet);
    assert!(set.trees().iter().all(|tree| tree.weight(&mended) == 14.0));
    assert_eq!(set.figures(&mended).max_link_use, 4);
    // Right ranks stay, and links without peer access are left out.
    let right = ranks.by_mxnet_rules(Some(&peers));
    assert_eq!(right.weights(), links("derived_dgx1v_weights_nvlink_only").weights());
    assert_eq!(links("dgx1v_4x_ib.txt").weights(), right.weights());
}

/// Where 2^k ranks are linked, clusters are found; for 5 and 9 to 11 ranks Kernighan and Lin as MXNet has them give up.
#[test]
fn clusters_give_up_where_mxnets_do() {
    for (size, gives_up) in
        [(4, false), (5, true), (8, false), (9, true), (11, true), (12, false), (16, false)]
    {
        let set = clustered(&LinkMatrix::uniform(size, 2.0), 1);
        let by = if gives_up { FoundBy::Exhaustive } else { FoundBy::KernighanLin };
        assert!(set.trees().iter().all(|tree| tree.by() == by && tree.spans(size)), "{size}");
    }
    let links = links("derived_dgx1v_weights_nvlink_only");
    let set = clustered(&links, 1);
    assert!(set.trees().iter().all(|tree| tree.by() == FoundBy::KernighanLin && tree.spans(8)));
    assert_ne!(set, clustered(&links, 2), "the seed counts");
    assert_eq!(set, clustered(&links, 1));
}

/// At most MXNet's load, and with the same load at least its weight; better on most; few rounds; no link that is not there.
#[test]
fn the_best_are_no_worse_than_mxnets() {
    let mut better = 0;
    for (name, links) in all_links() {
        let best = planned(&links, TreeMode::Best);
        check_trees(&best, &links, name);
        assert!(best.trees().iter().all(|tree| tree.rounds() <= ceil_log2(links.size())), "{name}");
        let figures = best.figures(&links);
        let others = [planned(&links, TreeMode::Mxnet), clustered(&links, 1)].map(|set| set.figures(&links));
        let (load, weight) = best_of(&others);
        println!(
            "{name}: MXNet {weight:.3} and {load:.3}, best {:.3} and {:.3}",
            figures.weight, figures.worst_load
        );
        let is_close = (figures.worst_load - load).abs() < 1e-9;
        assert!(figures.worst_load < load || is_close && figures.weight >= weight - 1e-6, "{name}");
        better += usize::from(!is_close || figures.weight > weight + 1e-6);
    }
    assert!(2 * better >= MATRICES.len() + TEXTS.len(), "{better}");
}

/// The least load, and of that load the most weight.
fn best_of(figures: &[TreeFigures]) -> (f64, f64) {
    let load = figures.iter().map(|figures| figures.worst_load).fold(f64::INFINITY, f64::min);
    let of_load = figures.iter().filter(|figures| figures.worst_load <= load + 1e-9);
    (load, of_load.map(|figures| figures.weight).fold(0.0, f64::max))
}

fn check_trees(set: &TreeSet, links: &LinkMatrix, name: &str) {
    for tree in set.trees() {
        assert!(tree.spans(links.size()) && tree.edges().len() == links.size() - 1, "{name}: {tree:?}");
        assert!(tree.edges().iter().all(|[a, b]| links.both_ways(*a, *b) > 0.0), "{name}: {tree:?}");
    }
}

#[test]
fn odd_numbers_of_ranks_and_odd_links_have_trees() {
    let mut numbers = Numbers(3);
    for size in [2, 3, 5, 7, 9, 10, 11, 16, 24] {
        for (density, symmetric) in [(8, true), (3, true), (0, true), (6, false)] {
            let links = numbers.links(size, density, symmetric);
            for mode in [TreeMode::Best, TreeMode::Throughput] {
                let set = planned(&links, mode);
                check_trees(&set, &links, &format!("{size} ranks, density {density}, {mode:?}"));
            }
            let best = planned(&links, TreeMode::Best);
            if density == 8 {
                assert!(best.trees().iter().all(|tree| tree.rounds() == ceil_log2(size)));
            }
            // A chain of ranks leaves no choice.
            if density == 0 {
                let rounds: Vec<u32> = best.trees().iter().map(|tree| tree.rounds()).collect();
                let way = |root: usize| match (root, size - 1 - root) {
                    (a, b) if a == b => a + 1,
                    (a, b) => a.max(b),
                };
                assert_eq!(rounds, (0..size).map(|root| way(root) as u32).collect::<Vec<_>>());
            }
        }
    }
}

/// Over all ways to make groups of ranks, one by one, and all groups.
fn all_reduce_bound_by_hand(links: &LinkMatrix) -> f64 {
    let size = links.size();
    let between = |is_counted: &dyn Fn(usize, usize) -> bool| -> f64 {
        let pairs = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
        pairs.filter(|(from, to)| is_counted(*from, *to)).map(|(from, to)| links.bandwidth(from, to)).sum()
    };
    let mut most = 0.0f64;
    let mut group = vec![0usize; size];
    loop {
        let count = group.iter().max().unwrap();
        if *count > 0 {
            most = most.max(2.0 * *count as f64 / between(&|from, to| group[from] != group[to]));
        }
        if *count == 1 {
            for leaving in [0, 1] {
                most = most.max(1.0 / between(&|from, to| group[from] == leaving && group[to] != leaving));
            }
        }
        // The next way: a rank's group is at most one above those of the ranks before it.
        let can_rise = |at: &usize| group[*at] <= group[..*at].iter().copied().max().unwrap();
        let Some(at) = (1..size).rev().find(can_rise) else { return most };
        group[at] += 1;
        group[at + 1..].fill(0);
    }
}

#[test]
fn the_bound_of_an_all_reduce_is_that_of_all_groups() {
    let mut numbers = Numbers(23);
    for case in 0..120 {
        let (size, density) = (2 + case % 6, numbers.below(9));
        let links = numbers.links(size, density, case % 2 == 0);
        let (found, expected) = (all_reduce_bound(&links), all_reduce_bound_by_hand(&links));
        assert!((found - expected).abs() <= 1e-9 * expected, "{links:?}: {found} and {expected}");
    }
    // Alike links: all ranks alone are the weakest groups. A ring one way: each rank sends the buffer, and all together 2 (N - 1).
    assert_eq!(all_reduce_bound(&LinkMatrix::uniform(1, 2.0)), 0.0);
    assert!((all_reduce_bound(&LinkMatrix::uniform(8, 2.0)) - 2.0 * 7.0 / (56.0 * 2.0)).abs() < 1e-12);
    let ring = |a: usize| (0..4).map(|b| f32::from(u8::from((a + 1) % 4 == b))).collect();
    let ring = LinkMatrix::of_weights(&(0..4).map(ring).collect::<Vec<Vec<f32>>>()).unwrap();
    assert!((all_reduce_bound(&ring) - 2.0 * 3.0 / 4.0).abs() < 1e-12);
    let apart = LinkMatrix::of_weights(&[vec![0.0, 1.0], vec![0.0, 0.0]]).unwrap();
    assert_eq!(all_reduce_bound(&apart), f64::INFINITY);
}

/// Over all sets of ranks, one by one.
fn bound_by_hand(links: &LinkMatrix) -> f64 {
    let size = links.size();
    let of_set = |set: u32| {
        let is_in = |rank: &usize| set >> rank & 1 == 1;
        let leaving: f64 = (0..size)
            .filter(is_in)
            .flat_map(|from| (0..size).filter(|to| !is_in(to)).map(move |to| (from, to)))
            .map(|(from, to)| links.bandwidth(from, to))
            .sum();
        f64::from(set.count_ones()) / leaving
    };
    (1..(1 << size) - 1).map(of_set).fold(0.0, f64::max)
}

#[test]
fn the_bound_is_that_of_all_cuts() {
    let mut numbers = Numbers(11);
    let random = (0..60).map(|case| {
        let (size, density) = (2 + case % 7, numbers.below(9));
        (String::from("random"), numbers.links(size, density, case % 2 == 0))
    });
    for (name, links) in all_links().map(|(name, links)| (name.to_owned(), links)).chain(random) {
        let (found, expected) = (bound(&links), bound_by_hand(&links));
        assert!((found - expected).abs() <= 1e-9 * expected, "{name}: {found} and {expected}");
    }
}

#[test]
fn packed_trees_come_near_to_the_bound() {
    let mut numbers = Numbers(5);
    let random: Vec<LinkMatrix> =
        (0..12).map(|case| numbers.links(3 + case, [8, 3, 1][case % 3], true)).collect();
    for (name, links) in all_links().chain(random.into_iter().map(|links| ("random", links))) {
        let set = planned(&links, TreeMode::Throughput);
        check_trees(&set, &links, name);
        let part = set.part_of_bound(&links);
        println!("{name}: {part:.3} of the bound");
        assert!((0.9..1.0 + 1e-9).contains(&part), "{name}: {part}");
        let slices =
            |root| set.trees().iter().filter(move |tree| tree.root() == root).map(|tree| tree.slices());
        let of_first: u32 = slices(0).sum();
        assert!((1..links.size()).all(|root| slices(root).sum::<u32>() == of_first), "{name}: even parts");
    }
}

/// Links that are all alike are used twice each, which is the least.
#[test]
fn alike_links_are_used_alike() {
    for size in 3..=40 {
        let links = LinkMatrix::uniform(size, 2.0);
        let set = planned(&links, TreeMode::Best);
        check_trees(&set, &links, "uniform");
        let figures = set.figures(&links);
        assert_eq!((figures.max_link_use, figures.links_used), (2, size * (size - 1) / 2), "{size}");
        assert!(set.trees().iter().all(|tree| tree.rounds() == ceil_log2(size)), "{size}");
    }
}

#[test]
fn what_cannot_be_planned_says_what_to_change() {
    let ask = |links: &LinkMatrix, request: &TreeRequest| plan(links, request).unwrap_err().to_string();
    let (links, best) = (LinkMatrix::uniform(4, 1.0), TreeRequest::of(TreeMode::Best));
    let roots = TreeRequest { roots: vec![1, 4], ..best.clone() };
    assert_eq!(ask(&links, &roots), "root 4 is none of 4 ranks; use roots from 0 to 3");
    for penalty in [0.0, -1.0, 1.5, f32::NAN] {
        assert!(ask(&links, &TreeRequest { penalty, ..best.clone() }).contains("above 0, and at most 1"));
    }
    let apart = LinkMatrix::of_weights(&[vec![0.0, 1.0, 0.0], vec![1.0, 0.0, 0.0], vec![0.0; 3]]).unwrap();
    assert!(ask(&apart, &best).contains("from rank 0 to rank 2"));
    let chain = Numbers(1).links(8, 0, true);
    assert!(ask(&chain, &TreeRequest::of(TreeMode::Mxnet)).contains("--mode best"));
    let two = plan(&links, &TreeRequest { roots: vec![3, 1], ..best }).unwrap();
    assert_eq!(two.trees().iter().map(|tree| tree.root()).collect::<Vec<_>>(), [3, 1]);
}

/// In a hypercube few orders of messages take the fewest rounds.
#[test]
fn hypercubes_have_trees_of_the_fewest_rounds() {
    for bits in 2..=6 {
        let size = 1usize << bits;
        let row = |a: usize| (0..size).map(|b| f32::from(u8::from((a ^ b).is_power_of_two()))).collect();
        let links = LinkMatrix::of_weights(&(0..size).map(row).collect::<Vec<Vec<f32>>>()).unwrap();
        let set = plan(&links, &TreeRequest { roots: vec![0, size - 1], ..TreeRequest::of(TreeMode::Best) })
            .unwrap();
        check_trees(&set, &links, "hypercube");
        assert!(set.trees().iter().all(|tree| tree.rounds() == bits), "{size} ranks");
    }
}

/// The shuffles of clusters are not those that the search knows.
#[test]
fn random_links_are_planned_no_worse_than_mxnets() {
    let mut numbers = Numbers(17);
    let (mut worse, mut better, mut cases) = (vec![], 0, 0);
    for case in 0..60 {
        let size = [4, 5, 6, 7, 8, 8, 8, 9, 10, 12, 14, 16][case % 12];
        let links = numbers.links(size, [8, 6, 5, 8][case % 4], case % 5 != 0);
        let seeds = [None, Some(11), Some(12), Some(13)];
        let request = |seed| TreeRequest { seed, ..TreeRequest::of(TreeMode::Mxnet) };
        let others: Vec<_> = seeds.into_iter().filter_map(|seed| plan(&links, &request(seed)).ok()).collect();
        let figures: Vec<_> = others.iter().map(|set| set.figures(&links)).collect();
        let figures: Vec<_> = figures.into_iter().filter(|figures| figures.worst_load.is_finite()).collect();
        if figures.is_empty() {
            continue;
        }
        cases += 1;
        let best = planned(&links, TreeMode::Best).figures(&links);
        let (load, weight) = best_of(&figures);
        let is_close = (best.worst_load - load).abs() < 1e-9;
        if best.worst_load > load + 1e-9 || is_close && best.weight < weight - 1e-6 {
            worse.push((case, size, weight, load, best.weight, best.worst_load));
        }
        better += usize::from(best.worst_load < load - 1e-9 || is_close && best.weight > weight + 1e-6);
    }
    println!("{better} of {cases} better, worse: {worse:?}");
    assert!(worse.is_empty(), "{worse:?}");
    assert!(10 * better > 9 * cases, "{better} of {cases}");
}
