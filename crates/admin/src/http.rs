//! A small HTTP server: GET and HEAD, one request for a connection, everything bounded.
//!
//! It is our own because the page needs limits that small servers do not have: `tiny_http` reads a header of any length, and waits
//! for it without end ([why](https://github.com/herringbone-rs/herringbone/blob/main/docs/decisions/44-http-and-metrics.md)).

pub(crate) mod gate;
pub(crate) mod listener;
mod places;
pub(crate) mod request;
pub(crate) mod response;
