//! Memory shared with other processes of the host: sealed memfds, mapped by everyone.
//!
//! A segment has no name in any file system. Its descriptor is passed over a socket ([`crate::socket::pass_fds`]), and
//! it is gone when the last process with that descriptor is, however that process died. It is sealed against changing
//! its size, so no other process can make a mapped page disappear. Mapping it is also the proof that two ranks share a
//! host.

use crate::fork::{self, Guarded};
use crate::span::{Kind, Span};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A mapped, shared piece of memory; zero when created.
///
/// A forked child has no mapping: there every method that would touch the memory panics. Handles check
/// [`fork::generation`] first.
pub struct Segment {
    start: NonNull<u8>,
    len: usize,
    descriptor: Guarded<OwnedFd>,
    generation: u64,
}

/// Control words of a segment, kept mapped: a [`ring`](crate::ring) is made of them.
#[derive(Debug)]
pub struct Words {
    segment: Arc<Segment>,
    start: NonNull<AtomicU64>,
    len: usize,
}

/// Why there is no segment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The size is zero or larger than [`Segment::MOST_BYTES`].
    #[error("a shared segment of {bytes} bytes: it must have between 1 and {most}", most = Segment::MOST_BYTES)]
    Size {
        /// The size asked for, or found.
        bytes: u64,
    },
    /// The system gave none.
    #[error(
        "no shared segment of {bytes} bytes: {source}; use smaller segments or allow the process more memory"
    )]
    Create {
        /// The size asked for.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system did not map it.
    #[error(
        "a shared segment of {bytes} bytes cannot be mapped: {source}; allow the process more address space (ulimit -v)"
    )]
    Map {
        /// Its size.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The received descriptor is not a memfd.
    #[error("the descriptor received for a shared segment is no memfd: {source}")]
    NotAMemfd {
        /// The system's error.
        source: io::Error,
    },
    /// The received segment could still be resized, which would kill any process that touches it.
    #[error("the shared segment received is not sealed against resizing (seals {seals:#x})")]
    Unsealed {
        /// The seals found.
        seals: u32,
    },
}

/// How much address space this process can still take, if that is limited (`ulimit -v`).
pub fn address_space_left() -> Option<usize> {
    let limit = rustix::process::getrlimit(Resource::As).current?;
    // Pages of all mappings; see proc_pid_statm(5).
    let taken = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = taken.and_then(|text| text.split(' ').next()?.parse::<usize>().ok()).unwrap_or(0);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    Some(limit.saturating_sub(pages.saturating_mul(rustix::param::page_size())))
}

