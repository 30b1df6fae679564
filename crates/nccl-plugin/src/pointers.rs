//! Addresses: here NCCL's values are taken as addresses.
//!
//! The types here take the place of pointers in the signatures of the tables. Only NCCL makes values of them, and its
//! interface (`ext-net`, `plugins/net/README.md` of its sources) demands what each use below needs. A pointer that is
//! not null is aligned for its type and points to as much memory as its description says. A buffer of a request stays
//! there until the request is complete. All unsafe blocks of the crate are here.

use crate::{failure::PluginFailure, wire::greeting::HANDLE_BYTES};
use herringbone::Region;
use std::{
    ffi::{CStr, CString, c_char, c_int, c_ulong, c_void},
    ptr,
};

/// What stands for a comm, a request or nothing: `void *`, which NCCL only keeps and compares with null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct OpaqueNumber(*mut c_void);

/// A buffer that a request reads or writes: `void *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct DataPointer(*mut c_void);

/// A handle of `NCCL_NET_HANDLE_MAXSIZE` bytes: `void *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct HandlePointer(*mut c_void);

/// Where a call puts a value: `T *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct PlacePointer<T>(*mut T);

/// An array of which a call reads the first value: `T *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct FirstPointer<T>(*const T);

/// What no function of this plug-in looks at: a context, a configuration, a tag's or a profiler's handle.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct UnusedPointer(*const c_void);

/// A text that lives as long as the process, or null for none: `char *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct StaticText(*const c_char);

/// `ncclDebugLogger_t`: level, subsystems, file, line, format, values.
type RawLogFunction = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// The function that writes a line to NCCL's log, or null for none.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct LogFunction(Option<RawLogFunction>);

fn null(name: &str) -> PluginFailure {
    PluginFailure::argument(format!("NCCL passed null for {name}"))
}

impl OpaqueNumber {
    /// Null.
    pub(crate) const NONE: Self = Self(ptr::null_mut());

    /// What stands for a number, which is not 0.
    pub(crate) fn new(number: u64) -> Self {
        Self(ptr::without_provenance_mut(number as usize))
    }

    /// The number; 0 for null.
    pub(crate) fn number(self) -> u64 {
        self.0.addr() as u64
    }
}

impl DataPointer {
    /// So many bytes, which are read, or written, until the region is dropped.
    ///
    /// # Errors
    /// If it is null and there are some, or no memory is as large.
    pub(crate) fn lend(self, bytes: usize, writable: bool) -> Result<Region, PluginFailure> {
        if bytes > isize::MAX as usize {
            return Err(PluginFailure::argument(format!("no buffer has {bytes} bytes")));
        }
        if bytes > 0 && self.0.is_null() {
            return Err(null(&format!("a buffer of {bytes} bytes")));
        }
        let start = if bytes == 0 { ptr::null_mut() } else { self.0.cast() };
        // SAFETY: NCCL keeps the bytes until the request is complete, which owns the region, and lets nobody on this processor write
        // them meanwhile, or read them if they are written. None are needed if there are none.
        Ok(unsafe { Region::from_raw(start, bytes, writable, Box::new(())) })
    }
}

impl HandlePointer {
    /// The handle's bytes.
    ///
    /// # Errors
    /// If it is null.
    pub(crate) fn read(self) -> Result<[u8; HANDLE_BYTES], PluginFailure> {
        if self.0.is_null() {
            return Err(null("a handle"));
        }
        // SAFETY: a handle has this size, and bytes need no alignment.
        Ok(unsafe { self.0.cast::<[u8; HANDLE_BYTES]>().read() })
    }

    /// Puts these bytes there.
    ///
    /// # Errors
    /// If it is null.
    pub(crate) fn write(self, bytes: [u8; HANDLE_BYTES]) -> Result<(), PluginFailure> {
        if self.0.is_null() {
            return Err(null("a handle"));
        }
        // SAFETY: as in `read`, and NCCL has made the place to be written.
        unsafe { self.0.cast::<[u8; HANDLE_BYTES]>().write(bytes) };
        Ok(())
    }
}

impl<T> PlacePointer<T> {
    /// Puts a value there.
    ///
    /// # Errors
    /// If it is null.
    pub(crate) fn fill(self, name: &str, value: T) -> Result<(), PluginFailure> {
        if self.0.is_null() {
            return Err(null(name));
        }
        // SAFETY: NCCL has made a place for one value.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Puts a value there, if there is a place for it.
    pub(crate) fn fill_if_wanted(self, value: T) {
        let _not_wanted = self.fill("a value", value);
    }
}

impl<T: Copy> FirstPointer<T> {
    /// The first value.
    ///
    /// # Errors
    /// If it is null.
    pub(crate) fn first(self, name: &str) -> Result<T, PluginFailure> {
        if self.0.is_null() {
            return Err(null(name));
        }
        // SAFETY: NCCL passes at least one value.
        Ok(unsafe { self.0.read() })
    }
}

impl StaticText {
    /// No text.
    pub(crate) const NONE: Self = Self(ptr::null());

    /// This text.
    pub(crate) const fn new(text: &'static CStr) -> Self {
        Self(text.as_ptr())
    }
}

// SAFETY: what it points to lives as long as the process, and nobody writes it.
unsafe impl Sync for StaticText {}

impl LogFunction {
    /// No function: nothing is logged.
    pub(crate) const NONE: Self = Self(None);

    /// Logs a line.
    pub(crate) fn call(self, level: i32, flags: u64, text: &str) {
        let Some(log) = self.0 else { return };
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: NCCL's function takes a format and what that names, here one text, and keeps none of them.
        unsafe { log(level, flags as c_ulong, c"herringbone".as_ptr(), 0, c"%s".as_ptr(), text.as_ptr()) };
    }
}
