//! Flight records as files: the operations under way in a process when something failed, or when the record was
//! requested.
//!
//! A [record](FlightRecord) is always in memory. A process writes it after a failure about which the other ranks know
//! more, once per generation of a group and at most eight times. `herringbone status --dump` writes all members'
//! records. With `HERRINGBONE_FLIGHT_SIGNAL=1`, SIGUSR1 makes a process write its own.
//!
//! Two forms exist: [JSON](json), and the pickle that PyTorch's `torchfrtrace` reads ([`torch_pickle`]). Both are
//! modelled on PyTorch's NCCL recorder.

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
