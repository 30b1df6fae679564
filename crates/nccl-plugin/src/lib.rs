//! The network plug-in for NCCL: `libnccl-net-herringbone.so`. NCCL moves its collectives' data between hosts over the
//! TCP streams of this plug-in, and programs are not changed.
//!
//! NCCL finds one table of functions for each version of its interface, `exports`. `calls` implements each function;
//! `accepting` and `connecting` make connections, `sending` and `receiving` use them, and `wire` decides which bytes
//! are read and written: bytes and sizes in, ranges out. `pointers` turns NCCL's addresses into values and regions, and
//! nothing else touches an address. Comms and requests are numbers and not addresses, so that one that is over differs
//! from one that lives.
//!
//! No thread belongs to the plug-in. NCCL calls it again until a request is complete, and every such call moves all
//! data that can move.
#![warn(clippy::disallowed_methods)]
#![deny(unsafe_code)]

mod accepting;
mod calls;
mod connecting;
mod devices;
#[expect(unsafe_code, reason = "it exports the tables under the names that NCCL looks for")]
mod exports;
mod failure;
mod layout;
mod logger;
mod outcome;
#[expect(unsafe_code, reason = "it is where addresses of C become memory")]
mod pointers;
mod receiving;
mod registry;
mod sending;
mod slots;
mod wire;
