//! Optimizers of a server binary of one's own.

use crate::core::table::OptimizerSpec;
use std::fmt;

/// An optimizer that a server has in addition to [`OptimizerKind`](crate::core::table::OptimizerKind)'s, for tables
/// whose optimizer is named `own:` and its name.
///
/// A program that serves tables with it makes a [`Server`](crate::server::Server) with
/// [`TableOptions::optimizers`](super::TableOptions::optimizers). All servers of a table need it. The pushes of workers
/// come rescaled and clipped, row by row. The same row, state and gradient have to give the same result on every
/// server, or copies of a range differ.
///
/// ps-lite's users write a server's `KVServer::set_request_handle` for this.
pub trait OwnOptimizer: fmt::Debug + Send + Sync {
    /// Its name, without `own:`.
    fn name(&self) -> &str;

    /// How many numbers it keeps for each element of a row: 0, 1 or 2. They begin at 0.
    fn planes(&self) -> usize;

    /// Changes a row of `f32` or `bf16`.
    fn step_f32(&self, step: RowStep<'_, f32>);

    /// The same of `f64`.
    fn step_f64(&self, step: RowStep<'_, f64>);
}

/// A step of a row.
#[derive(Debug)]
pub struct RowStep<'a, R> {
    /// Its elements, which are to change.
    pub row: &'a mut [R],
    /// Its state: the first number of all elements, then the second one.
    pub state: &'a mut [R],
    /// The push, rescaled and clipped.
    pub gradient: &'a [R],
    /// The table's optimizer with its numbers, as they were last set.
    pub optimizer: &'a OptimizerSpec,
    /// How many steps the row has taken, this one included; 0 if the optimizer keeps nothing.
    pub steps: u32,
}
