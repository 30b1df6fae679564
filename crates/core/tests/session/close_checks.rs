//! What members that leave ask the hub and each other, and what they learn of calls that they have not made.

use crate::{
    a_hub, call,
    fence::{GROUP, corrupt, issue, member, settle},
    hub::{decided, dispute, report, targets, waiting},
};
use herringbone_core::{
    session::{
        Cause, Mismatch,
        close_check::CloseQuestion,
        control::{Death, Decision, Message, Waiting},
        fence::{Action, Directed, Member, NotIssued},
        hub::Hub,
        membership::MemberId,
        recovery::{Calls, Grow, Held, repair_of, successor_of},
    },
    wire::Fingerprint,
};

fn question(rank: u32, sequence: u64, hash: u64) -> CloseQuestion {
    CloseQuestion { rank, group: GROUP, generation: 0, hash, fingerprint: Fingerprint { sequence, ..call() } }
}

#[test]
fn the_hub_asks_all_others_once_and_answers_when_all_have_made_the_same_calls() {
    let mut hub = a_hub();
    let ask = |rank, hash| Message::Confirm(question(rank, 7, hash));
    let confirmed = || Message::Confirmed(question(0, 7, 70).confirmed());
    assert!(hub.receive(1, ask(1, 70)).is_empty(), "nobody knows who is in the group");
    assert!(hub.receive(3, ask(1, 70)).is_empty(), "it is another one's question");
    let info = Message::GroupInfo { group: GROUP, generation: 0, members: vec![0, 1, 2, 3] };
    let asked = hub.receive(0, info);
    assert_eq!(asked, [0, 2, 3].map(|to| Directed { to, message: ask(1, 70) }));
    assert!(hub.receive(2, ask(2, 70)).is_empty(), "the others were asked that already");
    assert!(hub.receive(0, confirmed()).is_empty(), "rank 3 has not answered");
    assert_eq!(targets(&hub.receive(0, ask(0, 71))), [1, 2, 3], "that is another one");
    let sent = hub.lose(3, &Death::Exited);
    assert_eq!(sent, [1, 2].map(|to| Directed { to, message: confirmed() }));
    assert!(hub.receive(0, confirmed()).is_empty(), "all were told");
    assert!(hub.receive(2, Message::Forget { group: GROUP }).is_empty());
    let sent = hub.receive(1, Message::Forget { group: GROUP });
    assert_eq!(sent, [Directed { to: 0, message: Message::Confirmed(question(0, 7, 71).confirmed()) }]);
}

/// A member has issued so many operations.
fn held(next: u64) -> Message {
    let calls = Calls { next, ..Calls::default() };
    Message::Held(Held { group: GROUP, calls, operations: Vec::new() })
}

fn forget() -> Message {
    Message::Forget { group: GROUP }
}

/// A hub that knows a group of four.
fn hub_of_four() -> Hub {
    let mut hub = a_hub();
    hub.receive(0, Message::GroupInfo { group: GROUP, generation: 0, members: vec![0, 1, 2, 3] });
    hub
}

/// Whichever comes first: the question about a call, or that a member leaves which has not made it. Who has made it is no reason.
#[test]
fn a_member_that_leaves_without_a_call_that_another_asks_about_is_found() {
    let ask = || Message::Confirm(question(0, 7, 70));
    for asks_first in [true, false] {
        let mut hub = hub_of_four();
        let leave = |hub: &mut Hub| {
            assert!(hub.receive(2, held(8)).is_empty());
            assert!(hub.receive(2, forget()).is_empty(), "it has made the call");
            assert!(hub.receive(1, held(7)).is_empty(), "it may go on");
            hub.receive(1, forget())
        };
        let sent = if asks_first {
            assert_eq!(targets(&hub.receive(0, ask())), [1, 2, 3]);
            leave(&mut hub)
        } else {
            assert!(leave(&mut hub).is_empty());
            let mut sent = hub.receive(0, ask());
            assert_eq!(sent.remove(0), Directed { to: 3, message: ask() });
            sent
        };
        let cause = Cause::Left { ranks: vec![1], operation: question(0, 7, 70).fingerprint, caller: 0 };
        let fence = Message::Fence { group: GROUP, generation: 0, cause: cause.clone(), ordinal: None };
        assert_eq!(sent, [0, 3].map(|to| Directed { to, message: fence.clone() }));
        hub.receive(0, report(8, vec![]));
        assert_eq!(decided(&hub.receive(3, report(7, vec![]))).1.cause, cause);
    }
}

