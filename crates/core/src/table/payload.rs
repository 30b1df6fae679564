//! How much a message carries.

/// The most bytes of a payload. A reader has a place for one before it comes.
pub const PAYLOAD_BYTES: usize = 256 << 10;
/// How much of it is left for keys and values: a head without keys is shorter than the rest.
pub const BODY_BYTES: usize = PAYLOAD_BYTES - (1 << 10);
