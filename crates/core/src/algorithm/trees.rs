//! Trees that the links choose: towards one root for small buffers, one for each rank for large ones.
//!
//! A chunk of the buffer goes over each tree: it is summed on the way up, and the sum is sent down. In canonical trees
//! the links choose the holders of partial sums, so all results keep their bits. Planned trees fold in their own order:
//! a rank adds its children's sums to its input in the order in which they are complete.

use super::branches::{Branch, Ways, over};
use super::{Layout, Unsupported};
use crate::collective::Collective;
use crate::group::Group;
use crate::schedule::{Rank, Schedule};
use crate::topology::trees::{SpanningTree, TreeMode, TreeRequest, canonical, plan};
use crate::topology::{LinkMatrix, MOST_RANKS};
use alloc::{borrow::Cow, string::ToString, vec, vec::Vec};

pub(super) fn all_reduce(
    group: &Group,
    layout: &Layout<'_>,
    mode: Option<TreeMode>,
    single: bool,
) -> Result<Schedule, Unsupported> {
    let links = links(group, layout)?;
    let trees = match mode {
        None => canonical_set(&links, group, single)?,
        Some(mode) => {
            let roots = if single { vec![0] } else { vec![] };
            planned(&links, &TreeRequest { roots, ..TreeRequest::of(mode) })?
        }
    };
    Ok(schedule(group, &trees, mode.is_none(), Ways { up: true, down: true }))
}

/// Reduce or broadcast.
pub(super) fn rooted(
    group: &Group,
    layout: &Layout<'_>,
    mode: Option<TreeMode>,
    collective: Collective,
) -> Result<Schedule, Unsupported> {
    let links = links(group, layout)?;
    let root = collective.root().unwrap_or(0) as usize;
    let trees = match mode {
        None => {
            let tree = canonical(&links, group.keys(), root, &|_, _| 1.0);
            vec![tree.ok_or(Unsupported::NoCanonicalTree)?]
        }
        Some(mode) => {
            let request = TreeRequest { roots: vec![root], is_one_way: true, ..TreeRequest::of(mode) };
            planned(&links, &request)?
        }
    };
    let up = collective.folds();
    Ok(schedule(group, &trees, mode.is_none(), Ways { up, down: !up }))
}

/// The links of a group; where none are known, all are alike.
fn links<'a>(group: &Group, layout: &Layout<'a>) -> Result<Cow<'a, LinkMatrix>, Unsupported> {
    let workers = group.size();
    if workers as usize > MOST_RANKS {
        return Err(Unsupported::TooManyForTrees { workers });
    }
    match layout.links {
        None => Ok(Cow::Owned(LinkMatrix::uniform(workers as usize, 1.0))),
        Some(links) if links.size() == workers as usize => Ok(Cow::Borrowed(links)),
        Some(links) => Err(Unsupported::UnknownLinks { known: links.size(), workers }),
    }
}

fn planned(links: &LinkMatrix, request: &TreeRequest) -> Result<Vec<SpanningTree>, Unsupported> {
    let set = plan(links, request).map_err(|error| Unsupported::NoTrees { reason: error.to_string() })?;
    let has_link = |[parent, child]: &[usize; 2]| links.both_ways(*parent, *child) > 0.0;
    let is_whole = |tree: &SpanningTree| tree.spans(links.size()) && tree.edges().iter().all(has_link);
    match set.trees().iter().find(|tree| !is_whole(tree)) {
        None => Ok(set.trees().to_vec()),
        Some(tree) => {
            let root = tree.root();
            let reason =
                alloc::format!("MXNet's tree from root {root} goes over a link of weight 0; use trees(best)");
            Err(Unsupported::NoTrees { reason })
        }
    }
}

/// One canonical tree for each rank that has one, later ones around what earlier ones use; or the best one of them alone, if that
/// leaves less to the busiest link.
fn canonical_set(links: &LinkMatrix, group: &Group, single: bool) -> Result<Vec<SpanningTree>, Unsupported> {
    let size = links.size();
    let slowest = |tree: &SpanningTree| {
        let weights = tree.edges().iter().map(|[a, b]| links.both_ways(*a, *b));
        weights.fold(f32::INFINITY, f32::min)
    };
    let of_root = |root| canonical(links, group.keys(), root, &|_, _| 1.0);
    let alone = (0..size).filter_map(of_root);
    let best = alone.reduce(|best, tree| if slowest(&tree) > slowest(&best) { tree } else { best });
    let best = best.ok_or(Unsupported::NoCanonicalTree)?;
    if single {
        return Ok(vec![best]);
    }
    let mut uses = vec![0u8; size * size];
    let mut trees = vec![];
    for root in 0..size {
        let discount = |a: usize, b: usize| 1.0 / (1.0 + f32::from(uses[a.min(b) * size + a.max(b)]));
        if let Some(tree) = canonical(links, group.keys(), root, &discount) {
            tree.edges().iter().for_each(|[a, b]| uses[a.min(b) * size + a.max(b)] += 1);
            trees.push(tree);
        }
    }
    let load = |(at, uses): (usize, &u8)| f32::from(*uses) / links.both_ways(at / size, at % size);
    let used = uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
    let worst = used.map(load).fold(0.0, f32::max) / trees.len() as f32;
    Ok(if worst * slowest(&best) <= 1.0 { trees } else { vec![best] })
}

fn schedule(group: &Group, trees: &[SpanningTree], is_canonical: bool, ways: Ways) -> Schedule {
    // One chunk for each slice, in the order of the trees.
    let of_slices = |(at, tree): (usize, &SpanningTree)| vec![at; tree.slices() as usize];
    let of_chunk: Vec<usize> = trees.iter().enumerate().flat_map(of_slices).collect();
    let places = trees.iter().map(|tree| places(tree, group.size() as usize)).collect();
    over(group, places, of_chunk, is_canonical, ways)
}

/// The place of each rank in a tree.
fn places(tree: &SpanningTree, size: usize) -> Vec<Branch> {
    let children = tree.children(size);
    let below = |child: &usize| (*child as Rank, !children[*child].is_empty());
    let place = |of_rank: &Vec<usize>| Branch { parent: None, children: of_rank.iter().map(below).collect() };
    let mut places: Vec<Branch> = children.iter().map(place).collect();
    tree.edges().iter().for_each(|[parent, child]| places[*child].parent = Some(*parent as Rank));
    places
}
