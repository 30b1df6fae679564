use crate::{
    call,
    simulation::{Simulation, Trouble},
};
use herringbone_core::{
    session::{
        Cause, Mismatch,
        control::{Decision, Dispute, Message, Report, Waiting},
        fence::{Action, Admission, Check, Directed, Failed, Hub, Issued, Member, NotIssued, REMEMBERED},
    },
    wire::{Fingerprint, roll},
};
use std::sync::Arc;

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

const GROUP: u32 = 5;

fn member(rank: u32) -> Member {
    Member::new(GROUP, rank, vec![0, 1, 2])
}

fn issue(member: &mut Member, times: u64) -> Issued {
    (0..times).map(|_| member.issue(call()).unwrap()).last().unwrap()
}

fn lost(rank: u32) -> Cause {
    Cause::PeerLost { ranks: vec![rank] }
}

fn corrupt() -> Cause {
    Cause::Corrupt { from: 0, to: 1 }
}

/// Fences and settles the member's generation, with `next` from the other members' reports.
fn settle(member: &mut Member, next: u64, cause: Cause) -> Option<bool> {
    let generation = member.generation();
    let fence = Message::Fence { group: GROUP, generation, cause: cause.clone() };
    let Action::Send(Message::Report(report)) = member.receive(&fence) else { panic!("it reports") };
    assert_eq!(member.receive(&fence), Action::Nothing, "a member reports once");
    let next = next.max(report.below);
    let decision = Decision { group: GROUP, generation, next, cause };
    match member.receive(&Message::Decide(decision)) {
        Action::Settled(settled) => {
            assert_eq!((settled.generation, settled.below), (generation + 1, next));
            Some(settled.fails_open)
        }
        _ => None,
    }
}

