//! Why a group, or an operation, cannot go on.

use crate::{
    Error, ErrorKind,
    core::{
        group::Rank,
        session::{Cause, Ranks},
    },
};
use std::time::Duration;

/// What is known of ranks that the hub calls lost.
pub(super) const GONE: &str = "ended, hung or left";
/// Why a rank is missed that lives.
pub(crate) const ABORTED: &str = "it aborted the group";

/// Why a group takes no new operations, while those under way may still end well.
#[derive(Debug)]
pub(crate) struct Doom {
    pub(crate) ranks: Vec<Rank>,
    pub(crate) error: Error,
}

/// A cause as a user's error, in a group whose workers have these ranks in the job.
pub(crate) fn error(cause: &Cause, workers: &[Rank]) -> Error {
    Error::new(match cause {
        Cause::Mismatch(mismatch) => ErrorKind::Mismatch {
            sequence: mismatch.sequence,
            calls: mismatch.issued(|called| called.in_job(workers).to_string()),
        },
        Cause::Uneven { operation, from, to, sent, expected } => {
            let call = operation.in_job(workers);
            ErrorKind::Mismatch {
                sequence: operation.sequence,
                calls: vec![
                    (vec![*from], format!("{call} with {sent} elements for rank {to}")),
                    (vec![*to], format!("{call} with {expected} elements from rank {from}")),
                ],
            }
        }
        Cause::ReducerLost { address, rank, reason, .. } => {
            ErrorKind::ReducerLost { address: address.clone(), reason: format!("{reason}, says rank {rank}") }
        }
        Cause::Timeout { rank, milliseconds, waiting_for, .. } => ErrorKind::Timeout {
            rank: *rank,
            after: Duration::from_millis(*milliseconds),
            missing: waiting_for.iter().map(|rank| format!("rank {rank}")).collect(),
        },
        Cause::Unmade { rank, milliseconds, ranks } => ErrorKind::Timeout {
            rank: *rank,
            after: Duration::from_millis(*milliseconds),
            missing: vec![format!(
                "{} to make the group, which is over: make it again on all of its ranks",
                Ranks(ranks)
            )],
        },
        Cause::Memory { rank, bytes, .. } => ErrorKind::Memory { rank: *rank, bytes: *bytes },
        Cause::Corrupt { from, to } => {
            ErrorKind::Corrupt { from: format!("rank {from}"), to: format!("rank {to}") }
        }
        Cause::Protocol { from, to, problem } => ErrorKind::Protocol {
            from: format!("rank {from}"),
            problem: format!("{problem}, says rank {to}"),
        },
        Cause::LinkLost { from, to } => ErrorKind::LinkLost { ranks: [*from.min(to), *from.max(to)] },
        Cause::PeerLost { ranks } => ErrorKind::PeerLost { ranks: ranks.clone(), reason: GONE.to_owned() },
        Cause::Left { ranks, operation, caller } => ErrorKind::PeerLost {
            ranks: ranks.clone(),
            reason: format!(
                "left without {}, which rank {caller} has called (make all ranks make the same calls before they leave)",
                operation.in_job(workers)
            ),
        },
        Cause::Aborted { rank, .. } => ErrorKind::PeerLost { ranks: vec![*rank], reason: ABORTED.to_owned() },
        Cause::Panicked { rank } => ErrorKind::Protocol {
            from: format!("rank {rank}"),
            problem: "its engine panicked, see its output".to_owned(),
        },
    })
}
