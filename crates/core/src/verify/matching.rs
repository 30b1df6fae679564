//! Joining every part of every send with the step that receives it.

use super::{
    error::{StepFault, VerifyError},
    graph::{Graph, Node, Take},
    ops::Op,
};
use crate::schedule::Rank;
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// Numbers the messages in lane order, and tells each to its receiver, and each receiver to its sender.
pub(super) fn match_messages(graph: &mut Graph) -> Result<(), VerifyError> {
    let first_message = sort_into_lanes(graph);
    let mut takers = vec![0; graph.senders.len()];
    let mut takes = Vec::new();
    for receiver in 0..graph.ranks() {
        takes.clear();
        for node in graph.nodes_of(receiver) {
            graph.takes_of(node, &mut takes);
        }
        // Stable, so each lane's stay in program order.
        takes.sort_by_key(|take| take.lane);
        let messages = first_message[receiver as usize]..first_message[receiver as usize + 1];
        join(graph, receiver, messages, &takes, &mut takers)?;
    }
    let mut next = first_message;
    graph.map_receivers(|to| takers[count_up(&mut next[to as usize])]);
    Ok(())
}

/// Finds the sender of each message, in lane order, and each receiver's first message; one more entry ends the last.
fn sort_into_lanes(graph: &mut Graph) -> Vec<u32> {
    let mut first_message = vec![0; graph.ranks() as usize + 1];
    for_each_part(graph, |_, to| first_message[to as usize + 1] += 1);
    for receiver in 0..graph.ranks() as usize {
        first_message[receiver + 1] += first_message[receiver];
    }
    let mut next = first_message.clone();
    let mut senders = vec![0; first_message[graph.ranks() as usize] as usize];
    for_each_part(graph, |sender, to| senders[count_up(&mut next[to as usize])] = sender);
    graph.senders = senders;
    first_message
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

/// Joins the messages to one receiver with what it takes, both in lane order.
fn join(
    graph: &mut Graph,
    receiver: Rank,
    mut messages: Range<u32>,
    takes: &[Take],
    takers: &mut [Node],
) -> Result<(), VerifyError> {
    for lane in takes.chunk_by(|a, b| a.lane == b.lane) {
        let sends = graph.nodes_of(lane[0].lane);
        for take in lane {
            match messages.next() {
                Some(message) if sends.contains(&graph.sender(message)) => {
                    graph.set_message(*take, message);
                    takers[message as usize] = take.node;
                }
                Some(message) if graph.sender(message) < sends.start => {
                    return Err(unreceived(graph, message, receiver));
                }
                _ => return Err(graph.fault(take.node, StepFault::NeverSent { lane: take.lane })),
            }
        }
        graph.end_lane(messages.start - 1);
    }
    match messages.next() {
        Some(message) => Err(unreceived(graph, message, receiver)),
        None => Ok(()),
    }
}

fn unreceived(graph: &Graph, message: u32, to: Rank) -> VerifyError {
    let node = graph.sender(message);
    let rank = graph.rank(node);
    VerifyError::Unreceived { rank, step: node - graph.first_node[rank as usize], to }
}