/// Before or after it leaves, others wait in the call: it never comes to that.
#[test]
fn a_member_that_leaves_without_a_call_in_which_another_waits_is_found() {
    for waits_first in [true, false] {
        let mut hub = hub_of_four();
        let mut sent = Vec::new();
        if waits_first {
            hub.receive(0, waiting(0, 7, 70, 0));
        }
        for message in [held(7), forget(), held(9)] {
            sent.extend(hub.receive(1, message));
        }
        if !waits_first {
            assert!(sent.is_empty(), "{sent:?}");
            assert!(hub.receive(0, waiting(0, 6, 60, 0)).is_empty(), "it has made that call");
            sent = hub.receive(0, waiting(0, 7, 70, 0));
            sent.retain(|directed| matches!(directed.message, Message::Fence { .. }));
        }
        let Message::Waiting(Waiting { fingerprint, .. }) = waiting(0, 7, 70, 0) else { panic!() };
        let cause = Cause::Left { ranks: vec![1], operation: fingerprint, caller: 0 };
        let fence = Message::Fence { group: GROUP, generation: 0, cause, ordinal: None };
        assert_eq!(sent, [0, 2, 3].map(|to| Directed { to, message: fence.clone() }));
    }
}

/// A member leaves before the group goes on without a reducer, and one as it hears of it.
#[test]
fn who_has_left_a_group_takes_no_part_in_those_that_follow() {
    let mut hub = hub_of_four();
    [held(7), forget()].into_iter().for_each(|message| drop(hub.receive(1, message)));
    let grow = Grow { group: GROUP, members: vec![0, 1, 2, 3], reducers: vec![MemberId::new(9)] };
    assert_eq!(targets(&hub.receive(0, Message::Grow(grow))), [0, 2, 3]);
    [0, 2].into_iter().for_each(|rank| drop(hub.receive(rank, held(7))));
    assert_eq!(targets(&hub.receive(3, held(7))), [0, 2, 3]);
    let (successor, repair) = (successor_of(GROUP), repair_of(GROUP));
    let asked = CloseQuestion { group: successor, ..question(0, 7, 70) };
    let sent = hub.receive(0, Message::Confirm(asked));
    let left = |directed: &Directed| matches!(&directed.message, Message::Fence { group, cause: Cause::Left { ranks, .. }, .. } if *group == successor && ranks[..] == [1]);
    let fences: Vec<u32> = sent.iter().filter(|sent| left(sent)).map(|sent| sent.to).collect();
    assert_eq!(fences, [0, 2, 3]);
    for group in [GROUP, successor, repair] {
        assert!(hub.receive(0, Message::Forget { group }).is_empty());
        assert!(hub.receive(3, Message::Forget { group }).is_empty());
        let sent = hub.receive(2, Message::Forget { group });
        assert_eq!(sent.last(), Some(&Directed { to: 3, message: Message::Forget { group } }));
    }
    assert_eq!(hub.groups(), 0);
}

#[test]
fn a_member_confirms_what_it_has_completed_and_disputes_what_differs() {
    let mut member = member(2);
    let asked = |sequence, hash| Message::Confirm(question(0, sequence, hash));
    let first = issue(&mut member, 1);
    assert_eq!(member.receive(&asked(0, first.hash)), None);
    assert_eq!(member.next_answer(), None, "it is under way");
    member.complete(0, false);
    assert_eq!(member.next_answer(), Some(Message::Confirmed(question(0, 0, first.hash).confirmed())));
    assert_eq!(member.next_answer(), None, "once");
    member.receive(&asked(1, 1));
    assert_eq!(member.next_answer(), None, "it has not come that far");
    let own = issue(&mut member, 1).fingerprint;
    let theirs = question(0, 1, 1).fingerprint;
    let mismatch = Cause::Mismatch(Mismatch::new(1, [(0, theirs), (2, own)]));
    assert_eq!(member.next_answer(), Some(dispute(&[0, 1, 2], mismatch)));
}

/// Also if the group is over, and whether it has made the call itself or not; once.
#[test]
fn a_member_is_told_who_has_left_without_a_call() {
    let operation = question(0, 0, 0).fingerprint;
    let cause = Cause::Left { ranks: vec![2], operation, caller: 0 };
    for calls in [0, 1] {
        let mut member = member(1);
        for sequence in 0..calls {
            issue(&mut member, 1);
            member.complete(sequence, false);
        }
        settle(&mut member, 1, cause.clone());
        assert_eq!((member.take_unreported().as_deref(), member.take_unreported()), (Some(&cause), None));
    }
    let mut caller = member(1);
    settle(&mut caller, 1, cause);
    assert!(matches!(caller.issue(call()), Err(NotIssued::Failed(_))));
    assert_eq!(caller.take_unreported(), None, "its call was told");
    let mut leaves = member(2);
    let first = question(2, 0, issue(&mut leaves, 1).hash);
    leaves.receive(&Message::Confirm(CloseQuestion { rank: 0, ..first }));
    assert_eq!(leaves.missed(), None, "it has made that call");
    leaves.receive(&Message::Confirm(question(1, 1, 3)));
    let missed = Cause::Left { ranks: vec![2], operation: question(1, 1, 3).fingerprint, caller: 1 };
    assert_eq!(leaves.missed(), Some(missed));
}

