//! How long a schedule takes: its programs, compiled and cut as executors run them, on machines of which links and costs are
//! known.
//!
//! [`simulate`] goes from event to event: a rank's thread does one thing at a time, each for what its [`Costs`] say; a message
//! goes through its sender's port, which its connections share, then through its receiver's; windows and grants are the
//! executor's. Nothing is random, and times are whole picoseconds, so all machines come to the same ones.
//!
//! Nothing that is proved stands still, for the reasons that [`lane`](crate::session::lane) gives. The simulator checks that they
//! hold: where nothing is under way any more and an operation has not ended, [`simulate`] says who stands where. With a
//! [`RandomOrder`] it goes through orders that a thread of its own would never come to; `make layouts` tries many.
//!
//! What it leaves out: packets that are lost, and how TCP learns its share of a port.
//!
//! Where all ranks do the same, one stands for all: what it sends comes back to it as the message that the rank at its place
//! would have sent. That takes 4,096 ranks in the time of one; [`Prediction::by_symmetry`] says where it was done, which is only
//! where there are too many messages to go from one to the next. For rings it comes to the same. Else it is too fast, by up to a
//! third for small buffers: messages of several ranks wait before one port, which one rank cannot show.

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
