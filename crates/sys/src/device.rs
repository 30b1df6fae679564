//! Accelerators: streams that copy between their memory and the host's, events, and values in the host's memory for which streams wait.
//!
//! [`Accelerator`] is all that Herringbone asks of one. [CUDA](crate::cuda) is one, and tests have another one whose streams move
//! when the test says so. The host never reads an accelerator's memory: a [`DeviceMemory`] only names it.

use crate::heap::Mapped;
use crate::region::{Block, Region};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// An accelerator, whose calls return before its streams have done what they queue.
///
/// The order of a stream is the order in which it was given things to do. It never waits for another stream unless it was told.
pub trait Accelerator: Send + Sync + fmt::Debug {
    /// Whether streams can wait for a value in the host's memory. If not, the host has to wait before it queues on a stream.
    fn waits_for_values(&self) -> bool;

    /// A stream that nobody else uses, which waits for no other one.
    ///
    /// # Errors
    /// The accelerator has none, as all errors here with the driver's reason.
    fn stream(&self) -> Result<DeviceStream, AcceleratorError>;

    /// The stream is needed no more. Once it has done what it was given it can be a new one; until then what it copies is kept.
    ///
    /// It is not destroyed, because libraries that share the device's memory keep its handle: torch's allocator uses it when it frees
    /// a tensor.
    fn give_back_stream(&self, stream: DeviceStream);

    /// Whether a stream that the accelerator has made has done all that it was given, for where no event can say so.
    ///
    /// # Errors
    /// The stream has failed.
    fn is_idle(&self, stream: &DeviceStream) -> Result<bool, AcceleratorError>;

    /// The driver's handle of a stream that the accelerator has made, for libraries that share its memory.
    fn handle(&self, stream: &DeviceStream) -> usize;

    /// An event that is complete once the stream has done what was queued so far.
    ///
    /// # Errors
    /// As of [`stream`](Self::stream).
    fn record(&self, stream: &DeviceStream) -> Result<DeviceEvent, AcceleratorError>;

    /// Queues that the stream waits for the event.
    ///
    /// # Errors
    /// As of [`stream`](Self::stream).
    fn wait(&self, stream: &DeviceStream, event: DeviceEvent) -> Result<(), AcceleratorError>;

    /// Whether the event is complete. Once it is, the host may touch what was copied before.
    ///
    /// # Errors
    /// The stream has failed.
    fn query(&self, event: DeviceEvent) -> Result<bool, AcceleratorError>;

    /// The event is needed no more. What waits for it still does. What the copies before it have kept is dropped, if it is complete.
    fn release(&self, event: DeviceEvent);

    /// Lets streams copy from and to this memory while the host does something else, until the memory is dropped.
    ///
    /// # Errors
    /// As of [`stream`](Self::stream).
    fn register(&self, memory: &PinnedMemory) -> Result<(), AcceleratorError>;

    /// Queues a copy of all of `from` to the host's memory from byte `at` on.
    ///
    /// # Errors
    /// As of [`stream`](Self::stream), or the place is not large enough.
    fn copy_out(
        &self,
        stream: &DeviceStream,
        from: &DeviceMemory,
        to: &PinnedMemory,
        at: usize,
    ) -> Result<(), AcceleratorError>;

    /// Queues a copy to all of `to` of the host's memory from byte `at` on.
    ///
    /// # Errors
    /// As of [`copy_out`](Self::copy_out).
    fn copy_in(
        &self,
        stream: &DeviceStream,
        from: &PinnedMemory,
        at: usize,
        to: &DeviceMemory,
    ) -> Result<(), AcceleratorError>;

    /// A word of the host's memory that nobody uses, for a value to wait for; `None` if streams cannot wait for values or all
    /// words are in use.
    fn take_word(&self) -> Option<DeviceWord>;

    /// The word's value is written, and no stream has still to write it. Streams may still wait for it: values only grow.
    fn give_back(&self, word: DeviceWord);

    /// Queues that the stream waits until the word has the value, or a later user's.
    ///
    /// # Errors
    /// As of [`stream`](Self::stream).
    fn wait_value(&self, stream: &DeviceStream, word: DeviceWord) -> Result<(), AcceleratorError>;

    /// Queues that the stream writes the value.
    ///
    /// # Errors
    /// As of [`stream`](Self::stream).
    fn write_value(&self, stream: &DeviceStream, word: DeviceWord) -> Result<(), AcceleratorError>;

    /// The host writes the value.
    fn set_value(&self, word: DeviceWord);

    /// Whether calls on the stream are recorded for a graph, and not run.
    ///
    /// # Errors
    /// As of [`stream`](Self::stream).
    fn is_capturing(&self, stream: &DeviceStream) -> Result<bool, AcceleratorError>;

    /// The host is about to use these bytes, for an accelerator that checks the order of accesses.
    fn host_uses(&self, _memory: &PinnedMemory, _bytes: Range<usize>) {}
}

/// Something that an accelerator did not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {problem}")]
pub struct AcceleratorError {
    /// The call of the accelerator's driver.
    pub call: &'static str,
    /// The driver's words.
    pub problem: String,
}

