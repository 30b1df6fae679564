use crate::settled::{any_parameters, any_settings};
use crate::{any_fingerprint, any_job, any_text, call, crc32c};
use herringbone_core::{
    collective::Collective,
    group::{FoldOrder, Group},
    session::{
        Basis, Cause, CutBy, Machines, Measuring, Mismatch, PARAMETERS_BYTES, Parameters, Ranks, Refusal,
        Role, Summary, TooLong, Variant,
        close_check::{CloseQuestion, Confirmation},
        control::{
            ControlError, Death, Decision, Decoder, Dispute, Introduction, MESSAGE_BYTES, Message, Ordinal,
            PlanInfo, Report, Waiting,
        },
        formation::{Decline, Join, Settings},
        handshake::Versions,
        membership::{MemberId, Process, Roster},
    },
    shards::MOST_NODES,
    wire::Fingerprint,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

fn any_ranks() -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), 0..20)
}

fn any_process() -> impl Strategy<Value = Process> {
    let parts = (any_text(), any::<u64>(), any::<u64>());
    parts.prop_map(|(address, host, incarnation)| Process { address, host, incarnation })
}

/// Some epochs after the first: members have joined and left.
fn any_roster() -> impl Strategy<Value = Roster> {
    let change = (any::<bool>(), any_process(), option::of(any::<prop::sample::Index>()));
    (vec(any_process(), 1..6), vec(any_text(), 0..3), vec(change, 0..6)).prop_map(
        |(workers, reducers, changes)| {
            let mut roster = Roster::founded(workers, &reducers).unwrap();
            for (is_worker, Process { address, host, incarnation }, leaves) in changes {
                let role = if is_worker { Role::Worker } else { Role::Reducer };
                let known = |number| is_worker.then_some(number);
                roster = roster.with_joined(role, address, known(incarnation), known(host)).unwrap().0;
                let leaves = leaves.map(|index| roster.members()[index.index(roster.members().len())].id);
                roster = leaves.and_then(|id| roster.without(id).ok()).unwrap_or(roster);
            }
            roster
        },
    )
}

fn any_basis() -> impl Strategy<Value = Basis> {
    let summary = || any::<(u32, u64)>().prop_map(|(kinds, digest)| Summary { kinds, digest });
    let lists = (summary(), summary(), summary(), summary());
    let call = (any_text(), 1_u8..7, any::<u32>(), any::<u32>(), 0_usize..2);
    let sizes = (any::<(u64, u64, u64, u64)>(), option::of(any::<u64>()), any::<u32>());
    (call, lists, sizes).prop_map(
        |(
            (algorithm, code, root, workers, order),
            (keys, reducers, hosts, memories),
            (numbers, topology, contributors),
        )| {
            let (epoch, constants, segment, staged) = numbers;
            Basis {
                epoch,
                algorithm,
                collective: Collective::from_code(code, root).unwrap(),
                workers,
                order: FoldOrder::ALL[order],
                keys,
                contributors,
                machines: Machines { reducers, hosts, memories, topology },
                cut: CutBy { constants, segment, staged },
            }
        },
    )
}

