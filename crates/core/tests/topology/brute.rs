//! The best trees of few ranks, beside searches that try all: the fewest rounds, then the least load, then the most weight.

use super::planned::Numbers;
use herringbone_core::topology::LinkMatrix;
use herringbone_core::topology::trees::{TreeMode, TreeRequest, TreeSet, plan};
use std::collections::HashMap;

/// A tree as its edges, each from parent to child.
type Edges = Vec<[usize; 2]>;

/// All trees over the links that carry both ways, from a root: each rank that is in takes in some of those that are not.
fn all_trees(links: &LinkMatrix, root: usize) -> Vec<Edges> {
    let size = links.size();
    let pairs: Vec<[usize; 2]> = (0..size).flat_map(|b| (0..b).map(move |a| [a, b])).collect();
    let subsets = (0u32..1 << pairs.len()).filter(|subset| subset.count_ones() as usize == size - 1);
    let directed = |subset: u32| {
        let mut open: Vec<[usize; 2]> =
            (0..pairs.len()).filter(|at| subset >> at & 1 == 1).map(|at| pairs[at]).collect();
        let (mut reached, mut edges) = (vec![root], vec![]);
        while let Some(at) = open.iter().position(|[a, b]| reached.contains(a) != reached.contains(b)) {
            let [a, b] = open.remove(at);
            let edge = if reached.contains(&a) { [a, b] } else { [b, a] };
            reached.push(edge[1]);
            edges.push(edge);
        }
        let is_there = |[a, b]: &[usize; 2]| links.weight(*a, *b) > 0.0 && links.weight(*b, *a) > 0.0;
        (edges.len() == size - 1 && edges.iter().all(is_there)).then_some(edges)
    };
    subsets.filter_map(directed).collect()
}

/// The rounds of a broadcast: the least over all orders in which a rank serves its children.
fn rounds_of(edges: &Edges, rank: usize) -> u32 {
    let mut below: Vec<u32> = edges
        .iter()
        .filter(|[parent, _]| *parent == rank)
        .map(|[_, child]| rounds_of(edges, *child))
        .collect();
    let mut least = u32::MAX;
    orders(&mut below, 0, &mut |order| {
        least = least.min(order.iter().zip(1..).map(|(rounds, sent)| rounds + sent).max().unwrap_or(0));
    });
    least
}

fn orders(items: &mut Vec<u32>, from: usize, visit: &mut impl FnMut(&[u32])) {
    if from == items.len() {
        return visit(items);
    }
    for at in from..items.len() {
        items.swap(from, at);
        orders(items, from + 1, visit);
        items.swap(from, at);
    }
}

fn weight_of(links: &LinkMatrix, edges: &Edges) -> f64 {
    edges.iter().map(|[parent, child]| f64::from(links.weight(*child, *parent))).sum()
}

/// For each root all trees of its fewest rounds.
fn quickest(links: &LinkMatrix) -> Vec<Vec<Edges>> {
    let of_root = |root| {
        let mut trees = all_trees(links, root);
        let fewest = trees.iter().map(|edges| rounds_of(edges, root)).min();
        trees.retain(|edges| Some(rounds_of(edges, root)) == fewest);
        trees
    };
    (0..links.size()).map(of_root).collect()
}

/// How many more trees the link of each pair takes, the lesser rank's row first.
type Left = Vec<u32>;

/// The search for a set of trees that fit and have more weight than some other.
struct Better<'a> {
    size: usize,
    trees: &'a [Vec<Edges>],
    weights: Vec<Vec<f64>>,
    /// The weight to exceed.
    weight: f64,
    /// By how many roots are done and what is left: the most weight with which that led nowhere.
    failed: Vec<HashMap<Left, f64>>,
}

impl<'a> Better<'a> {
    fn new(links: &LinkMatrix, trees: &'a [Vec<Edges>], weight: f64) -> Self {
        let of_root =
            |trees: &Vec<Edges>| trees.iter().map(|edges| weight_of(links, edges)).collect::<Vec<_>>();
        let weights = trees.iter().map(of_root).collect();
        Self { size: links.size(), trees, weights, weight, failed: vec![HashMap::new(); trees.len()] }
    }

    /// Whether the remaining trees can fit, by the room at each rank, to which each tree comes.
    fn has_room(&self, done: usize, left: &Left) -> bool {
        let trees = (self.trees.len() - done) as u32;
        let room = |a: usize, b: usize| left[a.min(b) * self.size + a.max(b)].min(trees);
        let of_rank = |rank: usize| -> u32 { (0..self.size).map(|other| room(rank, other)).sum() };
        let rooms: Vec<u32> = (0..self.size).map(of_rank).collect();
        rooms.iter().all(|room| *room >= trees)
            && rooms.iter().sum::<u32>() >= 2 * trees * (self.size as u32 - 1)
    }

