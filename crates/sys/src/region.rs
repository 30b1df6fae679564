//! Memory that an engine keeps across calls, and that its owner can take away again.
//!
//! A collective runs on: other threads drive it after the call that began it has returned. So the engine needs memory
//! that is not tied to a borrow. A [`Region`] is such memory, and **revocation** makes it safe. Its lender
//! ([`Region::lend`]), or a caller that wants it back ([`Owned::take`]), first closes the region. This waits for a
//! running access to end and makes every later one fail. So the engine's clones cannot touch memory that was returned.

mod block;
mod spanning;
mod turn;

use crate::plain::Plain;
use crate::span::{Kind, Span};
pub(crate) use block::Block;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use turn::Turn;

/// Memory to which access can be revoked. Cloning it shares the memory, and the revocation, as a [part](Self::part) does.
#[derive(Clone)]
pub struct Region {
    memory: Arc<Memory>,
    /// Which of the memory's bytes: those from `from` on.
    from: usize,
    len: usize,
}

/// Permission to touch a region's memory, for one thread at a time; see [`Region::access`].
#[derive(Debug)]
pub struct Access<'a> {
    region: &'a Region,
    /// An access ends on the thread that began it.
    on_this_thread: PhantomData<*const ()>,
}

/// A vector lent to a region, to be taken back; see [`Region::own`].
#[derive(Debug)]
pub struct Owned<T: Plain> {
    region: Region,
    elements: PhantomData<Vec<T>>,
}

/// Invariant: until `turn` is closed or this is dropped, `start` is valid for as many bytes as the
/// regions over it reach, for reading and, if `writable`, for writing; the bytes are touched only between `turn.enter` and `turn.leave`.
struct Memory {
    start: NonNull<u8>,
    writable: bool,
    /// Whether something else owns it.
    foreign: bool,
    /// Whether there is no such memory.
    lacking: bool,
    /// The regions that it consists of, if it is no memory of its own.
    parts: Box<[Region]>,
    turn: Turn,
    /// What frees the memory, if anything does; gone once it was revoked.
    keep: Option<Mutex<Option<Box<dyn Any + Send>>>>,
}

