//! What to do, and why it is right: the pure half of Herringbone.
//!
//! An [`algorithm`] is a function from a [`group`] and a [`collective`] to a [`schedule`]: for every rank a
//! straight-line program of sends, receives, folds and copies. [`verify`](verify::verify) runs the schedule on
//! symbols and returns a [`Verified`](verify::Verified) one, the only thing that [`interpret`](interpret::interpret)
//! and [`prepare`](prepare::prepare) accept: what it compiles is what executors run. The modules below stand in the order in which data flows through them.
//!
//! The crate is `no_std`, forbids `unsafe` and has no dependency that does I/O, so the compiler itself keeps clocks,
//! threads, sockets, the environment and hash order out of every decision.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod choice;

pub mod element;

pub mod group;

pub mod codec;

pub mod collective;

pub mod topology;

pub mod schedule;

pub mod algorithm;

pub mod plan;

pub mod verify;

pub mod interpret;

pub mod trace;

pub mod named;

pub mod wire;

pub mod session;

pub mod prepare;

pub mod execution;

pub mod simulate;
