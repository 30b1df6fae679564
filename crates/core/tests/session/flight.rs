use crate::{any_fingerprint, call, crc32c};
use herringbone_core::session::{
    Role,
    control::{ControlError, Decoder, MESSAGE_BYTES, Message, StatusQuestion},
    flight::{FlightCall, FlightGroup, FlightOperation, FlightRecord, FlightState, GROUPS, KEPT, RANKS},
    status::ClockReading,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

fn any_short() -> impl Strategy<Value = String> {
    "[ -~äπ]{0,12}"
}

fn any_clock() -> impl Strategy<Value = ClockReading> {
    any::<(u64, u64)>().prop_map(|(monotonic, realtime)| ClockReading { monotonic, realtime })
}

fn any_group() -> impl Strategy<Value = FlightGroup> {
    let texts = (any_short(), any_short(), option::of(any_short()));
    (any::<u32>(), texts, vec(any::<u32>(), 0..5), option::of(any::<u64>())).prop_map(
        |(group, (name, description, failure), ranks, over)| FlightGroup {
            group,
            name,
            description,
            ranks,
            over,
            failure,
        },
    )
}

fn any_operation() -> impl Strategy<Value = FlightOperation> {
    let ends = (option::of(any::<u32>()), option::of(any::<u64>()));
    let message = (any::<(bool, i64, u8, u64)>(), ends).prop_map(
        |((receives, tag, dtype, count), (peer, sequence))| FlightCall::Message {
            receives,
            peer,
            tag,
            sequence,
            dtype,
            count,
        },
    );
    let collective = (any_fingerprint(), any_short())
        .prop_map(|(call, algorithm)| FlightCall::Collective { call, algorithm });
    let state = prop_oneof![
        Just(FlightState::Queued),
        Just(FlightState::Running),
        Just(FlightState::Done),
        any_short().prop_map(|kind| FlightState::Failed { kind }),
    ];
    let moments = (any::<u64>(), option::of(any::<u64>()), option::of(any::<u64>()));
    let numbers = any::<(u64, u32, u32, u64, u64)>();
    (numbers, prop_oneof![message, collective], state, moments).prop_map(
        |((number, group, generation, sent, received), call, state, (issued, began, ended))| {
            FlightOperation { number, group, generation, call, state, issued, began, ended, sent, received }
        },
    )
}

/// What a process is asked of its clocks and its record, and what it says.
pub(crate) fn any_flight() -> impl Strategy<Value = Message> {
    let question = select(vec![StatusQuestion::Status, StatusQuestion::Clock, StatusQuestion::Flight]);
    let numbers = any::<(u64, u32, u32, u32, u64, u64)>();
    let role = select(vec![Role::Worker, Role::Reducer, Role::TableServer]);
    let lists = (vec(any_group(), 0..4), vec(any_operation(), 0..6));
    let record = (numbers, role, any_short(), any_short(), any_clock(), lists).prop_map(
        |((job, rank, world, process, issued, posted), role, host, version, clock, (groups, operations))| {
            FlightRecord {
                job,
                role,
                rank,
                world,
                process,
                host,
                version,
                clock,
                issued,
                posted,
                groups,
                operations,
            }
        },
    );
    prop_oneof![
        question.prop_map(Message::Ask),
        any_clock().prop_map(Message::Clock),
        (option::of(record.prop_map(Box::new)), any::<u32>())
            .prop_map(|(record, more)| Message::Flight { record, more }),
    ]
}

fn record_of(groups: usize, operations: usize) -> Message {
    let text = "x".repeat(1000);
    let operation = |number: u64| FlightOperation {
        number,
        group: 1,
        generation: 2,
        call: FlightCall::Collective { call: call(), algorithm: text.clone() },
        state: FlightState::Failed { kind: text.clone() },
        issued: 1,
        began: Some(2),
        ended: Some(3),
        sent: 4,
        received: 5,
    };
    let group = |group: u32| FlightGroup {
        group,
        name: text.clone(),
        description: text.clone(),
        ranks: vec![7; RANKS / GROUPS],
        over: Some(1),
        failure: Some(text.clone()),
    };
    let record = FlightRecord {
        job: 1,
        role: Role::Worker,
        rank: 2,
        world: 3,
        process: 4,
        host: text.clone(),
        version: text.clone(),
        clock: ClockReading { monotonic: 5, realtime: 6 },
        issued: 7,
        posted: 8,
        groups: (0..groups as u32).map(group).collect(),
        operations: (0..operations as u64).map(operation).collect(),
    };
    Message::Flight { record: Some(Box::new(record)), more: 0 }
}

/// The longest lists fit into one message, whatever texts there are.
#[test]
fn the_longest_record_can_be_sent_and_is_read_whole() {
    let bytes = record_of(GROUPS, 2 * KEPT).encode(crc32c).expect("it is within its bounds");
    assert!(bytes.len() > MESSAGE_BYTES / 2, "{} bytes are no test of it", bytes.len());
    let mut decoder = Decoder::new(crc32c);
    decoder.push(&bytes);
    let Ok(Some(Message::Flight { record: Some(record), more: 0 })) = decoder.next_message() else {
        panic!("it is no record")
    };
    assert_eq!((record.groups.len(), record.operations.len()), (GROUPS, 2 * KEPT));
    assert_eq!(record.group(3).map(|group| group.name.len()), Some(128));
    assert_eq!(record.group(1000), None);
}

#[test]
fn a_record_that_is_cut_or_strange_says_why() {
    let decoded = |body: &[u8]| {
        let mut bytes = [(body.len() as u32).to_le_bytes(), crc32c(body).to_le_bytes()].concat();
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes.extend(body);
        let mut decoder = Decoder::new(crc32c);
        decoder.push(&bytes);
        decoder.next_message()
    };
    let reason = |body: &[u8]| match decoded(body) {
        Err(ControlError::Malformed { reason, .. }) => reason,
        other => panic!("{body:?} gave {other:?}"),
    };
    let whole = record_of(1, 2).encode(crc32c).unwrap().split_off(12);
    for length in 1..whole.len() {
        assert_eq!(reason(&whole[..length]), "it ends too early");
    }
    assert_eq!(reason(&[34, 9]), "a question that this version does not know");
    assert_eq!(reason(&[34]), "it ends too early");
}

#[test]
fn the_wall_clock_of_a_moment_follows_from_both_clocks() {
    let clock = ClockReading { monotonic: 1000, realtime: 5000 };
    assert_eq!([900, 1000, 1100].map(|moment| clock.realtime_at(moment)), [4900, 5000, 5100]);
    assert_eq!(ClockReading { monotonic: 10, realtime: 5 }.realtime_at(0), 0, "it was set back to long ago");
}
