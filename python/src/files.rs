//! Files that a user names to the Python half, read by the engine's rules.

use herringbone::FileError;
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    io,
    os::fd::{IntoRawFd as _, RawFd},
    path::{Path, PathBuf},
};

/// The text of a regular file of at most 64 MiB. A pipe or a device is refused at once, without waiting for it.
///
/// Raises OSError if the system refuses it, ValueError if it is not such a file; both name it.
#[pyfunction]
pub(crate) fn read_user_text(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    py.detach(|| herringbone::read_user_text(&path)).map_err(|error| named(&path, error))
}

/// A descriptor of a regular file of any size, for a caller that reads it piece by piece, and closes it.
/// Raises the same errors as [`read_user_text`].
#[pyfunction]
pub(crate) fn open_user_file(py: Python<'_>, path: PathBuf) -> PyResult<RawFd> {
    let opened = py.detach(|| herringbone::open_user_file(&path));
    opened.map(|file| file.into_raw_fd()).map_err(|error| named(&path, error))
}

fn named(path: &Path, error: FileError) -> PyErr {
    let text = format!("{}: {error}", path.display());
    match error {
        FileError::System(error) => io::Error::new(error.kind(), text).into(),
        _ => PyValueError::new_err(text),
    }
}