fn any_refusal() -> impl Strategy<Value = Refusal> {
    let role = prop_oneof![Just(Role::Worker), Just(Role::Reducer)];
    let versions = || any::<(u16, u16)>().prop_map(|(min, max)| Versions { min, max });
    prop_oneof![
        Just(Refusal::Token),
        (versions(), versions()).prop_map(|(ours, theirs)| Refusal::Version { ours, theirs }),
        any::<(u64, u64)>().prop_map(|(ours, theirs)| Refusal::Job { ours, theirs }),
        (any::<u32>(), any_text(), any_text()).prop_map(|(rank, first, second)| Refusal::DuplicateRank {
            rank,
            first,
            second
        }),
        any::<(u32, u32)>().prop_map(|(rank, world)| Refusal::RankOutOfRange { rank, world }),
        any::<(u32, u32, u32)>().prop_map(|(rank, ours, theirs)| Refusal::World { rank, ours, theirs }),
        (any::<u32>(), any_text(), any_text(), any_text())
            .prop_map(|(rank, name, ours, theirs)| Refusal::Setting { rank, name, ours, theirs }),
        (any::<u32>(), any_text(), any_text()).prop_map(|(rank, ours, theirs)| Refusal::Build {
            rank,
            ours,
            theirs
        }),
        (any_text(), any::<u64>()).prop_map(|(what, limit)| Refusal::NoRoom { what, limit }),
        (role.clone(), any::<u32>()).prop_map(|(role, rank)| Refusal::Unexpected { role, rank }),
        (role, any::<u32>()).prop_map(|(role, rank)| Refusal::Restarted { role, rank }),
        any_ranks().prop_map(|missing| Refusal::Absent { missing }),
        (any::<u32>(), any_text(), any_text()).prop_map(|(rank, ours, theirs)| Refusal::OtherJob {
            rank,
            ours,
            theirs
        }),
        (any_text(), any_text()).prop_map(|(address, reason)| Refusal::NoReducer { address, reason }),
        (any_text(), any_text()).prop_map(|(setting, problem)| Refusal::Unusable { setting, problem }),
        (any::<u32>(), any_text(), any_text()).prop_map(|(rank, setting, problem)| Refusal::UnusableAt {
            rank,
            setting,
            problem
        }),
    ]
}

fn any_cause() -> impl Strategy<Value = Cause> {
    let variants = vec((any_fingerprint(), any_ranks(), option::of(any_basis())), 0..=Mismatch::VARIANTS);
    prop_oneof![
        (any::<u64>(), variants).prop_map(|(sequence, variants)| {
            let variant = |(fingerprint, ranks, basis)| Variant { fingerprint, ranks, basis };
            Cause::Mismatch(Mismatch { sequence, variants: variants.into_iter().map(variant).collect() })
        }),
        (any_text(), any::<u32>(), any_text(), any::<u64>()).prop_map(|(address, rank, reason, sequence)| {
            Cause::ReducerLost { address, rank, reason, sequence }
        }),
        (any::<u32>(), any_fingerprint(), any::<u64>(), any_ranks()).prop_map(
            |(rank, operation, milliseconds, waiting_for)| Cause::Timeout {
                rank,
                operation,
                milliseconds,
                waiting_for
            }
        ),
        any::<(u32, u32)>().prop_map(|(from, to)| Cause::Corrupt { from, to }),
        any::<(u32, u32)>().prop_map(|(from, to)| Cause::LinkLost { from, to }),
        (any::<u32>(), any::<u32>(), any_text()).prop_map(|(from, to, problem)| Cause::Protocol {
            from,
            to,
            problem
        }),
        any_ranks().prop_map(|ranks| Cause::PeerLost { ranks }),
        (any::<u32>(), any::<u64>(), any_ranks()).prop_map(|(rank, milliseconds, ranks)| Cause::Unmade {
            rank,
            milliseconds,
            ranks
        }),
        any::<u32>().prop_map(|rank| Cause::Panicked { rank }),
        (any_ranks(), any_fingerprint(), any::<u32>()).prop_map(|(ranks, operation, caller)| Cause::Left {
            ranks,
            operation,
            caller
        }),
        any::<(u32, u64)>().prop_map(|(rank, sequence)| Cause::Aborted { rank, sequence }),
        (any::<u32>(), any_fingerprint(), any::<u64>()).prop_map(|(rank, operation, bytes)| Cause::Memory {
            rank,
            operation,
            bytes
        }),
        (any_fingerprint(), any::<(u32, u32, u64, u64)>()).prop_map(
            |(operation, (from, to, sent, expected))| Cause::Uneven { operation, from, to, sent, expected }
        ),
    ]
}

