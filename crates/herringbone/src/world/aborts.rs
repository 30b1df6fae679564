//! Ranks abort groups in which others call: a call that one rank aborts ends alike on all of them, and none waits for its timeout.

use super::{VirtualWorld, exact};
use crate::{ErrorKind, clock::Moment, core::group::Rank, transport::tcp::virtual_link::Rng};
use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

/// Which rank has aborted which group.
type Aborted = Rc<RefCell<Vec<(u32, Rank)>>>;

/// A rank aborts a group that it has, in which it calls nothing more.
fn abort(world: &mut VirtualWorld, rank: Rank, group: u32) {
    let now = world.clock.now();
    world.trace.note(world.clock.passed(), &format_args!("{rank} aborts {group:x}"));
    let machine = world.machine(rank as usize);
    machine.program.retain(|queued| queued.group != group);
    machine.engine.at(now).abort_group(group);
    world.settle(rank as usize);
}

/// Has some ranks of a world abort groups, at any time. All is drawn before, so that what else happens stays as it is.
pub(super) fn mix_in(world: &mut VirtualWorld, rng: &mut Rng) -> Aborted {
    let aborted = Aborted::default();
    for _ in 0..1 + rng.below(2) {
        let rank = rng.below(u64::from(world.setup.workers)) as Rank;
        let (group, _) = world.groups[rng.below(world.groups.len() as u64) as usize];
        let (delay, noted) = (Duration::from_micros(rng.below(50_000)), aborted.clone());
        world.later(delay, move |world| {
            let machine = world.machines[rank as usize].as_ref();
            if machine.is_some_and(|machine| !machine.is_hung && machine.engine.takes_calls(group)) {
                noted.borrow_mut().push((group, rank));
                abort(world, rank, group);
            }
        });
    }
    aborted
}

