//! Lists as bytes.

use super::{call, in_group, request};
use crate::named::{
    NamedAnswer, NamedKind, NamedRequest, NamedResponse, Tuning, decode_answers, decode_requests,
    encode_answers, encode_requests,
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
