//! What callers and the thread that stages share: the lines' streams and slots, unused memory, and calls on their way.

use super::{
    outcome::StagedOutcome,
    shape::{SLOTS, StagedBuffers, StagedCall, StagedCut},
};
use crate::{
    Communicator, Error, ErrorKind, LineTurn,
    sys::device::{Accelerator, AcceleratorError, DeviceEvent, DeviceMemory, DeviceStream, PinnedMemory},
};
use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Pieces of unused host memory that a group keeps.
const KEPT: usize = 8;
/// The smallest piece.
const PIECE: usize = 64 << 10;

/// There is something in the inbox.
pub(super) const WAKE: u64 = 0;
/// The group is being closed.
pub(super) const CLOSE: u64 = 1;
/// The line of calls in which a program has made a call, and whether the call is a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineKey {
    pub(super) asking: u64,
    pub(super) has_messages: bool,
}

/// What callers and the thread share.
pub(super) struct DeviceShared {
    pub(super) communicator: Communicator,
    pub(super) accelerator: Arc<dyn Accelerator>,
    pub(super) slice: usize,
    pub(super) lines: Mutex<BTreeMap<LineKey, Arc<LineParts>>>,
    pub(super) inbox: Mutex<Vec<StagedSubmission>>,
    /// Unused host memory.
    pub(super) pieces: Mutex<Vec<PinnedMemory>>,
    /// Operations that may have failed without anybody knowing.
    pub(super) unseen: Mutex<Vec<Arc<StagedOutcome>>>,
}

/// The streams and the host memory of a line.
#[derive(Debug)]
pub(super) struct LineParts {
    pub(super) outward: LineStream,
    pub(super) inward: LineStream,
    pub(super) slots: Vec<PinnedMemory>,
}

/// A stream that goes back to its accelerator with the line.
#[derive(Debug)]
pub(super) struct LineStream {
    accelerator: Arc<dyn Accelerator>,
    stream: DeviceStream,
}

impl LineStream {
    fn new(accelerator: &Arc<dyn Accelerator>) -> Result<Self, AcceleratorError> {
        Ok(Self { stream: accelerator.stream()?, accelerator: accelerator.clone() })
    }
}

impl Deref for LineStream {
    type Target = DeviceStream;

    fn deref(&self) -> &DeviceStream {
        &self.stream
    }
}

impl Drop for LineStream {
    fn drop(&mut self) {
        self.accelerator.give_back_stream(self.stream);
    }
}

/// A call on its way to the thread.
pub(super) struct StagedSubmission {
    pub(super) key: LineKey,
    pub(super) call: StagedCall,
    pub(super) buffers: StagedBuffers,
    pub(super) cut: StagedCut,
    pub(super) turn: Option<LineTurn>,
    /// What it needs of the accelerator, or why it has failed before it began.
    pub(super) means: Result<StagedMeans, Error>,
    pub(super) outcome: Arc<StagedOutcome>,
}

/// What a call needs of the accelerator.
pub(super) struct StagedMeans {
    pub(super) parts: Arc<LineParts>,
    pub(super) host: HostBuffers,
    /// Behind what the program has queued before the call.
    pub(super) producer: DeviceEvent,
}

/// Host memory of a call that is not cut.
#[derive(Debug, Default)]
pub(super) struct HostBuffers {
    pub(super) input: Option<PinnedMemory>,
    pub(super) output: Option<PinnedMemory>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceShared {
    /// The first failure of which nobody knows. Those that came with it are told with it.
    pub(super) fn unseen_failure(&self) -> Option<Error> {
        let mut first = None;
        lock(&self.unseen).retain(|outcome| {
            // Before its failure: it may fail and end at any time.
            let is_over = outcome.is_over();
            let failure = outcome.unseen_failure();
            first = first.take().or(failure);
            !is_over
        });
        first
    }

    /// The error of a call on buffers that are lacking, if one is.
    pub(super) fn lack(&self, buffers: &StagedBuffers) -> Option<Error> {
        let lacking =
            [&buffers.input, &buffers.output].into_iter().flatten().filter(|memory| memory.is_lacking());
        let (rank, bytes) = (self.communicator.rank(), lacking.map(DeviceMemory::len).max()? as u64);
        Some(Error::new(ErrorKind::Memory { rank, bytes, ended_by: None }))
    }

    /// What a call on these buffers needs of the accelerator, behind what `stream` has to do.
    pub(super) fn means(
        &self,
        key: LineKey,
        cut: &StagedCut,
        buffers: &StagedBuffers,
        stream: &DeviceStream,
    ) -> Result<StagedMeans, AcceleratorError> {
        let parts = self.line(key)?;
        let host = if cut.slice == 0 { self.host_buffers(buffers)? } else { HostBuffers::default() };
        let producer = self.accelerator.record(stream)?;
        Ok(StagedMeans { parts, host, producer })
    }

    /// The streams and slots of a line, which are made for its first call.
    pub(super) fn line(&self, key: LineKey) -> Result<Arc<LineParts>, AcceleratorError> {
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
        let [outward, inward] = [LineStream::new(&self.accelerator)?, LineStream::new(&self.accelerator)?];
        let parts = Arc::new(LineParts { outward, inward, slots });
        lines.insert(key, parts.clone());
        Ok(parts)
    }

    /// Host memory for these buffers: one piece if they are the same.
    pub(super) fn host_buffers(&self, buffers: &StagedBuffers) -> Result<HostBuffers, AcceleratorError> {
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
    pub(super) fn piece(&self, bytes: usize) -> Result<PinnedMemory, AcceleratorError> {
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
    pub(super) fn give_back(&self, host: HostBuffers) {
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
    pub(super) fn patience(&self) -> Duration {
        self.communicator.timeout()
    }

    pub(super) fn closed(&self, call: &'static str) -> Error {
        Error::new(ErrorKind::Closed).about(self.communicator.rank(), call)
    }
}
