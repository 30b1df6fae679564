//! Going on with the ranks that are left.

use super::handle::GroupHandle;
use crate::{
    Error, ErrorKind, Result,
    core::session::{
        Ranks,
        membership::MemberId,
        survivors::{Shrink, Survival},
    },
    engine::group,
    fabric::Fabric,
};
use std::time::Duration;

/// Agrees with the ranks of a group that are left on who they are; see [`shrink`](crate::Communicator::shrink). The group is
/// closed. Returns the number of the next one, this rank's place in it, and its members.
pub(super) fn agree(
    fabric: &Fabric,
    group: &GroupHandle,
    (least, timeout): (u32, Duration),
) -> Result<(u32, u32, Vec<MemberId>)> {
    let me = fabric.job.rank;
    let rank_of = |member: &MemberId| fabric.job.roster.rank_of(*member);
    let ranks: Vec<u32> = group.members.iter().filter_map(rank_of).collect();
    let shrink = Shrink { group: group.number, members: ranks.clone(), least };
    let outcome = fabric.commands.wait_for_survivors(shrink, timeout);
    let at = |error: Error| error.about(me, "shrink");
    let left = left_of(outcome, &ranks, (me, timeout)).map_err(at)?;
    let is_left = |member: &&MemberId| rank_of(member).is_some_and(|rank| left.contains(&rank));
    let members: Vec<MemberId> = group.members.iter().filter(is_left).copied().collect();
    let Some(rank) = members.iter().position(|member| *member == fabric.job.me) else {
        return Err(at(lost(vec![me], "the others have gone on without this rank".to_owned())));
    };
    let name = format!("survivors of group {:08x}", group.number);
    let number = group::number_of(&name, &members);
    fabric.node.with(|engine| {
        engine.abort_group(group.number);
        engine.drop_group(group.number);
        engine.out.observer.name_group(number, &name);
    });
    Ok((number, rank as u32, members))
}

fn lost(ranks: Vec<u32>, reason: String) -> Error {
    Error::new(ErrorKind::PeerLost { ranks, reason })
}

/// The ranks that go on, if they do.
fn left_of(outcome: Option<Survival>, members: &[u32], (me, after): (u32, Duration)) -> Result<Vec<u32>> {
    let without = |left: &[u32]| members.iter().copied().filter(|rank| !left.contains(rank)).collect();
    match outcome {
        Some(Survival::GoOn(left)) => Ok(left),
        Some(Survival::TooFew { left, least }) => {
            let reason = format!("{} of at least {least} are left ({})", left.len(), Ranks(&left));
            Err(lost(without(&left), reason))
        }
        Some(Survival::Unsure { silent }) => {
            let reason = "they are silent, and may go on by themselves for all that is known here, as they are not fewer than \
                          the others"
                .to_owned();
            Err(lost(silent, reason))
        }
        Some(Survival::WithoutHub) => Err(lost(vec![0], "only rank 0 can say who is left".to_owned())),
        None => {
            let missing = vec!["other ranks that live, to call shrink".to_owned()];
            Err(Error::new(ErrorKind::Timeout { rank: me, after, missing }))
        }
    }
}
