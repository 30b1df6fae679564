use crate::{
    call,
    simulation::{Simulation, Trouble},
};
use herringbone_core::{
    session::{
        Cause,
        control::{Decision, Dispute, Message},
        fence::{Action, Admission, Check, Issued, Member, NotIssued, REMEMBERED},
    },
    wire::{Fingerprint, roll},
};

const CALM: Trouble =
    Trouble { members: 2, operations: 60, width: 1, mistakes: 0, timeouts: 0, death: false };

fn simulate(seeds: u64, trouble: Trouble, check: impl Fn(Simulation)) {
    for members in 2..=8 {
        for seed in 0..seeds {
            let trouble = Trouble { members, width: 1 + seed as usize % 4, ..trouble };
            println!("seed {seed}, {trouble:?}");
            let mut simulation = Simulation::new(seed << 8 | u64::from(members), trouble);
            simulation.run();
            check(simulation);
        }
    }
}

#[test]
fn ranks_that_agree_are_left_alone() {
    simulate(10, CALM, |mut simulation| {
        simulation.check_alignment();
        assert!(simulation.decisions.is_empty());
    });
}

#[test]
fn every_disagreement_reaches_every_rank_once_and_leaves_them_in_step() {
    simulate(120, Trouble { mistakes: 20, ..CALM }, |mut simulation| {
        simulation.check_alignment();
        simulation.check_news();
        simulation.check_decisions();
        for decision in &simulation.decisions {
            assert!(matches!(decision.cause, Cause::Mismatch(_)), "{decision:?}");
        }
    });
}

/// Also one in their last calls, where there is no call after it.
#[test]
fn every_disagreement_is_known_to_every_rank_that_has_closed() {
    let learnt = std::cell::Cell::new(0);
    simulate(120, Trouble { operations: 12, mistakes: 12, ..CALM }, |mut simulation| {
        simulation.close();
        simulation.check_news();
        simulation.check_decisions();
        learnt.set(learnt.get() + simulation.learnt_at_the_end());
    });
    assert!(learnt.get() > 100, "{learnt:?}");
}

#[test]
fn timeouts_and_disagreements_together_leave_them_in_step() {
    simulate(60, Trouble { mistakes: 30, timeouts: 30, ..CALM }, |mut simulation| {
        simulation.check_alignment();
        simulation.check_news();
        simulation.check_decisions();
    });
}

#[test]
fn a_death_in_the_middle_of_it_ends_the_group_everywhere() {
    let trouble = Trouble { operations: 10_000, mistakes: 15, timeouts: 40, death: true, ..CALM };
    simulate(60, trouble, |mut simulation| {
        simulation.check_death();
        simulation.check_decisions();
    });
}

pub(crate) const GROUP: u32 = 5;

pub(crate) fn member(rank: u32) -> Member {
    Member::new(GROUP, rank, vec![0, 1, 2])
}

pub(crate) fn issue(member: &mut Member, times: u64) -> Issued {
    (0..times).map(|_| member.issue(call()).unwrap()).last().unwrap()
}

pub(crate) fn lost(rank: u32) -> Cause {
    Cause::PeerLost { ranks: vec![rank] }
}

pub(crate) fn corrupt() -> Cause {
    Cause::Corrupt { from: 0, to: 1 }
}

/// Fences and settles the member's generation, with `next` from the other members' reports.
pub(crate) fn settle(member: &mut Member, next: u64, cause: Cause) -> Option<bool> {
    let generation = member.generation();
    let fence = Message::Fence { group: GROUP, generation, cause: cause.clone(), ordinal: None };
    let Some(Action::Send(Message::Report(report))) = member.receive(&fence) else { panic!("it reports") };
    assert_eq!(member.receive(&fence), None, "a member reports once");
    let next = next.max(report.below);
    let decision = Decision { group: GROUP, generation, next, cause };
    match member.receive(&Message::Decide(decision)) {
        Some(Action::Settled(settled)) => {
            assert_eq!((settled.generation, settled.below), (generation + 1, next));
            Some(settled.fails_open)
        }
        _ => None,
    }
}

pub(crate) fn failure(member: &mut Member) -> (Option<u64>, Cause) {
    match member.issue(call()) {
        Err(NotIssued::Failed(cause)) => (None, Cause::clone(&cause)),
        Err(NotIssued::Counted(issued, cause)) => (Some(issued.fingerprint.sequence), Cause::clone(&cause)),
        other => panic!("the call gave {other:?}"),
    }
}

