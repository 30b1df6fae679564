//! A job from outside: for programs that ask all its members, for browsers and for Prometheus.
//!
//! [`ask`] asks every member of a job for its state, [`waits`] finds out who waits for whom, and [`json`] makes one object of
//! it; `herringbone status` shows the same. A process that [`attach`]es its communicators, or a reducer that [`shows`](show) itself, answers
//! over HTTP at the address in `HERRINGBONE_ADMIN`. `/` is a live page, `/job.json` the job for programs, `/metrics` figures for
//! Prometheus. `/healthz` tells whether the process lives, `/readyz` whether it can work.
//!
//! ```no_run
//! # fn main() -> Result<(), herringbone::Error> {
//! let comm = herringbone::Communicator::from_env()?;
//! herringbone_admin::attach(&comm); // HERRINGBONE_ADMIN=127.0.0.1:9464
//! # Ok(())
//! # }
//! ```
//! Nothing here fails a job: a port that is taken is a warning. No lock of an engine is held while a page is made.
#![forbid(unsafe_code)]

pub mod ask;
mod events;
mod files;
mod history;
mod http;
pub mod json;
mod metrics;
mod outlook;
mod pages;
mod start;
pub mod waits;
mod watch;

pub use start::{AdminError, attach, show};
