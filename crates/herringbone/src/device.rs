//! Collectives on an accelerator's memory: staged in registered memory of the host, slice by slice, beside the program's streams.
//!
//! A [`DeviceGroup`] takes calls of one group for one device. A call records an event behind what the program has queued on its
//! stream, and returns. A thread of the group then does what [`core::staging`](crate::core::staging) decides: it queues copies on two
//! streams of its own, starts the engine's operation once a slice is on the host, and queues the copies back. It sleeps between looks
//! at its events, and never waits for the device as a whole.
//!
//! * **Order.** All ranks start the slices of a line in the order of the calls: each call takes a turn in its caller's line of calls.
//!   Messages are a line of their own, because no order of collectives tells when they come.
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

pub use crate::sys::{
    cuda::Cuda,
    device::{Accelerator, AcceleratorError, DeviceMemory, DeviceStream},
};
pub use outcome::StagedPending;
pub use shape::{StagedBuffers, StagedCall};

use crate::{Communicator, Error, ErrorKind, Result, sys::device::PinnedMemory};
use driver::{CLOSE, StagedSubmission, WAKE};
use line::LineKey;
use outcome::StagedOutcome;
use shape::{SLICE, SLOTS, StagedCut};
use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Pieces of unused host memory that a group keeps.
const KEPT: usize = 8;
/// The smallest piece.
const PIECE: usize = 64 << 10;

/// One group's calls on the memory of one device.
pub struct DeviceGroup {
    shared: Arc<DeviceShared>,
    sender: Sender<u64>,
    thread: Option<JoinHandle<()>>,
}

/// What callers and the thread share.
struct DeviceShared {
    communicator: Communicator,
    accelerator: Arc<dyn Accelerator>,
    slice: usize,
    lines: Mutex<BTreeMap<LineKey, Arc<LineParts>>>,
    inbox: Mutex<Vec<StagedSubmission>>,
    /// Unused host memory.
    pieces: Mutex<Vec<PinnedMemory>>,
    /// Operations that may have failed without anybody knowing.
    unseen: Mutex<Vec<Arc<StagedOutcome>>>,
}

/// The streams and the host memory of a line.
#[derive(Debug)]
struct LineParts {
    outward: DeviceStream,
    inward: DeviceStream,
    slots: Vec<PinnedMemory>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An accelerator's failure as an error of the group's.
fn error_of(error: &AcceleratorError) -> Error {
    Error::io("moving a tensor between the device and the host", io::Error::other(error.to_string()))
}

impl DeviceGroup {
    /// The group's calls for a device. All ranks of the group make one for theirs before their first call on its memory.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system starts no thread.
    pub fn new(communicator: Communicator, accelerator: Arc<dyn Accelerator>) -> Result<Self> {
        Self::with_slices(communicator, accelerator, SLICE)
    }

    /// The same, with slices of so many bytes: a multiple of 16, the same on all ranks.
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
    /// # Errors
    /// [`ErrorKind::Unsupported`] while the stream is captured for a graph. The error of an earlier operation of the group that has
    /// failed and that no caller has seen. Those of [`Communicator::submit`] come with the operation.
    pub fn submit(
        &self,
        call: StagedCall,
        buffers: StagedBuffers,
        stream: &DeviceStream,
    ) -> Result<StagedPending> {
        let shared = &self.shared;
        let (communicator, accelerator) = (&shared.communicator, &shared.accelerator);
        communicator.check_usable(call.name())?;
        let rank = communicator.rank();
        let about = |error: &AcceleratorError| error_of(error).about(rank, call.name());
        if accelerator.is_capturing(stream).map_err(|error| about(&error))? {
            let problem = "a graph is captured on this stream, and the host takes part in each call of Herringbone; call it \
                           outside of the capture";
            return Err(Error::unsupported(problem).about(rank, call.name()));
        }
        if let Some(error) = shared.unseen_failure() {
            return Err(error);
        }
        let asking = communicator.asking_line()?;
        let key = LineKey { asking, has_messages: call.is_message() };
        let cut = StagedCut::of(&call, &buffers, rank, shared.slice);
        let parts = shared.line(key).map_err(|error| about(&error))?;
        let host = if cut.slice == 0 {
            shared.host_buffers(&buffers).map_err(|error| about(&error))?
        } else {
            HostBuffers::default()
        };
        let producer = accelerator.record(stream).map_err(|error| about(&error))?;
        let outcome = StagedOutcome::new(accelerator.clone());
        lock(&shared.unseen).push(outcome.clone());
        let mut inbox = lock(&shared.inbox);
        // In one go: turns are in the order of submissions.
        let turn = (!call.is_message()).then(|| communicator.staged_turn(asking));
        inbox.push(StagedSubmission {
            key,
            parts,
            call,
            buffers,
            host,
            cut,
            turn,
            producer,
            outcome: outcome.clone(),
        });
        drop(inbox);
        // The thread lives as long as this.
        let _woken = self.sender.send(WAKE);
        Ok(StagedPending(outcome))
    }

