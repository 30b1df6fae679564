use herringbone_core::session::{
    control::Message,
    membership::MemberId,
    recovery::{Calls, Grow, Held, Holding, LostReducer, OperationRepair, Resume, SegmentRepair, Suspect},
    stragglers::Late,
    survivors::{Shrink, ShrinkOutcome, Shrunk},
};
use proptest::{collection::vec, option, prelude::*};
use std::ops::Range;

/// Messages about a lost reducer.
pub(crate) fn any_recovery() -> impl Strategy<Value = Message> {
    prop_oneof![any_change(), any_report()]
}

/// Messages that begin or follow a change of members.
fn any_change() -> impl Strategy<Value = Message> {
    let names = || "[a-z0-9.:]{1,30}";
    prop_oneof![
        (any::<u32>(), vec(any::<u32>(), 0..5), names(), names()).prop_map(
            |(group, members, address, reason)| {
                let lost = LostReducer { id: MemberId::new(group), address, reason };
                Message::Suspect(Suspect { group, members, lost })
            }
        ),
        (any::<u32>(), vec(any::<u32>(), 0..5), any_members())
            .prop_map(|(group, members, reducers)| Message::Grow(Grow { group, members, reducers })),
        names().prop_map(|address| Message::Enlist { address }),
        vec(names(), 0..5).prop_map(|hubs| Message::Enlisted { hubs }),
        names().prop_map(|address| Message::Hub { address }),
        any::<u32>().prop_map(|group| Message::Recover { group }),
        any::<u32>().prop_map(|group| Message::Unshrink { group }),
        (any::<(u32, u64)>(), vec(any::<u32>(), 0..5))
            .prop_map(|((group, sequence), ranks)| Message::Late(Late { group, sequence, ranks })),
        (any::<(u32, u32, u64)>(), vec(any::<u32>(), 0..5), vec(any::<u32>(), 0..5)).prop_map(
            |((group, least, completed), members, dead)| {
                Message::Shrink(Shrink { group, members, least, dead, completed })
            }
        ),
        (any::<(u32, u32, u64)>(), vec(any::<u32>(), 0..5), 0..4).prop_map(
            |((group, least, completed), left, which)| {
                let outcome = match which {
                    0 => ShrinkOutcome::Continue(left),
                    1 => ShrinkOutcome::TooFew { left, least },
                    2 => ShrinkOutcome::NoMajority { silent: left },
                    _ => ShrinkOutcome::Late { missing: left },
                };
                Message::Shrunk(Shrunk { group, outcome, completed })
            }
        ),
    ]
}

/// Reducers, ascending.
fn any_members() -> impl Strategy<Value = Vec<MemberId>> {
    let numbers = proptest::collection::btree_set(any::<u32>(), 0..5);
    numbers.prop_map(|numbers| numbers.into_iter().map(MemberId::new).collect::<Vec<_>>())
}

/// What is held, and what is to be done.
fn any_report() -> impl Strategy<Value = Message> {
    // Runs that ascend, from their lengths and what lies between them.
    let runs = vec((1u32..9, 0u32..9), 0..4).prop_map(|lengths| {
        let mut at = 0;
        let run = |(length, gap): (u32, u32)| {
            let run = at + gap..at + gap + length;
            at = run.end;
            run
        };
        lengths.into_iter().map(run).collect::<Vec<_>>()
    });
    let chunks = || vec(runs.clone(), 0..4);
    let names = || "[a-z0-9.:]{1,30}";
    let holders = option::of(any::<u32>());
    prop_oneof![
        (any::<(u32, u32)>(), vec(chunks(), 0..4)).prop_map(|((group, generation), operations)| {
            let next = operations.len() as u64;
            let calls = Calls { generation, next, hashes: (1..next).collect() };
            let holding = |(sequence, chunks)| Holding { sequence, segments: 100, chunks };
            let operations = (0..).zip(operations).map(holding).collect();
            Message::Held(Held { group, calls, operations })
        }),
        (any::<(u32, u64)>(), holders, (names(), names(), any_members()), vec(chunks(), 0..4)).prop_map(
            |((group, next), holder, (address, reason, gained), operations)| {
                let piece = |segments| SegmentRepair { segments, holder };
                let pieces = |runs: Vec<Range<u32>>| runs.into_iter().map(piece).collect();
                let repair = |(sequence, chunks): (u64, Vec<Vec<Range<u32>>>)| OperationRepair {
                    sequence,
                    chunks: chunks.into_iter().map(pieces).collect(),
                };
                let operations = (0..).zip(operations).map(repair).collect();
                Message::Resume(Resume {
                    group,
                    calls: Calls { generation: group, next, hashes: vec![next; next.min(3) as usize] },
                    lost: vec![LostReducer { id: MemberId::new(group), address, reason }],
                    gained,
                    operations,
                })
            }
        ),
    ]
}
