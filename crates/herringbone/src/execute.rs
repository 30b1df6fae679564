//! Running a rank's program: compiled once, then a ready list over the segments in flight, or straight
//! through if it is small.

mod cache;
pub(crate) mod coding;
pub(crate) mod io;
pub(crate) mod issue;
pub(crate) mod operation;
mod places;
pub(crate) mod script;
mod sources;
pub(crate) mod staging;
mod step;
pub(crate) mod straight;
