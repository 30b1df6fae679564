//! An allocation.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// An aligned allocation.
pub(crate) struct Block {
    pub(super) start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the owner of an allocation may free it on any thread.
unsafe impl Send for Block {}

impl Block {
    const ALIGN: usize = 64;

    pub(super) fn zeroed(bytes: usize) -> Block {
        Self::aligned(bytes, Self::ALIGN)
    }

    /// `align` is a power of two.
    pub(crate) fn aligned(bytes: usize, align: usize) -> Block {
        let layout = Layout::from_size_align(bytes.max(1), align).expect("fewer than 2^63 bytes");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Block { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `zeroed`.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
