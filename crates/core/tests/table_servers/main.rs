//! Simulated parameter servers, whose processes die, stop and come back, and whose cables are cut: no two servers ever acknowledge pushes for
//! one range, and no push that was acknowledged is lost or counts twice.

mod pushes;
#[path = "../random/mod.rs"]
mod random;
mod work;
mod world;

use pushes::Shard;
use random::Rng;
use world::World;

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
    epochs: u64,
    troubles: u64,
    sent_away: u64,
}

fn run(seed: u64, planted: Planted) -> End {
    let mut world = World::new(seed, planted);
    let steps = 6_000;
    let mut troubles = 0;
    let each = 60 + world.rng.below(400);
    for step in 0..steps {
        world.step();
        if (200..steps / 2).contains(&step) && world.rng.one_in(each) {
            world.trouble();
            troubles += 1;
        }
        if step == steps / 2 {
            world.heal();
        }
        if step == steps - 1_500 {
            world.pushing = false;
        }
        if world.is_void {
            return End::default();
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
        epochs: world.epochs.len() as u64,
        troubles,
        sent_away: world.sent_away,
    }
}

#[test]
fn no_two_servers_acknowledge_and_nothing_is_lost() {
    let seeds = std::env::var("TABLE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(80);
    let (mut taken, mut answered, mut whole, mut sent_away) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let end = run(seed, Planted::Nothing);
        assert_eq!(end.problem, None, "seed {seed}");
        let most = 8 + 2 * end.troubles;
        assert!(end.epochs <= most, "seed {seed}: {} epochs, {} troubles", end.epochs, end.troubles);
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

#[test]
fn a_server_that_slept_takes_no_end_for_a_death() {
    // The others go on without it, and die before it has read that they gave it up: that is lost.
    let worlds = (0..400).map(|seed| World::new(seed, Planted::Nothing));
    let mut tried = 0;
    for mut world in worlds.filter(|world| world.count() == 3 && world.replicas == 2) {
        (0..200).for_each(|_| world.step());
        let before = world.answered;
        let until = world.now + 8_000;
        world.servers[0].as_mut().unwrap().stopped_until = until;
        (0..1_200).for_each(|_| world.step());
        world.disconnect_workers(0);
        (0..200).for_each(|_| world.step());
        assert!(world.answered > before + 100, "the others have gone on");
        world.kill(1);
        world.kill(2);
        (0..600).for_each(|_| world.step());
        assert_eq!(world.problem, None);
        tried += 1;
    }
    assert!(tried > 20, "{tried} worlds");
}

/// How many epochs come to count until all is quiet.
fn epochs_of(world: &mut World, disturb: impl FnOnce(&mut World)) -> usize {
    let before = world.epochs.len();
    disturb(world);
    (0..500).for_each(|_| world.step());
    world.epochs.len() - before
}

#[test]
fn each_disturbance_takes_few_epochs() {
    for seed in 0..40 {
        let mut world = World::new(seed, Planted::Nothing);
        let count = world.count() as usize;
        let (one, other) = (world.rng.below(count as u64) as usize, world.rng.below(count as u64) as usize);
        let start = |world: &mut World, slot: usize| world.start(slot, slot as u32);
        assert_eq!(epochs_of(&mut world, |_| {}), 1, "seed {seed}: all start");
        assert_eq!(epochs_of(&mut world, |world| world.kill(one)), 1, "seed {seed}: one is killed");
        // It comes, and then it has its ranges back.
        let started = epochs_of(&mut world, |world| start(world, one));
        assert!((1..=2).contains(&started), "seed {seed}: one is started: {started}");
        let broken = epochs_of(&mut world, |world| world.break_link((0, count - 1)));
        assert!(broken <= 1, "seed {seed}: a connection breaks: {broken}");
        let restarted = epochs_of(&mut world, |world| {
            for slot in [one, other] {
                world.kill(slot);
                start(world, slot);
            }
        });
        assert!(restarted <= 6, "seed {seed}: two are started again: {restarted}");
        if count > 2 {
            let parted = epochs_of(&mut world, |world| {
                world.cut.insert((1, 2));
            });
            assert!(parted <= 1, "seed {seed}: two do not hear each other: {parted}");
            // The cable between them is silent for long.
            let parted = epochs_of(&mut world, |world| (0..1_000).for_each(|_| world.step()));
            assert!(parted <= 2, "seed {seed}: two have not heard each other for long: {parted}");
        }
    }
}