/// What every segment is sealed against.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Segment {
    /// The largest segment that is created or accepted: 1 TiB.
    pub const MOST_BYTES: u64 = 1 << 40;

    /// A new segment of at least `bytes` bytes (whole pages), all zero. `name` is shown in `/proc/*/maps`.
    ///
    /// # Errors
    /// [`SegmentError::Size`], [`SegmentError::Create`] or [`SegmentError::Map`].
    pub fn create(name: &str, bytes: usize) -> Result<Segment, SegmentError> {
        if bytes == 0 || bytes as u64 > Self::MOST_BYTES {
            return Err(SegmentError::Size { bytes: bytes as u64 });
        }
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        let descriptor =
            sealed_memfd(name, bytes).map_err(|source| SegmentError::Create { bytes, source })?;
        Segment::map(descriptor, bytes)
    }

    /// Maps a segment that another process created.
    ///
    /// # Errors
    /// If it is not made by [`create`](Self::create), or cannot be mapped.
    pub fn attach(descriptor: OwnedFd) -> Result<Segment, SegmentError> {
        let not_a_memfd = |errno: Errno| SegmentError::NotAMemfd { source: errno.into() };
        let seals = rustix::fs::fcntl_get_seals(&descriptor).map_err(not_a_memfd)?;
        if !seals.contains(SEALS) {
            return Err(SegmentError::Unsealed { seals: seals.bits() });
        }
        let size = rustix::fs::fstat(&descriptor).map_err(not_a_memfd)?.st_size;
        let bytes = u64::try_from(size).unwrap_or(0);
        let whole_pages = bytes.is_multiple_of(rustix::param::page_size() as u64);
        if bytes == 0 || bytes > Self::MOST_BYTES || !whole_pages {
            return Err(SegmentError::Size { bytes });
        }
        Segment::map(descriptor, bytes as usize)
    }

    fn map(descriptor: OwnedFd, bytes: usize) -> Result<Segment, SegmentError> {
        let failed = |source: io::Error| SegmentError::Map { bytes, source };
        let descriptor = Guarded::new(descriptor).map_err(failed)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &descriptor, 0) };
        let start = start.map_err(|errno| failed(errno.into()))?;
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address zero");
        let segment = Segment { start, len: bytes, descriptor, generation: fork::generation() };
        // SAFETY: the range is the mapping just made, and the advice does not change what it holds.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork) }
            .map_err(|errno| failed(errno.into()))?;
        Ok(segment)
    }

    /// Its size in bytes, in whole pages.
    #[allow(clippy::len_without_is_empty, reason = "no segment is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where this process has it.
    pub(crate) fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Whether it is mapped here: not in a forked child.
    pub(crate) fn is_mapped(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Gives the pages of `range`, whole ones, back to the system; they are zero again.
    pub(crate) fn discard(&self, range: Range<usize>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&*self.descriptor, flags, range.start as u64, range.len() as u64)?)
    }

    /// Its descriptor, to be passed to another process of the host.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The bytes of `range`.
    ///
    /// # Panics
    /// If `range` does not lie within the segment, or in a forked child.
    #[inline]
    #[track_caller]
    pub fn span(&self, range: Range<usize>) -> Span<'_> {
        self.check_generation();
        // SAFETY: mapped while `self` lives; what other processes do with it is what the crate's notes on races
        // allow.
        unsafe { Span::from_raw(self.start, self.len, Kind::Shared) }.slice(range)
    }

    /// The 64-bit words of `range`, counted in words from the segment's start.
    ///
    /// # Panics
    /// If `range` does not lie within the segment, or in a forked child.
    #[inline]
    #[track_caller]
    pub fn atomics(&self, range: Range<usize>) -> &[AtomicU64] {
        self.check_generation();
        let start = self.word(&range);
        // SAFETY: within the mapping, aligned as pages are, and mapped while `self` lives; any bits are a value, and
        // an atomic may be written by anyone at any time.
        unsafe { slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// The words of `range` as [`atomics`](Self::atomics), kept mapped by the result.
    ///
    /// # Panics
    /// As [`atomics`](Self::atomics).
    #[track_caller]
    pub fn words(self: &Arc<Self>, range: Range<usize>) -> Words {
        Words { segment: Arc::clone(self), start: self.word(&range), len: range.len() }
    }

    /// The address of `range`'s first word.
    #[inline]
    #[track_caller]
    fn word(&self, range: &Range<usize>) -> NonNull<AtomicU64> {
        let words = self.len / size_of::<AtomicU64>();
        let (start, end) = (range.start, range.end);
        assert!(start <= end && end <= words, "words {start}..{end} of a segment of {words}");
        // SAFETY: start <= words, so the address is within the mapping or one past its end.
        unsafe { self.start.cast().add(start) }
    }

    #[inline]
    #[track_caller]
    fn check_generation(&self) {
        assert_eq!(
            self.generation,
            fork::generation(),
            "a forked child has no mapping of its parent's segments"
        );
    }
}

// SAFETY: the mapping is valid on every thread until drop, and its bytes belong to no thread: they are reached only
// as atomics, or as spans under the crate's notes on races.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY: mapped in `map`, and nothing borrows it any more. In a child the range may by now be another
            // mapping's, hence the test. Failing would only leave it mapped.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes at {:p})", self.len, self.start)
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        self.segment.check_generation();
        // SAFETY: checked in `Segment::words`; `self.segment` keeps it mapped. Otherwise as in `Segment::atomics`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: shared references to atomics of a segment that is both.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

/// A memfd of `bytes` zeroed bytes whose size is final.
fn sealed_memfd(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag, later ones may insist on it.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        created => created?,
    };
    rustix::fs::ftruncate(&descriptor, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&descriptor, SEALS)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_show_the_same_memory() {
        let one = Segment::create("herringbone-test", 5_000).unwrap();
        let two = Segment::attach(one.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((one.len(), two.len()), (8_192, 8_192));
        one.span(8..12).write(b"seen");
        assert_eq!(two.span(8..12).to_vec(), b"seen");
        two.atomics(2..3)[0].store(7, Ordering::Release);
        assert_eq!(one.span(16..24).to_vec(), 7u64.to_ne_bytes());
        assert!(!one.span(0..8).same_start(two.span(0..8)));
    }

    #[test]
    fn words_keep_their_segment() {
        let segment = Arc::new(Segment::create("herringbone-test", 4_096).unwrap());
        let words = segment.words(511..512);
        drop(segment);
        words[0].store(1, Ordering::Relaxed);
        assert_eq!(words[0].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn nobody_can_resize_it() {
        let segment = Segment::create("herringbone-test", 4_096).unwrap();
        assert_eq!(rustix::fs::ftruncate(segment.fd(), 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(segment.fd(), 1 << 20), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(segment.fd(), SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn impostors_are_refused() {
        let memfd = rustix::fs::memfd_create("impostor", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&memfd, 4_096).unwrap();
        let copy = memfd.try_clone().unwrap();
        assert!(matches!(Segment::attach(copy), Err(SegmentError::Unsealed { .. })));

        rustix::fs::ftruncate(&memfd, 0).unwrap();
        rustix::fs::fcntl_add_seals(&memfd, SEALS).unwrap();
        assert!(matches!(Segment::attach(memfd), Err(SegmentError::Size { bytes: 0 })));

        let (pipe, _writer) = io::pipe().unwrap();
        assert!(matches!(Segment::attach(pipe.into()), Err(SegmentError::NotAMemfd { .. })));
        assert!(matches!(Segment::create("none", 0), Err(SegmentError::Size { bytes: 0 })));
    }

    #[test]
    #[should_panic(expected = "bytes 4096..4097 of a span of 4096 bytes")]
    fn spans_stay_within() {
        Segment::create("herringbone-test", 1).unwrap().span(4_096..4_097);
    }

    #[test]
    #[should_panic(expected = "words 512..513 of a segment of 512")]
    fn words_stay_within() {
        Segment::create("herringbone-test", 1).unwrap().atomics(512..513);
    }
}
