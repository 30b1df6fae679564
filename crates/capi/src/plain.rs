//! The functions of `herringbone.h`: one for each declaration there, whose comment documents it.

mod collectives;
mod failures;
mod groups;
mod works;

pub use collectives::*;
pub use failures::*;
pub use groups::*;
pub use works::*;
