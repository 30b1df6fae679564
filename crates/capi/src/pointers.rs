//! Addresses: here a C caller's values are taken as addresses.
//!
//! The types here take the place of pointers in the signatures of exported functions. Only C makes values of them, and
//! the header demands what each use below needs. All unsafe blocks of the crate are here and in its own part for RABIT.
//!
//! The header demands three properties of a pointer that is not null. It is aligned for its type; only buffers need no
//! alignment. It points to as much memory as the other arguments require, which is readable, and writable if a function
//! writes. And no other thread touches that memory until the call returns, or until the work's handle is over.

mod rabit;

use crate::failure::InterfaceFailure;
use herringbone::Region;
use std::{
    ffi::{CStr, c_char, c_void},
    mem, ptr, slice,
};

pub(crate) use rabit::ModelSaver;
pub use rabit::{ModelPointer, PrepareFunction, ProgramPointer, SaveFunction};

/// A buffer that a call reads: `const void *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct InputPointer(*const c_void);

/// A buffer that a call writes: `void *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct OutputPointer(*mut c_void);

/// The place where a call puts values: `T *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct ResultPointer<T>(*mut T);

/// An array that a call reads: `const T *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct ArrayPointer<T>(*const T);

/// A text that ends with a zero byte, or null for none: `const char *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct TextPointer(*const c_char);

/// The options, `const herringbone_options *`. The caller can know fewer or more of them than this library.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct OptionsPointer(*const InitOptions);

/// `herringbone_options` of the header. New fields come at the end, without padding between them; any bits are a value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InitOptions {
    pub(crate) size: usize,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) address: TextPointer,
    pub(crate) token: TextPointer,
    pub(crate) timeout_seconds: f64,
}

impl Default for InitOptions {
    fn default() -> Self {
        let (address, token) = (TextPointer::NONE, TextPointer::NONE);
        Self { size: size_of::<Self>(), rank: 0, world_size: 1, address, token, timeout_seconds: 0.0 }
    }
}

/// How many bytes the fields of the first version have.
const SHORTEST_OPTIONS: usize = mem::offset_of!(InitOptions, timeout_seconds) + size_of::<f64>();
/// The longest options that are read: those of a much later version.
const LONGEST_OPTIONS: usize = 4096;

fn null(name: &str) -> InterfaceFailure {
    InterfaceFailure::argument(format!("{name} is null: pass an address"))
}

/// The input and the output of an operation, which the caller lends until that is over. They are given back by then, even if a panic
/// ends the call: a late message must find nothing to write to.
#[derive(Debug)]
pub(crate) struct LentMemory {
    pub(crate) input: Region,
    pub(crate) output: Region,
}

