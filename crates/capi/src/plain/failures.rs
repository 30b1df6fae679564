//! Versions, and the details of a thread's last failure.

use crate::{
    codes,
    failure::{code_of, last_lost, last_text},
    pointers::ResultPointer,
};
use std::ffi::{c_char, c_int};

/// The version of the library, in the form of `HERRINGBONE_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or_default();
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    (part(major) * 1000 + part(minor)) * 1000 + part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// The name of a code, or null.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_error_name(code: c_int) -> *const c_char {
    codes::name(code).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// The text of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_last_error() -> *const c_char {
    last_text()
}

/// The lost ranks of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_lost_ranks(
    ranks: ResultPointer<u32>,
    capacity: usize,
    count: ResultPointer<usize>,
) -> c_int {
    code_of(|| {
        let lost = last_lost();
        count.fill("count", || {
            ranks.fill_all("ranks", capacity, &lost)?;
            Ok(lost.len())
        })
    })
}
