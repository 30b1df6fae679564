//! Restarts of ranks: their environment, and the consequences of their ends.

use super::draws::random_token;
use super::progress_files::{NotedProgress, PROGRESS_FILE, ProgressFiles};
use super::restarts::{RankDecision, Restarts};
use crate::failure::RankFailure;
use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;

/// A rank's variable with the number of its start, from 0, as RABIT and dmlc-core's trackers call it.
const ATTEMPT: &str = "DMLC_NUM_ATTEMPT";

/// Decides for the launchers of this package which ranks restart: by their ends, and by the progress that their programs
/// write to files.
#[derive(Debug)]
pub struct Restarter {
    restarts: Restarts,
    /// There are some if ranks can start again.
    files: Option<ProgressFiles>,
}

impl Restarter {
    /// For this number of ranks. A rank that fails `max_attempts` times without progress ends the job; with 1 the first failure does.
    ///
    /// # Errors
    /// The folder for the ranks' files cannot be created; the text tells what to do.
    pub fn new(ranks: usize, max_attempts: u32) -> io::Result<Self> {
        let files = match max_attempts {
            0 | 1 => None,
            _ => Some(ProgressFiles::create(&random_token()?[..16])?),
        };
        Ok(Self { restarts: Restarts::new(ranks, max_attempts), files })
    }

    /// The variables of a rank for this start only. A rank on another host does not see the files.
    pub fn variables(&self, rank: usize, attempt: u32, sees_files: bool) -> Vec<(&'static str, OsString)> {
        let file = self.files.as_ref().filter(|_| sees_files).map(|files| files.path(rank).into_os_string());
        let file = file.map(|path| (PROGRESS_FILE, path));
        file.into_iter().chain([(ATTEMPT, attempt.to_string().into())]).collect()
    }

    /// Decides about a rank after this end of its process.
    pub fn decide(&mut self, rank: usize, status: ExitStatus) -> RankDecision {
        let decision = self.restarts.decide(rank, status, self.noted(rank));
        if let (RankDecision::Restart { .. }, Some(files)) = (&decision, &self.files) {
            files.take_back(rank);
        }
        decision
    }

    /// A restarted rank that would wait forever, because all others have left. Ask when a rank has succeeded.
    pub fn waits_in_vain(&self) -> Option<RankFailure> {
        self.restarts.waits_in_vain(|rank| self.noted(rank))
    }

    fn noted(&self, rank: usize) -> NotedProgress {
        self.files.as_ref().map_or(NotedProgress::Nothing, |files| files.read(rank))
    }

    /// From now on no rank starts again.
    pub fn end_job(&mut self) {
        self.restarts.end_job();
    }

    /// The failures of a rank since its last progress.
    pub fn failure(&self, rank: usize) -> RankFailure {
        self.restarts.failure(rank)
    }
}
