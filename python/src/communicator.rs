//! A group of ranks, seen from Python.

use crate::{
    call::{PyCall, PyMessage, message_request, parse, parse_collective, request},
    codecs::parse_codec,
    errors, logging,
    memory::Mapped,
    pending::Pending,
    residuals::PyResiduals,
    store::TorchStore,
    turn::PyTurn,
    waiting::{self, DropWithoutGil},
};
use herringbone::{Config, FoldOrder, Recent, ReduceOp, Rendezvous, Transport, core::codec::CodecChoice};
use pyo3::{
    prelude::*,
    types::{PyDict, PyString},
};
use std::{path::PathBuf, sync::Arc};

/// This process as a member of one group.
#[pyclass(frozen, module = "herringbone._herringbone")]
pub(crate) struct Communicator {
    pub(crate) inner: DropWithoutGil<herringbone::Communicator>,
}

#[pymethods]
impl Communicator {
    /// Join the job and return when all its ranks have.
    ///
    /// `rank`, `size` and `store` are given together or taken from the environment. `store` is a torch store, or
    /// "host:port" (rank 0 listens there). `store_host` is the host that a torch store's connection leads to; without
    /// it only this machine's processes can join. Other arguments that are None come from the environment, too.
    /// `timeout` is in seconds. `nameless`: ranks of several launchers' jobs can meet at the store.
    /// `again`: the job has run before, so a rank that cannot use its settings does not end it.
    #[staticmethod]
    #[pyo3(signature = (
        *, rank=None, size=None, store=None, store_host=None, token=None, reducers=None, algorithm=None,
        transport=None, fold_order=None, timeout=None, nameless=false, again=false
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn connect(
        py: Python<'_>,
        rank: Option<u32>,
        size: Option<u32>,
        store: Option<Bound<'_, PyAny>>,
        store_host: Option<String>,
        token: Option<String>,
        reducers: Option<Vec<String>>,
        algorithm: Option<&str>,
        transport: Option<&str>,
        fold_order: Option<&str>,
        timeout: Option<f64>,
        nameless: bool,
        again: bool,
    ) -> PyResult<Self> {
        logging::begin(py)?;
        let (config, place) = match (rank, size, store) {
            (Some(rank), Some(size), Some(store)) => {
                let place = Config::new(rank, size, rendezvous(store, store_host));
                (place.clone().with_env(), Ok(place))
            }
            (None, None, None) => (Config::from_env(), Config::place_from_env()),
            _ => return Err(errors::config("give rank, size and store together, or none of them")),
        };
        let mut config = config.map_err(|error| {
            if let Ok(place) = place {
                // The others wait for this rank, and have the same token.
                let given = token.clone().or_else(|| herringbone::token_from_env().ok().flatten());
                let place = if nameless { place } else { place.named_by_env() };
                let place = apply(place, given, Config::token);
                py.detach(|| herringbone::Communicator::decline(&place, &error));
            }
            errors::to_python(&error)
        })?;
        if nameless {
            config = config.nameless();
        }
        config = apply(config, token, Config::token);
        config = apply(config, reducers, Config::reducers);
        config = apply(config, waiting::duration(timeout)?, Config::timeout);
        if let Some(name) = algorithm {
            let wrong = |error| errors::config(format!("algorithm: {error}"));
            let algorithm = herringbone::parse_algorithm(name).map_err(wrong)?;
            config = config.algorithm(algorithm);
        }
        config = apply(config, transport.map(parse_transport).transpose()?, Config::transport);
        config = apply(config, fold_order.map(parse_fold_order).transpose()?, Config::fold_order);
        let connect = match again {
            true => herringbone::Communicator::connect_again,
            false => herringbone::Communicator::connect,
        };
        let inner = joined(py, move || connect(config))?;
        Ok(Self { inner: inner.into() })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.inner.size()
    }