    fn exists(&mut self, done: usize, left: &Left, weight: f64) -> bool {
        let trees = self.trees;
        let Some(of_root) = trees.get(done) else { return weight > self.weight };
        let heaviest = |weights: &Vec<f64>| weights.iter().copied().fold(0.0, f64::max);
        let most = weight + self.weights[done..].iter().map(heaviest).sum::<f64>();
        let has_failed = self.failed[done].get(left).is_some_and(|tried| weight <= *tried);
        if most <= self.weight || has_failed || !self.has_room(done, left) {
            return false;
        }
        for (at, edges) in of_root.iter().enumerate() {
            let mut after = left.clone();
            let is_taken = edges.iter().all(|[a, b]| {
                let place = &mut after[*a.min(b) * self.size + *a.max(b)];
                let is_free = *place > 0;
                *place -= u32::from(is_free);
                is_free
            });
            if is_taken && self.exists(done + 1, &after, weight + self.weights[done][at]) {
                return true;
            }
        }
        self.failed[done].insert(left.clone(), weight);
        false
    }
}

/// How many trees each link takes if its load stays under this one, or may reach it.
fn left_under(links: &LinkMatrix, load: f64, may_reach: bool) -> Left {
    let size = links.size();
    let fits = |a: usize, b: usize, uses: usize| {
        let of_uses = uses as f64 / f64::from(links.both_ways(a, b));
        of_uses < load || may_reach && of_uses == load
    };
    let count = |a: usize, b: usize| (1..=size).take_while(|uses| fits(a, b, *uses)).count() as u32;
    (0..size * size).map(|at| if at / size < at % size { count(at / size, at % size) } else { 0 }).collect()
}

/// The figures of the planned trees, after it is sure that no set has a smaller load, or the same load and more weight.
fn proven_best(links: &LinkMatrix) -> (f64, f64) {
    let set: TreeSet = plan(links, &TreeRequest::of(TreeMode::Best)).unwrap();
    let (figures, trees) = (set.figures(links), quickest(links));
    for (tree, of_root) in set.trees().iter().zip(&trees) {
        let sorted = |edges: &[[usize; 2]]| {
            let mut edges = edges.to_vec();
            edges.sort_unstable();
            edges
        };
        let ours = sorted(tree.edges());
        assert!(
            of_root.iter().any(|edges| sorted(edges) == ours),
            "{links:?}: {tree:?} is none of the quickest"
        );
        assert_eq!(tree.rounds(), rounds_of(&of_root[0], tree.root()), "{links:?}");
    }
    let search = |may_reach, weight| {
        let left = left_under(links, figures.worst_load, may_reach);
        Better::new(links, &trees, weight).exists(0, &left, 0.0)
    };
    assert!(!search(false, -1.0), "{links:?}: a load below {} is possible", figures.worst_load);
    assert!(!search(true, figures.weight), "{links:?}: more weight than {} is possible", figures.weight);
    assert!(search(true, -1.0), "{links:?}: the search finds the planned trees");
    (figures.worst_load, figures.weight)
}

/// The matrix whose entries above the diagonal, or all, are the digits of a number.
fn numbered(size: usize, mut number: u64, base: u64, symmetric: bool) -> LinkMatrix {
    let mut rows = vec![vec![0.0f32; size]; size];
    for (a, b) in (0..size).flat_map(|b| (0..b).map(move |a| (a, b))) {
        let mut digit = || {
            let digit = (number % base) as f32;
            number /= base;
            digit
        };
        rows[a][b] = digit();
        rows[b][a] = if symmetric { rows[a][b] } else { digit() };
    }
    LinkMatrix::of_weights(&rows).unwrap()
}

#[test]
fn all_small_matrices_have_the_best_trees() {
    let mut proven = 0;
    for (size, base, symmetric) in
        [(2u32, 5u64, true), (2, 4, false), (3, 5, true), (3, 3, false), (4, 3, true)]
    {
        let entries = size * (size - 1) / if symmetric { 2 } else { 1 };
        for number in 0..base.pow(entries) {
            let links = numbered(size as usize, number, base, symmetric);
            if links.check_connected().is_ok() {
                proven_best(&links);
                proven += 1;
            }
        }
    }
    assert!(proven > 900, "{proven}");
}

#[test]
fn drawn_matrices_of_five_ranks_have_the_best_trees() {
    let mut numbers = Numbers(57);
    for case in 0..200 {
        let density = [8, 6, 4, 2][case % 4];
        proven_best(&numbers.links(5, density, case % 3 > 0));
    }
}

/// Trees of load 2 and more weight are worse than those of load 1.5.
#[test]
fn load_and_weight_are_not_added_up() {
    let rows = [[0, 2, 4, 1], [2, 0, 1, 1], [4, 1, 0, 3], [1, 1, 3, 0]];
    let rows = rows.map(|row| row.map(|weight| weight as f32).to_vec());
    assert_eq!(proven_best(&LinkMatrix::of_weights(&rows).unwrap()).0, 1.5);
}
