//! A reducer's groups: workers introduce them, and drop them.

use super::{
    group::{Group, Settings},
    groups::REDUCER_GROUPS,
    runtime::Runtime,
};
use crate::{
    Error, ErrorKind,
    core::session::{control::Introduction, group_state::GroupState, membership::MemberId},
    transport::Broken,
};

/// A worker tells a reducer of a group, or of its next generation.
pub(super) fn join(
    runtime: &mut Runtime,
    worker: MemberId,
    introduction: &Introduction,
) -> Result<(), Broken> {
    make(runtime, introduction)?;
    let group = runtime.groups.get_mut(introduction.group);
    let reducer = group.and_then(|group| group.state.reducer());
    reducer.into_iter().for_each(|reducer| reducer.introduced_by(worker));
    Ok(())
}

/// Makes a group, or its next generation, unless it is known.
fn make(runtime: &mut Runtime, introduction: &Introduction) -> Result<(), Broken> {
    let Runtime { links, groups, .. } = runtime;
    let known = groups.get(introduction.group);
    if known.is_some_and(|group| group.state.generation() >= introduction.generation) {
        return Ok(());
    }
    let before = known.map(|group| group.settings.parameters.clone());
    let parameters =
        before.or_else(|| groups.parameters.remove(&(introduction.group, introduction.parameters)));
    let parameters = parameters.ok_or(Broken::Protocol("a group whose parameters were not sent"))?;
    groups.parameters.retain(|(group, _), _| *group != introduction.group);
    let (me, ranks) = (links.me, links.ranks(&introduction.members));
    remove(runtime, introduction.group);
    let possible = ranks.len() == introduction.members.len()
        && introduction.reducers as usize == parameters.reducers.len();
    if runtime.groups.groups.len() >= REDUCER_GROUPS || !possible {
        return Err(Broken::Protocol("more groups than a reducer takes, or members that cannot be"));
    }
    let settings = Settings::of_introduction(introduction, me, ranks, parameters);
    let state = GroupState::of_reducer(introduction.group, introduction.generation);
    runtime.out.observer.introduced(introduction.group, introduction.reducer);
    runtime.groups.groups.insert(introduction.group, Group::of(settings, state));
    Ok(())
}

/// A reducer is done with a group.
fn remove(runtime: &mut Runtime, number: u32) {
    runtime.fail_group(number, &Error::new(ErrorKind::Closed), false);
    runtime.groups.groups.remove(&number);
    runtime.out.observer.group_is_gone(number);
}

/// A worker tells a reducer that it takes no part in a group any more.
pub(super) fn dropped_by(runtime: &mut Runtime, worker: MemberId, number: u32) {
    let Some(Group { settings, state, .. }) = runtime.groups.get_mut(number) else { return };
    if state.reducer().is_some_and(|reducer| reducer.left_by(worker, settings.members())) {
        remove(runtime, number);
    }
}