impl AcceleratorError {
    /// A call has failed, and why.
    pub fn new(call: &'static str, problem: impl Into<String>) -> Self {
        Self { call, problem: problem.into() }
    }
}

/// A stream: one of the accelerator's own, or one of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceStream(StreamHandle);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StreamHandle {
    Own(usize),
    Foreign(usize),
}

impl DeviceStream {
    /// A stream of the accelerator's own, by its number. An unknown number is refused.
    pub fn own(number: usize) -> Self {
        Self(StreamHandle::Own(number))
    }

    /// A stream of the program's, by the driver's handle.
    ///
    /// # Safety
    /// The handle is of a stream of the device for which it is used, and stays so while anything is queued through this.
    pub unsafe fn from_raw(handle: usize) -> Self {
        Self(StreamHandle::Foreign(handle))
    }

    /// Its number, if the accelerator has made it.
    pub fn number(self) -> Option<usize> {
        match self.0 {
            StreamHandle::Own(number) => Some(number),
            StreamHandle::Foreign(_) => None,
        }
    }

    /// The driver's handle, if it is the program's.
    pub(crate) fn handle(self) -> Option<usize> {
        match self.0 {
            StreamHandle::Own(_) => None,
            StreamHandle::Foreign(handle) => Some(handle),
        }
    }
}

/// An event of the accelerator that was not released, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceEvent(pub usize);

/// A word of the host's memory, and the value for which streams wait there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceWord {
    /// The word's number.
    pub index: usize,
    /// The value: it is one more for each user of the word, and may wrap.
    pub value: u32,
}

/// The words that an accelerator lends.
///
/// A word goes to its next user with the next value. So a stream that waits late for an earlier value continues.
#[derive(Debug)]
pub struct DeviceWords {
    free: Vec<DeviceWord>,
}

impl DeviceWords {
    /// `count` words, which are all 0.
    pub fn new(count: usize) -> Self {
        Self { free: (0..count).rev().map(|index| DeviceWord { index, value: 0 }).collect() }
    }

    /// A word with a value that it has not had, or `None` if all are in use.
    pub fn take(&mut self) -> Option<DeviceWord> {
        let word = self.free.pop()?;
        Some(DeviceWord { value: word.value.wrapping_add(1), ..word })
    }

    /// The word has its value, and is free.
    pub fn give_back(&mut self, word: DeviceWord) {
        self.free.push(word);
    }
}

impl DeviceWord {
    /// Whether a word that has `value` has reached this one's.
    pub fn is_reached(self, value: u32) -> bool {
        // As CUDA compares (CU_STREAM_WAIT_VALUE_GEQ).
        value.wrapping_sub(self.value).cast_signed() >= 0
    }
}

/// An accelerator's memory, and its owner. Clones and parts are the same memory.
#[derive(Clone)]
pub struct DeviceMemory {
    place: DevicePlace,
    len: usize,
}

#[derive(Clone)]
enum DevicePlace {
    Device { address: usize, _keep: Arc<dyn Any + Send + Sync> },
    Host(Region),
}

impl DeviceMemory {
    /// `len` bytes of an accelerator from `address` on. `keep` is dropped with the last clone, on whichever thread.
    ///
    /// # Safety
    /// Until then streams of the accelerator can read and write the bytes.
    pub unsafe fn from_raw(address: usize, len: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { place: DevicePlace::Device { address, _keep: keep }, len }
    }

    /// Memory of the host that stands for an accelerator's, for one that is simulated.
    pub fn of_host(region: Region) -> Self {
        Self { len: region.len(), place: DevicePlace::Host(region) }
    }

    /// Some of its bytes.
    ///
    /// # Panics
    /// If it has no such bytes.
    #[must_use]
    pub fn part(&self, bytes: Range<usize>) -> Self {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "a part of memory lies in it");
        let place = match &self.place {
            DevicePlace::Device { address, _keep } => {
                DevicePlace::Device { address: address + bytes.start, _keep: _keep.clone() }
            }
            DevicePlace::Host(region) => DevicePlace::Host(region.part(bytes.clone())),
        };
        Self { place, len: bytes.len() }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is no such memory: it stands for what the program could not get, and has a length.
    pub fn is_lacking(&self) -> bool {
        match &self.place {
            DevicePlace::Device { address, .. } => *address == 0 && self.len > 0,
            DevicePlace::Host(region) => region.is_lacking(),
        }
    }

    /// Where its bytes lie, to be compared with where others do.
    pub fn addresses(&self) -> Range<usize> {
        let start = match &self.place {
            DevicePlace::Device { address, .. } => *address,
            DevicePlace::Host(region) => region.address(),
        };
        start..start + self.len
    }