fn any_ordinal() -> impl Strategy<Value = Option<Ordinal>> {
    option::of(any::<(u32, u64)>().prop_map(|(of, at)| Ordinal { of, at }))
}

fn any_death() -> impl Strategy<Value = Death> {
    prop_oneof![
        select(&[Death::Exited, Death::Unreachable, Death::Protocol, Death::GaveUp][..]),
        any::<u64>().prop_map(|milliseconds| Death::Silent { milliseconds }),
    ]
}

fn any_message_of_fences() -> impl Strategy<Value = Message> {
    let place = any::<(u32, u32)>;
    prop_oneof![
        (place(), any_ranks(), any_cause(), any_ordinal()).prop_map(
            |((group, generation), members, cause, ordinal)| {
                Message::Dispute(Dispute { group, generation, members, cause, ordinal })
            }
        ),
        (place(), any_cause(), any_ordinal()).prop_map(|((group, generation), cause, ordinal)| {
            Message::Fence { group, generation, cause, ordinal }
        }),
        (place(), any::<(bool, u64, u64)>(), vec((any_fingerprint(), any_basis()), 0..32), 0_usize..32)
            .prop_map(|((group, generation), (is_made, next, below), issued, plans)| {
                let (recent, mut bases): (Vec<_>, Vec<_>) = issued.into_iter().unzip();
                bases.truncate(plans);
                Message::Report(Report { group, generation, is_made, next, below, recent, plans: bases })
            }),
        (place(), any::<u64>(), any_cause()).prop_map(|((group, generation), next, cause)| {
            Message::Decide(Decision { group, generation, next, cause })
        }),
    ]
}

pub(crate) fn any_message() -> impl Strategy<Value = Message> {
    let place = any::<(u32, u32)>;
    prop_oneof![
        (any::<(u32, u32)>(), any_process(), any_settings(), any_job(), any_text()).prop_map(
            |((rank, world), process, settings, job, host_name)| {
                Message::Join(Join { rank, process, world, settings: Box::new(settings), job, host_name })
            }
        ),
        (any::<u64>(), any_roster()).prop_map(|(job, roster)| Message::Roster { job, roster }),
        (any::<u32>(), any_parameters())
            .prop_map(|(group, parameters)| Message::Parameters { group, parameters: Box::new(parameters) }),
        crate::recoveries::any_recovery(),
        crate::rebalance::any_rebalance(),
        crate::status::any_status(),
        crate::flight::any_flight(),
        (place(), any_basis()).prop_map(|((group, generation), basis)| {
            Message::Planned(PlanInfo { group, generation, basis })
        }),
        any_refusal().prop_map(Message::Refuse),
        Just(Message::Heartbeat),
        (any::<u32>(), any_death()).prop_map(|(rank, death)| Message::Dead { rank, death }),
        any::<u32>().prop_map(|rank| Message::Leave { rank }),
        (place(), any::<(u32, u32, u64)>(), any_fingerprint()).prop_map(
            |((group, generation), (rank, round, hash), fingerprint)| {
                Message::Waiting(Waiting { rank, group, generation, round, hash, fingerprint })
            }
        ),
        (place(), any::<(u32, u64)>(), any_fingerprint()).prop_map(
            |((group, generation), (rank, hash), fingerprint)| {
                Message::Confirm(CloseQuestion { rank, group, generation, hash, fingerprint })
            }
        ),
        (place(), any::<(u64, u64)>()).prop_map(|((group, generation), (sequence, hash))| {
            Message::Confirmed(Confirmation { group, generation, sequence, hash })
        }),
        any_message_of_fences(),
        any::<u32>().prop_map(|group| Message::Forget { group }),
        (place(), any_ranks()).prop_map(|((group, generation), members)| Message::GroupInfo {
            group,
            generation,
            members
        }),
        (place(), vec(any::<u32>(), 1..20), any::<(u32, u32)>(), any::<(u64, u64)>()).prop_map(
            |((group, generation), mut members, (reducer, more), (epoch, parameters))| {
                members.sort_unstable();
                members.dedup();
                let reducers = reducer.saturating_add(more).clamp(1, 65_536 - members.len() as u32);
                Message::Introduce(Introduction {
                    group,
                    generation,
                    epoch,
                    reducer: reducer.min(reducers - 1),
                    reducers,
                    hosts: members.iter().map(|member| member / 4).collect(),
                    fold: fold(&members, more),
                    members: members.into_iter().map(MemberId::new).collect(),
                    parameters,
                })
            }
        ),
        any_text().prop_map(Message::JobName),
        (any_job(), any_text(), any_text()).prop_map(|(job, setting, problem)| Message::Decline(Decline {
            job,
            setting,
            problem
        })),
        Just(Message::Bye),
    ]
}

