//! Programs that do not make the same calls again, and bytes that are no standings.

use crate::Rng;
use herringbone_core::replay::{
    CallSite, CheckpointOffer, HeldBootstrap, HeldGlobal, HeldLocal, HeldModels, Kept, ReplayCall,
    ReplayCallName, ReplayError, ReplayGlobal, ReplayMember, ReplayPoint, ReplayPosition, ReplaySettings,
    ReplayStanding, ReplayStep, ResultRun, decide,
};

type Member = ReplayMember<u64>;

fn kept(bytes: u64) -> Kept<u64> {
    Kept { bytes, data: bytes }
}

/// Two ranks: the first has made one call of 8 bytes in version 0, and the second has just taken its predecessor's place.
fn one_call_behind() -> [Member; 2] {
    let mut members: [Member; 2] = [0, 1].map(|rank| ReplayMember::new(rank, 2, ReplaySettings::default()));
    exchange(&mut members);
    for member in &mut members {
        member.begin(ReplayCall::Load).unwrap();
        assert!(matches!(member.step().unwrap(), ReplayStep::Done));
    }
    run(&mut members[0], 8);
    members[1] = ReplayMember::new(1, 2, ReplaySettings::default());
    members[0].lost();
    members[0].formed();
    exchange(&mut members);
    members[1].begin(ReplayCall::Load).unwrap();
    assert!(matches!(members[1].step().unwrap(), ReplayStep::Done));
    members
}

fn exchange(members: &mut [Member; 2]) {
    let standings = [0, 1].map(|at: usize| members[at].standing());
    let items = decide(&standings, &ReplaySettings::default()).unwrap().transfers;
    for (rank, member) in (0..).zip(members) {
        member.begin(ReplayCall::Join).unwrap();
        member.decided(&standings).unwrap();
        assert!(matches!(member.step().unwrap(), ReplayStep::Transfer(_)));
        let arrived = items.iter().filter(|item| item.to == rank).map(|item| kept(item.bytes.unwrap_or(1)));
        member.moved(arrived.collect());
        assert!(matches!(member.step().unwrap(), ReplayStep::Done));
    }
}

fn begin(member: &mut Member, bytes: u64) -> Result<ReplayStep<u64>, ReplayError> {
    begin_of_kind(member, bytes, 5)
}

fn begin_of_kind(member: &mut Member, bytes: u64, kind: u64) -> Result<ReplayStep<u64>, ReplayError> {
    member.begin(ReplayCall::Collective { bytes, proves_all: true, kind, place: 3 })?;
    member.step()
}

fn run(member: &mut Member, bytes: u64) {
    assert!(matches!(begin(member, bytes).unwrap(), ReplayStep::Run));
    member.ran(kept(bytes));
}

const FIRST: ReplayCallName = ReplayCallName::At(ReplayPoint { version: 0, call: 0 });

#[test]
fn a_call_of_another_size_is_named() {
    let [_, mut second] = one_call_behind();
    let error = begin(&mut second, 16).unwrap_err();
    assert_eq!(error, ReplayError::UnlikeSizes { rank: 1, call: FIRST, called: 16, kept: 8 });
    assert!(error.to_string().starts_with("rank 1 replays call 0 of version 0 with 16 bytes"), "{error}");
    assert!(matches!(begin(&mut second, 8).unwrap(), ReplayStep::Replayed(_)));
    assert!(matches!(begin(&mut second, 16).unwrap(), ReplayStep::Run));
}

#[test]
fn a_call_of_another_kind_is_named() {
    let [_, mut second] = one_call_behind();
    let error = begin_of_kind(&mut second, 8, 6).unwrap_err();
    assert_eq!(error, ReplayError::UnlikeCalls { rank: 1, call: FIRST });
    assert!(matches!(begin(&mut second, 8).unwrap(), ReplayStep::Replayed(_)));
}

#[test]
fn a_version_that_ends_before_the_others_calls_is_named() {
    let [_, mut second] = one_call_behind();
    let global = ReplayGlobal::Stored(kept(1));
    let error = second.begin(ReplayCall::Checkpoint { global, local: None }).unwrap_err();
    assert_eq!(error, ReplayError::Missing { rank: 1, call: FIRST });
    assert_eq!(second.begin(ReplayCall::Finalize).unwrap_err(), error);
}

