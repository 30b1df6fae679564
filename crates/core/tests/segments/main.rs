//! What the proof promises about deadlock, tried: what `verify` accepts never deadlocks, in whatever order ranks go on, messages
//! arrive and grants are heard. What is run is what executors run, [`Execution`]s of compiled programs; an adversary takes
//! their place.
//!
//! The random schedules are noise around an all-reduce of workers that share memory or do not. What they fold before does not
//! matter; who waits for whom does.
//!
//! [`Execution`]: herringbone_core::execution::Execution

mod adversary;
mod lies;
mod noise;
mod serial;

use adversary::{End, Trial, Whim};
use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    execution::Rules,
    group::Group,
    prepare::{Call, Prepared, Sizing, prepare},
    schedule::Schedule,
    shards::ShardRuns,
    verify::{Verified, VerifyError, verify},
};
use noise::{Random, noise};
use serial::InOrder;
use std::sync::Arc;

const ONE_BY_ONE: InOrder = InOrder { credit: 1, at_once: true };

/// A trial of a schedule on hosts, with a segment's bytes over the whole buffer and the staging memory that an operation gets.
fn trial(
    verified: &Verified,
    hosts: &[u32],
    call: Call,
    (segment_bytes, most_staged): (usize, usize),
) -> Trial {
    let schedule = verified.schedule();
    let distinct = Sizing::distinct(&hosts[..schedule.workers() as usize]);
    let sizing = Sizing { hosts: distinct, shared: distinct == 1, segment_bytes, most_staged };
    let program = |rank: u32| {
        let shared = |other: u32| {
            let both_work = rank.max(other) < schedule.workers();
            both_work && hosts[rank as usize] == hosts[other as usize]
        };
        Arc::new(prepare(verified, &schedule.program(rank), rank, call, None, sizing, shared).unwrap())
    };
    let programs = (0..schedule.ranks()).map(program).collect();
    Trial { programs, rules: Rules::DEFAULT, in_turns: false, whim: Whim::First }
}

fn sum(bytes: usize) -> Call {
    Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4)
}

/// What trials of random schedules have come to.
#[derive(Debug, Default)]
struct Reached {
    eager: usize,
    /// More segments than a rank has in flight.
    windows: usize,
    /// Where messages are read where they lie, and segments begin in lots.
    lots: usize,
    /// Ranks that share memory beside others that do not.
    mixed: usize,
}

impl Reached {
    fn note(&mut self, trial: &Trial) {
        let programs = || trial.programs.iter().filter(|program| !program.peers.is_empty());
        let any = |is: &dyn Fn(&Prepared) -> bool| usize::from(programs().any(|program| is(program)));
        self.eager += any(&|program| program.eager);
        self.windows += any(&|program| program.segments > program.depth);
        self.lots += any(&|program| program.is_in_memory() && program.segments > program.lead);
        self.mixed += any(&|program| !program.is_in_memory() && program.peers.iter().any(|peer| peer.shared));
    }
}

/// A trial of a random schedule: its workers on one host or two, in one eager segment or in many.
fn trial_of_noise(verified: &Verified, seed: u64) -> Trial {
    let mut random = Random::new(!seed);
    let (workers, ranks) = (verified.schedule().workers(), verified.schedule().ranks());
    let host = |rank| if rank < workers { random.below(2) as u32 } else { 100 + rank };
    let hosts: Vec<u32> = (0..ranks).map(host).collect();
    let (bytes, segment_bytes, most_staged) =
        [(1000, 0, 1 << 30), (3 << 20, 256 << 10, 1 << 30), (3 << 20, 256 << 10, 12 << 20)][random.below(3)];
    let whim = [Whim::First, Whim::Last, Whim::Any(seed)][random.below(3)];
    Trial { whim, ..trial(verified, &hosts, sum(bytes), (segment_bytes, most_staged)) }
}

