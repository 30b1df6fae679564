//! Tables of rows that live on servers: the parameter server.
//!
//! [`core::table`](crate::core::table) decides; this module has the rows, the server's thread, and the handles of
//! programs: [`ParameterServer`] and [`RemoteTable`]. A [`LocalOptimizer`] has the same optimizers for an array in this
//! process.
//!
//! ```no_run
//! use herringbone::core::table::{Consistency, OptimizerKind, OptimizerSpec, TableSpec};
//! use herringbone::table::ParameterServer;
//!
//! # fn main() -> Result<(), herringbone::Error> {
//! // A server on this machine: herringbone serve --tables. Its address is in HERRINGBONE_TABLES.
//! let servers = ParameterServer::from_env()?;
//! let optimizer = OptimizerSpec::of(OptimizerKind::Adagrad);
//! let spec = TableSpec { sparse: true, optimizer, consistency: Consistency::Sync, ..TableSpec::new(1_000_000, 64) };
//! let embeddings = servers.table("embeddings", spec)?;
//!
//! let (keys, mut rows) = ([7, 123_456], vec![0.0_f32; 2 * 64]);
//! embeddings.pull(&keys, &mut rows)?;
//! let gradients = vec![0.1_f32; 2 * 64];
//! embeddings.push(&keys, &gradients, false)?;
//! # Ok(())
//! # }
//! ```

mod arithmetic;
mod calls;
mod catch_up;
mod chunks;
mod client;
mod connections;
mod fold;
mod kept_push;
mod keys;
mod link;
mod local_optimizer;
mod mark;
mod memory;
mod optimizers;
mod options;
mod own;
mod reach;
mod remote_table;
mod request_message;
mod rows;
#[cfg(test)]
mod rows_tests;
mod service;
mod serving;
mod shared;
mod snapshot;
mod spare;
mod tables;
#[cfg(test)]
mod tests;
mod ways;
mod worker_step;

pub(crate) use client::RETURN;
pub use client::{ParameterServer, servers_from_env};
pub use local_optimizer::LocalOptimizer;
pub use options::{TableGroup, TableOptions};
pub use own::{OwnOptimizer, RowStep};
pub use remote_table::{RemoteTable, TableCodecs};
pub(crate) use service::TableService;
