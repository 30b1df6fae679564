//! Whether reducers get to know that their workers are done, which they wait for.
//!
//! A reducer keeps what it has sent until all workers hold the whole result. It learns of that from its receivers:
//! workers confirm their messages, and reducers do not.

use super::{error::VerifyError, graph::Graph, ops::Op};
use crate::schedule::Rank;
use alloc::vec::Vec;

/// Checks that reducers exchange messages with workers only, and send something to each that sends to them.
pub(super) fn confirmed(graph: &Graph) -> Result<(), VerifyError> {
    let (mut heard, mut receivers): (Vec<Rank>, Vec<Rank>) = (Vec::new(), Vec::new());
    for reducer in graph.size.workers..graph.ranks() {
        heard.clear();
        receivers.clear();
        for node in graph.nodes_of(reducer) {
            heard.extend(graph.senders_of(node).map(|sender| graph.rank(sender)));
            if let Op::Send { to, .. } = graph.op(node) {
                receivers.extend(graph.lists.of(to).map(|receiver| graph.rank(receiver)));
            }
        }
        match unanswered(&heard, &mut receivers, graph.size.workers) {
            Some(Neglect::OfReducer(to)) => return Err(VerifyError::BetweenReducers { reducer, to }),
            Some(Neglect::ByReducer(worker)) => return Err(VerifyError::Unanswered { worker, reducer }),
            None => {}
        }
    }
    Ok(())
}

/// What keeps a reducer from an end.
pub(super) enum Neglect {
    /// It sends to this reducer.
    OfReducer(Rank),
    /// It sends nothing to this worker, of which it hears.
    ByReducer(Rank),
}

/// What is wrong with a reducer that hears of some ranks and sends to others, of which so many are workers.
pub(super) fn unanswered(heard: &[Rank], receivers: &mut [Rank], workers: u32) -> Option<Neglect> {
    receivers.sort_unstable();
    if let Some(to) = receivers.last().copied().filter(|to| *to >= workers) {
        return Some(Neglect::OfReducer(to));
    }
    // What reducers send to reducers is found at the sender.
    let unanswered =
        heard.iter().filter(|rank| **rank < workers).find(|rank| receivers.binary_search(rank).is_err());
    unanswered.copied().map(Neglect::ByReducer)
}
