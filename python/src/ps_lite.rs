//! The processes of a job that is started with ps-lite's variables, for `herringbone/kvstore/ps_lite.py`.

use crate::{
    errors::{self, to_python},
    logging, waiting,
};
use herringbone::{
    Config, Rendezvous,
    ps_lite::{PsLiteLine, PsLiteRole, PsLiteWorker},
};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Run this process as the scheduler or server that the environment names, until the job is over. Ctrl-C ends the wait.
#[pyfunction]
pub(crate) fn ps_lite_serve(py: Python<'_>) -> PyResult<()> {
    let (line, config) = of_environment()?;
    let serve = move || match line.role {
        PsLiteRole::Scheduler => line.schedule(&config),
        PsLiteRole::Server => line.serve(&config),
        PsLiteRole::Worker => line.join(&config).map(drop),
    };
    waiting::on_a_thread(py, serve)?.map_err(|error| to_python(&error))
}

/// A worker's place in the job, until it is closed.
#[pyclass(frozen, name = "PsLiteWorker", module = "herringbone._herringbone")]
pub(crate) struct PyPsLiteWorker {
    open: Mutex<Option<PsLiteWorker>>,
    #[pyo3(get)]
    rank: u32,
    #[pyo3(get)]
    workers: u32,
    /// The servers' addresses.
    #[pyo3(get)]
    servers: Vec<String>,
    /// The scheduler's host.
    #[pyo3(get)]
    host: String,
}

#[pymethods]
impl PyPsLiteWorker {
    /// Get a rank from the scheduler that the environment names, once all processes have reached it.
    #[staticmethod]
    fn join(py: Python<'_>) -> PyResult<Self> {
        logging::begin(py)?;
        let (line, config) = of_environment()?;
        let host = line.host.clone();
        let joined = waiting::on_a_thread(py, move || line.join(&config))?;
        let worker = joined.map_err(|error| to_python(&error))?;
        let (rank, workers, servers) = (worker.rank(), worker.workers(), worker.servers().to_vec());
        Ok(Self { open: Mutex::new(Some(worker)), rank, workers, servers, host })
    }

    /// Leave the job.
    fn close(&self, py: Python<'_>) {
        let closed = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(closed));
    }
}

fn of_environment() -> PyResult<(PsLiteLine, Config)> {
    let line = PsLiteLine::from_env().map_err(|error| to_python(&error))?;
    let line = line.ok_or_else(|| errors::config("DMLC_ROLE is not set: this is no job of ps-lite"))?;
    // Of the settings only the token and the timeout count, whatever rank this will be.
    let config = Config::new(0, 1, Rendezvous::Tcp(String::new())).with_env();
    Ok((line, config.map_err(|error| to_python(&error))?))
}
