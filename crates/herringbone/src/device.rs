//! Collectives on an accelerator's memory: staged in registered memory of the host, slice by slice, beside the program's streams.
//!
//! A [`DeviceGroup`] takes calls of one group for one device. A call records an event behind what the program has queued on its
//! stream, and returns. A thread of the group then carries out what [`core::staging`](crate::core::staging) decides. It queues copies on two
//! streams of its own, starts the engine's operation once a slice is on the host, and queues the copies back. It sleeps between looks
//! at its events, and never waits for the device as a whole.
//!
//! * **Order.** All ranks start the slices of a line in the order of the calls: each call takes a turn in its caller's line of calls.
//!   Messages are a line of their own, because no order of collectives tells when they come. A call of several slices begins with a
//!   barrier at which ranks compare the whole call. So all ranks make the same number of operations for it, or only the barrier.
//! * **Streams.** [`StagedPending::wait_on_stream`] has the program's stream wait for the result: for an event, or for a value that
//!   the stream of copies writes. If the operation fails, the host writes the value.
//! * **Memory.** Slots are in memory that the ranks of the host map, so an all-reduce folds them without further copies. Each piece is
//!   registered by itself, on the thread that calls, because a driver may wait for its streams while it registers.

mod driver;
#[doc(hidden)]
pub mod fake;
mod line;
mod outcome;
mod shape;
mod shared;

pub use crate::sys::{
    cuda::Cuda,
    device::{Accelerator, AcceleratorError, DeviceMemory, DeviceStream},
};
pub use outcome::StagedPending;
pub use shape::{StagedBuffers, StagedCall};

use crate::{Communicator, Error, Result};
use outcome::{StagedOutcome, error_of};
use shape::{SLICE, StagedCut};
use shared::{CLOSE, DeviceShared, LineKey, StagedSubmission, WAKE, lock};
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        mpsc::{self, Sender},
    },
    thread::JoinHandle,
};

/// One group's calls on the memory of one device.
pub struct DeviceGroup {
    shared: Arc<DeviceShared>,
    sender: Sender<u64>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceGroup {
    /// The group's calls for a device. All ranks of the group make one for theirs before their first call on its memory.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the system starts no thread.
    pub fn new(communicator: Communicator, accelerator: Arc<dyn Accelerator>) -> Result<Self> {
        Self::with_slices(communicator, accelerator, SLICE)
    }

    /// The same, with slices of this length in bytes: a multiple of 16, the same on all ranks.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[doc(hidden)]
    pub fn with_slices(
        communicator: Communicator,
        accelerator: Arc<dyn Accelerator>,
        slice: usize,
    ) -> Result<Self> {
        let rank = communicator.rank();
        let shared = Arc::new(DeviceShared {
            communicator,
            accelerator,
            slice,
            lines: Mutex::default(),
            inbox: Mutex::default(),
            pieces: Mutex::default(),
            unseen: Mutex::default(),
        });
        let (sender, receiver) = mpsc::channel();
        let (driven, tokens) = (shared.clone(), sender.clone());
        let thread = std::thread::Builder::new()
            .name("herringbone-device".to_owned())
            .spawn(move || driver::drive(driven, &receiver, tokens))
            .map_err(|error| Error::io("starting a thread for a device's tensors", error).at(rank))?;
        Ok(Self { shared, sender, thread: Some(thread) })
    }

    /// Starts a call behind what the program has queued on `stream`, and returns at once.
    ///
    /// The buffers are touched until the operation is [done](StagedPending::is_done); the group keeps them.
    ///
    /// If the accelerator refuses something that the call needs, or a buffer is [lacking](DeviceMemory::is_lacking), the call is made
    /// without memory. So it fails on all ranks, and none waits for this one. [`earlier_failure`](StagedPending::earlier_failure) has
    /// the error of an earlier call.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) while the stream is captured for a graph, and
    /// [`ErrorKind::BufferSize`](crate::ErrorKind::BufferSize) if two buffers of a call in slices differ in length: the call is not made.
    /// The operation has the errors of [`Communicator::submit`].
    pub fn submit(
        &self,
        call: StagedCall,
        buffers: StagedBuffers,
        stream: &DeviceStream,
    ) -> Result<StagedPending> {
        let shared = &self.shared;
        let (communicator, accelerator) = (&shared.communicator, &shared.accelerator);
        communicator.check_usable(call.name())?;
        if self.thread.is_none() {
            return Err(shared.closed(call.name()));
        }
        let rank = communicator.rank();
        let is_capturing = accelerator.is_capturing(stream);
        if matches!(is_capturing, Ok(true)) {
            let problem = "a graph is captured on this stream, and the host takes part in each call of Herringbone; call it \
                           outside of the capture";
            return Err(Error::unsupported(problem).about(rank, call.name()));
        }
        let asking = communicator.asking_line()?;
        let key = LineKey { asking, has_messages: call.is_message() };
        let cut = StagedCut::of(&call, &buffers, rank, shared.slice);
        cut.check(&buffers).map_err(|error| error.about(rank, call.name()))?;
        let means = match shared.lack(&buffers) {
            Some(lack) => Err(lack),
            None => is_capturing
                .and_then(|_| shared.means(key, &cut, &buffers, stream))
                .map_err(|error| error_of(&error)),
        };
        let means = means.map_err(|error| error.about(rank, call.name()));
        let outcome =
            StagedOutcome::new(communicator, accelerator.clone(), shared.unseen_failure(), call.name());
        if let Err(error) = &means {
            outcome.fail(error);
        }
        lock(&shared.unseen).push(outcome.clone());
        let mut inbox = lock(&shared.inbox);
        // In one go: turns are in the order of submissions.
        let turn = (!call.is_message()).then(|| communicator.staged_turn(asking));
        inbox.push(StagedSubmission { key, call, buffers, cut, turn, means, outcome: outcome.clone() });
        drop(inbox);
        // The thread lives until this is closed.
        let _woken = self.sender.send(WAKE);
        Ok(StagedPending(outcome))
    }

    /// The numbers of this group's own streams, for an owner of memory that wants to know who uses it.
    pub fn streams(&self) -> Vec<DeviceStream> {
        lock(&self.shared.lines).values().flat_map(|parts| [*parts.outward, *parts.inward]).collect()
    }

    /// Ends the thread once its operations are over, at the latest after the group's timeout, when the remaining ones fail.
    pub fn close(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.shared.communicator.parts().0.is_forked() {
            // A forked child has no such thread.
            std::mem::forget(thread);
            return;
        }
        let _closing = self.sender.send(CLOSE);
        let _ended = thread.join();
    }
}

impl Drop for DeviceGroup {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for DeviceGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceGroup").field("accelerator", &self.shared.accelerator).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
