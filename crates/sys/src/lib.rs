//! How the machine is touched: the half of Herringbone that no compiler can check.
//!
//! **Invariant: all `unsafe` of the project is in this crate, behind functions that are safe to call.** One function is
//! not, [`Region::from_raw`](region::Region::from_raw), for memory that another language owns; one binding calls it.
//! This crate has no policy: nothing decides what to send, when to give up or whom to believe. Linux only.
//!
//! | module | what it makes safe |
//! |---|---|
//! | [`span`] | raw memory that others may write at the same time: copies, checksums, never a reference to its bytes |
//! | [`region`] | memory kept across calls: owned, or lent and *revoked* before the lender may touch it again |
//! | [`segment`] | memory shared with other processes: sealed memfds, gone with the last process that maps them |
//! | [`heap`] | buffers in a segment, for users |
//! | [`device`], [`cuda`] | accelerators: streams that copy to and from the host, events, values for which streams wait |
//! | [`ring`], [`doorbell`] | messages of at most 15 words through a segment without locks, and sleeping without lost wake-ups |
//! | [`socket`], [`pidfd`] | sockets into and out of spans, descriptors passed between processes, deaths of processes |
//! | [`interface`] | the host's network interfaces and their addresses |
//! | [`fork`] | a child that keeps no descriptor of its parent's fabric open, and knows that it is a child |
//! | [`signal`] | a signal that a thread waits for |
//! | [`kernel`] | the arithmetic: one pass over N sources, vectorised, equal to the scalar meaning bit for bit |
//! | [`codec`] | what is sent in fewer bytes, vectorised likewise |
//!
//! # Races
//! The memory of a [`region`] is touched by one thread at a time; the types ensure that. The memory of a [`segment`] is
//! mapped by other processes too, and no type system reaches into those: a faulty one can write at any moment. So the
//! code here reads such memory only with raw copies, atomics and vector loads, never through a reference to its bytes.
//! The exception is a [`heap`]'s buffers, which their owner lends out as a whole. No value read there decides about an
//! address, a length or a loop. A race can make numbers wrong and nothing else; the protocol of grants, and a checksum
//! on sockets, keep it from happening.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod sync;

pub mod plain;

mod copy;

pub mod span;

mod checksum;

pub mod region;

pub mod segment;

pub mod heap;

pub mod device;

pub mod cuda;

pub mod ring;

pub mod doorbell;

pub mod signal;

pub mod socket;

pub mod interface;

pub mod pidfd;

pub mod peer;

pub mod fork;

pub mod kernel;

pub mod codec;
