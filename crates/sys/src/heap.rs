//! Memory for the buffers of collectives that every process of the host maps. It is allocated from a segment, so that a
//! fold can read it, and write its result there, without a copy on the way.

use crate::plain::Plain;
use crate::region::Region;
use crate::segment::Segment;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

/// How buffers are aligned: a page, so that two of them never share one.
const ALIGN: usize = 4096;

/// Gives out stretches of a segment, each to one owner at a time.
#[derive(Debug)]
pub struct Heap {
    segment: Arc<Segment>,
    free: Mutex<Free>,
}

/// `len` elements in a segment, owned like a vector's; zero at first.
///
/// Other processes of the host map the same memory. They touch it only while its owner has lent it to a collective. As
/// long as they do so, it is memory like any other. A faulty process can change its contents. So can a process that was
/// stopped in the middle of a collective and continues after this one has given up on it.
pub struct Mapped<T: Plain> {
    heap: Arc<Heap>,
    range: Range<usize>,
    start: NonNull<T>,
    len: usize,
    elements: PhantomData<T>,
}

// SAFETY: it owns its elements, which are Send and Sync as all plain ones; the heap is both.
unsafe impl<T: Plain> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Mapped<T> {}

impl Heap {
    /// A heap over `range` of a segment, in bytes, that nothing else uses, of untouched (zero) memory.
    ///
    /// # Panics
    /// If the range does not lie within the segment.
    pub fn new(segment: Arc<Segment>, range: Range<usize>) -> Arc<Heap> {
        assert!(range.start <= range.end && range.end <= segment.len(), "a heap lies within its segment");
        let start = range.start.next_multiple_of(ALIGN).min(range.end);
        Arc::new(Heap { segment, free: Mutex::new(Free::new(start..range.end)) })
    }

    /// `len` zeroed elements, or `None` if there is no such stretch.
    pub fn allocate<T: Plain>(self: &Arc<Self>, len: usize) -> Option<Mapped<T>> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let bytes = len.checked_mul(size_of::<T>())?.max(1).checked_next_multiple_of(ALIGN)?;
        let range = self.free.lock().unwrap_or_else(PoisonError::into_inner).take(bytes)?;
        let span = self.segment.span(range.clone());
        let start = NonNull::new(span.as_mut_ptr().cast()).expect("a mapping is not at address zero");
        Some(Mapped { heap: Arc::clone(self), range, start, len, elements: PhantomData })
    }

    /// The position of a region's memory in the segment, if it was given out here.
    pub fn locate(&self, region: &Region) -> Option<usize> {
        let at = region.address().checked_sub(self.segment.address())?;
        (at + region.len() <= self.segment.len()).then_some(at)
    }
}

impl<T: Plain> Mapped<T> {
    /// The memory as a region that keeps it: for owners that are not Rust.
    pub fn into_region(self) -> Region {
        let mapped = ManuallyDrop::new(self);
        let bytes = mapped.len * size_of::<T>();
        // SAFETY: read once, and not dropped here: the region's keeper drops it.
        let keep: Box<dyn Any + Send> = Box::new(unsafe { std::ptr::read(&raw const *mapped) });
        // SAFETY: the memory is valid until `keep` is dropped, and nobody else of this process has its address.
        unsafe { Region::from_raw(mapped.start.as_ptr().cast(), bytes, true, keep) }
    }
}

impl<T: Plain> Deref for Mapped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is valid for `len` elements while the segment is mapped, which the heap sees to; any bits are
        // a `T`; and by the type's contract nobody writes there while this borrow lasts.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Mapped<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow is exclusive, and the stretch has one owner.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for Mapped<T> {
    fn drop(&mut self) {
        // Punching a hole gives the pages back to the system, and makes the next owner's memory zero. In a forked child there
        // is no mapping, and the parent still owns it.
        if self.heap.segment.is_mapped() && self.heap.segment.discard(self.range.clone()).is_ok() {
            self.heap.free.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.range.clone());
        }
    }
}