// SAFETY: `start` is the only field that is not both; its bytes are touched by the one thread that is inside `turn`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Region {
    /// `bytes` zeroed bytes, aligned to 64, that live as long as the region's last clone.
    pub fn zeroed(bytes: usize) -> Region {
        let block = Block::zeroed(bytes);
        // SAFETY: the block is valid for `bytes` bytes until it is dropped, and nobody else has its address.
        unsafe { Region::new(block.start, bytes, true, Some(Box::new(block))) }
    }

    /// Lends `values` to `body` as a region. When `body` ends, by return or by panic, the region is revoked.
    ///
    /// # Aborts
    /// As [`revoke`](Self::revoke), if `body` leaks an [`Access`] on this thread.
    pub fn lend<T: Plain, R>(values: &mut [T], body: impl FnOnce(&Region) -> R) -> R {
        let bytes = crate::plain::bytes_mut(values);
        let len = bytes.len();
        // SAFETY: `values` is borrowed exclusively until `Lent` has revoked the region, which it does before this
        // function ends in any way.
        let lent = Lent(unsafe { Region::new(NonNull::from(bytes).cast(), len, true, None) });
        body(&lent.0)
    }

    /// Lends `values` for reading only; otherwise as [`lend`](Self::lend).
    pub fn lend_shared<T: Plain, R>(values: &[T], body: impl FnOnce(&Region) -> R) -> R {
        let bytes = crate::plain::bytes(values);
        // SAFETY: as in `lend`; the region is not writable, and shared borrows may read too.
        let lent = Lent(unsafe { Region::new(NonNull::from(bytes).cast(), bytes.len(), false, None) });
        body(&lent.0)
    }

    /// Gives `values` to a region until they are taken back. If they never are, the region's last clone frees them.
    pub fn own<T: Plain>(values: Vec<T>) -> Owned<T> {
        let parts = RawParts::of(values);
        let (start, bytes) = (parts.start.cast(), parts.len * size_of::<T>());
        // SAFETY: `parts` keeps the vector's memory and gives nobody access to it.
        let region = unsafe { Region::new(start, bytes, true, Some(Box::new(parts))) };
        Owned { region, elements: PhantomData }
    }

    /// A region over memory that something else owns, such as a tensor of another language.
    ///
    /// `keep` is dropped, on whichever thread, when the region was revoked or its last clone is gone. `start` can be
    /// null if `len` is 0.
    ///
    /// # Safety
    /// Until then the `len` bytes from `start` are initialised memory, valid for reading and, if `writable`, writing.
    /// During an [`Access`] no other thread of this process writes to them or, if `writable`, reads them, except
    /// through clones of this region.
    pub unsafe fn from_raw(start: *mut u8, len: usize, writable: bool, keep: Box<dyn Any + Send>) -> Region {
        let start = NonNull::new(start).unwrap_or_else(|| {
            assert_eq!(len, 0, "memory at address zero");
            NonNull::dangling()
        });
        // SAFETY: the caller's promise is the invariant.
        let region = unsafe { Region::new(start, len, writable, Some(keep)) };
        region.marked_foreign()
    }

    /// Stands for `bytes` bytes of memory that could not be had: every access fails, as if it was revoked. An operation on it is to
    /// fail on all ranks.
    pub fn lacking(bytes: usize) -> Region {
        let (start, turn) = (NonNull::dangling(), Turn::new());
        turn.close();
        let (writable, foreign, lacking, parts) = (true, false, true, Box::default());
        let memory = Arc::new(Memory { start, writable, foreign, lacking, parts, turn, keep: None });
        Region { memory, from: 0, len: bytes }
    }

    /// Whether it stands for memory that could not be [had](Self::lacking).
    #[inline]
    pub fn is_lacking(&self) -> bool {
        self.memory.lacking
    }

    /// # Safety
    /// The invariant of [`Memory`].
    unsafe fn new(
        start: NonNull<u8>,
        len: usize,
        writable: bool,
        keep: Option<Box<dyn Any + Send>>,
    ) -> Region {
        let keep = keep.map(|keep| Mutex::new(Some(keep)));
        let (foreign, lacking, parts, turn) = (false, false, Box::default(), Turn::new());
        let memory = Arc::new(Memory { start, writable, foreign, lacking, parts, turn, keep });
        Region { memory, from: 0, len }
    }

    /// Permission to touch the memory, or `None` once it was revoked.
    ///
    /// Waits while another thread has an access. The same thread can have several at a time, as for an operation whose
    /// output is its input. A thread that holds one region's access while it waits for another's must not meet a thread
    /// that does the reverse.
    #[inline]
    pub fn access(&self) -> Option<Access<'_>> {
        self.memory.enter().then(|| Access { region: self, on_this_thread: PhantomData })
    }

    /// Takes the memory away: waits for an access in progress to end, and from then on every access fails.
    /// Revoking twice is harmless.
    ///
    /// # Aborts
    /// If this thread itself has an access: it would wait for itself, and giving up would leave a dangling one.
    pub fn revoke(&self) {
        drop(self.take_back());
    }

    /// Revokes, and returns what kept the memory, unless it was returned before.
    fn take_back(&self) -> Option<Box<dyn Any + Send>> {
        if self.memory.turn.held_here() {
            eprintln!(
                "herringbone: memory was revoked by the thread that is using it; this is a bug, please report it"
            );
            std::process::abort();
        }
        self.memory.turn.close();
        self.memory.keep.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Some of its bytes. Who revokes the part revokes the whole.
    ///
    /// # Panics
    /// If it has no such bytes.
    #[must_use]
    pub fn part(&self, bytes: Range<usize>) -> Region {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "a part of a region lies in it");
        Region { memory: self.memory.clone(), from: self.from + bytes.start, len: bytes.len() }
    }

    /// How many bytes it has.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it can be written.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.memory.writable
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> usize {
        self.memory.start.addr().get() + self.from
    }

    /// The addresses of its bytes, to be compared with others'.
    #[inline]
    pub fn addresses(&self) -> Range<usize> {
        self.address()..self.address() + self.len
    }

    /// Whether both are the same bytes, as when an output is its input.
    #[inline]
    pub fn is_same(&self, other: &Region) -> bool {
        (self.address(), self.len) == (other.address(), other.len)
    }

    /// At which byte of `whole` this begins, if it lies in it with all its bytes.
    pub fn offset_in(&self, whole: &Region) -> Option<usize> {
        let offset = self.address().checked_sub(whole.address())?;
        (self.len() <= whole.len() && offset <= whole.len() - self.len()).then_some(offset)
    }

    /// A region of its own with the same bytes, or `None` once this was revoked.
    pub fn duplicate(&self) -> Option<Region> {
        let copy = Region::zeroed(self.len());
        copy.access()?.span().copy_from(self.access()?.span());
        Some(copy)
    }

    /// Whether some byte belongs to both.
    pub fn overlaps(&self, other: &Region) -> bool {
        let (one, two) = (self.address(), other.address());
        !self.is_empty() && !other.is_empty() && one < two + other.len() && two < one + self.len()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes at {:#x})", self.len, self.address())
    }
}

