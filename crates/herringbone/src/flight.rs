//! Flight records as files: what was under way in a process when something failed, or when it was asked.
//!
//! A [record](FlightRecord) is in memory always. After a failure of which the other ranks know more than this one, a process writes
//! it, once per generation of a group and at most eight times; `herringbone status --dump` writes those of all members; and where
//! `HERRINGBONE_FLIGHT_SIGNAL=1` is set, SIGUSR1 has a process write its own.
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