/// A world in which ranks abort groups and nothing else happens, after it has run, and how its calls have ended, or what is wrong
/// with it.
pub(super) fn aborting(seed: u64) -> Result<(VirtualWorld, Vec<&'static str>), String> {
    let mut world = exact::any_world(seed, exact::LONG);
    let aborted = mix_in(&mut world, &mut Rng(!seed));
    let done = world.run_to_the_end(exact::LONG);
    let (aborted, mut seen) = (aborted.borrow().clone(), Vec::new());
    let mut problems = world.problems();
    // When the first rank of each group was told that another one has aborted it, and when its last call ended well.
    let (mut failed_at, mut well) = (BTreeMap::<u32, Moment>::new(), BTreeMap::<u32, Moment>::new());
    for (me, worker) in world.workers() {
        for called in &worker.called {
            let group = called.group;
            let Some((at, end)) = &called.ended else { continue };
            seen.push(match end.as_ref().map_err(|error| error.kind()) {
                Ok(()) => {
                    well.entry(group).and_modify(|last| *last = (*last).max(*at)).or_insert(*at);
                    exact::WELL
                }
                Err(ErrorKind::Closed) if aborted.contains(&(group, me)) => "its group was closed",
                Err(ErrorKind::PeerLost { ranks, .. })
                    if ranks[..].iter().all(|rank| aborted.contains(&(group, *rank))) =>
                {
                    failed_at.entry(group).and_modify(|first| *first = (*first).min(*at)).or_insert(*at);
                    "a rank is lost"
                }
                Err(other) => {
                    problems.push(format!("rank {me} was told: {other:?}"));
                    "wrongly"
                }
            });
        }
        if !done && !worker.is_done() {
            problems.push(format!("a call of rank {me} hangs: {:?}", worker.ends()));
        }
    }
    for (group, at) in failed_at {
        if well.get(&group).is_some_and(|well| *well > at) {
            problems.push(format!("a call of group {group:x} ends well after others were told of its abort"));
        }
    }
    if problems.is_empty() { Ok((world, seen)) } else { Err(format!("seed {seed}: {problems:?}")) }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Setup, calls::Task, machine::QueuedCall},
        *,
    };
    use crate::{Collective, DType, Error, ReduceOp, core::prepare::Call, execute::issue::WORLD_GROUP};

    const MOMENT: Duration = Duration::from_millis(100);

    fn task(world: &mut VirtualWorld, collective: Collective, count: usize) -> QueuedCall {
        let dtype = if collective.folds() { DType::I32 } else { DType::U8 };
        let call = Call::new(collective, dtype, ReduceOp::Sum, count);
        QueuedCall::new(Task::new(call, world.setup.workers, &mut world.rng), None)
    }

    /// A world of three in which all links are made.
    fn begun(reducers: u32) -> VirtualWorld {
        let mut world = VirtualWorld::new(Setup::of(3, reducers), 0);
        let sum = task(&mut world, Collective::AllReduce, 5000);
        world.call(0..3, &sum);
        assert!(world.run_to_the_end(Duration::from_secs(5)));
        world
    }

    fn ends(world: &mut VirtualWorld, rank: u32) -> Vec<Result<(), Error>> {
        let ends = world.machine(rank as usize).ends();
        ends.into_iter().skip(1).map(|end| end.expect("a call that has ended")).collect()
    }

    #[track_caller]
    fn is_reported(end: &Result<(), Error>, aborter: u32) {
        let error = end.as_ref().expect_err("a call that was aborted");
        let named = matches!(error.kind(), ErrorKind::PeerLost { ranks, .. } if ranks == &[aborter]);
        assert!(named && error.to_string().contains("it aborted the group"), "{error}");
    }

    /// Rank 0, which is the hub, or another one aborts a call in which it has sent all that the others need, before they call it, or while
    /// one of them waits in it.
    #[test]
    fn a_call_that_one_rank_aborts_fails_on_all() {
        let calls = [(Collective::Barrier, 0), (Collective::AllReduce, 3), (Collective::AllReduce, 100_000)];
        for (collective, count) in calls {
            for (aborter, early, reducers) in [(0, 1, 0), (1, 2, 0), (2, 0, 0), (0, 1, 2), (1, 0, 2)] {
                let mut world = begun(reducers);
                let call = task(&mut world, collective, count);
                world.call([aborter, early], &call);
                world.run_for(MOMENT);
                abort(&mut world, aborter, WORLD_GROUP);
                let last = 3 - aborter - early;
                world.run_for(MOMENT);
                let failed_at = ends(&mut world, early);
                is_reported(&failed_at[0], aborter);
                // What is called later fails as well, and at once.
                world.call([last, early], &call);
                let limit = world.now() + MOMENT;
                assert!(world.run_to_the_end(limit));
                is_reported(&ends(&mut world, early)[1], aborter);
                is_reported(&ends(&mut world, last)[0], aborter);
                let own = ends(&mut world, aborter);
                assert!(matches!(own[..], [Err(ref error)] if error.kind() == &ErrorKind::Closed), "{own:?}");
            }
        }
    }

    /// A call that has ended well on the rank that aborts a later one ends well on those that come late to it.
    #[test]
    fn a_call_before_the_one_that_is_aborted_ends_well() {
        for collective in [Collective::Broadcast { root: 0 }, Collective::AllReduce] {
            let mut world = begun(0);
            // A root is done with what needs no grant.
            let first = task(&mut world, collective, 100);
            let second = task(&mut world, Collective::Barrier, 0);
            world.call([0, 1], &first);
            if collective == Collective::AllReduce {
                world.call([2], &first);
            }
            world.run_for(MOMENT);
            world.call([0, 1], &second);
            world.run_for(MOMENT);
            abort(&mut world, 0, WORLD_GROUP);
            world.run_for(MOMENT);
            if collective != Collective::AllReduce {
                world.call([2], &first);
            }
            world.call([2], &second);
            let limit = world.now() + MOMENT;
            assert!(world.run_to_the_end(limit), "{collective:?}");
            for rank in 1..3 {
                let ends = ends(&mut world, rank);
                assert!(ends[0].is_ok(), "{collective:?} on rank {rank}: {ends:?}");
                is_reported(&ends[1], 0);
            }
            assert_eq!(world.problems(), [""; 0]);
        }
    }

    /// The hub decides about a disagreement while a rank aborts: the abort ends the group, and is not forgotten.
    #[test]
    fn an_abort_while_the_group_is_fenced_ends_it() {
        let mut world = begun(0);
        let (one, other) =
            (task(&mut world, Collective::AllReduce, 3), task(&mut world, Collective::AllReduce, 4));
        world.call([0, 1], &one);
        world.call([2], &other);
        abort(&mut world, 1, WORLD_GROUP);
        let limit = world.now() + Duration::from_secs(3);
        assert!(world.run_to_the_end(limit));
        world.call([0, 2], &one);
        let limit = world.now() + Duration::from_secs(3);
        assert!(world.run_to_the_end(limit));
        [0, 2].into_iter().for_each(|rank| is_reported(&ends(&mut world, rank)[1], 1));
    }

    #[test]
    fn whatever_is_aborted_ends_alike_on_all_ranks() {
        let mut failed_at = 0;
        for seed in 0..150 {
            let (_, ends) = aborting(seed).unwrap();
            failed_at += ends.iter().filter(|end| **end != exact::WELL).count();
        }
        assert!(failed_at > 100, "{failed_at}");
    }
}