#[test]
fn operations_are_numbered_and_compared() {
    let (mut one, mut other) = (member(0), member(1));
    for sequence in 0..3 {
        let issued = issue(&mut one, 1);
        assert_eq!(issued.fingerprint, Fingerprint { sequence, ..call() });
        assert_eq!(other.check(sequence, issued.hash), Check::NotYet);
        assert_eq!(issue(&mut other, 1), issued);
        assert_eq!(other.check(sequence, issued.hash), Check::Match);
        assert_eq!(other.check(sequence, issued.hash ^ 1), Check::Differs);
    }
    assert_eq!(one.issued(2).unwrap().sequence, 2);
    assert_eq!((one.issued(3), one.next()), (None, 3));
}

#[test]
fn a_member_remembers_so_far_and_no_further() {
    let mut member = member(0);
    let first = issue(&mut member, 1);
    issue(&mut member, REMEMBERED as u64 - 1);
    assert_eq!(member.check(0, first.hash), Check::Match);
    issue(&mut member, 1);
    assert_eq!(member.check(0, first.hash), Check::Match, "it is open");
    member.complete(0, false);
    issue(&mut member, 1);
    assert_eq!(member.check(0, first.hash), Check::Forgotten);
    assert_eq!(member.check(1, roll(first.hash, &Fingerprint { sequence: 1, ..call() })), Check::Match);
}

#[test]
fn open_operations_fail_and_numbers_go_on() {
    let mut member = member(1);
    issue(&mut member, 3);
    member.complete(0, false);
    assert_eq!(settle(&mut member, 5, corrupt()), Some(true));
    assert_eq!(failure(&mut member), (Some(3), corrupt()));
    assert_eq!(failure(&mut member), (Some(4), corrupt()));
    let issued = issue(&mut member, 1);
    let fingerprint = Fingerprint { sequence: 5, ..call() };
    assert_eq!(issued, Issued { generation: 1, hash: roll(0, &fingerprint), fingerprint });
    assert_eq!(member.check(4, 0), Check::Forgotten, "an older generation's");
}

/// It has failed with its generation, whatever is said of it afterwards.
#[test]
fn an_older_operation_is_not_counted_again() {
    let mut member = member(1);
    issue(&mut member, 1);
    assert_eq!(settle(&mut member, 1, corrupt()), Some(true));
    issue(&mut member, 1);
    member.complete(0, false);
    member.fail(0);
    assert_eq!(settle(&mut member, 2, corrupt()), Some(true), "operation 1 is open");
    issue(&mut member, 1);
    member.complete(2, false);
    member.fail(0);
    assert_eq!(settle(&mut member, 3, corrupt()), Some(false));
    assert_eq!(failure(&mut member), (Some(3), corrupt()));
}

#[test]
fn whoever_had_finished_hears_of_it_in_its_next_operation() {
    let mut member = member(1);
    issue(&mut member, 2);
    (0..2).for_each(|sequence| member.complete(sequence, false));
    assert_eq!(settle(&mut member, 2, corrupt()), Some(false));
    assert_eq!(failure(&mut member), (Some(2), corrupt()));
    assert_eq!(issue(&mut member, 1).fingerprint.sequence, 3);
}

#[test]
fn what_a_failed_call_has_reported_is_not_repeated() {
    let mut member = member(1);
    issue(&mut member, 2);
    member.complete(0, false);
    member.fail(1);
    assert!(member.dispute(corrupt()).is_some());
    assert_eq!(settle(&mut member, 2, corrupt()), Some(false));
    assert_eq!(issue(&mut member, 1).fingerprint.sequence, 2);
    member.complete(2, false);
    assert_eq!(settle(&mut member, 3, corrupt()), Some(false), "it was reported in the generation before");
    assert_eq!(failure(&mut member), (Some(3), corrupt()));
}

#[test]
fn news_come_in_their_order() {
    let mut member = member(1);
    issue(&mut member, 1);
    member.complete(0, false);
    settle(&mut member, 1, Cause::Corrupt { from: 0, to: 2 });
    settle(&mut member, 4, Cause::Corrupt { from: 2, to: 0 });
    settle(&mut member, 4, corrupt());
    assert_eq!(failure(&mut member), (Some(1), Cause::Corrupt { from: 0, to: 2 }));
    assert_eq!(failure(&mut member), (Some(2), Cause::Corrupt { from: 2, to: 0 }));
    assert_eq!(failure(&mut member), (Some(3), Cause::Corrupt { from: 2, to: 0 }));
    assert_eq!(failure(&mut member), (Some(4), corrupt()));
    assert_eq!(issue(&mut member, 1).fingerprint.sequence, 5);
}

