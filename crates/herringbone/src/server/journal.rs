//! The log of a reducer: jobs that begin and end, and once a minute the bytes that it moves.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How often rates are said.
const MINUTE: Duration = Duration::from_secs(60);

/// The figures of a job that the log shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobSummary {
    /// How many workers it has.
    pub(super) world: u32,
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// The last state that was logged.
#[derive(Debug)]
pub(super) struct Journal {
    who: String,
    jobs: BTreeMap<u64, JobSummary>,
    since: Instant,
    /// What had moved then.
    received: u64,
    sent: u64,
}

impl Journal {
    pub(super) fn new(who: String) -> Self {
        Self { who, jobs: BTreeMap::new(), since: Instant::now(), received: 0, sent: 0 }
    }

    /// Logs the changes.
    pub(super) fn look(&mut self, jobs: &BTreeMap<u64, JobSummary>) {
        for (number, job) in jobs.iter().filter(|(number, _)| !self.jobs.contains_key(number)) {
            let what = format_args!("job {number:016x} has come, of {} workers", job.world);
            crate::log::info(&self.who, what);
        }
        for (number, job) in self.jobs.iter().filter(|(number, _)| !jobs.contains_key(number)) {
            let what = format_args!(
                "job {number:016x} is gone; {} received and {} sent",
                bytes(job.received),
                bytes(job.sent)
            );
            crate::log::info(&self.who, what);
        }
        self.jobs.clone_from(jobs);
        if self.since.elapsed() >= MINUTE {
            self.tell_rates();
        }
    }

    fn tell_rates(&mut self) {
        let received = self.jobs.values().map(|job| job.received).sum();
        let sent = self.jobs.values().map(|job| job.sent).sum();
        let seconds = self.since.elapsed().as_secs_f64();
        let rate = |now: u64, before: u64| bytes((now.saturating_sub(before) as f64 / seconds) as u64);
        if (received, sent) != (self.received, self.sent) {
            let what = format_args!(
                "{} jobs: {}/s received and {}/s sent",
                self.jobs.len(),
                rate(received, self.received),
                rate(sent, self.sent)
            );
            crate::log::info(&self.who, what);
        }
        (self.since, self.received, self.sent) = (Instant::now(), received, sent);
    }
}

/// A number of bytes, for people.
fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{} kB", count / 1000),
        10_000_000..10_000_000_000 => format!("{} MB", count / 1_000_000),
        _ => format!("{} GB", count / 1_000_000_000),
    }
}