fn failure(member: &mut Member) -> (Option<u64>, Cause) {
    match member.issue(call()) {
        Err(NotIssued::Failed(Failed { sequence, cause })) => (sequence, Cause::clone(&cause)),
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
    member.complete(0);
    issue(&mut member, 1);
    assert_eq!(member.check(0, first.hash), Check::Forgotten);
    assert_eq!(member.check(1, roll(first.hash, &Fingerprint { sequence: 1, ..call() })), Check::Match);
}

#[test]
fn open_operations_fail_and_numbers_go_on() {
    let mut member = member(1);
    issue(&mut member, 3);
    member.complete(0);
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
    member.complete(0);
    member.fail(0);
    assert_eq!(settle(&mut member, 2, corrupt()), Some(true), "operation 1 is open");
    issue(&mut member, 1);
    member.complete(2);
    member.fail(0);
    assert_eq!(settle(&mut member, 3, corrupt()), Some(false));
    assert_eq!(failure(&mut member), (Some(3), corrupt()));
}

#[test]
fn whoever_had_finished_hears_of_it_in_its_next_operation() {
    let mut member = member(1);
    issue(&mut member, 2);
    (0..2).for_each(|sequence| member.complete(sequence));
    assert_eq!(settle(&mut member, 2, corrupt()), Some(false));
    assert_eq!(failure(&mut member), (Some(2), corrupt()));
    assert_eq!(issue(&mut member, 1).fingerprint.sequence, 3);
}

#[test]
fn what_a_failed_call_has_reported_is_not_repeated() {
    let mut member = member(1);
    issue(&mut member, 2);
    member.complete(0);
    member.fail(1);
    assert!(member.dispute(corrupt()).is_some());
    assert_eq!(settle(&mut member, 2, corrupt()), Some(false));
    assert_eq!(issue(&mut member, 1).fingerprint.sequence, 2);
    member.complete(2);
    assert_eq!(settle(&mut member, 3, corrupt()), Some(false), "it was reported in the generation before");
    assert_eq!(failure(&mut member), (Some(3), corrupt()));
}

#[test]
fn news_come_in_their_order() {
    let mut member = member(1);
    issue(&mut member, 1);
    member.complete(0);
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
    let dispute = Dispute { group: GROUP, generation: 0, members: vec![0, 1, 2], cause: corrupt() };
    assert_eq!(member.dispute(corrupt()), Some(Message::Dispute(dispute)));
    assert_eq!(member.dispute(corrupt()), None, "once is enough");
    assert_eq!(member.issue(call()), Err(NotIssued::Frozen));
    assert_eq!(member.waiting(0, 0), None);
    assert_eq!(member.admit(0), Admission::Accept);
    member.receive(&Message::Fence { group: GROUP, generation: 0, cause: corrupt() });
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

#[test]
fn whoever_has_closed_still_reports() {
    let mut member = member(1);
    issue(&mut member, 2);
    let settled = member.close(lost(2));
    assert_eq!((settled.generation, settled.below, settled.fails_open), (0, 2, true));
    assert_eq!(failure(&mut member), (None, lost(2)));
    assert_eq!(settle(&mut member, 4, corrupt()), None);
    assert_eq!(failure(&mut member), (None, lost(2)));
    assert_eq!((member.generation(), member.next()), (1, 2));
}

#[test]
fn older_and_newer_generations_are_none_of_its_business() {
    let mut member = member(1);
    issue(&mut member, 1);
    settle(&mut member, 1, corrupt());
    let before = format!("{member:?}");
    for generation in [0, 2] {
        let fence = Message::Fence { group: GROUP, generation, cause: corrupt() };
        let decide = Message::Decide(Decision { group: GROUP, generation, next: 9, cause: corrupt() });
        assert_eq!((member.receive(&fence), member.receive(&decide)), (Action::Nothing, Action::Nothing));
    }
    assert_eq!(format!("{member:?}"), before);
}

fn dispute(members: &[u32], cause: Cause) -> Message {
    Message::Dispute(Dispute { group: GROUP, generation: 0, members: members.into(), cause })
}

fn report(next: u64, recent: Vec<Fingerprint>) -> Message {
    Message::Report(Report { group: GROUP, generation: 0, next, below: next, recent })
}

fn targets(sent: &[Directed]) -> Vec<u32> {
    sent.iter().map(|directed| directed.to).collect()
}

/// What all of them are told.
fn decided(sent: &[Directed]) -> (Vec<u32>, Decision) {
    match &sent[0].message {
        Message::Decide(decision) => (targets(sent), decision.clone()),
        other => panic!("{other:?} is no decision"),
    }
}

#[test]
fn the_hub_fences_once_and_decides_when_all_have_reported() {
    let mut hub = Hub::new();
    let sent = hub.receive(2, dispute(&[1, 2, 3], corrupt()));
    assert_eq!(targets(&sent), [1, 2, 3]);
    assert_eq!(sent[0].message, Message::Fence { group: GROUP, generation: 0, cause: corrupt() });
    assert!(hub.receive(1, dispute(&[1, 2, 3], lost(3))).is_empty());
    assert!(hub.receive(1, report(7, vec![])).is_empty());
    assert!(hub.receive(1, report(99, vec![])).is_empty(), "a second report does not count");
    assert!(hub.receive(9, report(99, vec![])).is_empty(), "nor does a stranger's");
    assert!(hub.receive(3, report(9, vec![])).is_empty());
    let (to, decision) = decided(&hub.receive(2, report(8, vec![])));
    assert_eq!(to, [1, 2, 3]);
    assert_eq!(decision, Decision { group: GROUP, generation: 0, next: 9, cause: corrupt() });
    assert!(hub.receive(2, dispute(&[1, 2, 3], corrupt())).is_empty(), "that generation is over");
    assert!(hub.receive(2, report(9, vec![])).is_empty());
}

/// Else its next call would be the others' second next one.
#[test]
fn the_hub_lets_an_operation_fail_on_whoever_had_finished() {
    let mut hub = Hub::new();
    hub.receive(2, dispute(&[1, 2], corrupt()));
    hub.receive(2, report(7, vec![]));
    let finished = Report { group: GROUP, generation: 0, next: 7, below: 8, recent: vec![] };
    let (_, decision) = decided(&hub.receive(1, Message::Report(finished)));
    assert_eq!(decision.next, 8);
}

#[test]
fn the_hub_names_the_first_operation_that_differs() {
    let issued = |sequence, count| Fingerprint { sequence, count, ..call() };
    let timeout =
        Cause::Timeout { rank: 2, operation: issued(4, 1000), milliseconds: 9, waiting_for: vec![1] };
    let late = Cause::Mismatch(Mismatch::new(4, [(1, issued(4, 7)), (2, issued(4, 8))]));
    for cause in [timeout, late] {
        let mut hub = Hub::new();
        hub.receive(2, dispute(&[1, 2, 3], cause));
        hub.receive(1, report(5, [2, 3, 4].map(|sequence| issued(sequence, sequence)).into()));
        hub.receive(2, report(5, vec![issued(3, 1000), issued(4, 1000)]));
        let (_, decision) = decided(&hub.receive(3, report(3, vec![issued(2, 2)])));
        let first = Mismatch::new(3, [(1, issued(3, 3)), (2, issued(3, 1000))]);
        assert_eq!((decision.next, decision.cause), (5, Cause::Mismatch(first)));
    }
}

#[test]
fn the_hub_does_not_wait_for_the_dead() {
    let mut hub = Hub::new();
    hub.receive(1, dispute(&[1, 2, 3], corrupt()));
    hub.receive(1, report(4, vec![]));
    hub.receive(2, report(6, vec![]));
    assert!(hub.lose(8).is_empty());
    let (to, decision) = decided(&hub.lose(3));
    assert_eq!((to, decision.next, decision.cause), (vec![1, 2], 6, lost(3)));

    let mut reported = Hub::new();
    reported.receive(1, dispute(&[1, 2], corrupt()));
    reported.receive(2, report(4, vec![]));
    assert!(reported.lose(2).is_empty());
    let (to, decision) = decided(&reported.receive(1, report(4, vec![])));
    assert_eq!((to, decision.cause), (vec![1], lost(2)), "who has reported may still die");

    let mut known = Hub::new();
    known.lose(2);
    assert_eq!(targets(&known.receive(1, dispute(&[1, 2], corrupt()))), [1]);
    assert_eq!(decided(&known.receive(1, report(1, vec![]))).1.cause, lost(2));
    assert!(known.receive(1, dispute(&[2], corrupt())).is_empty(), "nobody is left to tell");
}

#[test]
fn the_hub_does_not_blame_those_who_left_because_another_died() {
    let mut hub = Hub::new();
    hub.receive(1, dispute(&[1, 2, 3], corrupt()));
    assert!(hub.leave(2).is_empty());
    assert!(hub.receive(1, report(4, vec![])).is_empty(), "rank 3 has not reported");
    assert_eq!(decided(&hub.lose(3)).1.cause, lost(3));

    let mut nobody_died = Hub::new();
    nobody_died.receive(1, dispute(&[1, 2], corrupt()));
    assert!(nobody_died.receive(1, report(4, vec![])).is_empty());
    assert_eq!(decided(&nobody_died.leave(2)).1.cause, lost(2));
}

/// Ranks that leave because an operation failed, for want of another that had left, are not to blame.
#[test]
fn who_follows_a_rank_that_left_is_not_blamed() {
    let lost = |rank| Cause::PeerLost { ranks: vec![rank] };
    let mut named = Hub::new();
    named.leave(3);
    named.leave(1);
    assert_eq!(targets(&named.receive(2, dispute(&[0, 1, 2, 3], lost(1)))), [0, 2]);
    assert!(named.leave(2).is_empty());
    assert_eq!(decided(&named.receive(0, report(4, vec![]))).1.cause, lost(1), "rank 3 was not needed");

    let mut unnamed = Hub::new();
    unnamed.receive(0, dispute(&[0, 1, 2], corrupt()));
    assert!(unnamed.leave(2).is_empty());
    assert!(unnamed.leave(1).is_empty());
    assert_eq!(decided(&unnamed.receive(0, report(4, vec![]))).1.cause, lost(2), "the first that left");
}

fn waiting(rank: u32, sequence: u64, hash: u64, round: u32) -> Message {
    let fingerprint = Fingerprint { sequence, ..call() };
    Message::Waiting(Waiting { rank, group: GROUP, generation: 0, round, hash, fingerprint })
}

#[test]
fn the_hub_brings_those_who_wait_together() {
    let mut hub = Hub::new();
    hub.receive(0, Message::GroupInfo { group: GROUP, generation: 0, members: vec![0, 1, 2, 3] });
    let show = |to, message| Directed { to, message };
    assert!(hub.receive(1, waiting(1, 7, 70, 0)).is_empty());
    assert!(hub.receive(2, waiting(2, 7, 70, 0)).is_empty(), "they agree");
    let met = hub.receive(3, waiting(3, 7, 71, 0));
    assert_eq!(met, [show(3, waiting(1, 7, 70, 0))], "they differ: it will find so itself");
    let ahead = hub.receive(3, waiting(3, 9, 90, 0));
    assert_eq!(ahead, [show(3, waiting(1, 7, 70, 0))]);
    let between = hub.receive(2, waiting(2, 8, 80, 0));
    assert_eq!(between, [show(2, waiting(1, 7, 70, 0)), show(3, waiting(2, 8, 80, 0))]);

    let asked = hub.receive(2, waiting(2, 7, 70, 1));
    assert_eq!(asked, [0, 1, 3].map(|to| show(to, waiting(2, 7, 70, 1))));
    assert!(hub.receive(1, waiting(1, 7, 70, 1)).is_empty(), "all have been asked in this round");
    hub.lose(3);
    assert_eq!(targets(&hub.receive(1, waiting(1, 7, 70, 2))), [0, 2]);
}

/// Who has no use for a group holds up no fence of the others, and the last one takes it along.
#[test]
fn the_hub_forgets_groups_that_nobody_needs() {
    let mut hub = Hub::new();
    let forget = || Message::Forget { group: GROUP };
    assert!(hub.receive(2, forget()).is_empty(), "it may go before others say who is in it");
    hub.receive(0, Message::GroupInfo { group: GROUP, generation: 0, members: vec![0, 1, 2] });
    assert_eq!(targets(&hub.receive(0, dispute(&[0, 1, 2], corrupt()))), [0, 1]);
    assert!(hub.receive(0, report(4, vec![])).is_empty());
    assert_eq!(targets(&hub.receive(1, forget())), [0], "the last that was waited for");
    assert_eq!(hub.groups(), 1);
    let all_left = |to| Directed { to, message: forget() };
    assert_eq!(
        hub.receive(0, forget()),
        [0, 1, 2].map(all_left),
        "nobody reads what others have left for it"
    );
    assert_eq!(hub.groups(), 0);
}

/// A rank that died or left needs no group either.
#[test]
fn the_hub_forgets_groups_whose_other_members_are_gone() {
    let mut hub = Hub::new();
    let forget = || Message::Forget { group: GROUP };
    hub.receive(0, Message::GroupInfo { group: GROUP, generation: 0, members: vec![0, 1, 2] });
    assert!(hub.receive(0, forget()).is_empty());
    assert!(hub.lose(1).is_empty());
    assert_eq!(hub.leave(2), [Directed { to: 0, message: forget() }]);
    assert_eq!(hub.groups(), 0);
}

#[test]
fn the_hub_forgets_who_waited_in_an_older_generation() {
    let mut hub = Hub::new();
    hub.receive(1, waiting(1, 7, 70, 0));
    hub.receive(1, dispute(&[1], corrupt()));
    assert!(hub.receive(1, waiting(2, 7, 71, 0)).is_empty(), "a fence is under way");
    hub.receive(1, report(8, vec![]));
    let Message::Waiting(later) = waiting(2, 9, 90, 0) else { panic!() };
    assert!(hub.receive(2, Message::Waiting(Waiting { generation: 1, ..later })).is_empty());
}

#[test]
fn a_member_that_is_shown_another_history_disputes() {
    let mut member = member(2);
    let issued = issue(&mut member, 3);
    let theirs = Fingerprint { sequence: 2, count: 7, ..call() };
    let shown = |generation, sequence, hash| {
        let fingerprint = Fingerprint { sequence, ..theirs };
        Message::Waiting(Waiting { rank: 1, group: GROUP, generation, round: 1, hash, fingerprint })
    };
    assert_eq!(member.receive(&shown(0, 2, issued.hash)), Action::Nothing);
    assert_eq!(member.receive(&shown(0, 3, 1)), Action::Nothing, "it has not come that far");
    assert_eq!(member.receive(&shown(1, 2, 1)), Action::Nothing);
    let Action::Send(Message::Dispute(dispute)) = member.receive(&shown(0, 2, 1)) else { panic!() };
    let both = [(1, theirs), (2, issued.fingerprint)];
    assert_eq!(dispute.cause, Cause::Mismatch(Mismatch::new(2, both)));
    assert_eq!(member.receive(&shown(0, 2, 1)), Action::Nothing, "once is enough");
}

#[test]
fn reports_end_with_the_disputed_operation() {
    let reported = |cause: Cause| {
        let mut member = member(1);
        issue(&mut member, 100);
        let Action::Send(Message::Report(report)) =
            member.receive(&Message::Fence { group: GROUP, generation: 0, cause })
        else {
            panic!()
        };
        assert_eq!(report.next, 100);
        let numbers: Vec<u64> = report.recent.iter().map(|fingerprint| fingerprint.sequence).collect();
        numbers
    };
    let at = |sequence| Cause::Mismatch(Mismatch::new(sequence, [(0, Fingerprint { sequence, ..call() })]));
    assert!(reported(at(50)).into_iter().eq(19..51));
    assert!(reported(at(3)).into_iter().eq(0..4));
    assert!(reported(at(u64::MAX)).into_iter().eq(68..100));
    assert!(reported(corrupt()).into_iter().eq(68..100));
}

#[test]
fn causes_are_shared_not_copied() {
    let mut member = member(1);
    settle(&mut member, 2, corrupt());
    let causes = [(); 2].map(|()| match member.issue(call()) {
        Err(NotIssued::Failed(failed)) => failed.cause,
        other => panic!("{other:?}"),
    });
    assert!(Arc::ptr_eq(&causes[0], &causes[1]));
}
