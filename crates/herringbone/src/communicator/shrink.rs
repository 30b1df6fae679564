//! Agreeing with the other survivors on the members of the next group.

use super::handle::GroupHandle;
use crate::{
    Error, ErrorKind, Result,
    core::{
        group::Rank,
        session::{
            Ranks,
            membership::MemberId,
            survivors::{Shrink, ShrinkOutcome, Shrunk},
            watch::ShrinkAnswer,
        },
    },
    engine::group,
    fabric::Fabric,
    observe::{OperationState, Recent},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long operations that are under way may take to end.
const UNDER_WAY: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(2);

/// What comes of the question who is left.
pub(crate) enum Agreed {
    /// The next group: its number, this rank's place in it, and its members, all of whom have completed so many operations of
    /// the group before. That one is closed.
    On { number: u32, rank: u32, members: Vec<MemberId>, completed: u64 },
    /// There is no hub to say so. This is what the rank wants, and these are gone; `true` for those of which that is certain.
    Without { shrink: Shrink, gone: BTreeMap<Rank, bool> },
}

/// Asks the hub who is left of a group, once all that live have asked.
pub(crate) fn agree(fabric: &Fabric, group: &GroupHandle, least: u32, timeout: Duration) -> Result<Agreed> {
    let me = fabric.job.rank;
    let rank_of = |member: &MemberId| fabric.job.roster.rank_of(*member);
    let ranks: Vec<Rank> = group.members.iter().filter_map(rank_of).collect();
    let shrink = Shrink {
        group: group.number,
        members: ranks.clone(),
        least,
        dead: Vec::new(),
        completed: completed(fabric, group.number),
    };
    let at = |error: Error| error.about(me, "shrink");
    let (left, completed) = match fabric.commands.wait_for_survivors(shrink.clone(), timeout) {
        Some(ShrinkAnswer::Decided(Shrunk { outcome, completed, .. })) => match outcome {
            ShrinkOutcome::Continue(left) => (left, completed),
            ShrinkOutcome::Late { missing } => return Err(at(late(me, timeout, &missing))),
            outcome => return Err(at(refused(outcome, &ranks))),
        },
        Some(ShrinkAnswer::NoHub(gone)) => return Ok(Agreed::Without { shrink, gone }),
        None => return Err(at(late(me, timeout, &[]))),
    };
    let is_left = |member: &&MemberId| rank_of(member).is_some_and(|rank| left.contains(&rank));
    let members: Vec<MemberId> = group.members.iter().filter(is_left).copied().collect();
    let Some(rank) = members.iter().position(|member| *member == fabric.job.me) else {
        return Err(at(lost(vec![me], "the other ranks have continued without this one".to_owned())));
    };
    let name = format!("survivors of group {:08x}", group.number);
    let number = group::number_of(&name, &members);
    fabric.hand_on(group.number, number);
    fabric.node.with(|engine| {
        engine.end_group(group.number);
        engine.drop_group(group.number);
        engine.runtime.out.observer.name_group(number, &name);
    });
    Ok(Agreed::On { number, rank: rank as u32, members, completed })
}

/// How many operations of a group this process has completed: those before the first that a loss ended. What is under way may
/// end meanwhile, well or not.
fn completed(fabric: &Fabric, group: u32) -> u64 {
    let began = Instant::now();
    let recent = loop {
        let recent = fabric.node.with(|engine| engine.runtime.out.observer.recent());
        let runs = |operation: &Recent| {
            operation.id.group == group
                && matches!(operation.state, OperationState::Queued | OperationState::Running)
        };
        if !recent.iter().any(runs) || began.elapsed() >= UNDER_WAY {
            break recent;
        }
        std::thread::sleep(LOOK);
    };
    let of_it = recent.iter().filter(|operation| operation.id.group == group);
    let passed = |operation: &&Recent| match &operation.state {
        OperationState::Queued | OperationState::Running => false,
        OperationState::Done => true,
        OperationState::Failed(kind) => !matches!(*kind, "PeerLost" | "Closed"),
    };
    of_it.take_while(passed).last().map_or(0, |operation| operation.id.sequence + 1)
}

/// The error of ranks that are lost for going on.
pub(crate) fn lost(ranks: Vec<Rank>, reason: String) -> Error {
    Error::new(ErrorKind::PeerLost { ranks, reason })
}

/// Why these members do not go on.
pub(crate) fn refused(outcome: ShrinkOutcome, members: &[Rank]) -> Error {
    let without = |left: &[Rank]| members.iter().copied().filter(|rank| !left.contains(rank)).collect();
    match outcome {
        ShrinkOutcome::Continue(left) => {
            lost(without(&left), "no rank sent the address where the remaining ranks meet".to_owned())
        }
        ShrinkOutcome::Late { missing } => lost(missing, "they did not come in time".to_owned()),
        ShrinkOutcome::TooFew { left, least } => {
            let reason = format!("{} of at least {least} are left ({})", left.len(), Ranks(&left));
            lost(without(&left), reason)
        }
        ShrinkOutcome::NoMajority { silent } => {
            let reason = "silent, and not fewer than the ranks that answer, so they may be running on the other side of a network split";
            lost(silent, reason.to_owned())
        }
    }
}

/// Not all that live have called in time.
pub(crate) fn late(rank: Rank, after: Duration, missing: &[Rank]) -> Error {
    let who = match missing {
        [] => "other live ranks".to_owned(),
        missing => Ranks(missing).to_string(),
    };
    Error::new(ErrorKind::Timeout { rank, after, missing: vec![format!("{who} to call shrink")] })
}
