//! Trees over the links between ranks: MXNet's, better ones, and trees for large buffers.
//!
//! A tree's *rounds* are the rounds of a broadcast along it in which a rank sends or receives one message per round.
//! The *load* of a link is the number of trees that use it, divided by its weight. An all-reduce goes up and down each
//! edge, so a tree uses a link in both directions, and the lesser of their weights is used.
//!
//! ```
//! use herringbone_core::topology::{LinkMatrix, trees::{TreeMode, TreeRequest, plan}};
//!
//! let trees = plan(&LinkMatrix::uniform(8, 2.0), &TreeRequest::of(TreeMode::Best))?;
//! assert_eq!(trees.trees().len(), 8);
//! assert!(trees.trees().iter().all(|tree| tree.rounds() == 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod anneal;
mod best;
mod broadcast;
mod canonical;
mod exact;
mod exhaustive;
mod flow;
mod kernighan_lin;
mod mxnet;
mod packing;
mod request;
mod rotated;
mod strength;
mod tree;

pub use canonical::canonical;
pub use flow::bound;
pub use request::{TreeMode, TreeRequest};
pub use strength::all_reduce_bound;
pub use tree::{FoundBy, SpanningTree, TreeFigures, TreeSet};

use super::{LinkMatrix, TopologyError};
use alloc::{format, vec, vec::Vec};

/// Plans trees.
///
/// # Errors
/// [`TopologyError::Whole`] for roots that are no ranks, an invalid penalty, ranks that no links connect, and if
/// MXNet's planner finds no tree.
pub fn plan(links: &LinkMatrix, request: &TreeRequest) -> Result<TreeSet, TopologyError> {
    let size = links.size();
    if let Some(root) = request.roots.iter().find(|root| **root >= size) {
        let problem = format!("root {root} is none of {size} ranks");
        return Err(TopologyError::whole(problem, format!("use roots from 0 to {}", size - 1)));
    }
    if !(request.penalty > 0.0 && request.penalty <= 1.0) {
        let problem = format!("the penalty {} is no factor for weights", request.penalty);
        return Err(TopologyError::whole(problem, "use a number above 0, and at most 1"));
    }
    links.check_connected()?;
    let all: Vec<usize> = (0..size).collect();
    let roots = if request.roots.is_empty() { &all } else { &request.roots };
    let trees = match request.mode {
        _ if size == 1 => {
            let alone = |root: &usize| SpanningTree::new(*root, vec![], FoundBy::Best);
            roots.iter().map(alone).collect()
        }
        TreeMode::Mxnet => mxnet::trees(links, roots, request.penalty, request.seed)?,
        TreeMode::Best => best::trees(links, roots),
        TreeMode::Throughput => packing::trees(links, roots, request.is_one_way),
    };
    Ok(TreeSet { size, trees })
}
