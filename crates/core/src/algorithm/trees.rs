//! Trees that the links choose: towards one root for small buffers, one for each rank for large ones.
//!
//! A chunk of the buffer goes over each tree: up it is summed, down it is sent. Of canonical trees the links choose the holders of
//! partial sums, so that all results keep their bits. Planned trees fold in their own order: a rank adds its children's sums to
//! its input, those first that are complete first.

use super::{Layout, Unsupported};
use crate::collective::Collective;
use crate::group::Group;
use crate::schedule::{Chunk, Cut, Form, Origin, Place, ProgramBuilder, Rank, Schedule, Source};
use crate::topology::trees::{SpanningTree, TreeMode, TreeWish, canonical, plan};
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
        Some(mode) => planned(&links, mode, if single { &[0] } else { &[] })?,
    };
    Ok(schedule(group, trees, mode.is_none(), Ways { up: true, down: true }))
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
        Some(mode) => planned(&links, mode, &[root])?,
    };
    let up = collective.folds();
    Ok(schedule(group, trees, mode.is_none(), Ways { up, down: !up }))
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

fn planned(links: &LinkMatrix, mode: TreeMode, roots: &[usize]) -> Result<Vec<SpanningTree>, Unsupported> {
    let wish = TreeWish { roots: roots.to_vec(), ..TreeWish::of(mode) };
    let set = plan(links, &wish).map_err(|error| Unsupported::NoTrees { reason: error.to_string() })?;
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

/// Which ways a chunk goes along its tree.
#[derive(Clone, Copy)]
struct Ways {
    up: bool,
    down: bool,
}

fn schedule(group: &Group, trees: Vec<SpanningTree>, is_canonical: bool, ways: Ways) -> Schedule {
    let keys = group.keys().to_vec();
    // One chunk for each slice, in the order of the trees.
    let of_slices = |(at, tree): (usize, &SpanningTree)| vec![at; tree.slices() as usize];
    let of_chunk: Vec<usize> = trees.iter().enumerate().flat_map(of_slices).collect();
    let chunks = of_chunk.len() as u32;
    let places: Vec<Vec<Branch>> = trees.iter().map(|tree| Branch::all(tree, keys.len())).collect();
    Schedule::generated(group.size(), 0, Cut::Even { chunks }, move |rank| {
        let mut program = ProgramBuilder::new();
        let branches = || (0..).zip(&of_chunk).map(|(chunk, tree)| (chunk, &places[*tree][rank as usize]));
        if ways.up {
            let keys = is_canonical.then_some(&keys[..]);
            branches().for_each(|(chunk, branch)| branch.sum(&mut program, chunk, rank, keys));
        }
        if ways.down {
            branches().for_each(|(chunk, branch)| branch.send_down(&mut program, chunk));
        }
        program.build()
    })
}

/// A rank's place in a tree.
struct Branch {
    parent: Option<Rank>,
    /// Those first that start the longest way; whether others are below them.
    children: Vec<(Rank, bool)>,
}

impl Branch {
    /// The place of each rank.
    fn all(tree: &SpanningTree, size: usize) -> Vec<Self> {
        let children = tree.children(size);
        let below = |child: &usize| (*child as Rank, !children[*child].is_empty());
        let place =
            |of_rank: &Vec<usize>| Self { parent: None, children: of_rank.iter().map(below).collect() };
        let mut places: Vec<Self> = children.iter().map(place).collect();
        tree.edges().iter().for_each(|[parent, child]| places[*child].parent = Some(*parent as Rank));
        places
    }

    /// Adds up what the children send and passes it on, in the shape of the canonical tree of these keys, or in the order of the
    /// children.
    fn sum(&self, program: &mut ProgramBuilder, chunk: Chunk, rank: Rank, keys: Option<&[u32]>) {
        let input = Place::User(chunk);
        if self.children.is_empty()
            && let Some(parent) = self.parent
        {
            program.send(input, [parent]);
            return;
        }
        let into = if self.parent.is_some() { program.slot(Form::Acc) } else { input };
        let finish = self.parent.is_none();
        let mut sources = vec![(rank, Origin::At(input))];
        sources.extend(self.children.iter().rev().map(|(child, is_sum)| {
            let form = if *is_sum { Form::Acc } else { Form::Plain };
            (*child, Origin::Head { lane: *child, form })
        }));
        match keys {
            Some(keys) => {
                sources.iter_mut().for_each(|(from, _)| *from = keys[*from as usize]);
                sources.sort_by_key(|(key, _)| *key);
                program.fold(chunk, &sources, into, finish);
            }
            None => {
                let in_turn = |(at, (_, from)): (usize, &(Rank, Origin))| Source {
                    from: *from,
                    merges: u8::from(at > 0),
                };
                program.fold_shaped(chunk, sources.iter().enumerate().map(in_turn), into, finish);
            }
        }
        if let Some(parent) = self.parent {
            program.send(into, [parent]);
        }
    }

    fn send_down(&self, program: &mut ProgramBuilder, chunk: Chunk) {
        if let Some(parent) = self.parent {
            program.recv(parent, chunk, Place::User(chunk));
        }
        program.send(Place::User(chunk), self.children.iter().map(|(child, _)| *child));
    }
}