/// A member that never calls does not collect causes for ever.
#[test]
fn a_silent_member_stays_small_and_in_step() {
    let mut member = member(1);
    for next in 1..=1000 {
        settle(&mut member, next, Cause::Corrupt { from: 0, to: next as u32 });
    }
    let receivers: Vec<u32> = (0..1000)
        .map(|sequence| match failure(&mut member) {
            (Some(number), Cause::Corrupt { to, .. }) if number == sequence => to,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(receivers[..63], (1..=63).collect::<Vec<u32>>());
    assert!(receivers[63..].iter().all(|to| *to == 1000));
    assert_eq!(issue(&mut member, 1).fingerprint.sequence, 1000);
}

#[test]
fn calls_wait_for_the_decision() {
    let mut member = member(1);
    issue(&mut member, 1);
    let dispute =
        Dispute { group: GROUP, generation: 0, members: vec![0, 1, 2], cause: corrupt(), ordinal: None };
    assert_eq!(member.dispute(corrupt()), Some(Message::Dispute(dispute)));
    assert_eq!(member.dispute(corrupt()), None, "once is enough");
    assert_eq!(member.issue(call()), Err(NotIssued::Frozen));
    assert_eq!(member.waiting(0, 0), None);
    assert_eq!(member.admit(0), Admission::Accept);
    member.receive(&Message::Fence { group: GROUP, generation: 0, cause: corrupt(), ordinal: None });
    assert_eq!(member.issue(call()), Err(NotIssued::Frozen));
    assert_eq!([0, 1].map(|generation| member.admit(generation)), [Admission::Discard, Admission::Hold]);
    member.receive(&Message::Decide(Decision { group: GROUP, generation: 0, next: 1, cause: corrupt() }));
    assert_eq!([0, 1, 2].map(|generation| member.admit(generation)), {
        [Admission::Discard, Admission::Accept, Admission::Hold]
    });
    assert!(member.issue(call()).is_ok());
}

#[test]
fn a_loss_is_the_end() {
    let mut member = member(1);
    issue(&mut member, 1);
    assert_eq!(settle(&mut member, 4, lost(2)), Some(true));
    for _ in 0..3 {
        assert_eq!(failure(&mut member), (None, lost(2)));
    }
    assert_eq!((member.next(), member.admit(1)), (1, Admission::Discard));
    assert_eq!(member.dispute(corrupt()), None);
}

/// It names the first call that has not ended well, in any phase; where the group is over nobody has to be told.
#[test]
fn an_abort_names_the_first_call_that_it_ends() {
    let sequence = |member: &Member| match member.abort() {
        Some(Message::Dispute(dispute)) => match dispute.cause {
            Cause::Aborted { rank: 1, sequence } => Some(sequence),
            other => panic!("{other:?}"),
        },
        other => other.map(|other| panic!("{other:?}")),
    };
    let mut member = member(1);
    assert_eq!(sequence(&member), Some(0));
    issue(&mut member, 3);
    member.complete(0, true);
    member.complete(2, true);
    assert_eq!(sequence(&member), Some(1));
    member.dispute(corrupt());
    assert_eq!(sequence(&member), Some(1));
    settle(&mut member, 5, corrupt());
    assert_eq!(sequence(&member), Some(3));
    settle(&mut member, 5, lost(2));
    assert_eq!(sequence(&member), None);
}

#[test]
fn older_and_newer_generations_are_none_of_its_business() {
    let mut member = member(1);
    issue(&mut member, 1);
    settle(&mut member, 1, corrupt());
    let before = format!("{member:?}");
    for generation in [0, 2] {
        let fence = Message::Fence { group: GROUP, generation, cause: corrupt(), ordinal: None };
        let decide = Message::Decide(Decision { group: GROUP, generation, next: 9, cause: corrupt() });
        assert_eq!((member.receive(&fence), member.receive(&decide)), (None, None));
    }
    assert_eq!(format!("{member:?}"), before);
}
