//! A search for the parameters with which the most bytes are run per microsecond.

use alloc::{format, string::String, vec::Vec};
use core::time::Duration;

/// The thresholds that are tried, in MiB, and the cycles, in milliseconds.
const THRESHOLDS: [u64; 5] = [1, 4, 16, 64, 128];
const CYCLES: [f64; 4] = [0.5, 1.0, 2.5, 5.0];
/// A sample is the median of so many scores.
const SCORES: usize = 5;

/// The columns of the log.
pub const TUNER_COLUMNS: &str = "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,\
     tensor_fusion_threshold,score";

/// The tuned parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How many bytes are fused into one operation at most.
    pub threshold: u64,
    /// The least time from one agreement to the next.
    pub cycle: Duration,
}

/// How long a search takes.
#[derive(Clone, Copy, Debug)]
pub struct TunerSettings {
    /// The number of samples to discard at first.
    pub warmup: u32,
    /// How many cycles that have run something make a score.
    pub steps: u32,
    /// Whether the log shows that the cache is in use.
    pub caches: bool,
}

/// Tries the points of a grid one after the other, beginning with the given points, and then stays at the best one.
/// Rank 0's.
#[derive(Debug)]
pub struct Tuner {
    settings: TunerSettings,
    grid: Vec<Tuning>,
    /// Which place of the grid is tried.
    at: usize,
    warmup: u32,
    /// The best so far, with its score.
    best: Option<(Tuning, f64)>,
    scores: Vec<f64>,
    steps: u32,
    bytes: u64,
    since: Duration,
}

/// The result of a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// The parameters that all ranks are to use now.
    pub tuning: Tuning,
    /// A line for the log.
    pub line: String,
}

impl Tuner {
    /// Begins with the given parameters.
    pub fn new(given: Tuning, settings: TunerSettings) -> Self {
        let cycle = |milliseconds: &f64| Duration::from_nanos((milliseconds * 1e6) as u64);
        let all = THRESHOLDS.iter().flat_map(|threshold| {
            CYCLES
                .iter()
                .map(move |milliseconds| Tuning { threshold: threshold << 20, cycle: cycle(milliseconds) })
        });
        let grid = [given].into_iter().chain(all.filter(|tuning| *tuning != given)).collect();
        Self {
            warmup: settings.warmup,
            settings,
            grid,
            at: 0,
            best: None,
            scores: Vec::new(),
            steps: 0,
            bytes: 0,
            since: Duration::ZERO,
        }
    }

    /// Whether it has tried all.
    pub fn is_done(&self) -> bool {
        self.at >= self.grid.len()
    }

    /// A cycle has run `bytes` bytes, and ended at `now`. At the end of a sample, returns its consequence.
    pub fn ran(&mut self, bytes: u64, now: Duration) -> Option<Tuned> {
        let tried = *self.grid.get(self.at)?;
        if bytes == 0 {
            return None;
        }
        if self.steps == 0 && self.bytes == 0 {
            // Time is counted from the end of a cycle to the end of others.
            (self.since, self.bytes) = (now, 1);
            return None;
        }
        self.bytes += bytes;
        self.steps += 1;
        if self.steps < self.settings.steps.max(1) {
            return None;
        }
        let microseconds = (now.saturating_sub(self.since).as_nanos() as f64 / 1e3).max(1e-3);
        self.scores.push((self.bytes - 1) as f64 / microseconds);
        (self.steps, self.bytes, self.since) = (0, 1, now);
        if self.scores.len() < SCORES {
            return None;
        }
        self.scores.sort_by(f64::total_cmp);
        let score = self.scores[SCORES / 2];
        self.scores.clear();
        self.bytes = 0;
        if self.warmup > 0 {
            self.warmup -= 1;
            return None;
        }
        if self.best.is_none_or(|(_, best)| score > best) {
            self.best = Some((tried, score));
        }
        self.at += 1;
        let best = self.best.map_or(tried, |(best, _)| best);
        let tuning = self.grid.get(self.at).copied().unwrap_or(best);
        Some(Tuned { tuning, line: self.line(tried, score) })
    }

    /// The best so far, as a line of the log.
    pub fn best_line(&self) -> Option<String> {
        self.best.map(|(best, score)| self.line(best, score))
    }

    fn line(&self, tuning: Tuning, score: f64) -> String {
        let milliseconds = tuning.cycle.as_nanos() as f64 / 1e6;
        let caches = u8::from(self.settings.caches);
        format!("0,0,0,{caches},{milliseconds},{},{score}", tuning.threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: Tuning = Tuning { threshold: 128 << 20, cycle: Duration::from_millis(1) };

    /// Runs at a speed that depends on the parameters. Returns what is used in the end, and the lines.
    fn search(speed: impl Fn(Tuning) -> f64) -> (Tuning, Vec<String>) {
        let mut tuner = Tuner::new(GIVEN, TunerSettings { warmup: 3, steps: 10, caches: true });
        let (mut used, mut now, mut lines) = (GIVEN, Duration::ZERO, Vec::new());
        for _ in 0..100_000 {
            now += Duration::from_nanos((1e9 / speed(used)) as u64);
            if let Some(Tuned { tuning, line }) = tuner.ran(1_000_000, now) {
                used = tuning;
                lines.push(line);
            }
        }
        assert!(tuner.is_done());
        (used, lines)
    }

    #[test]
    fn the_best_of_the_grid_is_found() {
        for best in Tuner::new(GIVEN, TunerSettings { warmup: 0, steps: 1, caches: true }).grid {
            let (used, lines) = search(|tuning| if tuning == best { 2000.0 } else { 1000.0 });
            assert_eq!((used, lines.len()), (best, THRESHOLDS.len() * CYCLES.len()));
        }
    }

    #[test]
    fn where_nothing_is_better_what_was_given_stays() {
        let (used, lines) = search(|_| 1000.0);
        assert_eq!(used, GIVEN);
        assert_eq!(lines[0].split(',').count(), TUNER_COLUMNS.split(',').count());
        assert_eq!(lines[0], "0,0,0,1,1,134217728,1000");
    }
}