#[test]
fn what_is_proved_never_deadlocks() {
    let (mut proved, mut proved_serial, mut refused, mut unconfirmed) = (0, 0, 0, 0);
    let mut reached = Reached::default();
    for seed in 0..8000 {
        let schedule = noise(seed);
        let (serial, group) = (ONE_BY_ONE.completes(&schedule), Group::of_size(schedule.workers()));
        match verify(schedule, Collective::AllReduce, &group) {
            Ok(verified) => {
                assert_eq!(verified.serial(), serial, "seed {seed}\n{}", verified.schedule());
                let trial = trial_of_noise(&verified, seed);
                let ends = trial.run();
                assert!(ends.is_ok(), "seed {seed}: {ends:?}\n{}", verified.schedule());
                reached.note(&trial);
                proved += 1;
                proved_serial += usize::from(serial);
            }
            Err(VerifyError::Deadlock { .. }) => refused += 1,
            Err(VerifyError::BetweenReducers { .. } | VerifyError::Unanswered { .. }) => unconfirmed += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    println!(
        "{proved} proved, {proved_serial} of them serial; {refused} deadlocks, {unconfirmed} unconfirmed"
    );
    println!("{reached:?}");
    assert!(proved_serial > 2000 && proved > proved_serial + 1000 && refused > 1000 && unconfirmed > 100);
    let Reached { eager, windows, lots, mixed } = reached;
    assert!(eager > 500 && windows > 500 && lots > 200 && mixed > 200, "{reached:?}");
}

/// Rank 0 may only overwrite s0 once rank 1 has taken it, and rank 1 may only take it once something has come that
/// rank 0 sends after overwriting it. In program order a lane that holds the one message hides this; of a message
/// that is cut, no lane need hold all.
#[test]
fn a_proof_of_program_order_would_not_do() {
    let text = "schedule workers=1 reducers=3 cut=even:1
        rank 0
            slots acc acc acc
            fold c0 s0 = u0
            send s0 -> 1 2
            send s0 -> 1            # taken by rank 1 last
            recv c0 s0 <- 2
            recv c0 s1 <- 2         # all of the message before it has been received
            send s1 -> 3
            finish c0 u0 = u0
        rank 1
            slots acc
            recv c0 s0 <- 0
            recv c0 s0 <- 3
            recv c0 s0 <- 0
        rank 2
            slots acc
            recv c0 s0 <- 0
            send s0 -> 0
            send s0 -> 0
        rank 3
            slots acc
            recv c0 s0 <- 0
            send s0 -> 1";
    let schedule = Schedule::parse(text).unwrap();
    assert!(ONE_BY_ONE.completes(&schedule));
    let refused = verify(schedule, Collective::AllReduce, &Group::of_size(1));
    assert!(matches!(refused, Err(VerifyError::Deadlock { .. })), "{refused:?}");
}

/// The library's schedules on hosts of so many, of each collective.
fn of_the_library(mut then: impl FnMut(&str, Verified, &[u32])) {
    let collectives = [
        Collective::AllReduce,
        Collective::Reduce { root: 1 },
        Collective::Broadcast { root: 1 },
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Gather { root: 1 },
        Collective::Scatter { root: 1 },
        Collective::AllToAll,
        Collective::Barrier,
    ];
    let algorithms = Algorithm::all().map(|algorithm| algorithm.to_string());
    let others = [
        "radix(2,2,2)",
        "radix(4,2)",
        "radix(16;2,2,2)",
        "hierarchical(radix,doubling)",
        "hierarchical(radix,reduction_server)",
    ];
    let others = others.map(String::from);
    // Hosts of three are pieces, which only matters to who follows hosts.
    for (workers, each) in (2..=12).flat_map(|workers| [(workers, 2), (workers, 3)]) {
        let mut hosts: Vec<u32> = (0..workers).map(|rank| rank / each).collect();
        let group = Group::of_size(workers);
        for name in algorithms.iter().chain(&others).filter(|name| each == 2 || name.starts_with("hier")) {
            let algorithm: Algorithm = name.parse().unwrap();
            for collective in collectives {
                let layout = Layout { reducers: 2, hosts: &hosts[..workers as usize], links: None };
                let Ok(schedule) = algorithm.schedule(collective, &group, &layout) else { continue };
                let verified = verify(schedule, collective, &group).unwrap();
                hosts.extend([100, 101]);
                then(name, verified, &hosts);
                hosts.truncate(workers as usize);
            }
        }
    }
}

/// More than is proved of every schedule: what of the library's runs in order also completes if a send waits until all its
/// lanes have room, as where one write in shared memory has many readers.
#[test]
fn the_librarys_sends_may_go_to_all_at_once() {
    let mut tried = 0;
    of_the_library(|name, verified, hosts| {
        for credit in [1, 2] {
            let completes = InOrder { credit, at_once: true }.completes(verified.schedule());
            assert!(
                completes || !verified.serial(),
                "{name} {} {credit}, hosts {hosts:?}",
                verified.collective()
            );
            tried += usize::from(verified.serial());
        }
    });
    assert!(tried > 200, "{tried}");
}

/// The library's schedules end, whoever goes on: over links, in memory and both, in one segment and in many.
#[test]
fn the_librarys_schedules_end_in_any_order() {
    let (mut tried, mut seed) = (0, 0);
    of_the_library(|name, verified, hosts| {
        seed += 1;
        let mut random = Random::new(seed);
        let (is_drawn, collective) = (random.below(3) == 0, verified.collective());
        let bytes = [4, 3000, 600_000, 2 << 20][random.below(4)];
        let (segment_bytes, most_staged) =
            [(0, 1 << 30), (64 << 10, 1 << 30), (300_000, 3 << 20)][random.below(3)];
        let whim = [Whim::First, Whim::Last, Whim::Any(seed)][random.below(3)];
        if !is_drawn {
            return;
        }
        let call = Call { collective, ..sum(bytes * verified.schedule().workers() as usize / 4) };
        let ends = Trial { whim, ..trial(&verified, hosts, call, (segment_bytes, most_staged)) }.run();
        assert!(ends.is_ok(), "{name} {collective} {bytes} {segment_bytes} {whim:?} {hosts:?}: {ends:?}");
        tried += 1;
    });
    println!("{tried} schedules");
    assert!(tried > 150, "{tried}");
}

/// Also where chunks are not as long as each other, so that most of the short ones' segments are short, or empty.
#[test]
fn schedules_by_shares_end_in_any_order() {
    let mut tried = 0;
    for (seed, (name, workers)) in [
        ("weighted(radix,16,0,5,1)", 4),
        ("weighted(radix,1,16x6,0)", 8),
        ("weighted(radix(2,2),16,1,0,9,3)", 5),
        ("weighted(reduction_server,1,16)", 5),
        ("weighted(mixed,16,0,4,1,16)", 3),
        ("weighted(hierarchical,16,2,0,1,3,1)", 6),
        ("weighted(hierarchical(radix,reduction_server),1,16)", 6),
    ]
    .into_iter()
    .flat_map(|case| [case; 24])
    .enumerate()
    {
        let mut random = Random::new(seed as u64);
        let each = [1, 2, 100][random.below(3)];
        let each = if name.contains("hier") { 2 } else { each };
        let mut hosts: Vec<u32> = (0..workers).map(|rank| rank / each).collect();
        let (algorithm, group): (Algorithm, _) = (name.parse().unwrap(), Group::of_size(workers));
        let layout = Layout { reducers: 2, hosts: &hosts, links: None };
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
        let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
        hosts.extend([100, 101]);
        let bytes = [4, 3000, 600_000, 2 << 20][random.below(4)] * workers as usize;
        let (segment_bytes, most_staged) =
            [(0, 1 << 30), (64 << 10, 1 << 30), (300_000, 3 << 20)][random.below(3)];
        let whim = [Whim::First, Whim::Last, Whim::Any(seed as u64)][random.below(3)];
        let trial = Trial { whim, ..trial(&verified, &hosts, sum(bytes), (segment_bytes, most_staged)) };
        let ends = trial.run();
        assert!(ends.is_ok(), "{name} {bytes} {segment_bytes} {whim:?} {hosts:?}: {ends:?}");
        tried += usize::from(trial.programs[0].segments > 1);
    }
    assert!(tried > 60, "{tried}");
}

/// Also where members have several inputs, so that folds take several messages of a lane.
#[test]
fn members_with_several_inputs_end_in_any_order() {
    let mut tried = 0;
    for (workers, name) in (2..=9).flat_map(|workers| {
        ["radix", "one_shot", "star", "reduction_server", "mixed"].map(|name| (workers, name))
    }) {
        let group = ShardRuns::even(13, workers).unwrap().group();
        let algorithm: Algorithm = name.parse().unwrap();
        let layout = Layout { reducers: 2, hosts: &[], links: None };
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
        let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
        assert!(!group.has_several() || !verified.serial(), "{name} {workers}");
        for (seed, each) in [1, 2, 100].into_iter().enumerate() {
            let mut hosts: Vec<u32> = (0..workers).map(|rank| rank / each).collect();
            hosts.extend([100, 101]);
            let mut random = Random::new(seed as u64 ^ u64::from(workers) << 8);
            let bytes = [4, 3000, 600_000, 2 << 20][random.below(4)];
            let (segment_bytes, most_staged) =
                [(0, 1 << 30), (64 << 10, 1 << 30), (300_000, 3 << 20)][random.below(3)];
            let whim = [Whim::First, Whim::Last, Whim::Any(seed as u64)][random.below(3)];
            let trial = Trial { whim, ..trial(&verified, &hosts, sum(bytes), (segment_bytes, most_staged)) };
            let ends = trial.run();
            assert!(ends.is_ok(), "{name} {workers} {bytes} {segment_bytes} {whim:?} {hosts:?}: {ends:?}");
            tried += usize::from(group.has_several());
        }
    }
    assert!(tried > 70, "{tried}");
}

/// The tree over three hosts of two that once stood still for ever, with 14 MiB.
fn tree() -> Trial {
    let (group, hosts) = (Group::of_size(6), [0, 0, 1, 1, 2, 2]);
    let algorithm: Algorithm = "tree".parse().unwrap();
    let layout = Layout { reducers: 0, hosts: &hosts, links: None };
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
    let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
    trial(&verified, &hosts, sum(14 << 20), (0, 56 << 20))
}

/// What is checked here would be found. Each is a rule that ranks once followed, or one of which the argument in `lane` says what
/// it is for.
#[test]
fn other_rules_are_found_to_stand_still_or_to_overwrite() {
    let whims = [Whim::First, Whim::Last, Whim::Any(1), Whim::Any(2), Whim::Any(3)];
    let runs = |trial: Trial| whims.map(|whim| Trial { whim, ..trial.clone() }.run());
    assert!(runs(tree()).iter().all(Result::is_ok));
    let in_turns = runs(Trial { in_turns: true, ..tree() });
    assert!(in_turns.iter().any(|end| matches!(end, Err(End::Stuck(_)))), "{in_turns:?}");
    for (rules, stands_still) in [
        (Rules { lot: Some(1000), ..Rules::DEFAULT }, true),
        (Rules { grants_per_window: 0, ..Rules::DEFAULT }, true),
        (Rules { window: Some(1000), ..Rules::DEFAULT }, false),
    ] {
        let ends = runs(Trial { rules, ..tree() });
        let is_found = |end: &Result<(), End>| match end {
            Err(End::Stuck(_)) => stands_still,
            Err(End::Overwritten | End::Refused(..)) => !stands_still,
            Ok(()) => false,
        };
        assert!(ends.iter().any(is_found), "{rules:?}: {ends:?}");
    }
}
