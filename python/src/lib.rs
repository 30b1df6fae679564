//! The native half of the Python package: the engine's calls with Python's types, errors and lock.
//! Nothing here holds the interpreter's lock while it waits, and no thread of the engine takes it: the engine's log records go
//! through a queue. The interface for Python users (arrays, tensors, futures) is written in Python on top of this.
#![deny(unsafe_code)]

mod call;
mod codecs;
mod communicator;
mod dependency;
mod device;
mod errors;
mod files;
mod flight;
mod logging;
mod memory;
mod named;
mod optimizer;
mod pending;
mod ps_lite;
mod rabit;
mod residuals;
mod restarter;
mod shards;
mod store;
mod tables;
mod trees;
mod turn;
mod waiting;

use pyo3::prelude::*;
use std::ffi::OsString;

/// The native module. Private: its users are the modules of this package.
#[pymodule]
mod _herringbone {
    use super::{Bound, PyAnyMethods, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use super::call::{CallKind, Extras};
    #[pymodule_export]
    use super::codecs::{codec, codecs};
    #[pymodule_export]
    use super::communicator::Communicator;
    #[pymodule_export]
    use super::dependency::{PyDependencyEngine, PyOnComplete, PyVariable};
    #[pymodule_export]
    use super::device::{PyDevice, PyDeviceGroup, PyStagedPending};
    #[pymodule_export]
    use super::errors::advice;
    #[pymodule_export]
    use super::files::{open_user_file, read_user_text};
    #[pymodule_export]
    use super::flight::write_torch_records;
    #[pymodule_export]
    use super::logging::end_log;
    #[pymodule_export]
    use super::main;
    #[pymodule_export]
    use super::memory::Mapped;
    #[pymodule_export]
    use super::named::{Controller, PyNamedResult, PyNamedWork};
    #[pymodule_export]
    use super::optimizer::{PyLocalOptimizer, optimizers};
    #[pymodule_export]
    use super::pending::{Completions, Pending};
    #[pymodule_export]
    use super::ps_lite::{PyPsLiteWorker, ps_lite_serve};
    #[pymodule_export]
    use super::rabit::PyRabit;
    #[pymodule_export]
    use super::residuals::PyResiduals;
    #[pymodule_export]
    use super::restarter::PyRestarter;
    #[pymodule_export]
    use super::shards::{
        PyShardGroup, PyShardSums, accumulator, aligned_shards, choose_shard_runs, even_shards,
        round_shard_sum,
    };
    #[pymodule_export]
    use super::tables::{PyParameterServer, PyTable};
    #[pymodule_export]
    use super::trees::device_trees;
    #[pymodule_export]
    use super::turn::PyTurn;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Registered before anything of this package, it is called last: what communicators say when they are closed is handed over.
        let end = module.getattr("end_log")?;
        module.py().import("atexit")?.call_method1("register", (end,))?;
        module.add("NamedError", module.py().get_type::<super::named::NamedError>())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Run the command line with `arguments` (the program's name excluded); returns the exit status.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> i32 {
    let program = std::iter::once(OsString::from("herringbone"));
    py.detach(|| herringbone_cli::main_from(program.chain(arguments)))
}
