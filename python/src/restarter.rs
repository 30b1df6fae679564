//! Decides which ranks `horovodrun` restarts, as `herringbone launch` does.

use herringbone_cli::{RankDecision, Restarter};
use pyo3::{exceptions::PyIndexError, prelude::*};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// See [`Restarter`].
#[pyclass(name = "Restarter", module = "herringbone._herringbone")]
pub(crate) struct PyRestarter {
    restarter: Restarter,
    ranks: usize,
}

#[pymethods]
impl PyRestarter {
    #[new]
    fn new(ranks: usize, max_attempts: u64) -> PyResult<Self> {
        let restarter = Restarter::new(ranks, u32::try_from(max_attempts).unwrap_or(u32::MAX))?;
        Ok(Self { restarter, ranks })
    }

    fn variables(
        &self,
        rank: usize,
        attempt: u32,
        sees_files: bool,
    ) -> PyResult<HashMap<&'static str, OsString>> {
        self.check(rank)?;
        Ok(self.restarter.variables(rank, attempt, sees_files).into_iter().collect())
    }

    /// `status` is as in `subprocess`: minus the signal, if one has ended the process. Returns the number of the next start and
    /// the pause before it in seconds, or `None` if the rank is not restarted.
    fn decide(&mut self, rank: usize, status: i32) -> PyResult<Option<(u32, f64)>> {
        self.check(rank)?;
        let raw = if status < 0 { status.wrapping_neg() & 0x7f } else { (status & 0xff) << 8 };
        Ok(match self.restarter.decide(rank, ExitStatus::from_raw(raw)) {
            RankDecision::Restart { attempt, pause } => Some((attempt, pause.as_secs_f64())),
            RankDecision::Done | RankDecision::EndJob(_) => None,
        })
    }

    /// How a restarted rank failed that waits in vain, because all others have left; `None` if no rank does.
    fn waits_in_vain(&self) -> Option<(usize, String)> {
        self.restarter.waits_in_vain().map(|failure| (failure.rank, failure.to_string()))
    }

    /// How a rank has failed, and what to do about it.
    fn failure(&self, rank: usize) -> PyResult<String> {
        self.check(rank)?;
        Ok(self.restarter.failure(rank).to_string())
    }
}

impl PyRestarter {
    fn check(&self, rank: usize) -> PyResult<()> {
        if rank < self.ranks {
            return Ok(());
        }
        Err(PyIndexError::new_err(format!("rank {rank} is none of {} ranks", self.ranks)))
    }
}
