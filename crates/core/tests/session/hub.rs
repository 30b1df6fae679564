//! The hub: disputes, reports and decisions, and the groups that it forgets.

use crate::{
    a_hub, call,
    fence::{GROUP, corrupt, issue, lost, member, settle},
};
use herringbone_core::{
    session::{
        Cause, Mismatch,
        control::{Death, Decision, Dispute, Message, Ordinal, Report, Waiting},
        fence::{Action, Directed, Member, NotIssued},
        membership::MemberId,
        recovery::{Calls, Held, LostReducer, Suspect},
    },
    wire::Fingerprint,
};
use std::{collections::VecDeque, sync::Arc};

pub(crate) fn dispute(members: &[u32], cause: Cause) -> Message {
    Message::Dispute(Dispute { group: GROUP, generation: 0, members: members.into(), cause, ordinal: None })
}

pub(crate) fn a_report(next: u64) -> Report {
    Report { group: GROUP, generation: 0, is_made: true, next, below: next, recent: vec![], plans: vec![] }
}

pub(crate) fn report(next: u64, recent: Vec<Fingerprint>) -> Message {
    Message::Report(Report { recent, ..a_report(next) })
}

pub(crate) fn targets(sent: &[Directed]) -> Vec<u32> {
    sent.iter().map(|directed| directed.to).collect()
}

/// What all of them are told.
pub(crate) fn decided(sent: &[Directed]) -> (Vec<u32>, Decision) {
    match &sent[0].message {
        Message::Decide(decision) => (targets(sent), decision.clone()),
        other => panic!("{other:?} is no decision"),
    }
}

