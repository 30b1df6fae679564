//! Herringbone for C and C++, and for every language that calls C: `libherringbone.so`.
//!
//! `include/herringbone.h` is the contract, and its comments are the documentation; `include/rabit/c_api.h` and
//! `include/herringbone/rabit.h` are the same for RABIT's interface. This crate is the border. [`plain`] and
//! [`mod@rabit`] have one short function for each declaration of the headers, and [`pointers`] turns addresses into
//! regions and values. Nothing else touches an address. Every mistake of a caller comes back as a code with a text; no
//! panic crosses the border.
//!
//! Handles are numbers and not addresses (like POSIX descriptors), so that one that is over differs from one that
//! lives.
#![warn(clippy::disallowed_methods)]

mod calls;
mod codes;
mod failure;
mod options;
#[expect(unsafe_code, reason = "it exports functions under the names of the header")]
pub mod plain;
#[expect(unsafe_code, reason = "it is where addresses of C become memory")]
pub mod pointers;
#[expect(unsafe_code, reason = "it exports functions under the names of the headers")]
pub mod rabit;
mod rabit_calls;
mod registry;
mod session;
