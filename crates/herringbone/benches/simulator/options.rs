//! What the command is asked for.

use herringbone::simulator::plants;
use std::{num::NonZero, ops::Range, path::PathBuf};

pub(crate) const USAGE: &str = "\
Options, as in make soak ARGS=\"--seeds 0..500\":
  --seeds A..B       the seeds from A to before B; 0..10000 if nothing is said, and record/soak.md is written then
  --seed N           one seed, with all that happens in it
  --plant NAME       plant an error first, which is to be found
  --threads N        how many seeds run at once; as many as there are cores if nothing is said
  --record FILE      write a page about it, with the planted errors
  --json             print the result as JSON";

/// The seeds that run if none are named.
const SEEDS: Range<u64> = 0..10_000;
const RECORD: &str = "record/soak.md";

/// Which seeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    One(u64),
    Many(Range<u64>),
}

/// What the command is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) job: Job,
    pub(crate) plant: Option<&'static str>,
    pub(crate) threads: usize,
    pub(crate) record: Option<PathBuf>,
    pub(crate) json: bool,
}

impl Options {
    /// Reads arguments.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let (mut job, mut plant, mut record, mut json) = (None, None, None, false);
        let mut options = Self { job: Job::Many(SEEDS), plant: None, threads, record: None, json: false };
        // Cargo adds `--bench`.
        let mut arguments = arguments.into_iter().filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--json" => json = true,
                "--seed" => job = Some(Job::One(number(&value()?)?)),
                "--seeds" => job = Some(Job::Many(range(&value()?)?)),
                "--threads" => options.threads = number(&value()?)?.max(1) as usize,
                "--plant" => plant = Some(named(&value()?)?),
                "--record" => record = Some(PathBuf::from(value()?)),
                _ => return Err(format!("{argument} is no option")),
            }
        }
        if job.is_none() && plant.is_none() {
            record = record.or_else(|| Some(PathBuf::from(RECORD)));
        }
        Ok(Self { job: job.unwrap_or(options.job), plant, record, json, threads: options.threads })
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").map(|(from, to)| Ok::<_, String>(number(from)?..number(to)?));
    let seeds = ends.unwrap_or_else(|| Err(format!("{text} is no range: write 0..500")))?;
    if seeds.is_empty() { Err(format!("{text} has no seeds")) } else { Ok(seeds) }
}

fn named(text: &str) -> Result<&'static str, String> {
    let known = || plants().collect::<Vec<_>>().join(", ");
    plants()
        .find(|name| *name == text)
        .ok_or_else(|| format!("no error is called {text}: there are {}", known()))
}