#[test]
fn the_hub_fences_once_and_decides_when_all_have_reported() {
    let mut hub = a_hub();
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
    let mut hub = a_hub();
    hub.receive(2, dispute(&[1, 2, 3], corrupt()));
    assert!(hub.receive(3, dispute(&[1, 2, 3], aborted(3))).is_empty());
    assert!(hub.receive(1, dispute(&[1, 2, 3], aborted(1))).is_empty(), "the first counts");
    hub.receive(3, Message::Forget { group: GROUP });
    hub.receive(1, report(7, vec![]));
    let (to, decision) = decided(&hub.receive(2, report(7, vec![])));
    assert_eq!((to, decision.cause), (vec![1, 2], aborted(3)));

    let mut hub = a_hub();
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

/// Nor does a recovery go on that is under way: what a rank has aborted would go on in the group that follows.
#[test]
fn a_group_that_is_over_does_not_go_on_with_other_reducers() {
    let lost = || LostReducer { id: MemberId::new(9), address: "a:1".into(), reason: "gone".into() };
    let suspect = || Message::Suspect(Suspect { group: GROUP, members: vec![1, 2], lost: lost() });
    let held = || {
        let calls = Calls { next: 7, ..Calls::default() };
        Message::Held(Held { group: GROUP, calls, operations: vec![] })
    };
    for is_over_first in [true, false] {
        let mut hub = a_hub();
        let mut suspected = if is_over_first { Vec::new() } else { targets(&hub.receive(1, suspect())) };
        hub.receive(2, dispute(&[1, 2], Cause::Aborted { rank: 2, sequence: 7 }));
        hub.receive(2, report(7, vec![]));
        assert_eq!(decided(&hub.receive(1, report(7, vec![]))).0, [1, 2]);
        if is_over_first {
            suspected = targets(&hub.receive(1, suspect()));
        }
        assert_eq!(suspected.is_empty(), is_over_first, "a recovery begins in a group that works");
        assert!(hub.receive(1, held()).is_empty() && hub.receive(2, held()).is_empty());
    }
}

/// Else its next call would be the others' second next one.
#[test]
fn the_hub_lets_an_operation_fail_on_whoever_had_finished() {
    let mut hub = a_hub();
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
    let (mut hub, mut members) = (a_hub(), [made, Member::new(GROUP, 1, Vec::new())]);
    issue(&mut members[0], 1);
    let operation = *members[0].issued(0).unwrap();
    let cause = Cause::Timeout { rank: 0, operation, milliseconds: 9, waiting_for: vec![1] };
    let mut pending: VecDeque<(u32, Message)> =
        members[0].dispute(cause).into_iter().map(|message| (0, message)).collect();
    let (mut decided, mut announced) = (None, None);
    while let Some((from, message)) = pending.pop_front() {
        for Directed { to, message } in hub.receive(from, message) {
            match (&message, to) {
                (Message::Fence { ordinal, .. }, 1) => announced = *ordinal,
                (Message::Decide(decision), 0) => decided = Some(decision.cause.clone()),
                _ => {}
            }
            if let Some(Action::Send(mut answer)) = members[to as usize].receive(&message) {
                if let (Message::Report(report), true) = (&mut answer, to == 1 && !has_made) {
                    report.is_made = false;
                }
                pending.push_back((to, answer));
            }
        }
    }
    (decided.unwrap(), announced)
}

/// Its members have counted differently since one failed to make a group: that one is told how far the others are, and the group
/// is over. A group with a name of its own can be made later, under the same name.
#[test]
fn a_group_that_a_member_has_not_made_is_over_if_it_is_named_by_a_count() {
    let ordinal = Some(Ordinal { of: 77, at: 3 });
    let (cause, announced) = timed_out(ordinal, false);
    assert_eq!((&cause, announced), (&Cause::Unmade { rank: 0, milliseconds: 9, ranks: vec![1] }, ordinal));
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
        let mut hub = a_hub();
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
    let mut hub = a_hub();
    hub.receive(1, dispute(&[1, 2, 3], corrupt()));
    hub.receive(1, report(4, vec![]));
    hub.receive(2, report(6, vec![]));
    assert!(hub.lose(8, &Death::Exited).is_empty());
    let (to, decision) = decided(&hub.lose(3, &Death::Exited));
    assert_eq!((to, decision.next, decision.cause), (vec![1, 2], 6, lost(3)));

    let mut reported = a_hub();
    reported.receive(1, dispute(&[1, 2], corrupt()));
    reported.receive(2, report(4, vec![]));
    assert!(reported.lose(2, &Death::Exited).is_empty());
    let (to, decision) = decided(&reported.receive(1, report(4, vec![])));
    assert_eq!((to, decision.cause), (vec![1], lost(2)), "who has reported may still die");

    let mut known = a_hub();
    known.lose(2, &Death::Exited);
    assert_eq!(targets(&known.receive(1, dispute(&[1, 2], corrupt()))), [1]);
    assert_eq!(decided(&known.receive(1, report(1, vec![]))).1.cause, lost(2));
    assert!(known.receive(1, dispute(&[2], corrupt())).is_empty(), "nobody is left to tell");
}

#[test]
fn the_hub_does_not_blame_those_who_left_because_another_died() {
    let mut hub = a_hub();
    hub.receive(1, dispute(&[1, 2, 3], corrupt()));
    assert!(hub.leave(2).is_empty());
    assert!(hub.receive(1, report(4, vec![])).is_empty(), "rank 3 has not reported");
    assert_eq!(decided(&hub.lose(3, &Death::Exited)).1.cause, lost(3));

    let mut nobody_died = a_hub();
    nobody_died.receive(1, dispute(&[1, 2], corrupt()));
    assert!(nobody_died.receive(1, report(4, vec![])).is_empty());
    assert_eq!(decided(&nobody_died.leave(2)).1.cause, lost(2));
}

/// Ranks that leave because an operation failed, for want of another that had left, are not to blame.
#[test]
fn a_rank_that_follows_one_that_left_is_not_blamed() {
    let lost = |rank| Cause::PeerLost { ranks: vec![rank] };
    let mut named = a_hub();
    named.leave(3);
    named.leave(1);
    assert_eq!(targets(&named.receive(2, dispute(&[0, 1, 2, 3], lost(1)))), [0, 2]);
    assert!(named.leave(2).is_empty());
    assert_eq!(decided(&named.receive(0, report(4, vec![]))).1.cause, lost(1), "rank 3 was not needed");

    let mut unnamed = a_hub();
    unnamed.receive(0, dispute(&[0, 1, 2], corrupt()));
    assert!(unnamed.leave(2).is_empty());
    assert!(unnamed.leave(1).is_empty());
    assert_eq!(decided(&unnamed.receive(0, report(4, vec![]))).1.cause, lost(2), "the first that left");
}

pub(crate) fn waiting(rank: u32, sequence: u64, hash: u64, round: u32) -> Message {
    let fingerprint = Fingerprint { sequence, ..call() };
    Message::Waiting(Waiting { rank, group: GROUP, generation: 0, round, hash, fingerprint })
}

#[test]
fn the_hub_brings_those_who_wait_together() {
    let mut hub = a_hub();
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
    hub.lose(3, &Death::Exited);
    assert_eq!(targets(&hub.receive(1, waiting(1, 7, 70, 2))), [0, 2]);
}

/// Who has no use for a group holds up no fence of the others, and the last one takes it along.
#[test]
fn the_hub_forgets_groups_that_nobody_needs() {
    let mut hub = a_hub();
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
    let mut hub = a_hub();
    let forget = || Message::Forget { group: GROUP };
    hub.receive(0, Message::GroupInfo { group: GROUP, generation: 0, members: vec![0, 1, 2] });
    assert!(hub.receive(0, forget()).is_empty());
    assert!(hub.lose(1, &Death::Exited).is_empty());
    assert_eq!(hub.leave(2), [Directed { to: 0, message: forget() }]);
    assert_eq!(hub.groups(), 0);
}

#[test]
fn the_hub_forgets_who_waited_in_an_older_generation() {
    let mut hub = a_hub();
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
    assert_eq!(member.receive(&shown(0, 2, issued.hash)), None);
    assert_eq!(member.receive(&shown(0, 3, 1)), None, "it has not come that far");
    assert_eq!(member.receive(&shown(1, 2, 1)), None);
    let Some(Action::Send(Message::Dispute(dispute))) = member.receive(&shown(0, 2, 1)) else { panic!() };
    let both = [(1, theirs), (2, issued.fingerprint)];
    assert_eq!(dispute.cause, Cause::Mismatch(Mismatch::new(2, both)));
    assert_eq!(member.receive(&shown(0, 2, 1)), None, "once is enough");
}

#[test]
fn reports_end_with_the_disputed_operation() {
    let reported = |cause: Cause| {
        let mut member = member(1);
        issue(&mut member, 100);
        let Some(Action::Send(Message::Report(report))) =
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
        Err(NotIssued::Counted(_, cause)) => cause,
        other => panic!("{other:?}"),
    });
    assert!(Arc::ptr_eq(&causes[0], &causes[1]));
}

/// Whoever left in order has not died: the mismatch is what went wrong.
#[test]
fn a_mismatch_with_a_rank_that_left_is_no_loss() {
    let mut hub = a_hub();
    hub.leave(1);
    let theirs = Fingerprint { sequence: 3, count: 7, ..call() };
    let cause = Cause::Mismatch(Mismatch::new(3, [(1, theirs), (2, Fingerprint { sequence: 3, ..call() })]));
    hub.receive(2, dispute(&[0, 1, 2], cause.clone()));
    hub.receive(0, report(4, vec![]));
    assert_eq!(decided(&hub.receive(2, report(4, vec![]))).1.cause, cause);
}