    /// The numbers of this group's own streams, for an owner of memory that wants to know who uses it.
    pub fn streams(&self) -> Vec<DeviceStream> {
        lock(&self.shared.lines).values().flat_map(|parts| [parts.outward, parts.inward]).collect()
    }

    /// Ends the thread once its operations are over, at the latest after the group's timeout: those that are not have failed then.
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

/// Host memory of a call that is not cut.
#[derive(Debug, Default)]
struct HostBuffers {
    input: Option<PinnedMemory>,
    output: Option<PinnedMemory>,
}

impl DeviceShared {
    fn unseen_failure(&self) -> Option<Error> {
        let mut unseen = lock(&self.unseen);
        let failure = unseen.iter().find_map(|outcome| outcome.unseen_failure());
        unseen.retain(|outcome| !outcome.is_over());
        failure
    }

    /// The streams and slots of a line, which are made for its first call.
    fn line(&self, key: LineKey) -> Result<Arc<LineParts>, AcceleratorError> {
        let mut lines = lock(&self.lines);
        if let Some(parts) = lines.get(&key) {
            return Ok(parts.clone());
        }
        let mut slots = Vec::new();
        if !key.has_messages {
            for _ in 0..SLOTS {
                // The heap may be used up: other memory does, with more copies.
                let mapped = self.communicator.allocate::<u8>(self.slice).map(PinnedMemory::of_mapped);
                let slot = mapped.unwrap_or_else(|_| PinnedMemory::zeroed(self.slice));
                self.accelerator.register(&slot)?;
                slots.push(slot);
            }
        }
        let (outward, inward) = (self.accelerator.stream()?, self.accelerator.stream()?);
        let parts = Arc::new(LineParts { outward, inward, slots });
        lines.insert(key, parts.clone());
        Ok(parts)
    }

    /// Host memory for these buffers: one piece if they are the same.
    fn host_buffers(&self, buffers: &StagedBuffers) -> Result<HostBuffers, AcceleratorError> {
        let piece = |memory: &Option<DeviceMemory>| {
            memory.as_ref().map(|memory| self.piece(memory.len())).transpose()
        };
        let input = piece(&buffers.input)?;
        let output = match (&buffers.input, &buffers.output) {
            (Some(one), Some(other)) if one.addresses() == other.addresses() => input.clone(),
            _ => piece(&buffers.output)?,
        };
        Ok(HostBuffers { input, output })
    }

    /// A registered piece of memory of at least so many bytes.
    fn piece(&self, bytes: usize) -> Result<PinnedMemory, AcceleratorError> {
        let bytes = bytes.max(PIECE).next_power_of_two();
        let mut pieces = lock(&self.pieces);
        if let Some(place) = pieces.iter().position(|piece| piece.len() == bytes) {
            return Ok(pieces.swap_remove(place));
        }
        drop(pieces);
        let piece = PinnedMemory::zeroed(bytes);
        self.accelerator.register(&piece)?;
        Ok(piece)
    }

    /// Keeps memory that no operation uses for the next one.
    fn give_back(&self, host: HostBuffers) {
        let is_shared = match (&host.input, &host.output) {
            (Some(one), Some(other)) => one.region().is_same(other.region()),
            _ => false,
        };
        let output = host.output.filter(|_| !is_shared);
        let mut pieces = lock(&self.pieces);
        let left = KEPT.saturating_sub(pieces.len());
        pieces.extend(host.input.into_iter().chain(output).take(left));
    }

    /// How long the thread stays for what still runs when the group is closed.
    fn patience(&self) -> Duration {
        self.communicator.timeout()
    }

    fn closed(&self, call: &'static str) -> Error {
        Error::new(ErrorKind::Closed).about(self.communicator.rank(), call)
    }
}

#[cfg(test)]
mod tests;
