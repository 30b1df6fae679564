//! One tree after the other on weights that decay with use, as MXNet's `ComputeTrees` makes them.

use super::tree::{FoundBy, SpanningTree};
use super::{exhaustive, kernighan_lin};
use crate::topology::{LinkMatrix, TopologyError};
use alloc::{format, vec::Vec};

/// The most ranks of which all trees are searched unless a seed asks for clusters.
const SEARCHED: usize = 8;

/// How many leaves are tried where the first tree is taken, for more than 8 ranks.
const STEPS: u64 = 20_000_000;

pub(super) fn trees(
    links: &LinkMatrix,
    roots: &[usize],
    penalty: f32,
    seed: Option<u64>,
) -> Result<Vec<SpanningTree>, TopologyError> {
    let size = links.size();
    let seed = seed.or((size > SEARCHED).then_some(1));
    let mut weights = links.weights().to_vec();
    let mut trees = Vec::new();
    for root in roots {
        let clustered = seed.and_then(|seed| kernighan_lin::edges(&weights, size, *root, seed));
        let tree = match clustered {
            Some(edges) => SpanningTree::new(*root, edges, FoundBy::KernighanLin),
            None => {
                let leaves =
                    exhaustive::leaves(&weights, size, *root, STEPS).ok_or_else(|| no_tree(*root))?;
                let edges = exhaustive::edges(&leaves, exhaustive::depth(size));
                SpanningTree::new(*root, edges, FoundBy::Exhaustive)
            }
        };
        for [parent, child] in tree.edges() {
            weights[parent * size + child] *= penalty;
            weights[child * size + parent] *= penalty;
        }
        trees.push(tree);
    }
    Ok(trees)
}

fn no_tree(root: usize) -> TopologyError {
    let problem = format!("no balanced binary tree from root {root} goes without a link of weight 0");
    TopologyError::whole(problem, "use --mode best, whose trees can have more rounds, or add links")
}
