//! Decisions, and their proofs: the pure half of Herringbone.
//!
//! Begin with two types. A [`Schedule`](schedule::Schedule) has, for every rank, the chunks that it sends, receives,
//! folds and copies: an [`Algorithm`](algorithm::Algorithm) makes it from a [`group`], a [`collective`] and a layout. A
//! [`Verified`](verify::Verified) is a schedule that [`verify`](verify::verify) has run on symbols and found right.
//! Only verified schedules are run, here and on machines.
//!
//! ```
//! use herringbone_core::{
//!     algorithm::{Algorithm, Layout},
//!     collective::Collective,
//!     element::{DType, ReduceOp},
//!     group::Group,
//!     interpret::interpret,
//!     verify::verify,
//! };
//!
//! // Three workers, and two reducers that fold for them.
//! let (algorithm, group): (Algorithm, _) = ("reduction_server".parse()?, Group::of_size(3));
//! let layout = Layout { reducers: 2, ..Layout::default() };
//! let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout)?;
//! println!("{schedule}");
//!
//! // On symbols: nobody waits forever, and every worker ends with each input in its sum once.
//! let proven = verify(schedule, Collective::AllReduce, &group)?;
//!
//! // On numbers: this is what a job of any transport and any size must compute, to the bit.
//! let inputs = [1.0_f32, 2.0, 4.0].map(f32::to_le_bytes);
//! let inputs: Vec<&[u8]> = inputs.iter().map(|bytes| &bytes[..]).collect();
//! let outputs = interpret(&proven, DType::F32, ReduceOp::Sum, 1, &inputs)?;
//! assert_eq!(outputs, [7.0_f32.to_le_bytes(); 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The modules below stand in the order in which data flows through them:
//!
//! | module | what it answers |
//! |---|---|
//! | [`element`], [`group`], [`codec`], [`collective`] | what is folded, by whom, how messages are coded, and what the result must be |
//! | [`topology`] | how machines are linked, and which trees go over the links |
//! | [`schedule`], [`algorithm`], [`plan`] | what each rank does, in which ways that can be done, and which of them is taken |
//! | [`verify`], [`interpret`], [`terms`] | whether it is right, what it computes, and what each rank holds on the way |
//! | [`trace`] | how a schedule is shown |
//! | [`named`] | which named operations all ranks are ready for |
//! | [`wire`], [`session`] | what processes say to each other, and what becomes of a group when one of them is lost |
//! | [`staging`] | how an accelerator's values pass through the host, slice by slice |
//! | [`table`] | what workers push to and pull from servers, and which pushes a pull sees |
//! | [`replay`] | how a program that loses a process continues where it was |
//! | [`prepare`], [`execution`], [`simulate`] | what a rank does next, segment by segment, and how long that takes |
//! | [`training`] | how long a step of a training takes that sums gradients while it computes |
//! | [`search`] | which schedule is better on given machines than the algorithms' schedules |
//!
//! The crate is `no_std`, forbids `unsafe` and has no dependency that does I/O, so the compiler itself keeps clocks,
//! threads, sockets, the environment and hash order out of every decision.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "topology-readers"), allow(dead_code, reason = "what only readers use"))]
#![forbid(unsafe_code)]

extern crate alloc;

mod choice;

pub mod element;

pub mod group;

pub mod shards;

pub mod codec;

pub mod collective;

pub mod topology;

pub mod schedule;

pub mod algorithm;

pub mod plan;

pub mod verify;

pub mod interpret;

pub mod terms;

pub mod trace;

#[cfg(feature = "named")]
pub mod named;

pub mod wire;

pub mod session;

pub mod staging;

pub mod table;

pub mod replay;

pub mod prepare;

pub mod execution;

pub mod simulate;

pub mod training;

pub mod search;
