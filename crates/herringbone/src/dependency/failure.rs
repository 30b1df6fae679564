//! The failure of a function.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Why an operation of a dependency engine failed. Its clones are one failure; dependants that are skipped pass it on.
#[derive(Clone, Debug)]
pub struct OperationFailure(Arc<FailureState>);

#[derive(Debug)]
struct FailureState {
    operation: u64,
    name: Option<Arc<str>>,
    error: Box<dyn Error + Send + Sync>,
    /// Whether a wait has given it to somebody.
    is_reported: AtomicBool,
}

impl OperationFailure {
    pub(crate) fn new(operation: u64, name: Option<Arc<str>>, error: Box<dyn Error + Send + Sync>) -> Self {
        Self(Arc::new(FailureState { operation, name, error, is_reported: AtomicBool::new(false) }))
    }

    /// Says that a wait has given it to somebody.
    pub(crate) fn tell(&self) {
        self.0.is_reported.store(true, Ordering::Relaxed);
    }

    /// Whether a wait has given it to somebody.
    pub(crate) fn is_reported(&self) -> bool {
        self.0.is_reported.load(Ordering::Relaxed)
    }

    /// The number of the operation that failed: how many were pushed before it.
    pub fn operation(&self) -> u64 {
        self.0.operation
    }

    /// Its name, if it was pushed with one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// The error of its function.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0.error
    }
}

impl fmt::Display for OperationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = labelled("operation", self.operation(), self.name());
        write!(f, "{label} of the dependency engine failed: {}", self.0.error)
    }
}

/// A thing of an engine in texts: its number, and its name if it has one.
pub(crate) fn labelled(thing: &str, number: u64, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{thing} {number} ({name})"),
        None => format!("{thing} {number}"),
    }
}

/// Why an operation failed whose function was to end it later: its `OnComplete` was dropped.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Unfinished;

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its function dropped the ticket that ends the operation, or panicked")
    }
}

impl Error for Unfinished {}

impl Error for OperationFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0.error)
    }
}

/// The error of a dependency engine's call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DependencyError {
    /// A function failed; its mutated variables are spoiled until a wait has reported this.
    Failed(OperationFailure),
    /// A variable of another engine.
    Foreign,
    /// An operation releases a variable that it does not use.
    Unused {
        /// The operation, by its number and name.
        operation: String,
        /// The variable, likewise.
        variable: String,
    },
    /// A function of the engine waits for the engine.
    Inside,
    /// The engine was closed.
    Closed,
    /// The engine was made before a fork and is used in the child.
    Forked,
}

impl fmt::Display for DependencyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed(failure) => return failure.fmt(f),
            Self::Foreign => "a variable belongs to another dependency engine; make it with var() of this one",
            Self::Unused { operation, variable } => {
                return write!(
                    f,
                    "{operation} cannot release {variable}: it was pushed without it, or has released it; release a variable \
                     that it reads or mutates"
                );
            }
            Self::Inside => {
                "a function of the dependency engine may not wait for the engine, which may wait for it; declare what it \
                 reads, or push another operation"
            }
            Self::Closed => "the dependency engine was closed; make a new one",
            Self::Forked => {
                "this process was forked after the dependency engine was made, and has none of its threads; make a new one \
                 in the child"
            }
        })
    }
}

impl Error for DependencyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(failure) => failure.source(),
            _ => None,
        }
    }
}
