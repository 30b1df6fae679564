//! Tables on a parameter server, for the classes of `herringbone/tables.py`.

use crate::{
    call::regions,
    errors::{self, to_python},
    logging,
    memory::PySpan,
    optimizer::{PyNumbers, optimizer_spec},
    waiting,
};
use herringbone::{
    Config, Region, Rendezvous,
    core::table::{Consistency, Initializer, NotANumber, TableSpec, Unusable, ValueCodec},
    table::{ParameterServer, RemoteTable, TableCodecs, servers_from_env},
};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// A table as Python describes it: an object with these attributes.
#[derive(FromPyObject)]
pub(crate) struct PySpec {
    rows: u64,
    width: u32,
    dtype: String,
    sparse: bool,
    /// One of `zeros`, `normal` and `missing`.
    initializer: String,
    seed: u64,
    deviation: f64,
    optimizer: String,
    numbers: PyNumbers,
    /// From how many steps pushes can be missing in a pull; `None` means any number.
    bound: Option<u32>,
    /// How many steps take effect together, if no bound is given.
    first: Option<u32>,
    counts_nan: bool,
}

/// A worker's connections to the servers of its tables, until it is closed.
#[pyclass(frozen, name = "ParameterServer", module = "herringbone._herringbone")]
pub(crate) struct PyParameterServer {
    open: Mutex<Option<ParameterServer>>,
    /// This worker's.
    #[pyo3(get)]
    rank: u32,
    /// How many there are.
    #[pyo3(get)]
    workers: u32,
}

/// A table, until it is closed.
#[pyclass(frozen, name = "Table", module = "herringbone._herringbone")]
pub(crate) struct PyTable(Mutex<Option<Arc<RemoteTable>>>);

#[pymethods]
impl PyParameterServer {
    /// Connect to servers; arguments that are None come from the environment. `timeout` is in seconds, for each call.
    #[staticmethod]
    #[pyo3(signature = (*, servers=None, rank=None, workers=None, token=None, timeout=None))]
    fn connect(
        py: Python<'_>,
        servers: Option<Vec<String>>,
        rank: Option<u32>,
        workers: Option<u32>,
        token: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        logging::begin(py)?;
        let config = match (rank, workers) {
            (Some(rank), Some(workers)) => {
                Config::new(rank, workers, Rendezvous::Tcp(String::new())).with_env()
            }
            (None, None) => Config::worker_from_env(),
            _ => return Err(errors::config("give rank and workers together, or none of them")),
        };
        let mut config = config.map_err(|error| to_python(&error))?;
        config = match token {
            Some(token) => config.token(token),
            None => config,
        };
        config = match waiting::duration(timeout)? {
            Some(timeout) => config.timeout(timeout),
            None => config,
        };
        let (rank, workers) = (config.rank(), config.world());
        let connect = move || {
            let servers = servers.map_or_else(servers_from_env, Ok)?;
            ParameterServer::connect(&config, &servers)
        };
        let made = to_the_end(py, connect)?;
        Ok(Self { open: Mutex::new(Some(made)), rank, workers })
    }

    /// Open a table; with `restores`, a missing one is made from the newest snapshot.
    fn table(&self, py: Python<'_>, name: &str, spec: PySpec, restores: bool) -> PyResult<PyTable> {
        let (servers, spec) = (self.open()?, table_spec(name, &spec)?);
        let name = name.to_owned();
        let open = move || {
            if restores {
                servers.restore(&name, &spec)?;
            }
            servers.table(&name, spec)
        };
        let table = to_the_end(py, open)?;
        Ok(PyTable(Mutex::new(Some(table))))
    }

    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let (servers, name) = (self.open()?, name.to_owned());
        to_the_end(py, move || servers.drop_table(&name))
    }

    fn close(&self, py: Python<'_>) {
        let closed = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(closed));
    }
}

impl PyParameterServer {
    fn open(&self) -> PyResult<ParameterServer> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| errors::closed("this ParameterServer was closed: make a new one"))
    }
}

#[pymethods]
impl PyTable {
    /// How many steps this worker has ended.
    #[getter]
    fn step(&self) -> PyResult<u64> {
        Ok(self.open()?.step())
    }

