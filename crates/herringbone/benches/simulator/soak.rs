//! Many seeds, on several threads.

use crate::options::{Job, Options};
use herringbone::simulator::{Coverage, SeedFailure, check, find as find_among};
use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// More failures than these are not listed.
const LISTED: usize = 20;
/// Within so many seeds each planted error is found.
const PLANTED_SEEDS: u64 = 500;

/// What became of many seeds.
#[derive(Default)]
pub(crate) struct Soaked {
    pub(crate) seeds: u64,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) recovered: u64,
    /// How long the worlds ran, in their own milliseconds.
    pub(crate) milliseconds: u64,
    pub(crate) failed: u64,
    /// The first of those that failed.
    pub(crate) failures: Vec<SeedFailure>,
    pub(crate) coverage: Coverage,
    pub(crate) took: Duration,
    /// The seed that took longest, and how long.
    pub(crate) slowest: (Duration, u64),
}

impl Soaked {
    /// Whether there is nothing wrong.
    pub(crate) fn is_well(&self) -> bool {
        self.failed == 0 && self.coverage.impossible().is_empty()
    }

    fn note(
        &mut self,
        seed: u64,
        result: Result<herringbone::simulator::WorldEnd, SeedFailure>,
        took: Duration,
    ) {
        self.seeds += 1;
        self.slowest = self.slowest.max((took, seed));
        match result {
            Ok(ended) => {
                self.recovered += u64::from(ended.recovered);
                self.milliseconds += ended.milliseconds;
                for (end, times) in ended.calls {
                    *self.calls.entry(end).or_default() += times;
                }
            }
            Err(failure) => {
                self.failed += 1;
                eprintln!("\r{failure}");
                if self.failures.len() < LISTED {
                    self.failures.push(failure);
                }
            }
        }
    }

    fn progress(&self, of: u64, began: Instant) {
        if std::io::stderr().is_terminal() {
            let rate = self.seeds as f64 / began.elapsed().as_secs_f64();
            eprint!("\r{} of {of} seeds, {} failed, {rate:.0} a second ", self.seeds, self.failed);
            // Nobody waits for this line.
            let _unseen = std::io::stderr().flush();
        }
    }
}

/// Runs the seeds that are asked for, each twice.
pub(crate) fn run(options: &Options) -> Soaked {
    let Job::Many(seeds) = &options.job else { return Soaked::default() };
    let (next, began, all) = (AtomicU64::new(seeds.start), Instant::now(), Mutex::new(Soaked::default()));
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let started = Instant::now();
                    let result = check(seed, options.plant);
                    let mut all = all.lock().expect("no thread panics with it");
                    all.note(seed, result, started.elapsed());
                    all.coverage.look();
                    all.progress(seeds.end - seeds.start, began);
                }
            });
        }
    });
    let soaked = all.into_inner().expect("no thread panics with it");
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    Soaked { took: began.elapsed(), ..soaked }
}

/// The first seed that finds a planted error.
pub(crate) fn find(plant: &'static str) -> (&'static str, Option<SeedFailure>) {
    (plant, find_among(0..PLANTED_SEEDS, plant))
}