    /// The group's name in lists and errors.
    #[getter]
    fn name(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.name())
    }

    /// Set the program's name for the group, and the group's purpose, for flight records.
    fn describe_as(&self, py: Python<'_>, name: &str, description: &str) {
        py.detach(|| self.inner.describe_as(name, description));
    }

    /// After `shrink`: how many collectives of the earlier group all remaining ranks have completed.
    #[getter]
    fn completed_before(&self) -> Option<u64> {
        self.inner.completed_before()
    }

    #[getter]
    fn address(&self) -> Option<&str> {
        self.inner.address()
    }

    /// Set the timeout of its later operations, and of later operations of groups made from it, in seconds.
    fn set_timeout(&self, seconds: f64) -> PyResult<()> {
        if let Some(timeout) = waiting::duration(Some(seconds))? {
            self.inner.set_timeout(timeout);
        }
        Ok(())
    }

    /// The group of `ranks`, an ascending list of ranks of this group; only they call it. A name can be used once. Without one, the
    /// number of groups of exactly these ranks so far is the name.
    #[pyo3(signature = (ranks, name=None))]
    fn subgroup(&self, py: Python<'_>, ranks: Vec<i64>, name: Option<&str>) -> PyResult<Self> {
        let rank = |rank: &i64| {
            let no_rank = |_| errors::config(format!("ranks of a group: {rank} is no rank"));
            u32::try_from(*rank).map_err(no_rank)
        };
        let ranks = ranks.iter().map(rank).collect::<PyResult<Vec<u32>>>()?;
        let inner = py.detach(|| match name {
            Some(name) => self.inner.subgroup(name, &ranks),
            None => self.inner.subgroup_of(&ranks),
        });
        let inner = inner.map_err(|error| errors::to_python(&error))?;
        Ok(Self { inner: inner.into() })
    }

    /// A group of the remaining ranks.
    #[pyo3(signature = (least=1, timeout=None))]
    fn shrink(&self, py: Python<'_>, least: u32, timeout: Option<f64>) -> PyResult<Self> {
        let (inner, timeout) = (self.inner.clone(), waiting::duration(timeout)?);
        Ok(Self { inner: joined(py, move || inner.shrink(least, timeout))?.into() })
    }

    /// The whole job again, with new processes for the lost ranks.
    #[pyo3(signature = (timeout=None))]
    fn replace(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Self> {
        let (inner, timeout) = (self.inner.clone(), waiting::duration(timeout)?);
        Ok(Self { inner: joined(py, move || inner.replace(timeout))?.into() })
    }

    /// The job again with some of its original ranks, after `replace` has failed.
    #[pyo3(signature = (ranks, timeout=None))]
    fn regather(&self, py: Python<'_>, ranks: Vec<u32>, timeout: Option<f64>) -> PyResult<Self> {
        let (inner, timeout) = (self.inner.clone(), waiting::duration(timeout)?);
        Ok(Self { inner: joined(py, move || inner.regather(&ranks, timeout))?.into() })
    }

    /// The lost ranks whose new processes wait to join, on rank 0.
    fn newcomers(&self, py: Python<'_>) -> Vec<u32> {
        py.detach(|| self.inner.newcomers())
    }

    /// Send a message to rank `to`, which receives it with the same tag.
    fn send(&self, py: Python<'_>, to: u32, message: PyMessage<'_>) -> PyResult<Pending> {
        let message = message_request(message, false)?;
        let pending = py.detach(|| self.inner.submit_send(to, message));
        Ok(Pending(pending.map_err(|error| errors::to_python(&error))?))
    }

    /// Receive a message from rank `of`, or from any rank if it is `None`.
    fn receive(&self, py: Python<'_>, of: Option<u32>, message: PyMessage<'_>) -> PyResult<Pending> {
        let message = message_request(message, true)?;
        let pending = py.detach(|| self.inner.submit_recv(of, message));
        Ok(Pending(pending.map_err(|error| errors::to_python(&error))?))
    }

    /// The next turn in the line of this group's callbacks; callbacks that wait for more than collectives have a line `apart`.
    #[pyo3(signature = (apart=false))]
    fn turn(&self, py: Python<'_>, apart: bool) -> PyResult<PyTurn> {
        let turn = py.detach(|| if apart { self.inner.turn_apart() } else { self.inner.turn() });
        turn.map(PyTurn).map_err(|error| errors::to_python(&error))
    }

    /// A separate line of calls, next to the program's; this turn is the whole line.
    fn line(&self, py: Python<'_>) -> PyResult<PyTurn> {
        py.detach(|| self.inner.line()).map(PyTurn).map_err(|error| errors::to_python(&error))
    }

    /// Start one operation.
    fn submit(&self, py: Python<'_>, call: PyCall<'_>) -> PyResult<Pending> {
        let request = request(call)?;
        let pending = py.detach(|| self.inner.submit(request)).map_err(|error| errors::to_python(&error))?;
        Ok(Pending(pending))
    }

    /// Run one operation to its end, as `submit` and `Pending.wait` would, but without waking another thread for it.
    /// Waits without the GIL. Raises the operation's error if it failed. Raises `KeyboardInterrupt` on Ctrl-C; the
    /// operation continues then.
    fn run(&self, py: Python<'_>, call: PyCall<'_>) -> PyResult<()> {
        let request = request(call)?;
        waiting::to_the_end(py, || self.inner.begin(request))?.map_err(|error| errors::to_python(&error))
    }

    /// The residuals of tensors that have no other owner than this group.
    #[getter]
    fn residuals(&self) -> PyResiduals {
        PyResiduals(self.inner.residuals().clone())
    }

    /// Zeroed memory that all ranks of this host map.
    fn allocate(&self, py: Python<'_>, bytes: usize) -> PyResult<Mapped> {
        let mapped = py.detach(|| self.inner.allocate(bytes)).map_err(|error| errors::to_python(&error))?;
        Ok(Mapped::new(mapped))
    }

    /// Counters of this process since it joined, over all groups: operations, bytes moved, seconds waited.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.inner.stats());
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
        all.set_item("connections", stats.connections)?;
        all.set_item("most_in_flight", stats.most_in_flight)?;
        all.set_item("most_staged", stats.most_staged)?;
        all.set_item("rebalanced", stats.rebalanced)?;
        all.set_item("waiting_s", stats.waiting.as_secs_f64())?;
        all.set_item("in_flight_s", stats.in_flight.as_secs_f64())?;
        Ok(all)
    }

    /// The last 1,024 operations of this process, oldest first, over all groups.
    fn recent<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let recent = py.detach(|| self.inner.recent());
        recent.iter().map(|operation| described(py, operation)).collect()
    }

    /// The algorithm of a collective of `count` elements, and the reason; for an all-reduce of f32 with `compression` the codec, too.
    #[pyo3(signature = (collective, dtype, count, compression=None))]
    fn explain(
        &self,
        py: Python<'_>,
        collective: &str,
        dtype: &str,
        count: usize,
        compression: Option<&str>,
    ) -> PyResult<String> {
        let (collective, dtype) = (parse_collective(collective)?, parse(dtype)?);
        let choice = compression.map(parse_codec::<CodecChoice>).transpose()?;
        py.detach(|| match choice {
            Some(choice) => self.inner.explain_compressed(collective, dtype, count, choice),
            None => self.inner.explain(collective, dtype, count),
        })
        .map_err(|error| errors::to_python(&error))
    }

    /// Write a timeline into a file of this process in the directory.
    fn start_timeline(&self, py: Python<'_>, directory: PathBuf) -> PyResult<()> {
        py.detach(|| self.inner.start_timeline(directory)).map_err(|error| errors::to_python(&error))
    }

    /// End the timeline, if one is being written.
    fn stop_timeline(&self, py: Python<'_>) {
        py.detach(|| self.inner.stop_timeline());
    }

    /// Mark the begin of a step of the program in the timeline, if one is being written.
    fn mark_step(&self, py: Python<'_>) {
        py.detach(|| self.inner.mark_step());
    }

    /// This process's membership in one line: ranks, reducers, forced settings, the timeout.
    fn describe(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.describe())
    }

    /// Leave the group. Leaving the group of all ranks leaves the job, and tells the other processes. Raises a failure elsewhere that
    /// no call here has reported; the group is closed all the same.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.close()).map_err(|error| errors::to_python(&error))
    }

    /// Leave at once: every running operation fails with `ClosedError`, and on the other ranks with `PeerLostError`.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.inner.abort());
    }
}

