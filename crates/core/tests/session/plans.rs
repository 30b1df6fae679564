//! Ranks that call the same and plan it otherwise are told what differs.

use crate::{a_hub, call};
use herringbone_core::{
    collective::Collective,
    group::FoldOrder,
    session::{
        Basis, Cause, CutBy, Machines, Mismatch, Summary,
        control::Message,
        fence::{Action, Member},
    },
    wire::Fingerprint,
};
use std::sync::Arc;

const GROUP: u32 = 3;

fn basis() -> Basis {
    Basis {
        epoch: 2,
        algorithm: "radix(4)".into(),
        collective: Collective::AllReduce,
        workers: 3,
        order: FoldOrder::Ranks,
        keys: Summary::of_numbers(&[0, 1, 2]),
        contributors: 3,
        machines: Machines {
            reducers: Summary::of_texts(&["a:1".into()]),
            hosts: Summary::of_places(&[0, 0, 1]),
            memories: Summary::of_places(&[0, 0, 1]),
            topology: None,
        },
        cut: CutBy { constants: 7, segment: 0, staged: 1 << 20 },
    }
}

/// What is decided when rank 2 has planned otherwise than ranks 0 and 1, and anybody notices.
fn decided(otherwise: Basis) -> Mismatch {
    let members = vec![0, 1, 2];
    let mut ranks: Vec<Member> = (0..3).map(|rank| Member::new(GROUP, rank, members.clone())).collect();
    for (rank, member) in ranks.iter_mut().enumerate() {
        let basis = if rank == 2 { otherwise.clone() } else { basis() };
        let plan = basis.digest();
        member.planned(plan, &Arc::new(basis));
        member.issue(Fingerprint { plan, ..call() }).unwrap();
    }
    let theirs = Fingerprint { plan: otherwise.digest(), ..call() };
    let cause = ranks[0].mismatch(2, theirs);
    let mut hub = a_hub();
    let mut sent = hub.receive(0, ranks[0].dispute(cause).unwrap());
    while let Some(directed) = sent.pop() {
        if let Message::Decide(decision) = directed.message {
            let Cause::Mismatch(mismatch) = decision.cause else { panic!("{decision:?}") };
            return mismatch;
        }
        let to = directed.to;
        if let Some(Action::Send(answer)) = ranks[to as usize].receive(&directed.message) {
            sent.extend(hub.receive(to, answer));
        }
    }
    panic!("nothing was decided");
}

#[test]
fn algorithms_are_named() {
    let text = decided(Basis { algorithm: "ring".into(), ..basis() }).to_string();
    assert_eq!(
        text,
        "the ranks disagree about operation 0: rank 2 issued all_reduce of 1000 f32, sum as ring; ranks 0, 1 issued \
         all_reduce of 1000 f32, sum as radix(4) (they differ in plan). Every rank must have the same settings and \
         the same release"
    );
}

/// Shares are part of the algorithm, so ranks with others never fold what the other ranks send.
#[test]
fn shares_are_named() {
    let text = decided(Basis { algorithm: "weighted(radix,16x2,1)".into(), ..basis() }).to_string();
    assert!(text.contains("rank 2 issued all_reduce of 1000 f32, sum as weighted(radix,16x2,1);"), "{text}");
    let [one, other] = ["weighted(radix,16x2,1)", "weighted(radix,16x2,2)"]
        .map(|algorithm| Basis { algorithm: algorithm.into(), ..basis() }.digest());
    assert_ne!(one, other);
}

#[test]
fn whatever_else_differs_is_named_with_both_values_and_ranks() {
    type Change = fn(&mut Basis);
    let changes: [(&str, Change); 11] = [
        ("workers", |basis| basis.workers = 4),
        ("fold order", |basis| basis.order = FoldOrder::Hosts),
        ("fold keys", |basis| basis.keys = Summary::of_numbers(&[0, 1, 4])),
        ("reducers", |basis| basis.machines.reducers = Summary::of_texts(&["b:2".into()])),
        ("hosts", |basis| basis.machines.hosts = Summary::of_places(&[0, 1, 1])),
        ("shared memories", |basis| basis.machines.memories = Summary::of_places(&[0, 1, 2])),
        ("slice bytes", |basis| basis.cut.segment = 65536),
        ("staging bytes", |basis| basis.cut.staged = 1 << 21),
        ("cutting constants", |basis| basis.cut.constants = 8),
        ("topology", |basis| basis.machines.topology = Some(4)),
        ("epoch", |basis| basis.epoch = 3),
    ];
    for (name, change) in changes {
        let mut otherwise = basis();
        change(&mut otherwise);
        let said = |ranks: &str, basis: &Basis| {
            let value = basis.value(name).unwrap();
            format!("{ranks} issued all_reduce of 1000 f32, sum as radix(4) with {name} {value}")
        };
        let text = decided(otherwise.clone()).to_string();
        let expected = [said("rank 2", &otherwise), said("ranks 0, 1", &basis())].join("; ");
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn several_things_that_differ_are_all_named() {
    let mut otherwise = Basis { algorithm: "ring".into(), epoch: 3, ..basis() };
    otherwise.cut.segment = 4096;
    let text = decided(otherwise).to_string();
    assert!(text.contains("sum as ring with epoch 3, slice bytes 4096"), "{text}");
    assert!(text.contains("sum as radix(4) with epoch 2, slice bytes 0"), "{text}");
}

/// Other calls have other plans: it is the call that has to be mended.
#[test]
fn plans_are_not_named_where_calls_differ() {
    let (one, other) = (basis(), Basis { algorithm: "ring".into(), ..basis() });
    let issued = [
        (0, Fingerprint { plan: one.digest(), ..call() }),
        (1, Fingerprint { plan: other.digest(), count: 7, ..call() }),
    ];
    let mismatch = Mismatch::new(0, issued).explained(|_, _| Some(basis()));
    assert!(mismatch.variants.iter().all(|variant| variant.basis.is_none()));
    assert!(mismatch.to_string().contains("(they differ in count)"), "{mismatch}");
}

#[test]
fn a_mismatch_that_nobody_can_explain_says_so() {
    let forgotten = Mismatch::new(17, []).to_string();
    assert!(forgotten.starts_with("the ranks disagree about operation 17: no rank remembers so old a call."));
}