#[test]
fn a_call_before_loading_that_others_have_not_made_is_named() {
    let mut members = one_call_behind();
    members[1] = ReplayMember::new(1, 2, ReplaySettings::default());
    members[0].lost();
    members[0].formed();
    exchange(&mut members);
    let error = begin(&mut members[1], 8).unwrap_err();
    assert_eq!(error, ReplayError::Extra { rank: 1, call: ReplayCallName::Bootstrap(0) });
}

#[test]
fn unlike_checkpoints_and_bootstraps_are_named() {
    let [mut first, _] = one_call_behind();
    first.begin(ReplayCall::Checkpoint { global: ReplayGlobal::Lazy, local: None }).unwrap();
    let offer = |calls, local| CheckpointOffer { calls, local };
    let error = first.clone().offered(&[offer(1, None), offer(2, None)]).unwrap_err();
    let ends = ReplayError::UnlikeEnds { version: 0, rank: 0, calls: 1, other: 1, others_calls: 2 };
    assert_eq!(error, ends);
    let error = first.offered(&[offer(1, None), offer(1, Some(0))]).unwrap_err();
    assert_eq!(error, ReplayError::UnlikeLocals { with: 1, without: 0 });
    let standing = |place| ReplayStanding {
        bootstrap: vec![HeldBootstrap { site: CallSite { place, nth: 0 }, kind: 0, bytes: 1 }],
        ..ReplayStanding::of_new(&ReplaySettings::default())
    };
    let error = decide(&[standing(1), standing(2)], &ReplaySettings::default()).unwrap_err();
    assert_eq!(error, ReplayError::UnlikeBootstraps { rank: 1, other: 0 });
}

#[test]
fn unlike_options_are_named() {
    let standings = [(5, 2), (5, 2), (5, 1)].map(|(global_replica, local_replica)| {
        ReplayStanding::of_new(&ReplaySettings { global_replica, local_replica, ..ReplaySettings::default() })
    });
    let error = decide(&standings, &ReplaySettings::default()).unwrap_err();
    let unlike = ReplayError::UnlikeOptions { option: "rabit_local_replica", first: 2, rank: 2, value: 1 };
    assert_eq!(error, unlike);
}

/// A standing with something in every field.
fn standing() -> ReplayStanding {
    let models = |global| HeldModels {
        global,
        locals: vec![HeldLocal { owner: 2, bytes: 9 }, HeldLocal { owner: 0, bytes: 0 }],
        has_local: true,
    };
    let first = ReplayPoint { version: 7, call: 3 };
    ReplayStanding {
        position: Some(ReplayPosition {
            version: 7,
            calls: 4,
            closes_at: Some(4),
            has_loaded: true,
            results: vec![ResultRun { first, count: 2, kind: 1 << 50, bytes: 100 }],
            current: models(HeldGlobal::Lazy),
            pending: Some(models(HeldGlobal::Stored { bytes: 5 })),
        }),
        bootstrap: vec![HeldBootstrap { site: CallSite { place: 1 << 40, nth: 2 }, kind: 7, bytes: 16 }],
        ..ReplayStanding::of_new(&ReplaySettings::default())
    }
}

#[test]
fn standings_come_as_they_went_and_other_bytes_are_none() {
    let bytes = standing().to_bytes().unwrap();
    assert_eq!(ReplayStanding::from_bytes(&bytes), Some(standing()));
    assert!((0..bytes.len()).all(|length| ReplayStanding::from_bytes(&bytes[..length]).is_none()));
    let mut rng = Rng(1);
    for _ in 0..20_000 {
        let mut bytes = bytes.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.below(256) as u8;
        }
        // Whatever they say: nothing is counted up to it.
        if let Some(standing) = ReplayStanding::from_bytes(&bytes) {
            let _decided = decide(
                &[standing, ReplayStanding::of_new(&ReplaySettings::default())],
                &ReplaySettings::default(),
            );
        }
    }
}