impl LentMemory {
    /// From now on nothing here touches them.
    pub(crate) fn give_back(&self) {
        self.input.revoke();
        self.output.revoke();
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Memory of the caller, for [`LentMemory`].
fn region(start: *mut u8, bytes: usize, writable: bool, name: &str) -> Result<Region, InterfaceFailure> {
    if bytes > 0 && start.is_null() {
        return Err(InterfaceFailure::argument(format!(
            "{name} is null where {bytes} bytes are needed: pass a buffer, or a count of 0"
        )));
    }
    let start = if bytes == 0 { ptr::null_mut() } else { start };
    // SAFETY: the header demands that the bytes are there and are touched by nobody else until the operation is over, when
    // `LentMemory` gives them back. None are needed if there are none.
    Ok(unsafe { Region::from_raw(start, bytes, writable, Box::new(())) })
}

impl InputPointer {
    /// So many bytes here and, at another address or the same, there.
    ///
    /// # Errors
    /// If one is null and has some.
    pub(crate) fn lend(
        self,
        inputs: usize,
        output: OutputPointer,
        outputs: usize,
    ) -> Result<LentMemory, InterfaceFailure> {
        let target = region(output.0.cast(), outputs, true, "output")?;
        // The same bytes are one region, so that a thread may have both at once.
        let is_in_place = ptr::eq(self.0, output.0) && inputs == outputs;
        let source = match is_in_place {
            true => target.clone(),
            false => region(self.0.cast_mut().cast(), inputs, false, "input")?,
        };
        Ok(LentMemory { input: source, output: target })
    }

    /// The same bytes for an output that no operation writes: a reduction's on ranks other than its root.
    pub(crate) fn as_unused_output(self) -> OutputPointer {
        OutputPointer(self.0.cast_mut())
    }
}

impl OutputPointer {
    /// No buffer.
    pub(crate) const NONE: Self = Self(ptr::null_mut());

    /// The same bytes as an input.
    pub(crate) fn as_input(self) -> InputPointer {
        InputPointer(self.0)
    }

    /// Whether it is null.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T> ResultPointer<T> {
    /// Puts there what `make` gives. Nothing is made if there is no place for it.
    ///
    /// # Errors
    /// If it is null, and those of `make`.
    pub(crate) fn fill(
        self,
        name: &str,
        make: impl FnOnce() -> Result<T, InterfaceFailure>,
    ) -> Result<(), InterfaceFailure> {
        if self.0.is_null() {
            return Err(null(name));
        }
        let value = make()?;
        // SAFETY: the header demands a place for one value.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Puts there as many of these as there is room for.
    ///
    /// # Errors
    /// If it is null and there is room for some.
    pub(crate) fn fill_all(self, name: &str, room: usize, values: &[T]) -> Result<(), InterfaceFailure>
    where
        T: Copy,
    {
        if self.0.is_null() && room > 0 {
            return Err(null(name));
        }
        let count = values.len().min(room);
        if count > 0 {
            // SAFETY: the header demands places for `room` values, and they are not where this library keeps the others.
            unsafe { self.0.copy_from_nonoverlapping(values.as_ptr(), count) };
        }
        Ok(())
    }
}

impl<T: Copy> ArrayPointer<T> {
    /// Its values.
    ///
    /// # Errors
    /// If it is null and there are some, or there are more than a process can have.
    pub(crate) fn read(self, name: &str, count: usize) -> Result<Vec<T>, InterfaceFailure> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(null(name));
        }
        if count > isize::MAX as usize / size_of::<T>() {
            return Err(InterfaceFailure::argument(format!("{name}: no array has {count} elements")));
        }
        // SAFETY: the header demands so many values.
        Ok(unsafe { slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

impl TextPointer {
    /// No text.
    pub(crate) const NONE: Self = Self(ptr::null());

    /// The text, if there is one.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub(crate) fn read(self, name: &str) -> Result<Option<String>, InterfaceFailure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the header demands a text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) }.to_str();
        let text = text.map_err(|_| InterfaceFailure::argument(format!("{name} is not text in UTF-8")))?;
        Ok(Some(text.to_owned()))
    }
}

impl TextPointer {
    /// The text.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if it is null.
    pub(crate) fn needed(self, name: &str) -> Result<String, InterfaceFailure> {
        self.read(name)?.ok_or_else(|| null(name))
    }
}

impl ResultPointer<c_char> {
    /// Puts there as much of a text as there is room for, with a zero byte at its end: its length without that.
    ///
    /// # Errors
    /// If it is null, or has no room.
    pub(crate) fn fill_text(self, name: &str, room: usize, text: &str) -> Result<usize, InterfaceFailure> {
        if room == 0 {
            return Err(InterfaceFailure::argument(format!(
                "{name} has room for 0 bytes: pass a larger buffer"
            )));
        }
        let longest = text.len().min(room - 1);
        let kept = (0..=longest).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let bytes = text.as_bytes()[..kept].iter().map(|byte| byte.cast_signed());
        let written: Vec<c_char> = bytes.chain([0]).collect();
        self.fill_all(name, room, &written)?;
        Ok(kept)
    }
}

impl OptionsPointer {
    /// The options: what the caller's header did not have yet is as by default.
    ///
    /// # Errors
    /// If it is null, has no size that a version of the header gives, or has something set that this library does not know.
    pub(crate) fn read(self) -> Result<InitOptions, InterfaceFailure> {
        if self.0.is_null() {
            return Err(null("options"));
        }
        // SAFETY: the header demands that every version of it begins with its size.
        let size = unsafe { self.0.cast::<usize>().read() };
        if !(SHORTEST_OPTIONS..=LONGEST_OPTIONS).contains(&size) {
            return Err(InterfaceFailure::argument(format!(
                "options have the size {size}: begin with HERRINGBONE_OPTIONS_INIT"
            )));
        }
        // SAFETY: the header demands that there are as many bytes as the size says, all of which are set.
        let bytes = unsafe { slice::from_raw_parts(self.0.cast::<u8>(), size) };
        let (known, unknown) = bytes.split_at(size.min(size_of::<InitOptions>()));
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(InterfaceFailure::argument(
                "options have something set that this version of the library does not know: use the header that is installed with it",
            ));
        }
        let mut options = InitOptions::default();
        // SAFETY: both have these bytes; what C has set in them is a value of each field, all of which take any bits.
        unsafe {
            ptr::from_mut(&mut options).cast::<u8>().copy_from_nonoverlapping(known.as_ptr(), known.len())
        };
        Ok(options)
    }
}
