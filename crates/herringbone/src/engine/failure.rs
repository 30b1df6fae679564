//! Why a group, or an operation, cannot continue, as users read it.

use super::{group::Group, links::Links};
use crate::{
    Error, ErrorKind,
    core::{
        group::Rank,
        session::{
            Cause, Ranks,
            group_state::{Gone, GroupFailure},
            membership::MemberId,
        },
    },
    transport::endpoint::Endpoint,
};
use std::{sync::Arc, time::Duration};

/// What is known of ranks that the hub calls lost.
const GONE: &str = "ended, hung or left";
/// Why a rank is missed that lives.
pub(crate) const ABORTED: &str = "it aborted the group";

/// Why a rank is missed that left in order.
const LEFT: &str = "it left: it called close(), or its program ended";

/// A failure in a group as a user's error: where all ranks that are lost have left in order, this rank knows more than the hub says.
/// Of a group that this rank has closed itself, nobody is to blame who has not died: rank 0, too, leaves once all have closed it.
pub(super) fn explained(failure: &GroupFailure, group: &Group, links: &Links) -> Error {
    let has_only_left = |rank: &Rank| {
        links.endpoints.worker(*rank).is_some_and(|endpoint| endpoint.left.is_some() && !endpoint.dead)
    };
    let has_died = |rank: &Rank| links.endpoints.worker(*rank).is_some_and(|endpoint| endpoint.dead);
    match failure {
        GroupFailure::Closed => Error::new(ErrorKind::Closed),
        GroupFailure::Gone(Gone { ranks, .. }) if group.state.is_closed() && !ranks.iter().any(has_died) => {
            Error::new(ErrorKind::Closed)
        }
        GroupFailure::Gone(Gone { ranks, reason }) => links.lost(ranks, reason),
        GroupFailure::Decided(cause) => match (&group.explained, &**cause) {
            (Some((explained, error)), _) if Arc::ptr_eq(explained, cause) => error.clone(),
            (_, Cause::PeerLost { ranks }) if ranks.iter().all(has_only_left) => {
                match group.state.is_closed() {
                    true => Error::new(ErrorKind::Closed),
                    false => links.lost(ranks, LEFT),
                }
            }
            (_, Cause::PeerLost { ranks }) => links.lost(ranks, GONE),
            (_, Cause::Memory { rank, bytes, operation }) => {
                let ended_by = Some(group.settings.named(*operation).to_string());
                Error::new(ErrorKind::Memory { rank: *rank, bytes: *bytes, ended_by })
            }
            (_, cause) => error(cause, &group.settings.ranks),
        },
    }
}

impl Group {
    /// Why the group is over here, or takes no calls because members are gone.
    pub(super) fn failure(&self, links: &Links) -> Option<Error> {
        self.state.failure().map(|failure| explained(&failure, self, links))
    }
}

/// Why a rank that left is missed where none of the group died: perhaps one of another group did, or left before. In a group
/// that this rank has closed itself, that is why.
pub(super) fn left_because(index: MemberId, is_closed: bool, links: &Links) -> Error {
    if is_closed {
        return Error::new(ErrorKind::Closed);
    }
    let named = |which: &dyn Fn(&Endpoint) -> bool| {
        let names = links.endpoints.iter().filter(|endpoint| which(endpoint));
        names.map(|endpoint| endpoint.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let left = links.endpoints[index].left;
    let dead = named(&|endpoint| endpoint.dead);
    let before = named(&|endpoint| endpoint.left.is_some_and(|at| Some(at) < left));
    let after = match (dead.as_str(), before.as_str()) {
        ("", "") => String::new(),
        ("", _) => format!(", after {before} had left"),
        _ => format!(", after {dead} had died"),
    };
    links.lost(&links.ranks(&[index]), format_args!("{LEFT}{after}"))
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
        Cause::ReducerLost { address, rank, reason, .. } => ErrorKind::ReducerLost {
            address: address.clone(),
            reason: format!("{reason}, as rank {rank} reports"),
        },
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
        Cause::Memory { rank, bytes, .. } => ErrorKind::Memory { rank: *rank, bytes: *bytes, ended_by: None },
        Cause::Corrupt { from, to } => {
            ErrorKind::Corrupt { from: format!("rank {from}"), to: format!("rank {to}") }
        }
        Cause::Protocol { from, to, problem } => ErrorKind::Protocol {
            from: format!("rank {from}"),
            problem: format!("{problem}, as rank {to} reports"),
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
