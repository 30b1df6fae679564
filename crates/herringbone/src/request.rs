//! Requests for operations on memory that the caller looks after.

use crate::{
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
    },
    sys::region::Region,
};
use std::time::Duration;

/// A request as the engine takes it, with buffers that it may keep; see [`Communicator::submit`](crate::Communicator::submit).
#[derive(Clone, Debug)]
pub struct Request {
    /// What to do.
    pub collective: Collective,
    /// The elements' type; collectives that do not fold move bytes ([`DType::U8`]).
    pub dtype: DType,
    /// How elements are folded; of no matter to collectives that do not fold.
    pub op: ReduceOp,
    /// How many elements: of the whole buffer, or of one rank's part for reduce_scatter and all_gather.
    pub count: usize,
    /// How urgent it is; the same on all ranks. Messages of a higher priority go first wherever they wait for a socket.
    /// Above 0 an operation is *urgent*: it has slots of its own, so it begins even if ordinary operations that were
    /// issued before it have taken all memory, and overtakes them at their next segment.
    pub priority: i32,
    /// The input. May be the output, or, for all_gather, this rank's part of it; if it has other bytes in common with it, the
    /// engine works on a copy.
    pub input: Region,
    /// The output. For reduce_scatter it may be this rank's part of the input. Operations of which one writes what another
    /// reads or writes run one after the other, in the order in which they were issued.
    pub output: Region,
    /// How long it may take; the communicator's timeout if absent.
    pub timeout: Option<Duration>,
}
