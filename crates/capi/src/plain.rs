//! The functions of `herringbone.h`: one for each declaration there, whose comment says what it does.

mod collectives;
mod failures;
mod groups;
mod works;

pub use collectives::*;
pub use failures::*;
pub use groups::*;
pub use works::*;
