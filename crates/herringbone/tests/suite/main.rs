//! What every transport, algorithm and world has to do, in worlds of threads.
//!
//! `corpus` runs testdata/cases, `order` the fold-order contract, `api` the typed calls, `mapped` buffers that ranks share,
//! `priorities` who goes first, `progress` ranks that are driven by hand; `world` forms the worlds.
#![forbid(unsafe_code)]

mod api;
mod corpus;
mod mapped;
mod order;
mod priorities;
mod progress;
mod world;
