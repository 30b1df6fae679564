//! A group of ranks, seen from Python.

use crate::{
    errors,
    memory::{self, PySpan},
    pending::Pending,
    store::TorchStore,
    waiting,
};
use herringbone::{Collective, Config, Rank, Rendezvous, Request};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyString},
};
use std::{str::FromStr, sync::Arc};

/// The job token that the environment names, if it names one.
#[pyfunction]
pub(crate) fn configured_token() -> PyResult<Option<String>> {
    let config = Config::from_env().map_err(|error| errors::to_python(&error))?;
    Ok(config.configured_token().map(str::to_owned))
}

/// The reducers' addresses that the environment names.
#[pyfunction]
pub(crate) fn configured_reducers() -> PyResult<Vec<String>> {
    let config = Config::from_env().map_err(|error| errors::to_python(&error))?;
    Ok(config.configured_reducers().to_vec())
}

/// The member of one group that this process is.
#[pyclass(frozen, module = "herringbone._herringbone")]
pub(crate) struct Communicator(Arc<herringbone::Communicator>);

#[pymethods]
impl Communicator {
    /// Join the job and return when all its ranks have.
    ///
    /// `store` is a torch store, or "host:port" (rank 0 listens there), or None (the environment says). `store_host`
    /// is the host that a torch store's connection leads to; without one only this machine's processes can join.
    /// What is None comes from the environment. `timeout` is in seconds.
    #[staticmethod]
    #[pyo3(signature = (
        *, rank=None, size=None, store=None, store_host=None, token=None, reducers=None, algorithm=None,
        transport=None, timeout=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn connect(
        py: Python<'_>,
        rank: Option<Rank>,
        size: Option<u32>,
        store: Option<Bound<'_, PyAny>>,
        store_host: Option<String>,
        token: Option<String>,
        reducers: Option<Vec<String>>,
        algorithm: Option<&str>,
        transport: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let mut config = Config::from_env().map_err(|error| errors::to_python(&error))?;
        let given = |algorithm: &str, error: &dyn std::fmt::Display| errors::config(format!("{algorithm}: {error}"));
        config = apply(config, rank, Config::rank);
        config = apply(config, size, Config::world);
        config = apply(config, token, Config::token);
        config = apply(config, reducers, Config::reducers);
        config = apply(config, waiting::duration(timeout)?, Config::timeout);
        if let Some(name) = algorithm {
            config = config.algorithm(name.parse().map_err(|error| given("algorithm", &error))?);
        }
        if let Some(name) = transport {
            config = config.transport(name.parse().map_err(|error| given("transport", &error))?);
        }
        config = apply(config, store.map(|store| rendezvous(store, store_host)), Config::rendezvous);
        joined(py, move || herringbone::Communicator::connect(config))
    }

    #[getter]
    fn rank(&self) -> Rank {
        self.0.rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.0.size()
    }

    /// The group of `ranks` (ranks of this group, in the order of their new ranks); only members call it.
    fn subgroup(&self, py: Python<'_>, name: String, ranks: Vec<Rank>) -> PyResult<Self> {
        let parent = Arc::clone(&self.0);
        joined(py, move || parent.subgroup(&name, &ranks))
    }

    /// Start one operation.
    ///
    /// `source` and `target` are (address, bytes) of memory that lives as long as `keep` does: wrong numbers here
    /// are wrong memory accesses, which is why this class is private. `timeout` is in seconds.
    #[pyo3(signature = (collective, dtype, op, count, root, source, target, keep, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "one call per operation, so nothing is built to be taken apart")]
    #[allow(unsafe_code)]
    fn submit(
        &self,
        py: Python<'_>,
        collective: &str,
        dtype: &str,
        op: &str,
        count: usize,
        root: Rank,
        source: PySpan,
        target: PySpan,
        keep: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let (collective, dtype, op) = (parse_collective(collective, root)?, parse(dtype)?, parse(op)?);
        let timeout = waiting::duration(timeout)?;
        // SAFETY: the Python modules that call this promise it; see `memory::regions`.
        let (input, output) = unsafe { memory::regions(source, target, keep) };
        let request = Request { collective, dtype, op, count, input, output, timeout };
        let pending = py.detach(|| self.0.submit(request)).map_err(|error| errors::to_python(&error))?;
        Ok(Pending(pending))
    }

    /// Counters since the group formed: operations, bytes by role and transport, seconds waited.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.0.stats());
        let operations = PyDict::new(py);
        for ((collective, algorithm), count) in &stats.operations {
            let by_algorithm = match operations.get_item(collective)? {
                Some(known) => known.cast_into::<PyDict>()?,
                None => PyDict::new(py),
            };
            by_algorithm.set_item(algorithm, count)?;
            operations.set_item(collective, by_algorithm)?;
        }
        let all = PyDict::new(py);
        all.set_item("operations", operations)?;
        all.set_item("failed", stats.failed)?;
        let ways = [
            ("workers_shm", stats.workers_shm),
            ("workers_tcp", stats.workers_tcp),
            ("reducers_tcp", stats.reducers_tcp),
        ];
        for (way, moved) in ways {
            let bytes = PyDict::new(py);
            bytes.set_item("sent", moved.sent)?;
            bytes.set_item("received", moved.received)?;
            all.set_item(way, bytes)?;
        }
        all.set_item("most_in_flight", stats.most_in_flight)?;
        all.set_item("waiting_s", stats.waiting.as_secs_f64())?;
        all.set_item("in_flight_s", stats.in_flight.as_secs_f64())?;
        Ok(all)
    }

    /// The members, transports and choices in words.
    fn describe(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.describe())
    }

    /// Leave: waits until the others hold what they need from this rank, then says goodbye.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    /// Leave at once: every running operation fails with `ClosedError`.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.0.abort());
    }
}

/// `config` with `value`, if there is one.
fn apply<T>(config: Config, value: Option<T>, setter: impl FnOnce(Config, T) -> Config) -> Config {
    match value {
        Some(value) => setter(config, value),
        None => config,
    }
}

/// Where the ranks meet: an address, or a torch store.
fn rendezvous(store: Bound<'_, PyAny>, store_host: Option<String>) -> Rendezvous {
    match store.cast::<PyString>() {
        Ok(address) => Rendezvous::Tcp { address: address.to_string() },
        Err(_) => Rendezvous::Store(Arc::new(TorchStore(store.unbind())), store_host),
    }
}

/// The communicator that `join` makes once the other ranks have come, too.
fn joined(
    py: Python<'_>,
    join: impl FnOnce() -> herringbone::Result<herringbone::Communicator> + Send + 'static,
) -> PyResult<Communicator> {
    let communicator = waiting::on_a_thread(py, join)?.map_err(|error| errors::to_python(&error))?;
    Ok(Communicator(Arc::new(communicator)))
}

fn parse_collective(name: &str, root: Rank) -> PyResult<Collective> {
    Ok(match name {
        "all_reduce" => Collective::AllReduce,
        "reduce" => Collective::Reduce { root },
        "broadcast" => Collective::Broadcast { root },
        "reduce_scatter" => Collective::ReduceScatter,
        "all_gather" => Collective::AllGather,
        "barrier" => Collective::Barrier,
        _ => return Err(PyValueError::new_err(format!("no collective is called {name}"))),
    })
}

fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str) -> PyResult<T> {
    name.parse().map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}
