//! Joining every part of every send with the step that receives it.

use super::{
    error::{StepFault, VerifyError, check_count},
    graph::{Graph, Node, Take},
    ops::Op,
};
use crate::schedule::Rank;
use alloc::{format, vec, vec::Vec};

/// Tells each message's sender to its receiver and the other way round, and lets each send follow the receive of the
/// message before on its lane, unless one step takes both.
///
/// Here messages are numbered in **lane order**: by receiver, then by sender, then as they were sent, so that the
/// next message of a lane is the next number.
pub(super) fn match_messages(graph: &mut Graph) -> Result<(), VerifyError> {
    let (first_message, mut ends) = sort_into_lanes(graph);
    let (mut takes, mut sorted) = (Vec::new(), Vec::new());
    let (mut edges, mut sorted_edges) = (Vec::new(), Vec::new());
    for receiver in 0..graph.ranks() {
        takes.clear();
        for node in graph.nodes_of(receiver) {
            graph.takes_of(node, &mut takes);
        }
        // Each lane's stay in program order.
        sort_by_number(&takes, &mut sorted, graph.ranks(), |take| take.lane);
        core::mem::swap(&mut takes, &mut sorted);
        let messages =
            first_message[receiver as usize] as usize..first_message[receiver as usize + 1] as usize;
        edges.clear();
        join(graph, receiver, &takes, &mut ends[messages], &mut edges)?;
        let nodes = graph.nodes_of(receiver);
        sort_by_number(&edges, &mut sorted_edges, nodes.len() as u32, |(before, _)| before - nodes.start);
        graph.follow(&sorted_edges);
    }
    let mut next = first_message;
    graph.map_receivers(|to| ends[count_up(&mut next[to as usize])]);
    Ok(())
}

/// Copies `all` to `sorted` by a number below `numbers`, those of one number in the order in which they are.
fn sort_by_number<T: Copy>(all: &[T], sorted: &mut Vec<T>, numbers: u32, number: impl Fn(&T) -> u32) {
    sorted.clear();
    sorted.extend_from_slice(all);
    // To count takes longer than to compare where there are more numbers than things.
    if all.len() < numbers as usize / 4 {
        return sorted.sort_by_key(number);
    }
    let mut next = vec![0; numbers as usize + 1];
    all.iter().for_each(|one| next[number(one) as usize + 1] += 1);
    for at in 1..next.len() {
        next[at] += next[at - 1];
    }
    all.iter().for_each(|one| sorted[count_up(&mut next[number(one) as usize])] = *one);
}

/// Finds each receiver's first message, with one entry more to end the last, and the sender of each message.
fn sort_into_lanes(graph: &Graph) -> (Vec<u32>, Vec<Node>) {
    let mut first_message = vec![0; graph.ranks() as usize + 1];
    for_each_part(graph, |_, to| first_message[to as usize + 1] += 1);
    for receiver in 0..graph.ranks() as usize {
        first_message[receiver + 1] += first_message[receiver];
    }
    let mut next = first_message.clone();
    let mut senders = vec![0; first_message[graph.ranks() as usize] as usize];
    for_each_part(graph, |sender, to| senders[count_up(&mut next[to as usize])] = sender);
    (first_message, senders)
}

fn for_each_part(graph: &Graph, mut tell: impl FnMut(Node, Rank)) {
    for node in 0..graph.nodes() {
        if let Op::Send { to, .. } = graph.op(node) {
            graph.lists.of(to).for_each(|to| tell(node, to));
        }
    }
}

fn count_up(next: &mut u32) -> usize {
    *next += 1;
    *next as usize - 1
}

/// Joins the messages to one receiver with what it takes, both in lane order, and replaces each message's sender by
/// the node that takes it. Adds to `edges` which send follows which receive.
fn join(
    graph: &mut Graph,
    receiver: Rank,
    takes: &[Take],
    ends: &mut [Node],
    edges: &mut Vec<(Node, Node)>,
) -> Result<(), VerifyError> {
    let mut messages = ends.iter_mut();
    for lane in takes.chunk_by(|a, b| a.lane == b.lane) {
        let (from, sends) = (lane[0].lane, graph.nodes_of(lane[0].lane));
        check_count(lane.len(), || format!("messages from rank {from} to rank {receiver}"))?;
        let mut before = None;
        for take in lane {
            let end = match messages.next() {
                Some(end) if *end < sends.start => return Err(unreceived(graph, *end, receiver)),
                Some(end) if sends.contains(end) => end,
                _ => return Err(graph.fault(take.node, StepFault::NeverSent { lane: take.lane })),
            };
            graph.set_sender(*take, *end);
            match before {
                // A fold takes them at once.
                Some(before) if before == take.node => graph.takes_several = true,
                Some(before) => edges.push((before, *end)),
                None => {}
            }
            before = Some(take.node);
            *end = take.node;
        }
    }
    match messages.next() {
        Some(sender) => Err(unreceived(graph, *sender, receiver)),
        None => Ok(()),
    }
}

fn unreceived(graph: &Graph, sender: Node, to: Rank) -> VerifyError {
    let rank = graph.rank(sender);
    VerifyError::Unreceived { rank, step: sender - graph.first_node[rank as usize], to }
}