impl<T: Plain + fmt::Debug> fmt::Debug for Mapped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

/// The free stretches of a range: ascending, none empty, no two adjacent.
#[derive(Clone, Debug)]
pub struct Free {
    stretches: Vec<Range<usize>>,
}

impl Free {
    /// All of `whole`.
    pub fn new(whole: Range<usize>) -> Self {
        Self { stretches: Vec::from_iter((whole.start < whole.end).then_some(whole)) }
    }

    /// Takes `bytes`, above 0, at the lowest address with enough free bytes.
    pub fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        let at = self.stretches.iter().position(|free| free.len() >= bytes)?;
        let free = &mut self.stretches[at];
        let taken = free.start..free.start + bytes;
        free.start = taken.end;
        if free.start == free.end {
            self.stretches.remove(at);
        }
        Some(taken)
    }

    /// Gives back a range from [`take`](Self::take).
    pub fn give_back(&mut self, range: Range<usize>) {
        let at = self.stretches.partition_point(|free| free.start < range.start);
        let joins_next = self.stretches.get(at).is_some_and(|next| next.start == range.end);
        let joins_last = at > 0 && self.stretches[at - 1].end == range.start;
        match (joins_last, joins_next) {
            (true, true) => {
                self.stretches[at - 1].end = self.stretches[at].end;
                self.stretches.remove(at);
            }
            (true, false) => self.stretches[at - 1].end = range.end,
            (false, true) => self.stretches[at].start = range.start,
            (false, false) => self.stretches.insert(at, range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(bytes: usize) -> Arc<Heap> {
        let segment = Arc::new(Segment::create("heap-test", bytes).unwrap());
        let len = segment.len();
        Heap::new(segment, 100..len)
    }

    #[test]
    fn buffers_are_zero_apart_and_come_back() {
        let heap = heap(1 << 20);
        let mut one = heap.allocate::<f32>(1000).unwrap();
        let two = heap.allocate::<u8>(1).unwrap();
        one.fill(1.5);
        assert_eq!((two[0], two.len(), one.len()), (0, 1, 1000));
        let place = one.as_ptr();
        drop(one);
        let again = heap.allocate::<f32>(1000).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert!(again.iter().all(|element| *element == 0.0));
        assert!(heap.allocate::<u64>(1 << 20).is_none());
        assert!(heap.allocate::<u64>(usize::MAX).is_none());
        assert_eq!(heap.allocate::<f64>(0).unwrap().len(), 0);
    }

    #[test]
    fn only_what_was_given_out_here_is_located() {
        let (heap, other) = (heap(1 << 20), heap(1 << 20));
        let mut mapped = heap.allocate::<f32>(16).unwrap();
        let at = Region::lend(&mut mapped, |region| {
            assert_eq!(other.locate(region), None);
            heap.locate(region).unwrap()
        });
        assert_eq!(at, ALIGN);
        mapped[0] = 2.0;
        assert_eq!(heap.segment.span(at..at + 4).to_vec(), 2f32.to_ne_bytes());
        assert_eq!(heap.locate(&Region::zeroed(64)), None);
        let region = mapped.into_region();
        assert_eq!(heap.locate(&region), Some(at));
        assert!(heap.allocate::<u8>(1).unwrap().as_ptr().addr() > region.address());
    }

    #[test]
    fn what_is_given_back_is_whole_again() {
        let mut free = Free::new(10..1000);
        let taken: Vec<_> = (1..20).map(|bytes| free.take(bytes).unwrap()).collect();
        assert!(taken.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(free.take(900), None);
        for range in taken.iter().step_by(2).chain(taken.iter().skip(1).step_by(2)) {
            free.give_back(range.clone());
        }
        assert_eq!(free.take(990), Some(10..1000));
        assert_eq!(free.take(1), None);
    }
}
