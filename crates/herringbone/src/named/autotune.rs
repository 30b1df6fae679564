//! The search for the best parameters, and its log. Rank 0's.

use crate::{
    Error, Result,
    core::named::{TUNER_COLUMNS, Tuned, Tuner, TunerSettings, Tuning},
    log,
};
use std::{
    fs::File,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

/// How the least time of a cycle and the most bytes of an operation are tuned.
#[derive(Clone, Debug)]
pub struct AutotuneOptions {
    /// The file in which rank 0 logs its trials.
    pub log: Option<PathBuf>,
    /// How many samples are thrown away first.
    pub warmup_samples: u32,
    /// How many cycles that have run something make a score; a sample is the median of five.
    pub steps_per_sample: u32,
}

/// A search with its log.
#[derive(Debug)]
pub(super) struct Autotune {
    tuner: Tuner,
    log: Option<File>,
}

impl Autotune {
    /// # Errors
    /// If the log cannot be written.
    pub(super) fn new(given: Tuning, caches: bool, options: &AutotuneOptions) -> Result<Self> {
        let settings =
            TunerSettings { warmup: options.warmup_samples, steps: options.steps_per_sample, caches };
        let begin = |path: &PathBuf| {
            let mut file = File::create(path)?;
            writeln!(file, "{TUNER_COLUMNS}")?;
            Ok(file)
        };
        let log = options.log.as_ref().map(begin).transpose();
        let log = log.map_err(|error: io::Error| Error::io("writing the log of the autotuner", error))?;
        Ok(Self { tuner: Tuner::new(given, settings), log })
    }

    /// A cycle has run so many bytes. Returns what all ranks are to use from now on, if that changes.
    pub(super) fn ran(&mut self, bytes: u64, now: Duration) -> Option<Tuning> {
        let Tuned { tuning, line } = self.tuner.ran(bytes, now)?;
        self.write_line(&line);
        if self.tuner.is_done()
            && let Some(line) = self.tuner.best_line()
        {
            self.write_line(&line);
        }
        Some(tuning)
    }

    fn write_line(&mut self, line: &str) {
        if let Some(file) = &mut self.log
            && let Err(error) = writeln!(file, "{line}")
        {
            log::warn("rank 0", format_args!("the autotuner's log cannot be written and ends: {error}"));
            self.log = None;
        }
    }
}
