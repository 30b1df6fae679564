//! The engine's errors as instances of the classes of `herringbone/errors.py`.

use herringbone::{ADVICE, Error, ErrorKind};
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// The exception classes. Each is imported when it is first needed.
mod class {
    use pyo3::import_exception;

    import_exception!(herringbone.errors, AuthError);
    import_exception!(herringbone.errors, ClosedError);
    import_exception!(herringbone.errors, ConfigError);
    import_exception!(herringbone.errors, ConnectionLostError);
    import_exception!(herringbone.errors, CorruptError);
    import_exception!(herringbone.errors, ForkedError);
    import_exception!(herringbone.errors, HerringboneError);
    import_exception!(herringbone.errors, LinkLostError);
    import_exception!(herringbone.errors, MismatchError);
    import_exception!(herringbone.errors, OperationTimeoutError);
    import_exception!(herringbone.errors, OutOfMemoryError);
    import_exception!(herringbone.errors, OwnMemoryError);
    import_exception!(herringbone.errors, PeerLostError);
    import_exception!(herringbone.errors, ProtocolError);
    import_exception!(herringbone.errors, ReducerLostError);
    import_exception!(herringbone.errors, RendezvousError);
    import_exception!(herringbone.errors, ReplayError);
    import_exception!(herringbone.errors, ArgumentError);
    import_exception!(herringbone.errors, TableError);
    import_exception!(herringbone.errors, TableServerLostError);
    import_exception!(herringbone.errors, UnsupportedError);
}

/// The advice in the engine's errors, by the case; :mod:`herringbone.advice` has it for each interface.
#[pyfunction]
pub(crate) fn advice() -> BTreeMap<&'static str, &'static str> {
    ADVICE.into()
}

/// `error` for Python, with its text and the values that a program might use.
pub(crate) fn to_python(error: &Error) -> PyErr {
    of(error, None)
}

/// `error` about something that a program has named.
pub(crate) fn of(error: &Error, name: Option<&str>) -> PyErr {
    let text = match (error.to_string(), name) {
        (text, Some(name)) if !text.contains(name) => format!("{name}: {text}"),
        (text, _) => text,
    };
    match error.kind().clone() {
        ErrorKind::PeerLost { ranks, .. } => class::PeerLostError::new_err((text, ranks)),
        ErrorKind::ReducerLost { address, .. } => class::ReducerLostError::new_err((text, address)),
        ErrorKind::Table { table, .. } => class::TableError::new_err((text, table)),
        ErrorKind::TableServerLost { address, .. } => class::TableServerLostError::new_err((text, address)),
        ErrorKind::Replay { .. } => class::ReplayError::new_err(text),
        ErrorKind::Mismatch { calls, .. } => class::MismatchError::new_err((text, calls)),
        ErrorKind::Timeout { missing, .. } => class::OperationTimeoutError::new_err((text, missing)),
        ErrorKind::Memory { rank, .. } if error.rank() == Some(rank) => {
            class::OwnMemoryError::new_err((text, rank))
        }
        ErrorKind::Memory { rank, .. } => class::OutOfMemoryError::new_err((text, rank)),
        ErrorKind::Auth { .. } => class::AuthError::new_err(text),
        ErrorKind::Config { .. } => class::ConfigError::new_err(text),
        ErrorKind::Rendezvous { .. } => class::RendezvousError::new_err(text),
        ErrorKind::Protocol { .. } => class::ProtocolError::new_err(text),
        ErrorKind::Corrupt { .. } => class::CorruptError::new_err(text),
        ErrorKind::LinkLost { ranks } => class::LinkLostError::new_err((text, ranks)),
        ErrorKind::Forked => class::ForkedError::new_err(text),
        ErrorKind::Closed => class::ClosedError::new_err(text),
        ErrorKind::Unsupported { .. } => class::UnsupportedError::new_err(text),
        ErrorKind::Io { .. } => class::ConnectionLostError::new_err(text),
        _ => class::HerringboneError::new_err(text),
    }
}

/// A setting that cannot be used, in the engine's words.
pub(crate) fn config(text: impl Into<String>) -> PyErr {
    class::ConfigError::new_err(text.into())
}

/// Arguments of one call that do not fit together.
pub(crate) fn argument(text: impl Into<String>) -> PyErr {
    class::ArgumentError::new_err(text.into())
}

/// An error of a kind that the engine's own errors do not have.
pub(crate) fn plain(text: impl Into<String>) -> PyErr {
    class::HerringboneError::new_err(text.into())
}

/// Something was used after its end.
pub(crate) fn closed(text: impl Into<String>) -> PyErr {
    class::ClosedError::new_err(text.into())
}

/// Something was used in a forked child.
pub(crate) fn forked(text: impl Into<String>) -> PyErr {
    class::ForkedError::new_err(text.into())
}
