//! A small HTTP server: GET and HEAD, one request for a connection, everything bounded.
//!
//! Small servers lack the limits that the page needs: `tiny_http` reads a header of any length, and waits
//! for it without limit ([why](https://github.com/herringbone-rs/herringbone/blob/main/docs/decisions/44-http-and-metrics.md)).

pub(crate) mod gate;
pub(crate) mod listener;
mod places;
pub(crate) mod request;
pub(crate) mod response;