impl Access<'_> {
    /// The memory.
    pub fn span(&self) -> Span<'_> {
        let Region { memory, from, len } = self.region;
        let kind = if memory.writable { Kind::Private } else { Kind::Lent };
        // SAFETY: `from..from + len` lies within the memory, as `part` sees to.
        let start = unsafe { memory.start.add(*from) };
        // SAFETY: the memory is valid while the access lasts, and this is the only thread that has one.
        unsafe { Span::from_raw(start, *len, kind) }
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.region.memory.leave();
    }
}

impl<T: Plain> Owned<T> {
    /// The memory as a region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Revokes the region and returns the vector.
    ///
    /// # Panics
    /// If another owner has [revoked](Region::revoke) the region: that has freed the vector.
    pub fn take(self) -> Vec<T> {
        let kept = self.region.take_back().expect("the region was revoked by somebody else");
        let parts: Box<RawParts<T>> = kept.downcast().expect("`own` kept parts of this type");
        parts.into_vec()
    }
}

/// Revokes what was lent.
struct Lent(Region);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.revoke();
    }
}

/// A vector as raw parts, so that no reference to its elements exists while a region has them.
struct RawParts<T: Plain> {
    start: NonNull<T>,
    len: usize,
    capacity: usize,
}

// SAFETY: it owns its elements, which are Send.
unsafe impl<T: Plain> Send for RawParts<T> {}

impl<T: Plain> RawParts<T> {
    fn of(values: Vec<T>) -> Self {
        let mut values = ManuallyDrop::new(values);
        let start = NonNull::new(values.as_mut_ptr()).expect("a vector's pointer is not null");
        RawParts { start, len: values.len(), capacity: values.capacity() }
    }

    fn into_vec(self) -> Vec<T> {
        let parts = ManuallyDrop::new(self);
        // SAFETY: taken from a vector in `of`, and given back once: here or in `drop`.
        unsafe { Vec::from_raw_parts(parts.start.as_ptr(), parts.len, parts.capacity) }
    }
}

impl<T: Plain> Drop for RawParts<T> {
    fn drop(&mut self) {
        // SAFETY: as in `into_vec`.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn a_loan_writes_the_lenders_memory_and_ends_with_the_closure() {
        let mut values = [1.0f32, 2.0, 3.0];
        let kept = Region::lend(&mut values, |region| {
            let access = region.access().unwrap();
            access.span().slice(4..8).write(&9.0f32.to_ne_bytes());
            region.clone()
        });
        assert_eq!(values, [1.0, 9.0, 3.0]);
        assert!(kept.access().is_none());
    }

    #[test]
    fn a_part_is_some_of_the_bytes_and_goes_with_the_whole() {
        let whole = Region::own(vec![0u8; 10]);
        let part = whole.region().part(2..8).part(1..4);
        assert_eq!((part.len(), part.offset_in(whole.region())), (3, Some(3)));
        part.access().unwrap().span().write(&[1, 2, 3]);
        assert!(part.overlaps(whole.region()) && !part.overlaps(&whole.region().part(6..10)));
        assert!(part.is_same(&whole.region().part(3..6)) && !part.is_same(whole.region()));
        assert_eq!(whole.take(), [0, 0, 0, 1, 2, 3, 0, 0, 0, 0]);
        assert!(part.access().is_none());
    }

    #[test]
    #[should_panic(expected = "lies in it")]
    fn a_part_beyond_the_end_is_refused() {
        let _part = Region::zeroed(4).part(2..6);
    }

