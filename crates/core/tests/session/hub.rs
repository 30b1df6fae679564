//! The hub: disputes, reports and decisions, and the groups that it forgets.

use crate::{
    call,
    fence::{GROUP, corrupt, issue, lost, member, settle},
};
use herringbone_core::{
    session::{
        Cause, Mismatch,
        control::{Decision, Dispute, Message, Ordinal, Report, Waiting},
        farewell::FarewellQuestion,
        fence::{Action, Directed, FarewellAnswer, Hub, Member, NotIssued},
        membership::MemberId,
        recovery::{Calls, Gain, Held, carrier_of, heir_of},
    },
    wire::Fingerprint,
};
use std::{collections::VecDeque, sync::Arc};

fn dispute(members: &[u32], cause: Cause) -> Message {
    Message::Dispute(Dispute { group: GROUP, generation: 0, members: members.into(), cause, ordinal: None })
}

fn a_report(next: u64) -> Report {
    Report { group: GROUP, generation: 0, is_made: true, next, below: next, recent: vec![], plans: vec![] }
}

fn report(next: u64, recent: Vec<Fingerprint>) -> Message {
    Message::Report(Report { recent, ..a_report(next) })
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
    assert_eq!(
        sent[0].message,
        Message::Fence { group: GROUP, generation: 0, cause: corrupt(), ordinal: None }
    );
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

/// It is heard in any generation, and it is what the fence decides that is under way.
#[test]
fn an_abort_ends_the_group_whatever_is_under_way() {
    let aborted = |rank| Cause::Aborted { rank, sequence: 7 };
    let mut hub = Hub::new();
    hub.receive(2, dispute(&[1, 2, 3], corrupt()));
    assert!(hub.receive(3, dispute(&[1, 2, 3], aborted(3))).is_empty());
    assert!(hub.receive(1, dispute(&[1, 2, 3], aborted(1))).is_empty(), "the first counts");
    hub.receive(3, Message::Forget { group: GROUP });
    hub.receive(1, report(7, vec![]));
    let (to, decision) = decided(&hub.receive(2, report(7, vec![])));
    assert_eq!((to, decision.cause), (vec![1, 2], aborted(3)));

    let mut hub = Hub::new();
    hub.receive(2, dispute(&[1, 2], corrupt()));
    hub.receive(1, report(7, vec![]));
    hub.receive(2, report(7, vec![]));
    let sent = hub.receive(1, dispute(&[1, 2], aborted(1)));
    let fence = Message::Fence { group: GROUP, generation: 1, cause: aborted(1), ordinal: None };
    assert_eq!(sent[0].message, fence);
    // It leaves the job at once: it has aborted nevertheless.
    let (to, decision) = {
        hub.receive(2, Message::Report(Report { generation: 1, ..a_report(7) }));
        decided(&hub.leave(1))
    };
    assert_eq!((to, decision.cause), (vec![2], aborted(1)));
}

/// Else its next call would be the others' second next one.
#[test]
fn the_hub_lets_an_operation_fail_on_whoever_had_finished() {
    let mut hub = Hub::new();
    hub.receive(2, dispute(&[1, 2], corrupt()));
    hub.receive(2, report(7, vec![]));
    let mut finished = report(7, vec![]);
    if let Message::Report(report) = &mut finished {
        report.below = 8;
    }
    let (_, decision) = decided(&hub.receive(1, finished));
    assert_eq!(decision.next, 8);
}

/// Says what rank 0's timeout comes to in a group that this names, and what rank 1 was told, whose program may not have made the
/// group.
fn timed_out(ordinal: Option<Ordinal>, has_made: bool) -> (Cause, Option<Ordinal>) {
    let made = Member::new(GROUP, 0, vec![0, 1]).named(ordinal);
    let (mut hub, mut members) = (Hub::new(), [made, Member::new(GROUP, 1, Vec::new())]);
    issue(&mut members[0], 1);
    let operation = *members[0].issued(0).unwrap();
    let cause = Cause::Timeout { rank: 0, operation, milliseconds: 9, waiting_for: vec![1] };
    let mut pending: VecDeque<(u32, Message)> =
        members[0].dispute(cause).into_iter().map(|message| (0, message)).collect();
    let (mut decided, mut told) = (None, None);
    while let Some((from, message)) = pending.pop_front() {
        for Directed { to, message } in hub.receive(from, message) {
            match (&message, to) {
                (Message::Fence { ordinal, .. }, 1) => told = *ordinal,
                (Message::Decide(decision), 0) => decided = Some(decision.cause.clone()),
                _ => {}
            }
            if let Action::Send(mut answer) = members[to as usize].receive(&message) {
                if let (Message::Report(report), true) = (&mut answer, to == 1 && !has_made) {
                    report.is_made = false;
                }
                pending.push_back((to, answer));
            }
        }
    }
    (decided.unwrap(), told)
}

/// Its members have counted differently since one failed to make a group: that one is told how far the others are, and the group
/// is over. A group with a name of its own can be made later, under the same name.
#[test]
fn a_group_that_a_member_has_not_made_is_over_if_it_is_named_by_a_count() {
    let ordinal = Some(Ordinal { of: 77, at: 3 });
    let (cause, told) = timed_out(ordinal, false);
    assert_eq!((&cause, told), (&Cause::Unmade { rank: 0, milliseconds: 9, ranks: vec![1] }, ordinal));
    assert!(cause.is_final());
    for (ordinal, has_made) in [(None, false), (ordinal, true)] {
        let (cause, _) = timed_out(ordinal, has_made);
        assert!(matches!(cause, Cause::Timeout { .. }), "{ordinal:?}, {has_made}: {cause}");
    }
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
fn a_rank_that_follows_one_that_left_is_not_blamed() {
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
            member.receive(&Message::Fence { group: GROUP, generation: 0, cause, ordinal: None })
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

fn question(rank: u32, sequence: u64, hash: u64) -> FarewellQuestion {
    FarewellQuestion {
        rank,
        group: GROUP,
        generation: 0,
        hash,
        fingerprint: Fingerprint { sequence, ..call() },
    }
}

#[test]
fn the_hub_asks_all_others_once_and_answers_when_all_have_made_the_same_calls() {
    let mut hub = Hub::new();
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
    let told = hub.lose(3);
    assert_eq!(told, [1, 2].map(|to| Directed { to, message: confirmed() }));
    assert!(hub.receive(0, confirmed()).is_empty(), "all were told");
    assert!(hub.receive(2, Message::Forget { group: GROUP }).is_empty());
    let told = hub.receive(1, Message::Forget { group: GROUP });
    assert_eq!(told, [Directed { to: 0, message: Message::Confirmed(question(0, 7, 71).confirmed()) }]);
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
    let mut hub = Hub::new();
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
    let gain = Gain { group: GROUP, members: vec![0, 1, 2, 3], reducers: vec![MemberId::new(9)] };
    assert_eq!(targets(&hub.receive(0, Message::Gain(gain))), [0, 2, 3]);
    [0, 2].into_iter().for_each(|rank| drop(hub.receive(rank, held(7))));
    assert_eq!(targets(&hub.receive(3, held(7))), [0, 2, 3]);
    let (heir, carrier) = (heir_of(GROUP), carrier_of(GROUP));
    let asked = FarewellQuestion { group: heir, ..question(0, 7, 70) };
    let sent = hub.receive(0, Message::Confirm(asked));
    let left = |directed: &Directed| matches!(&directed.message, Message::Fence { group, cause: Cause::Left { ranks, .. }, .. } if *group == heir && ranks[..] == [1]);
    let fences: Vec<u32> = sent.iter().filter(|sent| left(sent)).map(|sent| sent.to).collect();
    assert_eq!(fences, [0, 2, 3]);
    for group in [GROUP, heir, carrier] {
        assert!(hub.receive(0, Message::Forget { group }).is_empty());
        assert!(hub.receive(3, Message::Forget { group }).is_empty());
        let sent = hub.receive(2, Message::Forget { group });
        assert_eq!(sent.last(), Some(&Directed { to: 3, message: Message::Forget { group } }));
    }
    assert_eq!(hub.groups(), 0);
}

/// Whoever left in order has not died: the mismatch is what went wrong.
#[test]
fn a_mismatch_with_a_rank_that_left_is_no_loss() {
    let mut hub = Hub::new();
    hub.leave(1);
    let theirs = Fingerprint { sequence: 3, count: 7, ..call() };
    let cause = Cause::Mismatch(Mismatch::new(3, [(1, theirs), (2, Fingerprint { sequence: 3, ..call() })]));
    hub.receive(2, dispute(&[0, 1, 2], cause.clone()));
    hub.receive(0, report(4, vec![]));
    assert_eq!(decided(&hub.receive(2, report(4, vec![]))).1.cause, cause);
}

#[test]
fn a_member_confirms_what_it_has_completed_and_disputes_what_differs() {
    let mut member = member(2);
    let asked = |sequence, hash| Message::Confirm(question(0, sequence, hash));
    let first = issue(&mut member, 1);
    assert_eq!(member.receive(&asked(0, first.hash)), Action::Nothing);
    assert_eq!(member.next_answer(), None, "it is under way");
    member.complete(0, false);
    assert_eq!(
        member.next_answer(),
        Some(FarewellAnswer::Confirmed(Message::Confirmed(question(0, 0, first.hash).confirmed())))
    );
    assert!(!member.is_asked());
    member.receive(&asked(1, 1));
    assert_eq!(member.next_answer(), None, "it has not come that far");
    let own = issue(&mut member, 1).fingerprint;
    let theirs = question(0, 1, 1).fingerprint;
    let mismatch = Cause::Mismatch(Mismatch::new(1, [(0, theirs), (2, own)]));
    assert_eq!(member.next_answer(), Some(FarewellAnswer::Differs(mismatch)));
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
        assert_eq!((member.take_unlearnt().as_deref(), member.take_unlearnt()), (Some(&cause), None));
    }
    let mut caller = member(1);
    settle(&mut caller, 1, cause);
    assert!(matches!(caller.issue(call()), Err(NotIssued::Failed(_))));
    assert_eq!(caller.take_unlearnt(), None, "its call was told");
    let mut leaves = member(2);
    let first = question(2, 0, issue(&mut leaves, 1).hash);
    leaves.receive(&Message::Confirm(FarewellQuestion { rank: 0, ..first }));
    assert_eq!(leaves.missed(), None, "it has made that call");
    leaves.receive(&Message::Confirm(question(1, 1, 3)));
    let missed = Cause::Left { ranks: vec![2], operation: question(1, 1, 3).fingerprint, caller: 1 };
    assert_eq!(leaves.missed(), Some(missed));
}

#[test]
fn a_member_asks_only_what_it_does_not_know() {
    let mut member = member(1);
    assert_eq!(member.question(), None, "it has called nothing");
    let issued = issue(&mut member, 2);
    member.complete(0, false);
    member.complete(1, false);
    let own = FarewellQuestion { rank: 1, ..question(1, 1, issued.hash) };
    assert_eq!(member.question(), Some(own));
    let other = Message::Confirmed(question(1, 1, issued.hash ^ 1).confirmed());
    assert_eq!(member.receive(&other), Action::Nothing);
    assert_eq!(member.receive(&Message::Confirmed(own.confirmed())), Action::Confirmed);
    assert_eq!(member.question(), None);
    issue(&mut member, 1);
    member.complete(2, true);
    assert_eq!(member.question(), None, "all have called it");
    settle(&mut member, 4, corrupt());
    assert_eq!(member.take_unlearnt().as_deref(), Some(&corrupt()));
    assert_eq!((member.take_unlearnt(), member.question()), (None, None));
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
    assert_eq!(member.take_unlearnt(), None, "rank 2 has waited for it in vain");
    assert!(matches!(member.issue(call()), Err(NotIssued::Failed(_))), "a call would have learnt of it");
}

/// The hub's decision about a timeout of operation 1 on rank 1, and whether it fails what each of the members has under way.
fn a_late_end(members: &mut [Member; 2]) -> (u64, Vec<bool>) {
    let (mut hub, operation) = (Hub::new(), *members[1].issued(1).expect("it was issued"));
    let cause = Cause::Timeout { rank: 1, operation, milliseconds: 500, waiting_for: vec![0] };
    let fence = Message::Fence { group: GROUP, generation: 0, cause: cause.clone(), ordinal: None };
    hub.receive(1, dispute(&[0, 1], cause));
    let mut sent = Vec::new();
    for (rank, member) in (0..).zip(&mut *members) {
        let Action::Send(report) = member.receive(&fence) else { panic!("rank {rank} does not report") };
        sent = hub.receive(rank, report);
    }
    let (_, decision) = decided(&sent);
    let told = Message::Decide(decision.clone());
    let fails = members.iter_mut().map(|member| match member.receive(&told) {
        Action::Settled(settled) => settled.fails_open,
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
        assert_eq!(member.take_unlearnt(), None);
        assert_eq!(issue(member, 1).fingerprint.sequence, 2, "the next call fails neither");
    }

    // It has ended on rank 0 alone, which hears that its next call fails.
    let mut members = two();
    members[0].complete(1, true);
    assert_eq!(a_late_end(&mut members), (3, vec![false, true]));
    assert!(members[0].take_unlearnt().is_some());

    // Rank 0 has called more.
    let mut members = two();
    members.iter_mut().for_each(|member| member.complete(1, true));
    issue(&mut members[0], 1);
    assert_eq!(a_late_end(&mut members), (3, vec![true, false]));
}
