//! What a reducer says of itself: jobs that come and go, and once a minute what it moves.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How often rates are said.
const MINUTE: Duration = Duration::from_secs(60);

/// What is told of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobTold {
    /// How many workers it has.
    pub(super) world: u32,
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// What was said last.
#[derive(Debug)]
pub(super) struct Journal {
    who: String,
    jobs: BTreeMap<u64, JobTold>,
    since: Instant,
    /// What had moved then.
    before: (u64, u64),
}

impl Journal {
    pub(super) fn new(who: String) -> Self {
        Self { who, jobs: BTreeMap::new(), since: Instant::now(), before: (0, 0) }
    }

    /// Says what has changed.
    pub(super) fn look(&mut self, jobs: &BTreeMap<u64, JobTold>) {
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
        let total = self.jobs.values().fold((0, 0), |sum, job| (sum.0 + job.received, sum.1 + job.sent));
        let seconds = self.since.elapsed().as_secs_f64();
        let rate = |now: u64, before: u64| bytes((now.saturating_sub(before) as f64 / seconds) as u64);
        let (received, sent) = (rate(total.0, self.before.0), rate(total.1, self.before.1));
        if total != self.before {
            let jobs = self.jobs.len();
            crate::log::info(&self.who, format_args!("{jobs} jobs: {received}/s received and {sent}/s sent"));
        }
        (self.since, self.before) = (Instant::now(), total);
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
