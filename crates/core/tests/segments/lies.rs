//! What a rank is told that no rank that follows the schedule says.

use super::{Trial, adversary::Others, sum, trial};
use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    execution::{Arrived, Execution, Participant, Rules, SegmentMessage, Signal, Tally, Violation},
    group::Group,
    prepare::{Kind, Loc, Prepared},
    session::membership::MemberId,
    verify::verify,
};
use std::sync::Arc;

/// A rank that has told nothing yet, whose slots are free.
fn silent() -> Others {
    Others { signals: Vec::new(), free: vec![1; 3], crowded: vec![false; 3] }
}

/// A rank's program in an all-reduce of 4 bytes between two workers, each on a host.
fn program(algorithm: &str, reducers: u32, rank: usize) -> Prepared {
    let (group, algorithm) = (Group::of_size(2), algorithm.parse::<Algorithm>().unwrap());
    let layout = Layout { reducers, hosts: &[0, 1], links: None };
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
    let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
    let Trial { mut programs, .. } = trial(&verified, &[0, 1, 2], sum(4), (0, 1 << 20));
    Arc::into_inner(programs.swap_remove(rank)).expect("nobody else has it")
}

fn execution(program: Arc<Prepared>, is_worker: bool) -> Execution {
    let ahead = program.depth;
    let me = Participant { is_worker, in_place: true, ahead, rules: Rules::DEFAULT };
    let ids: Vec<MemberId> = (0..3).map(MemberId::new).collect();
    Execution::new(program, me, &ids, Tally::default())
}

/// Runs what can run.
fn run(execution: &mut Execution, others: &mut Others) {
    loop {
        while let Some(ready) = execution.next() {
            let program = execution.prepared().clone();
            match &program.steps[ready.step as usize].kind {
                Kind::Send(send) => {
                    execution.sends(ready);
                    for lane in send.lanes.clone() {
                        execution.offer(SegmentMessage { ready, lane }, others);
                        execution.handed_over(ready, 1);
                    }
                }
                _ => execution.complete(ready),
            }
        }
        if !execution.advance(others) {
            return;
        }
    }
}

/// Else the other workers would take a reducer for one that breaks the protocol because one of them does.
#[test]
fn a_reducer_says_once_that_all_hold_the_result() {
    let (mut reducer, mut others) = (execution(program("reduction_server", 1, 2).into(), false), silent());
    reducer.start(&mut others);
    let heads = reducer.prepared().heads.len() as u32;
    (0..heads).for_each(|head| reducer.arrive(0, head, Arrived::Staged).unwrap());
    run(&mut reducer, &mut others);
    others.signals.clear();
    for worker in [0, 1, 0, 1, 1] {
        reducer.receive_signal(worker, Signal::Grant(1), &mut others).unwrap();
    }
    assert_eq!(others.signals, [(0, Signal::Stable), (1, Signal::Stable)]);
}

/// Else the sender would wait for ever until as much was taken as the receiver gets.
#[test]
fn nobody_is_done_with_more_than_it_gets() {
    let mut program = program("radix(2)", 0, 0);
    program.peers[0].takes = 0;
    let (mut rank, mut others) = (execution(program.into(), true), silent());
    rank.start(&mut others);
    run(&mut rank, &mut others);
    assert_eq!(rank.segment_progress().begun, 1);
    let heard = rank.receive_signal(0, Signal::Grant(1), &mut others);
    assert!(matches!(heard, Err(Violation::NotGranted(_))), "{heard:?}");
    assert_eq!(rank.receive_signal(0, Signal::Grant(0), &mut others), Ok(()));
}

/// Else the fold would read what nobody has written.
#[test]
fn only_a_result_is_where_it_belongs_in_the_output() {
    let (mut refused, mut taken) = (0, 0);
    for algorithm in ["radix(2)", "ring"] {
        let program = Arc::new(program(algorithm, 0, 0));
        for (at, head) in program.heads.iter().enumerate() {
            let mut rank = execution(program.clone(), true);
            rank.start(&mut silent());
            let taking = &program.steps[head.step as usize].kind;
            let is_result = matches!(taking, Kind::Recv { into: Loc::Output(_), .. });
            let expected = if is_result { Ok(()) } else { Err(Violation::NoResult) };
            assert_eq!(rank.arrive(0, at as u32, Arrived::Placed), expected, "{algorithm}: {taking:?}");
            *if is_result { &mut taken } else { &mut refused } += 1;
        }
    }
    assert!(refused > 0 && taken > 0, "{refused} refused, {taken} taken");
}