/// What is left of a call without its reducer may end while its group stands still: the decision fails the call on others, and no call
/// to come here takes its number.
#[test]
fn a_member_that_leaves_learns_of_a_call_that_has_ended_after_its_report() {
    let mut member = member(1);
    issue(&mut member, 1);
    let fence = Message::Fence { group: GROUP, generation: 0, cause: corrupt(), ordinal: None };
    assert!(matches!(member.receive(&fence), Some(Action::Send(Message::Report(_)))));
    member.complete(0, false);
    let decision = Decision { group: GROUP, generation: 0, next: 1, cause: corrupt() };
    assert!(matches!(member.receive(&Message::Decide(decision)), Some(Action::Settled(_))));
    assert_eq!(issue(&mut member, 1).fingerprint.sequence, 1);
    assert_eq!((member.take_unreported().as_deref(), member.take_unreported()), (Some(&corrupt()), None));
}

#[test]
fn a_member_asks_only_what_it_does_not_know() {
    let mut member = member(1);
    assert_eq!(member.question(), None, "it has called nothing");
    let issued = issue(&mut member, 2);
    member.complete(0, false);
    member.complete(1, false);
    let own = CloseQuestion { rank: 1, ..question(1, 1, issued.hash) };
    assert_eq!(member.question(), Some(own));
    let other = Message::Confirmed(question(1, 1, issued.hash ^ 1).confirmed());
    assert_eq!(member.receive(&other), None);
    assert_eq!(member.receive(&Message::Confirmed(own.confirmed())), None);
    assert_eq!(member.question(), None);
    issue(&mut member, 1);
    member.complete(2, true);
    assert_eq!(member.question(), None, "all have called it");
    settle(&mut member, 4, corrupt());
    assert_eq!(member.take_unreported().as_deref(), Some(&corrupt()));
    assert_eq!((member.take_unreported(), member.question()), (None, None));
}

/// Whether parts fit each other is seen as they arrive, so it is known only of those that had ended before the later call was made.
#[test]
fn a_call_besides_one_of_uneven_parts_does_not_confirm_that() {
    let uneven = Fingerprint { count: Fingerprint::UNEVEN, ..call() };
    for ends_first in [true, false] {
        let mut member = member(1);
        assert!(member.issue(uneven).is_ok());
        if ends_first {
            member.complete(0, false);
        }
        issue(&mut member, 1);
        if !ends_first {
            member.complete(0, false);
        }
        member.complete(1, true);
        assert_eq!(member.question().is_none(), ends_first);
        issue(&mut member, 1);
        member.complete(2, true);
        assert_eq!(member.question(), None);
    }
}

#[test]
fn a_member_that_leaves_is_not_told_what_failed_in_calls_that_it_has_not_made() {
    let mut member = member(1);
    let operation = question(0, 0, 0).fingerprint;
    settle(&mut member, 1, Cause::Timeout { rank: 2, operation, milliseconds: 500, waiting_for: vec![1] });
    assert_eq!(member.take_unreported(), None, "rank 2 has waited for it in vain");
    assert!(matches!(member.issue(call()), Err(NotIssued::Counted(..))), "a call would have learnt of it");
}

/// The hub's decision about a timeout of operation 1 on rank 1, and whether it fails what each of the members has under way.
fn a_late_end(members: &mut [Member; 2]) -> (u64, Vec<bool>) {
    let (mut hub, operation) = (a_hub(), *members[1].issued(1).expect("it was issued"));
    let cause = Cause::Timeout { rank: 1, operation, milliseconds: 500, waiting_for: vec![0] };
    let fence = Message::Fence { group: GROUP, generation: 0, cause: cause.clone(), ordinal: None };
    hub.receive(1, dispute(&[0, 1], cause));
    let mut sent = Vec::new();
    for (rank, member) in (0..).zip(&mut *members) {
        let Some(Action::Send(report)) = member.receive(&fence) else {
            panic!("rank {rank} does not report")
        };
        sent = hub.receive(rank, report);
    }
    let (_, decision) = decided(&sent);
    let sent = Message::Decide(decision.clone());
    let fails = members.iter_mut().map(|member| match member.receive(&sent) {
        Some(Action::Settled(settled)) => settled.fails_open,
        other => panic!("the decision made it {other:?}"),
    });
    (decision.next, fails.collect())
}

#[test]
fn a_timeout_that_passes_while_its_operation_ends_well_on_all_members_fails_nothing() {
    let two = || {
        let mut members = [member(0), member(1)];
        members.iter_mut().for_each(|member| _ = issue(member, 2));
        members.iter_mut().for_each(|member| member.complete(0, true));
        members
    };
    let mut members = two();
    members.iter_mut().for_each(|member| member.complete(1, true));
    assert_eq!(a_late_end(&mut members), (2, vec![false, false]));
    for member in &mut members {
        assert_eq!(member.take_unreported(), None);
        assert_eq!(issue(member, 1).fingerprint.sequence, 2, "the next call fails neither");
    }

    // It has ended on rank 0 alone, which hears that its next call fails.
    let mut members = two();
    members[0].complete(1, true);
    assert_eq!(a_late_end(&mut members), (3, vec![false, true]));
    assert!(members[0].take_unreported().is_some());

    // Rank 0 has called more.
    let mut members = two();
    members.iter_mut().for_each(|member| member.complete(1, true));
    issue(&mut members[0], 1);
    assert_eq!(a_late_end(&mut members), (3, vec![true, false]));
}
