//! How a job looks from outside: to those who ask all its members, and to browsers and Prometheus.
//!
//! [`ask`] asks every member of a job how it stands, [`waits`] puts together who waits for whom, and [`json`] makes one object of
//! it; `herringbone status` shows the same. A process that [`attach`]es its communicators, or a reducer that [`shows`](show) itself, answers
//! over HTTP where `HERRINGBONE_ADMIN` says: `/` is a live page, `/job.json` the job for programs, `/metrics` figures for Prometheus,
//! `/healthz` and `/readyz` say whether the process lives and whether it is of use.
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
