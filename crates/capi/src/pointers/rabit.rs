//! Addresses of RABIT's interface: functions of the program, and memory that ranks change in place.

use super::{ArrayPointer, LentMemory, OutputPointer, ResultPointer, TextPointer, null};
use crate::failure::InterfaceFailure;
use herringbone::Error;
use std::{
    ffi::{c_char, c_int, c_ulong, c_void},
    ptr,
};

/// The pointer that the library passes back to the program when it calls it: `void *`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct ProgramPointer(*mut c_void);

/// Puts a call's input into its buffer, or null for nothing to do: `void (*)(void *)`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct PrepareFunction(Option<unsafe extern "C" fn(*mut c_void)>);

/// Makes bytes of the program's model: `int (*)(void *, const char **, size_t *)`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct SaveFunction(Option<unsafe extern "C" fn(*mut c_void, *mut *const c_char, *mut usize) -> c_int>);

/// A [`SaveFunction`] and what it is given.
#[derive(Debug)]
pub(crate) struct ModelSaver {
    save: unsafe extern "C" fn(*mut c_void, *mut *const c_char, *mut usize) -> c_int,
    argument: *mut c_void,
}

// SAFETY: it is called by the threads that call the library, one at a time, which the header tells the program.
unsafe impl Send for ModelSaver {}

impl PrepareFunction {
    /// Calls it, if there is one.
    pub(crate) fn call(self, argument: ProgramPointer) {
        if let Some(prepare) = self.0 {
            // SAFETY: the header demands a function that takes what the program gives with it, and returns.
            unsafe { prepare(argument.0) }
        }
    }
}

impl SaveFunction {
    /// It, with what it is given.
    ///
    /// # Errors
    /// If it is null.
    pub(crate) fn of(self, argument: ProgramPointer) -> Result<ModelSaver, InterfaceFailure> {
        let save = self.0.ok_or_else(|| null("save"))?;
        Ok(ModelSaver { save, argument: argument.0 })
    }
}

impl ModelSaver {
    /// The model's bytes.
    ///
    /// # Errors
    /// If the program cannot make them.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, Error> {
        let (mut start, mut length) = (ptr::null(), 0);
        // SAFETY: the header demands a function that takes what the program gives with it, and two places to write to.
        let status = unsafe { (self.save)(self.argument, &raw mut start, &raw mut length) };
        let problem = match status {
            0 => {
                let bytes = ArrayPointer(start.cast::<u8>()).read("the model", length);
                return bytes.map_err(|failure| Error::of_program("the model's bytes", failure.text()));
            }
            status => format!("the program's function returned {status}"),
        };
        Err(Error::of_program("the model's bytes", problem))
    }
}

impl OutputPointer {
    /// So many bytes here, which are input and output.
    ///
    /// # Errors
    /// If it is null and has some, or no buffer is as long.
    pub(crate) fn lend_in_place(self, bytes: Option<usize>) -> Result<LentMemory, InterfaceFailure> {
        let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(|| {
            InterfaceFailure::argument("no buffer is as long: pass a smaller count or size")
        })?;
        self.as_input().lend(bytes, self, bytes)
    }
}

impl ArrayPointer<c_char> {
    /// So many bytes, for a model.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn bytes(self, name: &str, length: usize) -> Result<Vec<u8>, InterfaceFailure> {
        ArrayPointer(self.0.cast::<u8>()).read(name, length)
    }

    /// Whether it is null.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl ArrayPointer<TextPointer> {
    /// The program's arguments. Those that are not UTF-8 are none of ours.
    ///
    /// # Errors
    /// If it is null and there are some, or their number is negative.
    pub(crate) fn arguments(self, count: c_int) -> Result<Vec<String>, InterfaceFailure> {
        let count = usize::try_from(count)
            .map_err(|_| InterfaceFailure::argument(format!("argc is {count}: pass 0 or more")))?;
        let texts = self.read("argv", count)?;
        Ok(texts.iter().filter_map(|text| text.read("argv").ok().flatten()).collect())
    }
}

/// The place where a caller learns the address of the library's bytes: `const char **`, or `char **`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct ModelPointer(*mut *const c_char);

impl ModelPointer {
    /// Whether it is null.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Puts there where the bytes are, which the library keeps; null if there are none.
    pub(crate) fn show(self, bytes: Option<&[u8]>, length: ResultPointer<usize>) {
        let start = bytes.map_or(ptr::null(), <[u8]>::as_ptr);
        if !self.0.is_null() {
            // SAFETY: the header demands a place for one address.
            unsafe { self.0.write(start.cast()) };
        }
        if !length.0.is_null() {
            // SAFETY: the header demands a place for one number.
            unsafe { length.0.write(bytes.map_or(0, <[u8]>::len)) };
        }
    }
}

impl<T> ResultPointer<T> {
    /// Whether it is null.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

// RABIT's lengths are C's `unsigned long`.
const _: () = assert!(size_of::<c_ulong>() == size_of::<usize>());
