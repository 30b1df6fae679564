//! Failures of calls: NCCL's code, and the line that NCCL logs.

use std::{any::Any, ffi::c_int, fmt, io, net::SocketAddr};

/// `ncclSuccess`.
pub(crate) const SUCCESS: c_int = 0;
/// `ncclSystemError`: a call of this host's system has failed.
const SYSTEM: c_int = 2;
/// `ncclInternalError`: what should not happen, here or in NCCL.
const INTERNAL: c_int = 3;
/// `ncclInvalidArgument`: an argument cannot be used.
const ARGUMENT: c_int = 4;
/// `ncclInvalidUsage`: settings or calls do not go together, here or between ranks.
const USAGE: c_int = 5;
/// `ncclRemoteError`: the network has failed, or the process at the other end.
const REMOTE: c_int = 6;

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginFailure {
    code: c_int,
    text: String,
}

impl PluginFailure {
    /// A call of this host's system has failed.
    pub(crate) fn system(doing: impl fmt::Display, error: &io::Error) -> Self {
        Self { code: SYSTEM, text: format!("{doing}: {error}") }
    }

    /// A connection has failed, or the process at its other end.
    pub(crate) fn remote(doing: impl fmt::Display, peer: SocketAddr, why: impl fmt::Display) -> Self {
        let text = format!("{doing} {peer}: {why}; look at the log of the process there");
        Self { code: REMOTE, text }
    }

    /// An argument cannot be used.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { code: ARGUMENT, text: text.into() }
    }

    /// What does not go together.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: USAGE, text: text.into() }
    }

    /// What should not happen.
    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self { code: INTERNAL, text: text.into() }
    }

    /// NCCL's code.
    pub(crate) fn code(&self) -> c_int {
        self.code
    }

    /// What went wrong, and what to do.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The plug-in has panicked.
    pub(crate) fn panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        Self::internal(format!("the plug-in panicked: {text}; this is a bug, please report it"))
    }
}
