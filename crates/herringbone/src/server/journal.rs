//! The log of a reducer: jobs that begin and end, workers that come and leave, and once a minute the bytes that it moves.

use crate::{
    core::{group::Rank, session::Ranks},
    log::{Level, LogRecord, info},
    transport::stats::readable_bytes,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How often rates are said.
const MINUTE: Duration = Duration::from_secs(60);
/// Up to so many workers that leave at once have a line each.
const LINES: usize = 8;

/// What the log tells of a job.
#[derive(Debug, Default)]
pub(super) struct JobSummary {
    /// What its workers call it: empty if they have no name for it, and `None` before they have said so.
    pub(super) name: Option<String>,
    /// How many workers it has.
    pub(super) world: u32,
    /// How many operations have begun here.
    pub(super) operations: u64,
    pub(super) received: u64,
    pub(super) sent: u64,
    /// What has happened since the last summary.
    pub(super) news: JobNews,
}

/// Workers of a job that have come and gone.
#[derive(Debug, Default)]
pub(super) struct JobNews {
    /// With the addresses that they have called from.
    pub(super) arrived: Vec<(Rank, String)>,
    pub(super) departed: Vec<WorkerEnd>,
}

/// The end of a worker's connection.
#[derive(Debug)]
pub(super) struct WorkerEnd {
    pub(super) rank: Rank,
    /// Whether it was expected.
    pub(super) in_order: bool,
    /// A sentence that names the worker.
    pub(super) line: String,
}

/// A job that the log has told of.
#[derive(Debug)]
struct KnownJob {
    label: String,
    operations: u64,
    received: u64,
    sent: u64,
}

/// The last state that was logged.
#[derive(Debug)]
pub(super) struct Journal {
    who: String,
    jobs: BTreeMap<u64, KnownJob>,
    /// What has happened in jobs of which nobody has said the name yet.
    early: BTreeMap<u64, JobNews>,
    since: Instant,
    /// What had moved then.
    received: u64,
    sent: u64,
}

impl Journal {
    pub(super) fn new(who: String) -> Self {
        let (jobs, early) = (BTreeMap::new(), BTreeMap::new());
        Self { who, jobs, early, since: Instant::now(), received: 0, sent: 0 }
    }

    /// Logs the changes.
    pub(super) fn look(&mut self, jobs: BTreeMap<u64, JobSummary>) {
        let over: Vec<u64> = self.jobs.keys().copied().filter(|number| !jobs.contains_key(number)).collect();
        over.into_iter().for_each(|number| self.tell_end(number));
        self.early.retain(|number, _| jobs.contains_key(number));
        for (number, job) in jobs {
            let mut news = self.early.remove(&number).unwrap_or_default();
            news.arrived.extend(job.news.arrived);
            news.departed.extend(job.news.departed);
            if !self.jobs.contains_key(&number) {
                if job.name.is_none() && news.departed.is_empty() {
                    self.early.insert(number, news);
                    continue;
                }
                self.tell_begin(number, job.name.as_deref().unwrap_or_default(), job.world);
            }
            if let Some(known) = self.jobs.get_mut(&number) {
                (known.operations, known.received, known.sent) = (job.operations, job.received, job.sent);
                tell_news(&self.who, &known.label, news);
            }
        }
        if self.since.elapsed() >= MINUTE {
            self.tell_rates();
        }
    }

    fn tell_begin(&mut self, number: u64, name: &str, world: u32) {
        let id = format!("{number:016x}");
        let label = if name.is_empty() { id.clone() } else { name.to_owned() };
        let s = if world == 1 { "" } else { "s" };
        let what = format_args!("job {label} has come, of {world} worker{s}; its id is {id}");
        LogRecord::new(Level::Info, &self.who).job(&label).say(what);
        self.jobs.insert(number, KnownJob { label, operations: 0, received: 0, sent: 0 });
    }

    fn tell_end(&mut self, number: u64) {
        let Some(KnownJob { label, operations, received, sent }) = self.jobs.remove(&number) else { return };
        let (received, sent) = (readable_bytes(received), readable_bytes(sent));
        let s = if operations == 1 { "" } else { "s" };
        let what = format_args!(
            "job {label} is over: {operations} operation{s}, {received} received and {sent} sent"
        );
        LogRecord::new(Level::Info, &self.who).job(&label).say(what);
    }

    fn tell_rates(&mut self) {
        let received = self.jobs.values().map(|job| job.received).sum();
        let sent = self.jobs.values().map(|job| job.sent).sum();
        let seconds = self.since.elapsed().as_secs_f64();
        let rate =
            |now: u64, before: u64| readable_bytes((now.saturating_sub(before) as f64 / seconds) as u64);
        if (received, sent) != (self.received, self.sent) {
            let what = format_args!(
                "{} jobs: {}/s received and {}/s sent",
                self.jobs.len(),
                rate(received, self.received),
                rate(sent, self.sent)
            );
            info(&self.who, what);
        }
        (self.since, self.received, self.sent) = (Instant::now(), received, sent);
    }
}

fn tell_news(who: &str, job: &str, news: JobNews) {
    let JobNews { mut arrived, departed } = news;
    let record = |level| LogRecord::new(level, who).job(job);
    arrived.sort_unstable();
    match &arrived[..] {
        [] => {}
        [(rank, from)] => {
            record(Level::Info)
                .peer(&format!("rank {rank}"))
                .say(format_args!("rank {rank} has come, from {from}"));
        }
        several => {
            let ranks: Vec<Rank> = several.iter().map(|(rank, _)| *rank).collect();
            record(Level::Info).say(format_args!("{} have come", Ranks(&ranks)));
        }
    }
    let (left, lost): (Vec<WorkerEnd>, Vec<WorkerEnd>) = departed.into_iter().partition(|end| end.in_order);
    if left.len() > LINES {
        let mut ranks: Vec<Rank> = left.iter().map(|end| end.rank).collect();
        ranks.sort_unstable();
        record(Level::Info).say(format_args!("{} have left", Ranks(&ranks)));
    } else {
        left.iter().for_each(|end| record(Level::Info).peer(&format!("rank {}", end.rank)).say(&end.line));
    }
    lost.iter().for_each(|end| record(Level::Warn).peer(&format!("rank {}", end.rank)).say(&end.line));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers that connect and never say their job's name may come as long as the reducer runs.
    #[test]
    fn nothing_is_kept_of_a_job_that_has_gone_without_a_name() {
        let mut journal = Journal::new("reducer".to_owned());
        let news = || JobNews { arrived: vec![(0, "192.0.2.1:1".to_owned())], departed: Vec::new() };
        let unnamed = |number| (number, JobSummary { news: news(), ..JobSummary::default() });
        journal.look(BTreeMap::from([unnamed(1), unnamed(2)]));
        assert_eq!(journal.early.len(), 2);
        journal.look(BTreeMap::from([unnamed(2)]));
        assert_eq!(journal.early.keys().copied().collect::<Vec<_>>(), [2]);
        assert_eq!(journal.early[&2].arrived.len(), 2, "what happened is told once there is a name");
        journal.look(BTreeMap::new());
        assert!(journal.early.is_empty() && journal.jobs.is_empty());
    }
}