/// A group of so many members, some of which may have several inputs.
fn fold(members: &[u32], drawn: u32) -> Group {
    let inputs: Vec<u32> = (0..members.len() as u32).map(|at| 1 + (drawn >> at) % 2 * (drawn % 5)).collect();
    let keys = (0..inputs.iter().sum()).map(|input: u32| 3 * input + drawn % 2);
    let fold = Group::with_keys(keys.collect()).and_then(|fold| fold.with_inputs(&inputs));
    fold.and_then(|fold| fold.with_contributors(drawn.max(1))).unwrap()
}

fn encoded(message: &Message) -> Vec<u8> {
    message.encode(crc32c).expect("the message is within its bounds")
}

/// A body with a prefix that fits it.
fn framed(body: &[u8]) -> Vec<u8> {
    let mut bytes = [(body.len() as u32).to_le_bytes(), crc32c(body).to_le_bytes()].concat();
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Option<Message>, ControlError> {
    let mut decoder = Decoder::new(crc32c);
    decoder.push(bytes);
    decoder.next_message()
}

#[test]
fn a_reason_is_cut_and_has_no_control_characters() {
    let reason = format!("one\ntwo\u{1b}{}", "ä".repeat(200));
    let lost = |reason| Cause::ReducerLost { address: "here:1".to_owned(), rank: 3, reason, sequence: 9 };
    let dispute = |reason| {
        Message::Dispute(Dispute {
            group: 1,
            generation: 2,
            members: vec![0, 3],
            cause: lost(reason),
            ordinal: None,
        })
    };
    let expected = format!("one two {}", "ä".repeat(124));
    assert_eq!(decoded(&encoded(&dispute(reason))), Ok(Some(dispute(expected))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// However the stream is cut.
    #[test]
    fn messages_round_trip(messages in vec(any_message(), 0..6), cuts in vec(1_usize..200, 1..10)) {
        let stream: Vec<u8> = messages.iter().flat_map(encoded).collect();
        let (mut decoder, mut read, mut rest) = (Decoder::new(crc32c), Vec::new(), &stream[..]);
        for cut in cuts.into_iter().cycle() {
            let (part, later) = rest.split_at(cut.min(rest.len()));
            decoder.push(part);
            while let Some(message) = decoder.next_message().unwrap() {
                read.push(message);
            }
            if later.is_empty() {
                break;
            }
            rest = later;
        }
        prop_assert_eq!(read, messages);
    }

    #[test]
    fn every_flipped_bit_is_found(message in any_message(), bit in any::<prop::sample::Index>()) {
        let mut bytes = encoded(&message);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let damaged = matches!(decoded(&bytes), Err(ControlError::Checksum { .. }));
        prop_assert!(damaged);
    }

    #[test]
    fn refusals_and_causes_speak(refusal in any_refusal(), cause in any_cause()) {
        prop_assert!(refusal.to_string().len() > 10);
        prop_assert!(cause.to_string().len() > 10);
    }
}

#[test]
fn a_message_over_its_bounds_is_not_sent() {
    let process = |address: String| Process { address, host: 1, incarnation: 2 };
    let settings = Settings {
        staging: 1,
        segment: 1,
        order: None,
        algorithm: None,
        transport: None,
        reducers: vec![],
        cutting: 0,
        wiring: Default::default(),
        measuring: Measuring::default(),
        tree_bound: None,
        plan: vec![],
        calibration: vec![],
    };
    let join = |length| {
        let process = process("x".repeat(length));
        let (settings, host_name) = (settings.clone(), String::new());
        Message::Join(Join {
            rank: 0,
            process,
            world: 1,
            settings: Box::new(settings),
            job: vec![],
            host_name,
        })
        .encode(crc32c)
    };
    assert!(join(256).is_ok());
    assert_eq!(join(257), Err(TooLong { field: "an address", limit: 256 }));

    let info = |count| Message::GroupInfo { group: 0, generation: 0, members: (0..count).collect() };
    assert_eq!(decoded(&encoded(&info(65_536))), Ok(Some(info(65_536))));
    assert_eq!(info(65_537).encode(crc32c), Err(TooLong { field: "a list of ranks", limit: 65_536 }));

    let roster = Roster::founded(vec![process("x".repeat(250)); 5_000], &[]).unwrap();
    let message = Message::Roster { job: 0, roster };
    assert_eq!(message.encode(crc32c), Err(TooLong { field: "a message", limit: MESSAGE_BYTES }));

    let parameters = |reducers| {
        let parameters = Parameters { reducers: vec!["x".repeat(200); reducers], ..Parameters::default() };
        Message::Parameters { group: 0, parameters: Box::new(parameters) }
    };
    assert_eq!(decoded(&encoded(&parameters(300))), Ok(Some(parameters(300))));
    let field = "the parameters of a group";
    assert_eq!(parameters(400).encode(crc32c), Err(TooLong { field, limit: PARAMETERS_BYTES }));
}

/// Whoever is told of a group makes room for all that are in it: no more than a roster takes, whatever a few bytes claim.
#[test]
fn a_group_of_more_reducers_than_a_roster_takes_is_no_group() {
    let introduction = |reducers| {
        let (members, hosts) = ([1, 2].map(MemberId::new).into(), vec![0, 1]);
        Introduction {
            group: 1,
            generation: 0,
            epoch: 0,
            members,
            reducer: 0,
            reducers,
            hosts,
            fold: Group::with_keys(vec![0, 4]).unwrap().with_contributors(8).unwrap(),
            parameters: 0,
        }
    };
    for reducers in [1, 65_534] {
        let message = Message::Introduce(introduction(reducers));
        assert_eq!(decoded(&encoded(&message)), Ok(Some(message)));
    }
    for reducers in [65_535, 500_000_000, 2_000_000_000, u32::MAX] {
        let bytes = encoded(&Message::Introduce(introduction(reducers)));
        assert!(bytes.len() < 180);
        let reason = "a group that cannot be";
        assert_eq!(decoded(&bytes), Err(ControlError::Malformed { number: 14, reason }), "{reducers}");
    }
    // How sums are folded stands before the digest of the parameters, and is rewritten.
    let folded = |keys: &[u32], inputs: &[u32], contributors: u32| {
        let bytes = encoded(&Message::Introduce(introduction(1)));
        let (body, end) = bytes[12..].split_at(bytes.len() - 12 - 8);
        let numbers = |list: &[u32]| [&[list.len() as u32], list].concat();
        let inputs = if inputs.is_empty() { Vec::new() } else { numbers(inputs) };
        let words = [&numbers(keys)[..], &inputs, &[contributors]].concat();
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let body = [&body[..body.len() - 4 * 4], &words, end].concat();
        let mut bytes = [(body.len() as u32).to_le_bytes(), crc32c(&body).to_le_bytes()].concat();
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes.extend(body);
        decoded(&bytes)
    };
    assert_eq!(folded(&[0, 4], &[], 8), Ok(Some(Message::Introduce(introduction(1)))));
    assert!(folded(&[0, 2, 4], &[2, 1], 8).is_ok());
    let mut most: Vec<u32> = (0..=MOST_NODES).collect();
    assert!(folded(&most, &[1, MOST_NODES], 8).is_ok());
    most.push(MOST_NODES + 1);
    let wrong: [(&[u32], &[u32], u32); 12] = [
        (&[4, 4], &[], 8),
        (&[4, 2], &[], 8),
        (&[0, 2, 4], &[], 8),
        (&[0, 4], &[], 0),
        (&[], &[], 8),
        (&[0, 2, 4], &[3], 8),
        (&[0, 2, 4], &[0, 3], 8),
        (&[0, 2, 4], &[2, 2], 8),
        (&[0, 2, 4], &[u32::MAX, 4], 8),
        (&[0, 2, 4], &[1, 1, 1], 8),
        // One each is said by saying nothing.
        (&[0, 4], &[1, 1], 8),
        (&most, &[1, MOST_NODES + 1], 8),
    ];
    for (keys, inputs, contributors) in wrong {
        let refused = folded(keys, inputs, contributors);
        assert!(
            matches!(refused, Err(ControlError::Malformed { number: 14, .. })),
            "{keys:?} {inputs:?}: {refused:?}"
        );
    }
}

#[test]
fn a_message_over_its_bounds_is_not_awaited() {
    let prefix = |length: u32| {
        let mut bytes = [length.to_le_bytes(), [0; 4]].concat();
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes
    };
    assert_eq!(decoded(&prefix(1 << 20)), Ok(None));
    assert_eq!(decoded(&prefix((1 << 20) + 1)), Err(ControlError::Length { length: (1 << 20) + 1 }));
    assert_eq!(decoded(&prefix(u32::MAX)), Err(ControlError::Length { length: u32::MAX }));

    let list = |count: u32| framed(&[&[12][..], &[0; 8], &count.to_le_bytes()].concat());
    let error = |reason| Err(ControlError::Malformed { number: 12, reason });
    assert_eq!(decoded(&list(u32::MAX)), error("a list is too long"));
    assert_eq!(decoded(&list(65_536)), error("it ends too early"));

    let parameters = |length: u32| framed(&[&[16][..], &[0; 4], &length.to_le_bytes()].concat());
    let error = |reason| Err(ControlError::Malformed { number: 16, reason });
    assert_eq!(decoded(&parameters(PARAMETERS_BYTES as u32 + 1)), error("a part is too long"));
    assert_eq!(decoded(&parameters(PARAMETERS_BYTES as u32)), error("it ends too early"));
}

#[test]
fn malformed_messages_say_what_is_wrong() {
    let reason = |body: &[u8]| match decoded(&framed(body)) {
        Err(ControlError::Malformed { number, reason }) => (number, reason),
        other => panic!("{body:?} gave {other:?}"),
    };
    assert_eq!(reason(&[]), (0, "it ends too early"));
    assert_eq!(reason(&[0]), (0, "its number is unknown"));
    assert_eq!(reason(&[u8::MAX]), (u8::MAX, "its number is unknown"));
    let later = [&[3, 9][..], &[4], &[0; 4]].concat();
    assert_eq!(
        reason(&later),
        (3, "a role that this version does not know: install the same release everywhere")
    );
    assert_eq!(reason(&[4, 0]), (4, "it is longer than it should be"));
    let bell = [&[3, 8][..], &[1, 0, 7], &[0; 8]].concat();
    assert_eq!(reason(&bell), (3, "a text has control characters"));
    let latin1 = [&[3, 8][..], &[1, 0, 0xe4], &[0; 8]].concat();
    assert_eq!(reason(&latin1), (3, "a text is not UTF-8"));
}

#[test]
fn an_error_stays() {
    let mut decoder = Decoder::new(crc32c);
    decoder.push(&framed(&[99]));
    let error = decoder.next_message().unwrap_err();
    decoder.push(&encoded(&Message::Heartbeat));
    assert_eq!(decoder.next_message(), Err(error));
}

#[test]
fn ranks_read_well() {
    let said = |ranks: &[u32]| Ranks(ranks).to_string();
    assert_eq!(said(&[]), "no rank");
    assert_eq!(said(&[3]), "rank 3");
    assert_eq!(said(&[0, 2, 3, 4, 5, 8, 9, u32::MAX]), "ranks 0, 2-5, 8, 9, 4294967295");
    let even: Vec<u32> = (0..20).map(|rank| 2 * rank).collect();
    assert_eq!(said(&even), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more");
}

#[test]
fn causes_read_well() {
    let one = Fingerprint { sequence: 17, ..call() };
    let other = Fingerprint { count: 1001, dtype: 1, ..one };
    let issued = [(3, one), (0, one), (2, other), (1, one)];
    assert_eq!(
        Cause::Mismatch(Mismatch::new(17, issued)).to_string(),
        "the ranks disagree about operation 17: rank 2 issued all_reduce of 1001 f64, sum; ranks 0, 1, 3 issued \
         all_reduce of 1000 f32, sum (they differ in count and element type). Every rank must call the same \
         collectives, with the same arguments, in the same order"
    );
    assert_eq!(
        Cause::Mismatch(Mismatch::new(17, [(0, one), (1, one)])).to_string(),
        "the ranks disagree about operation 17: ranks 0, 1 issued all_reduce of 1000 f32, sum, and their calls \
         before it differ, further back than ranks remember. Every rank must call the same collectives, with the same arguments, in the same order"
    );
    assert_eq!(
        Cause::Timeout { rank: 1, operation: one, milliseconds: 1_800_042, waiting_for: vec![3] }.to_string(),
        "rank 1 waited 1800.042 s in all_reduce of 1000 f32, sum (operation 17) for rank 3: see what they are \
         doing, or raise the timeout"
    );
    assert_eq!(
        Cause::Unmade { rank: 0, milliseconds: 3_000, ranks: vec![1, 2] }.to_string(),
        "rank 0 waited 3.000 s for ranks 1, 2 to make the group, which is over: make it again on all of its ranks"
    );
    let uneven =
        Fingerprint { collective: Collective::AllToAll.code(), count: Fingerprint::UNEVEN, op: 0, ..one };
    assert_eq!(
        Cause::Uneven { operation: uneven, from: 2, to: 0, sent: 5, expected: 3 }.to_string(),
        "rank 2 sends 5 elements to rank 0 in all_to_all of uneven parts of f32 (operation 17), and rank 0 expects 3: \
         give both the same number"
    );
    assert_eq!(
        Cause::PeerLost { ranks: vec![3] }.to_string(),
        "lost rank 3: their logs have the reason; form the group again without them"
    );
    assert_eq!(
        Cause::Left { ranks: vec![1, 2], operation: one, caller: 0 }.to_string(),
        "ranks 1, 2 left without calling all_reduce of 1000 f32, sum (operation 17), which rank 0 has called: make every rank make the \
         same calls before it leaves"
    );
    assert_eq!(
        Cause::Aborted { rank: 3, sequence: 7 }.to_string(),
        "rank 3 aborted the group: its log has the reason; form the group again without it"
    );
}

#[test]
fn a_mismatch_lists_the_odd_ones_first_and_not_too_many() {
    let issued = (0..40).map(|rank| (rank, Fingerprint { count: u64::from(rank % 7), ..call() }));
    let mismatch = Mismatch::new(0, issued);
    assert_eq!(mismatch.variants.len(), Mismatch::VARIANTS);
    assert_eq!(mismatch.variants[0].ranks, [5, 12, 19, 26, 33]);
    assert_eq!(mismatch.variants[3].ranks, [1, 8, 15, 22, 29, 36]);
}
