//! Worlds from seeds: the simulator.
//!
//! Real engines, hubs and control threads' decisions run in virtual time, over links that are slow, break and are cut in two,
//! under processes that end, stop, leave and abort. Half of the seeds harm only reducers, which costs no call. In one of twelve
//! a rank calls something else than the others, or leaves without their last call, and all are told, at the latest when they close
//! the group. In some, ranks abort groups and nothing else happens, which all are told. In the others anything may happen, and no
//! call hangs or returns a wrong result. Sums are of integers, and every result is compared bit by bit with the interpreter's. A
//! buffer is taken back as soon as its call returns, as by a user who overwrites it.
#![cfg_attr(
    not(feature = "simulator"),
    allow(unreachable_pub, dead_code, reason = "only the simulator calls some of it, from outside")
)]

use super::{
    VirtualWorld, aborts, exact::WELL, mistakes, plants::Plant, reducers, trace, transitions, trouble,
};
use crate::seen::{self, Transition};
use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// What became of a seed's world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldEnd {
    /// A hash of all that happened.
    pub trace: u64,
    /// How long the world ran, in its own milliseconds.
    pub milliseconds: u64,
    /// How its calls ended, and how many.
    pub calls: BTreeMap<&'static str, u64>,
    /// Whether a group went on without a reducer.
    pub recovered: bool,
}

/// What is wrong with a seed, and how to see it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedFailure {
    /// The seed.
    pub seed: u64,
    /// The error that was planted, if one was.
    pub plant: Option<&'static str>,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, plant, problem } = self;
        write!(f, "{problem}\n  make soak ARGS=\"--seed {seed}")?;
        plant.iter().try_for_each(|plant| write!(f, " --plant {plant}"))?;
        f.write_str("\"")
    }
}

/// The errors that can be planted.
pub fn plants() -> impl Iterator<Item = &'static str> {
    Plant::ALL.iter().map(|plant| plant.name)
}

/// Runs a seed's world twice and compares what happened. `plant` is the name of an error to plant first.
///
/// # Errors
/// If a call hung, failed or gave a wrong result where it must not, if something panicked, or if the runs differ.
pub fn check(seed: u64, plant: Option<&'static str>) -> Result<WorldEnd, SeedFailure> {
    let failed = |problem: String| SeedFailure { seed, plant, problem };
    let one = run(seed, plant, false)?;
    let other = run(seed, plant, false)?;
    if one != other {
        return Err(failed(format!("seed {seed}: two runs differ: {one:?} and {other:?}")));
    }
    Ok(one)
}

/// Runs a seed's world once, and prints what happens there if it is `shown`.
///
/// # Errors
/// As [`check`].
pub fn run(seed: u64, plant: Option<&'static str>, shown: bool) -> Result<WorldEnd, SeedFailure> {
    trace::show(shown);
    let _planted = plant.and_then(Plant::planted);
    let ended = catch_unwind(AssertUnwindSafe(|| live(seed)));
    trace::show(false);
    let ended = ended.unwrap_or_else(|panic| Err(format!("seed {seed}: a panic: {}", message_of(&*panic))));
    ended.map_err(|problem| SeedFailure { seed, plant, problem: problem.chars().take(600).collect() })
}

/// The first of some seeds whose world fails with an error that was planted, and does not without.
pub fn find(seeds: impl IntoIterator<Item = u64>, plant: &'static str) -> Option<SeedFailure> {
    let fails = |seed| run(seed, Some(plant), false).err().filter(|_| run(seed, None, false).is_ok());
    seeds.into_iter().find_map(fails)
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

fn live(seed: u64) -> Result<WorldEnd, String> {
    match seed % 8 {
        5 | 6 if !seed.is_multiple_of(3) => {
            mistakes::mistaken(seed).map(|(mut world, ends)| ended(&mut world, ends))
        }
        0 | 2 | 4 | 6 => {
            let mut world = reducers::harmed(seed)?;
            let calls: usize = world.workers().map(|(_, worker)| worker.ends().len()).sum();
            Ok(ended(&mut world, vec![WELL; calls]))
        }
        1 | 5 if seed.is_multiple_of(3) => {
            aborts::aborting(seed).map(|(mut world, ends)| ended(&mut world, ends))
        }
        1 => trouble::troubled(seed).map(|(mut world, ends)| ended(&mut world, ends)),
        _ => trouble::harmed_and_troubled(seed).map(|(mut world, ends)| ended(&mut world, ends)),
    }
}

fn ended(world: &mut VirtualWorld, ends: Vec<&'static str>) -> WorldEnd {
    let now = world.now();
    let mut trace = world.trace;
    for machine in world.machines.iter().flatten() {
        trace.add(now, &(machine.ends(), machine.engine.counted()));
    }
    let mut calls = BTreeMap::new();
    ends.into_iter().for_each(|end| *calls.entry(end).or_default() += 1);
    WorldEnd { trace: trace.0, milliseconds: now.as_millis() as u64, calls, recovered: world.has_recovered() }
}

/// Transitions of the machines of the session: those that there are, and those that were seen.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    seen: seen::Transitions,
}

