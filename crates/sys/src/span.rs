//! Memory for the kernels and sockets: a start, a length, and no promise that no one else writes to it.

use crate::copy;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};

/// `len` bytes of memory that stay mapped for `'a`.
///
/// A span is to bytes what [`Cell`](std::cell::Cell) is to a value: several spans can cover the same bytes, and writing
/// through one is seen through the others. It gives no reference to its bytes, only copies, so that memory shared with
/// other processes can be one. It stays on its thread (it is neither `Send` nor `Sync`).
///
/// A span over memory that was only lent for reading is not [writable](Self::is_writable); writing to it panics.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    start: NonNull<u8>,
    len: usize,
    kind: Kind,
    memory: PhantomData<&'a UnsafeCell<u8>>,
}

/// Who else may touch a span's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Others may read them, and so may we.
    Lent,
    /// Nobody, except through spans on this thread.
    Private,
    /// Anybody, as the crate's notes on races allow.
    Shared,
}

impl<'a> Span<'a> {
    /// A span over borrowed bytes.
    pub fn of(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        // SAFETY: the exclusive borrow lasts for 'a, so the bytes are valid and reached through this span only.
        unsafe { Span::from_raw(NonNull::from(bytes).cast(), len, Kind::Private) }
    }

    /// A span over bytes that can only be read.
    pub fn of_shared(bytes: &'a [u8]) -> Self {
        // SAFETY: the borrow lasts for 'a, and such a span only reads.
        unsafe { Span::from_raw(NonNull::from(bytes).cast(), bytes.len(), Kind::Lent) }
    }

    /// A span over `len` bytes from `start`.
    ///
    /// # Safety
    /// For `'a` the bytes are initialised memory that may be read through `start`, and written unless the kind is
    /// [`Kind::Lent`], without breaking a borrow. Other threads and processes do with them only what `kind` says.
    #[inline]
    pub(crate) unsafe fn from_raw(start: NonNull<u8>, len: usize, kind: Kind) -> Self {
        Span { start, len, kind, memory: PhantomData }
    }

    /// How many bytes it covers.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it covers no byte.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether its bytes can be written.
    #[inline]
    pub fn is_writable(self) -> bool {
        self.kind != Kind::Lent
    }

    /// Whether others may write its bytes at any time.
    #[inline]
    pub(crate) fn is_shared(self) -> bool {
        self.kind == Kind::Shared
    }

