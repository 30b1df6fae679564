//! How long a schedule takes: its programs are compiled and cut as executors run them, on machines with known links and
//! costs.
//!
//! [`simulate`] goes from event to event. A rank's thread does one thing at a time, and each takes the time given by
//! its [`Costs`]. A message goes through its sender's port, which its connections share, then through its receiver's.
//! Windows and grants work as in the executor. Nothing is random, and times are whole picoseconds, so all machines get
//! the same times.
//!
//! A proved schedule never stands still, for the reasons in [`lane`](crate::session::lane). The simulator checks that
//! they hold: if nothing is under way any more and an operation has not ended, [`simulate`] reports the state of each
//! member. With a [`RandomOrder`] it goes through orders in which a thread would never run; `make layouts` tries many.
//!
//! It leaves out lost packets, and how TCP learns its share of a port.
//!
//! If all ranks do the same, one can stand for all. Each message that it sends comes back to it, in place of the
//! message from the rank at the same position. Then 4,096 ranks take the time of one. This is done only if the messages
//! are too many to simulate one by one; [`Prediction::by_symmetry`] tells whether it was done. For rings the result is
//! the same. Otherwise it is too low, by up to a third for small buffers: messages of several ranks wait at one port,
//! which one rank cannot show.

mod calibration;
mod event;
mod lines;
mod machine;
mod member;
mod mirror;
mod outcome;
mod price;
mod roofline;
mod run;
mod workload;
mod world;

pub use calibration::{CALIBRATION_NUMBERS, Calibration, CalibrationError};
pub(crate) use lines::HEADER_BYTES;
pub use machine::{Cores, Costs, Overhead, Picoseconds, Port, RandomOrder, Rig, RigSites, SECOND, duration};
pub use outcome::{BusySpan, Fault, Prediction, Resource, Stalled, StalledMember, Untimed, Used, WorkItem};
pub use roofline::{Bound, Roof, RoofCounter, binding};
pub use run::{MessageCount, estimate, message_count, simulate, simulate_up_to};
pub use workload::Workload;