    /// Whether some byte belongs to both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (self.addresses(), other.addresses());
        !self.is_empty() && !other.is_empty() && one.start < two.end && two.start < one.end
    }

    /// The host's memory that it stands for, if it is simulated.
    pub fn simulated(&self) -> Option<&Region> {
        match &self.place {
            DevicePlace::Device { .. } => None,
            DevicePlace::Host(region) => Some(region),
        }
    }

    /// The accelerator's address, if it is not simulated.
    pub(crate) fn device_address(&self) -> Option<usize> {
        match self.place {
            DevicePlace::Device { address, .. } => Some(address),
            DevicePlace::Host(_) => None,
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes at {:#x})", self.len, self.addresses().start)
    }
}

/// Memory of the host that streams copy from and to, once an accelerator has [registered](Accelerator::register) it.
#[derive(Clone)]
pub struct PinnedMemory {
    owner: Arc<PinnedOwner>,
    region: Region,
}

/// Owns the memory, wherever it is from.
///
/// Invariant: `start` is valid for `len` bytes as long as this lives.
struct PinnedOwner {
    /// First, because a registration ends before its memory does.
    registration: OnceLock<Box<dyn Any + Send + Sync>>,
    start: NonNull<u8>,
    len: usize,
    _memory: Box<dyn Any + Send>,
}

// SAFETY: `start` is only read, as an address; the bytes are touched through the region. Nothing touches `_memory` but its drop.
unsafe impl Send for PinnedOwner {}
// SAFETY: as above.
unsafe impl Sync for PinnedOwner {}

impl PinnedMemory {
    /// How registered memory is aligned: no page belongs to two registrations.
    const ALIGN: usize = 4096;

    /// Zeroed memory of this process.
    pub fn zeroed(bytes: usize) -> Self {
        let block = Block::aligned(bytes.next_multiple_of(Self::ALIGN), Self::ALIGN);
        Self::owned_by(block.start(), bytes, Box::new(block))
    }

    /// Memory that all ranks of the host map.
    pub fn of_mapped(mut mapped: Mapped<u8>) -> Self {
        let len = mapped.len();
        let start = NonNull::new(mapped.as_mut_ptr()).expect("a mapping is not at address zero");
        Self::owned_by(start, len, Box::new(mapped))
    }

    fn owned_by(start: NonNull<u8>, len: usize, memory: Box<dyn Any + Send>) -> Self {
        let owner = Arc::new(PinnedOwner { registration: OnceLock::new(), start, len, _memory: memory });
        // SAFETY: the owner keeps the memory, and the region keeps the owner. The module's users copy to and from memory only
        // while no operation of the engine has it; a copy that meets one makes numbers wrong and nothing else.
        let region = unsafe { Region::from_raw(start.as_ptr(), len, true, Box::new(owner.clone())) };
        Self { owner, region }
    }

    /// The memory, for the host.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.owner.len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.owner.start
    }

    /// What keeps the memory as long as a stream copies.
    pub(crate) fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        self.owner.clone()
    }

    /// Has the registration end with the memory. A second one is dropped at once.
    pub(crate) fn registered(&self, registration: Box<dyn Any + Send + Sync>) {
        let _second = self.owner.registration.set(registration);
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_words_next_user_waits_for_the_next_value() {
        let mut words = DeviceWords::new(1);
        let first = words.take().unwrap();
        assert_eq!((first, words.take()), (DeviceWord { index: 0, value: 1 }, None));
        words.give_back(first);
        let second = words.take().unwrap();
        assert_eq!(second.value, 2);
        assert!(first.is_reached(1) && first.is_reached(2) && !second.is_reached(1));
        // Values wrap.
        let last = DeviceWord { index: 0, value: u32::MAX };
        words.give_back(last);
        let next = words.take().unwrap();
        assert!(next.value == 0 && !next.is_reached(u32::MAX) && last.is_reached(0));
    }

    #[test]
    fn pinned_memory_is_the_hosts_and_has_pages_of_its_own() {
        let memory = PinnedMemory::zeroed(100);
        assert_eq!((memory.len(), memory.region().len()), (100, 100));
        assert_eq!(memory.region().addresses().start % PinnedMemory::ALIGN, 0);
        memory.region().access().unwrap().span().write(&[7; 100]);
        let clone = memory.clone();
        drop(memory);
        assert_eq!(clone.region().access().unwrap().span().to_vec(), [7; 100]);
    }

    #[test]
    fn parts_of_an_accelerators_memory_are_named_by_their_addresses() {
        let region = Region::zeroed(64);
        let memory = DeviceMemory::of_host(region.clone());
        let (one, two) = (memory.part(0..16), memory.part(8..32));
        assert!(
            one.overlaps(&two) && !one.overlaps(&memory.part(16..64)) && !one.overlaps(&memory.part(3..3))
        );
        assert_eq!(two.addresses(), region.addresses().start + 8..region.addresses().start + 32);
        assert!(two.simulated().is_some_and(|part| part.is_same(&region.part(8..32))));
    }

    #[test]
    fn memory_without_an_address_is_lacking() {
        // SAFETY: no stream is given this memory.
        let memory = |address, len| unsafe { DeviceMemory::from_raw(address, len, Arc::new(())) };
        assert!(memory(0, 4).is_lacking() && DeviceMemory::of_host(Region::lacking(4)).is_lacking());
        assert!(!memory(0, 0).is_lacking() && !memory(64, 4).is_lacking());
        assert!(!DeviceMemory::of_host(Region::zeroed(4)).is_lacking());
    }
}
