//! What every transport, algorithm and world has to do, in worlds of threads.
//!
//! `corpus` runs testdata/cases, `order` the fold-order contract, `api` the typed calls, `arrivals` what has come before it is
//! asked for, `endings` groups that end, `mapped` buffers that ranks share, `memory` operations that wait for it,
//! `priorities` which operations go first, `progress` ranks that are driven by hand, `parts` collectives that move parts,
//! `rabit` programs that continue where they were, `shards` sums that do not depend on who carries them, `staged` the memory that they take, `compressed` coded messages, `straight`
//! small operations that are waited for, `large` what 64 ranks may cost, `processes` the same ranks as processes, `examples` the programs of the crate's `examples`; `world`
//! forms the worlds.
#![forbid(unsafe_code)]

mod api;
mod compressed;
mod corpus;
mod endings;
mod events;
mod examples;
mod large;
mod mapped;
mod memory;
mod messages;
#[cfg(feature = "named")]
mod named;
mod order;
mod parts;
mod priorities;
mod processes;
mod progress;
mod rabit;
mod shards;
mod staged;
mod straight;
mod world;
