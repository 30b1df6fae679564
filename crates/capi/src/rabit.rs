//! RABIT's interface: the functions of `rabit/c_api.h`, and the functions with codes on which `herringbone/rabit.h` is
//! written. `herringbone/rabit_library.h` declares the latter.
//!
//! A function whose type has no room for a code prints its failure on standard error. If it was to give a result, the
//! session is over: every later call fails, too, because the program would continue without that result.

mod coded;
mod named;

pub use coded::*;
pub use named::*;