    #[test]
    fn a_loan_ends_with_a_panic() {
        let mut kept = None;
        let mut values = [0u8; 8];
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            Region::lend(&mut values, |region| {
                kept = Some(region.clone());
                panic!("expected");
            })
        }));
        assert!(outcome.is_err());
        assert!(kept.unwrap().access().is_none());
    }

    #[test]
    #[should_panic(expected = "reading only")]
    fn a_shared_loan_is_not_written() {
        Region::lend_shared(&[1u32, 2], |region| region.access().unwrap().span().zero());
    }

    #[test]
    fn revocation_waits_for_an_access_in_progress() {
        let (entered, has_entered) = mpsc::channel();
        let done = AtomicBool::new(false);
        let region = Region::zeroed(64);
        thread::scope(|scope| {
            scope.spawn(|| {
                let access = region.access().unwrap();
                entered.send(()).unwrap();
                thread::sleep(std::time::Duration::from_millis(20));
                access.span().zero();
                done.store(true, Ordering::Relaxed);
            });
            has_entered.recv().unwrap();
            region.revoke();
            assert!(done.load(Ordering::Relaxed));
        });
        assert!(region.access().is_none());
    }

    #[test]
    fn one_thread_at_a_time_as_often_as_it_likes() {
        const ROUNDS: u64 = 2_000;
        let region = Region::zeroed(8);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let outer = region.access().unwrap();
                        let inner = region.access().unwrap();
                        let mut word = [0; 8];
                        outer.span().read(&mut word);
                        inner.span().write(&(u64::from_ne_bytes(word) + 1).to_ne_bytes());
                    }
                });
            }
        });
        let mut word = [0; 8];
        region.access().unwrap().span().read(&mut word);
        assert_eq!(u64::from_ne_bytes(word), 4 * ROUNDS);
    }

    #[test]
    fn a_vector_comes_back_and_its_clones_are_closed() {
        let owned = Region::own(vec![1i64, -2, 3]);
        let clone = owned.region().clone();
        assert_eq!(clone.len(), 24);
        clone.access().unwrap().span().slice(8..16).write(&7i64.to_ne_bytes());
        assert_eq!(owned.take(), [1, 7, 3]);
        assert!(clone.access().is_none());
    }

    #[test]
    fn a_vector_that_nobody_takes_back_lives_as_long_as_its_region() {
        let region = Region::own(vec![5u8; 3]).region().clone();
        assert_eq!(region.access().unwrap().span().to_vec(), [5; 3]);
    }

    #[test]
    fn what_keeps_raw_memory_goes_when_it_is_revoked() {
        struct NotifyOnDrop(mpsc::Sender<()>);
        impl Drop for NotifyOnDrop {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let (sender, heard) = mpsc::channel();
        // SAFETY: no bytes.
        let region =
            unsafe { Region::from_raw(std::ptr::null_mut(), 0, true, Box::new(NotifyOnDrop(sender))) };
        assert!(region.access().unwrap().span().is_empty());
        assert!(heard.try_recv().is_err());
        region.revoke();
        heard.try_recv().unwrap();
    }

    #[test]
    fn memory_that_could_not_be_had_is_never_touched() {
        let region = Region::lacking(1 << 60);
        assert_eq!((region.len(), region.is_lacking(), region.is_writable()), (1 << 60, true, true));
        assert!(region.access().is_none() && region.part(1..4).access().is_none());
        region.revoke();
        assert!(!Region::zeroed(0).is_lacking());
    }

    #[test]
    fn zeroed_memory_is_zero_and_aligned() {
        for bytes in [0, 1, 63, 4096] {
            let region = Region::zeroed(bytes);
            assert_eq!(region.access().unwrap().span().to_vec(), vec![0; bytes]);
            assert_eq!(region.memory.start.addr().get() % 64, 0);
        }
    }

    #[test]
    fn overlap_is_seen() {
        let (one, two) = (Region::zeroed(16), Region::zeroed(16));
        assert!(one.overlaps(&one.clone()) && one.is_same(&one.clone()));
        assert!(!one.overlaps(&two) && !one.is_same(&two));
        // SAFETY: `one` keeps the bytes, and nobody has an access.
        let part = unsafe {
            Region::from_raw(one.memory.start.as_ptr().wrapping_add(4), 8, true, Box::new(one.clone()))
        };
        assert!(part.overlaps(&one) && !part.is_same(&one));
        assert_eq!(
            (part.offset_in(&one), one.offset_in(&part), part.offset_in(&part)),
            (Some(4), None, Some(0))
        );
        assert_eq!(part.offset_in(&two), None);
    }

    #[test]
    fn a_duplicate_has_the_bytes_and_no_more() {
        let owned = Region::own(vec![1u8, 2, 3]);
        let copy = owned.region().duplicate().unwrap();
        assert!(!copy.overlaps(owned.region()));
        let region = owned.region().clone();
        owned.take();
        assert_eq!(copy.access().unwrap().span().to_vec(), [1, 2, 3]);
        assert!(region.duplicate().is_none());
    }
}
