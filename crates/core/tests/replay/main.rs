//! Simulated programs with recovery, whose processes end at any call, in recovery, in checkpoints and at the end: every call gives
//! the result of an undisturbed run, every rank ends with the same models, and nobody runs a call again whose result a live rank has.

mod mistakes;
mod program;
#[path = "../random/mod.rs"]
mod random;
mod world;

use herringbone_core::replay::ReplayRules;
use random::Rng;
use std::collections::BTreeSet;
use world::{End, World};

fn run(seed: u64, rules: ReplayRules) -> Result<End, String> {
    World::new(seed, rules).run().map_err(|problem| format!("seed {seed}: {problem}"))
}

/// How many seeds: `REPLAY_SEEDS`, which `make rabit-soak` sets.
fn seeds(default: u64) -> u64 {
    std::env::var("REPLAY_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default)
}

#[test]
fn programs_that_lose_processes_continue_where_they_were() {
    let (mut whole, mut lost, mut deaths, mut replayed) = (0, 0, 0, 0);
    let mut moments = BTreeSet::new();
    let seeds = seeds(1_500);
    for seed in 0..seeds {
        let end = run(seed, ReplayRules::DEFAULT).unwrap_or_else(|problem| panic!("{problem}"));
        whole += u64::from(end.is_whole);
        lost += u64::from(!end.is_whole);
        deaths += end.deaths;
        replayed += end.replayed;
        moments.extend(end.moments);
    }
    println!(
        "{seeds} programs, {deaths} deaths, {replayed} calls replayed: {whole} came to their end, {lost} lost what nobody has any more"
    );
    println!("processes ended {moments:?}");
    assert!(lost * 20 < whole && deaths > seeds && replayed > seeds, "{whole} {lost} {deaths} {replayed}");
    assert!(moments.len() >= 9, "{moments:?}");
}

#[test]
fn the_same_seed_gives_the_same_end() {
    for seed in 0..50 {
        assert_eq!(run(seed, ReplayRules::DEFAULT), run(seed, ReplayRules::DEFAULT));
    }
}

#[test]
fn planted_faults_are_found() {
    let default = ReplayRules::DEFAULT;
    let planted = [
        (
            "a checkpoint without its second phase",
            ReplayRules { checkpoints_in_two_phases: false, ..default },
        ),
        (
            "results that are dropped too early",
            ReplayRules { keeps_results_until_all_passed: false, ..default },
        ),
        ("a holder that has just started", ReplayRules { asks_holders_only: false, ..default }),
        ("a lazy model that has changed", ReplayRules { gives_only_unchanged_models: false, ..default }),
    ];
    for (name, rules) in planted {
        let found = (0..2_000).find(|seed| run(*seed, rules).is_err());
        assert!(found.is_some(), "{name} is not found");
        println!("{name}: {}", run(found.unwrap(), rules).unwrap_err());
    }
}
