//! Lists as bytes.

use super::{Dice, call, in_group, request};
use crate::{
    group::Rank,
    named::{
        Coordinator, NamedAnswer, NamedKind, NamedRequest, NamedResponse, StallSettings, Tuning,
        decode_answers, decode_requests, encode_answers, encode_requests,
    },
};
use core::time::Duration;

fn requests() -> Vec<NamedRequest> {
    let plain = request("größe.weight", call(NamedKind::AllReduce, &[3, 0, 7]));
    let grouped = in_group("g", 2, request("b", call(NamedKind::AllToAll, &[])));
    vec![plain, NamedRequest { priority: -3, ..grouped }, request("", call(NamedKind::Barrier, &[u64::MAX]))]
}

fn answers() -> Vec<NamedAnswer> {
    let response = NamedResponse {
        name: "a".into(),
        call: call(NamedKind::AllGather, &[1, 2]),
        sizes: vec![1, 0, 9],
        group: Some("g".into()),
        priority: 7,
    };
    vec![
        NamedAnswer::Run(response),
        NamedAnswer::Fail { name: "b".into(), text: "why".into() },
        NamedAnswer::Joined { last: 3 },
        NamedAnswer::Tuned(Tuning { threshold: 5, cycle: Duration::from_micros(17) }),
    ]
}

#[test]
fn lists_arrive_as_they_were_sent() {
    assert_eq!(decode_requests(&encode_requests(&requests())), Ok(requests()));
    assert_eq!(decode_answers(&encode_answers(&answers())), Ok(answers()));
}

/// They are read as something else, or refused.
#[test]
fn damaged_lists_do_no_harm() {
    let mut dice = Dice(1);
    let stall = StallSettings { warning: Duration::ZERO, shutdown: Duration::ZERO };
    let mut refused = 0;
    for (whole, is_answer) in [(encode_requests(&requests()), false), (encode_answers(&answers()), true)] {
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            bytes.truncate(if dice.chance(30) { dice.below(bytes.len() + 1) } else { bytes.len() });
            for _ in 0..1 + dice.below(4) {
                if !bytes.is_empty() {
                    let at = dice.below(bytes.len());
                    bytes[at] = dice.below(256) as u8;
                }
            }
            let outcome = if is_answer {
                decode_answers(&bytes).map(drop)
            } else {
                let mut coordinator = Coordinator::new(2, stall);
                let heard = coordinator.hear(dice.below(2) as Rank, &bytes, Duration::ZERO).map(drop);
                coordinator.answer();
                heard
            };
            refused += usize::from(outcome.is_err());
        }
    }
    assert!(refused > 10_000, "{refused}");
}