impl Coverage {
    /// Adds what this thread has seen since this was last called on it.
    pub fn look(&mut self) {
        self.add(Self { seen: seen::take() });
    }

    /// Adds what others have seen.
    pub fn add(&mut self, other: Self) {
        for (transition, times) in other.seen {
            *self.seen.entry(transition).or_default() += times;
        }
    }

    /// How many transitions there are.
    pub fn all(&self) -> usize {
        transitions::possible().len()
    }

    /// Those that were not seen.
    pub fn missing(&self) -> Vec<String> {
        let possible = transitions::possible();
        possible.iter().filter(|transition| !self.seen.contains_key(transition)).map(described).collect()
    }

    /// Those that were seen and cannot be: errors.
    pub fn impossible(&self) -> Vec<String> {
        let possible = transitions::possible();
        self.seen.keys().filter(|transition| !possible.contains(transition)).map(described).collect()
    }

    /// How often each was seen.
    pub fn counts(&self) -> Vec<(String, u64)> {
        self.seen.iter().map(|(transition, times)| (described(transition), *times)).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing();
        write!(f, "transitions: {} of {} seen", self.all() - missing.len(), self.all())?;
        if !missing.is_empty() {
            write!(f, "; not: {}", missing.join(", "))?;
        }
        Ok(())
    }
}

fn described(Transition { machine, state, input }: &Transition) -> String {
    format!("{machine} [{state}] {input}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many run, if `SIMULATED_SEEDS` says nothing else: `make full` runs 500, and `make soak` 10,000.
    const SEEDS: u64 = 100;
    /// Among these, each planted error is to be found; the search ends with the first seed that finds it.
    const SEARCHED: u64 = 500;

    /// Each seed's world runs twice.
    #[test]
    fn whatever_goes_wrong_no_call_hangs_and_no_result_is_wrong() {
        let (mut coverage, mut failures) = (Coverage::default(), Vec::new());
        let (mut calls, mut recovered) = (BTreeMap::<&str, u64>::new(), 0);
        let seeds = std::env::var("SIMULATED_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
        for seed in 0..seeds {
            match check(seed, None) {
                Ok(ended) => {
                    recovered += u64::from(ended.recovered);
                    ended.calls.into_iter().for_each(|(end, times)| *calls.entry(end).or_default() += times);
                }
                Err(failure) => failures.push(failure.to_string()),
            }
        }
        coverage.look();
        assert_eq!(failures, [""; 0]);
        println!("{seeds} seeds: {calls:?}, {recovered} with a recovery\n{coverage}");
        assert_eq!(coverage.impossible(), [""; 0]);
        // Calls meet all kinds of trouble, and reducers come to harm while they are needed, or this would prove nothing.
        // Among few seeds the rarest kinds may be missing.
        let enough = calls.len() == 7 && calls.values().all(|calls| *calls >= 3);
        assert!(calls.len() >= 4 && (enough || seeds < SEARCHED), "{calls:?}");
        assert!(recovered > seeds / 4, "{recovered}");
    }

    /// Each of these errors in the protocol is found.
    #[test]
    fn planted_bugs_are_found() {
        for plant in plants() {
            let found = find(0..SEARCHED, plant).unwrap_or_else(|| panic!("{plant} is not found"));
            println!("{plant}: {found}");
        }
    }

    #[test]
    fn other_seeds_are_other_worlds() {
        assert_ne!(run(0, None, false).unwrap().trace, run(2, None, false).unwrap().trace);
    }

    #[test]
    fn a_failure_says_how_to_see_it_again() {
        let failure =
            SeedFailure { seed: 7, plant: Some("no-fence"), problem: "seed 7: a wrong result".to_owned() };
        let expected = "seed 7: a wrong result\n  make soak ARGS=\"--seed 7 --plant no-fence\"";
        assert_eq!(failure.to_string(), expected);
    }
}
