//! A dependency engine: functions declare the data that they read and mutate, and run side by side if that does not
//! change their results.
//!
//! It is the engine of MXNet (`include/mxnet/engine.h`), as the notes on deep learning systems draw it. A program makes
//! a [`Variable`] for each thing that its functions share, and pushes the functions in the order in which it would call
//! them. The results are the same as if the program called them one after the other.
//!
//! ```
//! use herringbone::dependency::DependencyEngine;
//! use std::sync::{Arc, Mutex};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = DependencyEngine::new(2)?;
//! let (a, b) = (Arc::new(Mutex::new(2)), Arc::new(Mutex::new(0)));
//! let (a_used, b_used) = (engine.var(), engine.var());
//! let (from, to) = (a.clone(), b.clone());
//! let add_one = move || {
//!     *to.lock().unwrap() = *from.lock().unwrap() + 1;
//!     Ok(())
//! };
//! engine.push(add_one, &[&a_used], &[&b_used], 0)?;
//! engine.wait(&b_used)?;
//! assert_eq!(*b.lock().unwrap(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! * Reads at the head of a variable's queue run together, a write alone.
//! * The ready operation of the highest priority begins first; of equal ones, the one that was pushed first.
//! * A function that fails spoils the variables that it mutates. Operations on spoiled variables are skipped and spoil
//!   theirs. [`wait`](DependencyEngine::wait) gives the failure and clears the variable,
//!   [`wait_all`](DependencyEngine::wait_all) gives the earliest unreported failure and clears all.
//! * While 65,536 operations are pending and any of them runs, a push waits, so that a long program needs no more memory than
//!   that.

mod buffer;
mod collectives;
mod completer;
mod engine;
mod failure;
mod picture;
mod queues;
mod recorder;
mod scheduler;
mod sync;
mod trace;

pub use buffer::EngineBuffer;
pub use collectives::Follower;
pub use engine::{DependencyEngine, DependencyResult, Uses, Variable, VariableWait};
pub use failure::{DependencyError, OperationFailure, Unfinished};
pub use scheduler::OnComplete;