/// An operation as a dictionary: the call, its progress, and all of this in one line.
fn described<'py>(py: Python<'py>, operation: &Recent) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("group", &operation.group)?;
    all.set_item("sequence", operation.id.sequence)?;
    all.set_item("generation", operation.id.generation)?;
    all.set_item("collective", operation.collective.name())?;
    all.set_item("root", operation.collective.root())?;
    all.set_item("dtype", operation.dtype.name())?;
    all.set_item("op", operation.op.map(ReduceOp::name))?;
    all.set_item("count", operation.count)?;
    all.set_item("algorithm", &operation.algorithm)?;
    all.set_item("priority", operation.priority)?;
    all.set_item("state", operation.state.to_string())?;
    all.set_item("issued_s", operation.times.issued.as_secs_f64())?;
    all.set_item("began_s", operation.times.began.map(|began| began.as_secs_f64()))?;
    all.set_item("ended_s", operation.times.ended.map(|ended| ended.as_secs_f64()))?;
    all.set_item("sent", operation.moved.sent)?;
    all.set_item("received", operation.moved.received)?;
    all.set_item("text", operation.to_string())?;
    Ok(all)
}

/// `config` with `value`, if there is one.
fn apply<T>(config: Config, value: Option<T>, setter: impl FnOnce(Config, T) -> Config) -> Config {
    match value {
        Some(value) => setter(config, value),
        None => config,
    }
}

/// The ranks' meeting point: an address, or a torch store.
fn rendezvous(store: Bound<'_, PyAny>, host: Option<String>) -> Rendezvous {
    match store.cast::<PyString>() {
        Ok(address) => Rendezvous::Tcp(address.to_string()),
        Err(_) => Rendezvous::Store { store: Arc::new(TorchStore(store.unbind())), host },
    }
}

/// The communicator that `join` makes once the other ranks have come, too.
fn joined(
    py: Python<'_>,
    join: impl FnOnce() -> herringbone::Result<herringbone::Communicator> + Send + 'static,
) -> PyResult<herringbone::Communicator> {
    let shown = || join().inspect(herringbone_admin::attach);
    waiting::on_a_thread(py, shown)?.map_err(|error| errors::to_python(&error))
}

fn parse_transport(name: &str) -> PyResult<Transport> {
    name.parse().map_err(|error| errors::config(format!("transport: {error}")))
}

fn parse_fold_order(name: &str) -> PyResult<FoldOrder> {
    name.parse().map_err(|error| errors::config(format!("fold_order: {name:?} is {error}")))
}