    /// The bytes of `range`.
    ///
    /// # Panics
    /// If `range` does not lie within the span.
    #[inline]
    #[track_caller]
    pub fn slice(self, range: Range<usize>) -> Span<'a> {
        let (start, end) = (range.start, range.end);
        assert!(start <= end && end <= self.len, "bytes {start}..{end} of a span of {} bytes", self.len);
        // SAFETY: start <= len, so the sum stays within the memory or one past its end.
        Span { start: unsafe { self.start.add(start) }, len: end - start, ..self }
    }

    /// The first `at` bytes and the others.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    #[track_caller]
    pub fn split(self, at: usize) -> (Span<'a>, Span<'a>) {
        (self.slice(0..at), self.slice(at..self.len))
    }

    /// Copies all bytes of `source` here; the two can overlap.
    ///
    /// # Panics
    /// If the lengths differ, or this span is not writable.
    #[inline]
    #[track_caller]
    pub fn copy_from(self, source: Span<'_>) {
        assert_eq!(self.len, source.len, "a copy needs a source of the same length");
        // SAFETY: both are valid for this many bytes, this one for writing.
        unsafe { copy::copy(source.as_ptr(), self.as_mut_ptr(), self.len) }
    }

    /// Copies all bytes of `source` here. This is faster than [`copy_from`](Self::copy_from) if another core has read
    /// the earlier bytes here.
    ///
    /// # Panics
    /// As [`copy_from`](Self::copy_from).
    #[track_caller]
    pub fn push_from(self, source: Span<'_>) {
        assert_eq!(self.len, source.len, "a copy needs a source of the same length");
        // SAFETY: both are valid for this many bytes, this one for writing.
        unsafe { copy::push(source.as_ptr(), self.as_mut_ptr(), self.len) }
    }

    /// Copies all bytes of `source` here past this core's caches, if the CPU can: for memory that only other cores read
    /// next. Later stores of this thread are seen after these bytes.
    ///
    /// # Panics
    /// As [`copy_from`](Self::copy_from).
    #[track_caller]
    pub fn stream_from(self, source: Span<'_>) {
        assert_eq!(self.len, source.len, "a copy needs a source of the same length");
        // SAFETY: both are valid for this many bytes, this one for writing.
        unsafe { copy::stream(source.as_ptr(), self.as_mut_ptr(), self.len) }
    }

    /// Brings the first `most` bytes, or all, to this core's caches in the background: for bytes that another core has
    /// written and this one reads next. CPUs that cannot do this do nothing.
    #[inline]
    pub fn fetch(self, most: usize) {
        copy::fetch(self.as_ptr(), self.len.min(most));
    }

    /// Copies `bytes` here.
    ///
    /// # Panics
    /// If the lengths differ, or this span is not writable.
    #[track_caller]
    pub fn write(self, bytes: &[u8]) {
        self.copy_from(Span::of_shared(bytes));
    }

    /// Copies the span into `bytes`.
    ///
    /// # Panics
    /// If the lengths differ.
    #[track_caller]
    pub fn read(self, bytes: &mut [u8]) {
        Span::of(bytes).copy_from(self);
    }

    /// A copy of the bytes.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(&mut bytes);
        bytes
    }

    /// Writes zero to every byte.
    ///
    /// # Panics
    /// If the span is not writable.
    #[track_caller]
    pub fn zero(self) {
        // SAFETY: `as_mut_ptr` is valid for writing `len` bytes.
        unsafe { ptr::write_bytes(self.as_mut_ptr(), 0, self.len) }
    }

    /// Whether both begin at the same address: a fold in place.
    #[inline]
    pub fn same_start(self, other: Span<'_>) -> bool {
        self.start == other.start
    }

    /// Whether some byte belongs to both.
    #[inline]
    pub fn overlaps(self, other: Span<'_>) -> bool {
        let (one, two) = (self.start.addr().get(), other.start.addr().get());
        !self.is_empty() && !other.is_empty() && one < two + other.len && two < one + self.len
    }

    /// The address of the first byte, for reading `len` bytes.
    #[inline]
    pub(crate) fn as_ptr(self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The address of the first byte, for reading and writing `len` bytes.
    ///
    /// # Panics
    /// If the span is not writable.
    #[inline]
    #[track_caller]
    pub(crate) fn as_mut_ptr(self) -> *mut u8 {
        assert!(self.is_writable(), "this memory was lent for reading only");
        self.start.as_ptr()
    }
}

impl fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes at {:p})", self.len, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_where_they_should_also_when_they_overlap() {
        let mut bytes = *b"herringbone";
        let span = Span::of(&mut bytes);
        let (head, tail) = span.split(7);
        assert_eq!((head.to_vec().as_slice(), tail.to_vec().as_slice()), (&b"herring"[..], &b"bone"[..]));
        span.slice(2..9).copy_from(head);
        tail.slice(3..4).write(b"!");
        span.slice(0..1).zero();
        let mut copy = [0; 11];
        span.read(&mut copy);
        assert_eq!(&copy, b"\0eherringn!");
    }

    #[test]
    fn overlap_means_a_common_byte() {
        let mut bytes = [0; 8];
        let span = Span::of(&mut bytes);
        let (head, tail) = span.split(4);
        assert!(span.overlaps(head) && span.overlaps(tail) && span.slice(3..5).overlaps(tail));
        assert!(!head.overlaps(tail) && !span.overlaps(span.slice(4..4)));
        assert!(span.same_start(head) && !span.same_start(tail));
    }

    #[test]
    #[should_panic(expected = "bytes 2..5 of a span of 4 bytes")]
    fn slices_stay_within() {
        Span::of(&mut [0; 4]).slice(2..5);
    }

    #[test]
    #[should_panic(expected = "same length")]
    fn a_copy_has_one_length() {
        Span::of(&mut [0; 4]).write(&[1; 3]);
    }

    #[test]
    #[should_panic(expected = "reading only")]
    fn what_was_lent_for_reading_is_not_written() {
        Span::of_shared(&[0; 4]).write(&[1; 4]);
    }
}
