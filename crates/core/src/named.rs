//! Operations that have names: ranks submit them in any order, and all ranks run them in the same one.
//!
//! Each rank has a [`Negotiator`]. Once per cycle, if any rank has something to report, all ranks combine one vector of
//! bits by *or*. It marks the operations of the [`ResponseCache`] for which each rank is ready, so in a steady state
//! nothing else is sent. Operations that are not in the cache go to rank 0 as a list. Its [`Coordinator`] counts the
//! ranks of each name, checks that they ask for the same, and answers all of them. Then every rank makes the same [plan
//! of fusion](fuse()) from the same responses.
//!
//! Nothing here does I/O. A caller combines this rank's [bits](Negotiator::call) with the others', hands back the
//! [agreement](Negotiator::agreed), brings the lists to rank 0 and its answers to all, and runs the
//! [decided](Negotiator::decide) operations. Names, semantics and texts of errors are Horovod's.

mod cache;
mod checks;
mod coordinator;
mod fusion;
mod layout;
mod message;
mod negotiator;
mod request;
mod stall;
mod tuner;

pub use cache::{Lookup, ResponseCache};
pub use coordinator::{Coordinator, Readiness};
pub use fusion::fuse;
pub use message::{
    LIST_BYTES, MalformedList, decode_answers, decode_requests, encode_answers, encode_requests,
};
pub use negotiator::{Agreement, Counters, NamedDecision, Negotiator, NegotiatorSettings};
pub use request::{
    NAME_BYTES, NamedAnswer, NamedCall, NamedGroup, NamedKind, NamedRequest, NamedResponse, SubmitError,
};
pub use stall::{Stall, StallSettings};
pub use tuner::{TUNER_COLUMNS, Tuned, Tuner, TunerSettings, Tuning};

/// The error of every operation that is queued, or submitted, when the ranks shut down.
pub const SHUT_DOWN: &str = "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to \
     allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If the shutdown was caused by an \
     exception, you should see the exception in the log before the first shutdown message.";

/// The error of a second operation of a name while the first one is under way.
pub const DUPLICATE: &str = "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor \
     that is currently being processed.  If you want to request another tensor, use a different tensor name.";

#[cfg(test)]
mod tests;
