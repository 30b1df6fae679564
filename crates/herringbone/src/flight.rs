//! Flight records as files: what was under way in a process when something failed, or when it was asked.
//!
//! A [record](FlightRecord) is always in memory. A process writes it after a failure about which the other ranks know
//! more, once per generation of a group and at most eight times. `herringbone status --dump` writes all members'
//! records. With `HERRINGBONE_FLIGHT_SIGNAL=1`, SIGUSR1 makes a process write its own.
//!
//! There are two forms: [JSON](json), and the pickle that PyTorch's `torchfrtrace` reads ([`torch_pickle`]), after whose NCCL
//! recorder both are made.

mod file;
mod json;
#[cfg(test)]
mod made_up;
mod torch;
mod value;

pub(crate) use file::{FlightFiles, SIGNAL_VARIABLE, VARIABLE};
pub use file::{FlightFormat, write_as, write_record};
pub use json::json;
pub use torch::torch_pickle;

pub use crate::core::session::flight::FlightRecord;