    /// Push the rows of the keys in the memory of `keys`, which are uint64, or without `keys` the rows from `first` on.
    fn push(
        &self,
        py: Python<'_>,
        keys: Option<PySpan>,
        first: u64,
        values: PySpan,
        owner: &Bound<'_, PyAny>,
        more: bool,
    ) -> PyResult<()> {
        let (table, keys) = (self.open()?, keys_at(keys, owner)?);
        let values = regions(values, (0, 0), owner).0;
        to_the_end(py, move || match &keys {
            Some(keys) => table.push_region(keys, &values, more),
            None => table.push_range_region(first, &values, more),
        })
    }

    /// Pull rows into memory, likewise.
    fn pull(
        &self,
        py: Python<'_>,
        keys: Option<PySpan>,
        first: u64,
        values: PySpan,
        owner: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (table, keys) = (self.open()?, keys_at(keys, owner)?);
        let values = regions((0, 0), values, owner).1;
        let rows = values.clone();
        let pulled = to_the_end(py, move || match &keys {
            Some(keys) => table.pull_region(keys, &values),
            None => table.pull_range_region(first, &values),
        });
        if pulled.is_err() {
            // What comes later is not for the memory of a call that has failed.
            rows.revoke();
        }
        pulled
    }

    /// Let all servers write the table to disk. Returns the snapshot's number.
    fn snapshot(&self, py: Python<'_>) -> PyResult<u64> {
        let table = self.open()?;
        to_the_end(py, move || table.snapshot())
    }

    fn end_step(&self, py: Python<'_>) -> PyResult<()> {
        let table = self.open()?;
        to_the_end(py, move || table.end_step())
    }

    fn tune(&self, py: Python<'_>, parameter: &str, number: f64) -> PyResult<()> {
        let (table, parameter) = (self.open()?, parameter.to_owned());
        to_the_end(py, move || table.tune(&parameter, number))
    }

    /// Compress values from now on, with the codecs of these names.
    fn set_codecs(&self, push: &str, pull: &str) -> PyResult<()> {
        let table = self.open()?;
        let codecs = TableCodecs { push: value_codec(push)?, pull: value_codec(pull)? };
        table.set_codecs(codecs).map_err(|error| to_python(&error))
    }

    fn close(&self, py: Python<'_>) {
        let closed = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Calls of other threads have handles of their own.
        py.detach(|| closed.inspect(|table| table.leave()));
    }
}

impl PyTable {
    fn open(&self) -> PyResult<Arc<RemoteTable>> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| errors::closed("this table was closed: open it again"))
    }
}

/// The result of a call that waits for servers. Ctrl-C ends the wait, and the call continues.
fn to_the_end<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> herringbone::Result<T> + Send + 'static,
) -> PyResult<T> {
    waiting::on_a_thread(py, call)?.map_err(|error| to_python(&error))
}

/// The keys in some memory.
fn keys_at(keys: Option<PySpan>, owner: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u64>>> {
    let Some(span) = keys else { return Ok(None) };
    let region: Region = regions(span, (0, 0), owner).0;
    let access = region.access().ok_or_else(|| errors::closed("the keys' memory was revoked"))?;
    let bytes = access.span().to_vec();
    Ok(Some(bytes.as_chunks().0.iter().map(|eight| u64::from_ne_bytes(*eight)).collect()))
}

fn value_codec(name: &str) -> PyResult<ValueCodec> {
    name.parse().map_err(|Unusable(what)| errors::argument(what))
}

fn table_spec(name: &str, spec: &PySpec) -> PyResult<TableSpec> {
    let wrong = |what: String| errors::argument(format!("table {name:?}: {what}"));
    let initializer = match &*spec.initializer {
        "zeros" => Initializer::Zeros,
        "missing" => Initializer::Missing,
        _ => Initializer::Normal { seed: spec.seed, deviation: spec.deviation },
    };
    let optimizer = optimizer_spec(&spec.optimizer, &spec.numbers).map_err(wrong)?;
    let dtype = spec.dtype.parse().map_err(|_| wrong(format!("{} is no type of elements", spec.dtype)))?;
    let consistency = match spec.bound {
        None => spec.first.map_or(Consistency::Async, Consistency::FirstOf),
        Some(0) => Consistency::Sync,
        Some(bound) => Consistency::Bounded(bound),
    };
    let not_a_number = if spec.counts_nan { NotANumber::Counted } else { NotANumber::Refused };
    let (rows, width, sparse) = (spec.rows, spec.width, spec.sparse);
    Ok(TableSpec {
        dtype,
        sparse,
        initializer,
        optimizer,
        consistency,
        not_a_number,
        ..TableSpec::new(rows, width)
    })
}
