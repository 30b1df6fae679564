//! Simulated parameter servers, whose processes die, stop and come back, and whose cables are cut: no two servers ever acknowledge pushes for
//! one range, and no push that was acknowledged is lost or counts twice.

mod pushes;
mod work;
mod world;

use pushes::Shard;
use world::World;

/// Random numbers that are the same on every machine (SplitMix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// Errors that the checks have to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// The end of any connection counts as the end of a process, and nobody says that it gives another one up.
    SilentIsDead,
    /// An owner tells workers at once what it has executed.
    TellsAtOnce,
    /// A push that is repeated is executed again.
    CountsTwice,
    /// A server that owned a range goes on executing its requests.
    OldOwnerExecutes,
    /// A server that ends a connection because there is a better one does not say that it lives.
    NoGoodbye,
}

/// How a world ends.
#[derive(Debug, Default)]
struct End {
    problem: Option<String>,
    taken_over: u64,
    answered: u64,
    is_whole: bool,
    sent_away: u64,
}

fn run(seed: u64, planted: Planted) -> End {
    let mut world = World::new(seed, planted);
    let steps = 6_000;
    let each = 60 + world.rng.below(400);
    for step in 0..steps {
        world.step();
        if (200..steps / 2).contains(&step) && world.rng.one_in(each) {
            world.trouble();
        }
        if step == steps / 2 {
            world.heal();
        }
        if step == steps - 1_500 {
            world.pushing = false;
        }
        if world.problem.is_some() {
            break;
        }
    }
    let all_there = world.workers.iter().all(|worker| worker.unanswered.is_empty());
    let same = (0..world.count()).all(|range| {
        let copies: Vec<&Shard> =
            world.servers.iter().flatten().filter_map(|server| server.shards.get(&range)).collect();
        copies.iter().all(|copy| *copy == copies[0])
    });
    if all_there && !same {
        world.problem.get_or_insert("copies differ in the end".to_owned());
    }
    End {
        problem: world.problem,
        taken_over: world.taken_over,
        answered: world.answered,
        is_whole: all_there,
        sent_away: world.sent_away,
    }
}

#[test]
fn no_two_servers_acknowledge_and_nothing_is_lost() {
    let seeds = std::env::var("TABLE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(120);
    let (mut taken, mut answered, mut whole, mut sent_away) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let end = run(seed, Planted::Nothing);
        assert_eq!(end.problem, None, "seed {seed}");
        taken += end.taken_over;
        answered += end.answered;
        whole += u64::from(end.is_whole);
        sent_away += end.sent_away;
    }
    // Ranges change their owners, and where copies were left all goes on in the end.
    assert!(
        taken > seeds && answered > 1_000 * seeds && whole > seeds / 2 && sent_away > seeds,
        "{taken} {answered} {whole} {sent_away} of {seeds}"
    );
}

#[test]
fn planted_errors_are_found() {
    for planted in [
        Planted::SilentIsDead,
        Planted::TellsAtOnce,
        Planted::CountsTwice,
        Planted::OldOwnerExecutes,
        Planted::NoGoodbye,
    ] {
        let found = (0..400).map(|seed| run(seed, planted)).position(|end| end.problem.is_some());
        assert!(found.is_some(), "{planted:?} is not found");
    }
}
