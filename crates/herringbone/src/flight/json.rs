//! A record as JSON. A name of the format ends in its version. New fields can be added within a version, but none
//! changes its meaning.

use super::value::{FlightValue, map};
use crate::core::{
    collective::Collective,
    element::{DType, ReduceOp},
    session::flight::{FlightCall, FlightGroup, FlightOperation, FlightRecord, FlightState},
    wire::Fingerprint,
};

/// What the first field of a file says.
const FORMAT: &str = "herringbone-flight-1";

/// A record as a JSON object: docs/flight.md lists its fields. Moments are nanoseconds of the monotonic clock; `taken`
/// has the values of both clocks when the record was taken.
pub fn json(record: &FlightRecord) -> String {
    map([
        ("format", FORMAT.into()),
        ("version", record.version.as_str().into()),
        ("job", FlightValue::Text(format!("{:016x}", record.job))),
        ("role", FlightValue::Text(record.role.to_string())),
        ("rank", record.rank.into()),
        ("world", record.world.into()),
        ("host", record.host.as_str().into()),
        ("process", record.process.into()),
        (
            "taken",
            map([
                ("monotonic_ns", record.clock.monotonic.into()),
                ("realtime_ns", record.clock.realtime.into()),
            ]),
        ),
        ("issued", record.issued.into()),
        ("posted", record.posted.into()),
        ("groups", record.groups.iter().map(group).collect()),
        ("operations", record.operations.iter().map(operation).collect()),
    ])
    .json()
}

fn group(group: &FlightGroup) -> FlightValue {
    map([
        ("group", group.group.into()),
        ("name", group.name.as_str().into()),
        ("description", group.description.as_str().into()),
        ("ranks", group.ranks.iter().copied().collect()),
        ("last_over", group.over.into()),
        ("error", group.failure.as_deref().into()),
    ])
}

fn operation(operation: &FlightOperation) -> FlightValue {
    let head = map([
        ("number", operation.number.into()),
        ("group", operation.group.into()),
        ("generation", operation.generation.into()),
    ]);
    let error = match &operation.state {
        FlightState::Failed { kind } => Some(kind.as_str()),
        _ => None,
    };
    let tail = map([
        ("state", state(&operation.state).into()),
        ("error", error.into()),
        ("issued_ns", operation.issued.into()),
        ("began_ns", operation.began.into()),
        ("ended_ns", operation.ended.into()),
        ("sent", operation.sent.into()),
        ("received", operation.received.into()),
    ]);
    let fields = [head, call(&operation.call), tail].into_iter().flat_map(|part| match part {
        FlightValue::Map(fields) => fields,
        _ => Vec::new(),
    });
    FlightValue::Map(fields.collect())
}

fn state(state: &FlightState) -> &'static str {
    match state {
        FlightState::Queued => "queued",
        FlightState::Running => "running",
        FlightState::Done => "done",
        FlightState::Failed { .. } => "failed",
    }
}

fn call(call: &FlightCall) -> FlightValue {
    match call {
        FlightCall::Collective { call, algorithm } => {
            let call = call.runs();
            let collective = Collective::from_code(call.collective, call.root);
            let op = ReduceOp::from_code(call.op).filter(|_| collective.is_some_and(Collective::folds));
            map([
                ("call", collective.map_or("unknown", Collective::name).into()),
                ("sequence", call.sequence.into()),
                ("root", collective.and_then(Collective::root).into()),
                ("op", op.map(ReduceOp::name).into()),
                ("dtype", DType::from_code(call.dtype).map(DType::name).into()),
                ("count", Some(call.count).filter(|count| *count != Fingerprint::UNEVEN).into()),
                ("priority", FlightValue::Whole(call.priority.into())),
                ("algorithm", algorithm.as_str().into()),
            ])
        }
        FlightCall::Message { receives, peer, tag, sequence, dtype, count } => map([
            ("call", if *receives { "recv" } else { "send" }.into()),
            ("sequence", (*sequence).into()),
            ("peer", (*peer).into()),
            ("tag", FlightValue::Whole(*tag)),
            ("dtype", DType::from_code(*dtype).map(DType::name).into()),
            ("count", (*count).into()),
        ]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::record;
    use super::*;

    #[test]
    fn a_record_has_a_line_for_each_call() {
        let call = Fingerprint { collective: 2, root: 1, count: 9, sequence: 3, ..Fingerprint::default() };
        let operation = FlightOperation {
            number: 6,
            group: 0,
            generation: 1,
            call: FlightCall::Collective { call, algorithm: "ring".to_owned() },
            state: FlightState::Failed { kind: "Timeout".to_owned() },
            issued: 10,
            began: Some(11),
            ended: Some(12),
            sent: 13,
            received: 14,
        };
        let message = FlightOperation {
            number: 7,
            call: FlightCall::Message {
                receives: true,
                peer: None,
                tag: -5,
                sequence: None,
                dtype: 0,
                count: 2,
            },
            state: FlightState::Queued,
            began: None,
            ended: None,
            ..operation.clone()
        };
        let group = FlightGroup {
            group: 0,
            name: "world".to_owned(),
            description: String::new(),
            ranks: vec![0, 1],
            over: Some(2),
            failure: None,
        };
        let record = FlightRecord {
            issued: 4,
            posted: 1,
            groups: vec![group],
            operations: vec![operation, message],
            ..record()
        };
        let expected = concat!(
            r#"{"format":"herringbone-flight-1","version":"1","job":"0000000000000007","role":"worker","rank":1,"world":2,"#,
            r#""host":"here","process":3,"taken":{"monotonic_ns":4,"realtime_ns":5},"issued":4,"posted":1,"groups":["#,
            "\n",
            r#"{"group":0,"name":"world","description":"","ranks":[0,1],"last_over":2,"error":null}],"operations":["#,
            "\n",
            r#"{"number":6,"group":0,"generation":1,"call":"reduce","sequence":3,"root":1,"op":"sum","dtype":"f32","count":9,"#,
            r#""priority":0,"algorithm":"ring","state":"failed","error":"Timeout","issued_ns":10,"began_ns":11,"#,
            r#""ended_ns":12,"sent":13,"received":14},"#,
            "\n",
            r#"{"number":7,"group":0,"generation":1,"call":"recv","sequence":null,"peer":null,"tag":-5,"dtype":"f32","count":2,"#,
            r#""state":"queued","error":null,"issued_ns":10,"began_ns":null,"ended_ns":null,"sent":13,"received":14}]}"#,
            "\n"
        );
        assert_eq!(json(&record), expected);
    }
}
