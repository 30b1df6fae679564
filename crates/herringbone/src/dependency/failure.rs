//! What becomes of a function that fails.

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

    /// What its function returned.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0.error
    }
}

impl fmt::Display for OperationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => {
                write!(f, "operation {} ({name}) of the dependency engine failed: ", self.operation())?
            }
            None => write!(f, "operation {} of the dependency engine failed: ", self.operation())?,
        }
        self.0.error.fmt(f)
    }
}

impl Error for OperationFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0.error)
    }
}

/// What a dependency engine answers instead of doing as it is asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DependencyError {
    /// A function failed; what it mutates is spoiled until a wait has told this.
    Failed(OperationFailure),
    /// A variable of another engine.
    Foreign,
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
