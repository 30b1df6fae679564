//! Gradient aggregation for data-parallel training: proven schedules, the same bits every time, CPU machines as reducers.
//!
//! ```no_run
//! use herringbone::{Communicator, ReduceOp};
//!
//! fn main() -> Result<(), herringbone::Error> {
//!     let comm = Communicator::from_env()?; // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//!     let mut gradients = vec![comm.rank() as f32; 1_000_000];
//!     comm.all_reduce(&mut gradients, ReduceOp::Average)?;
//!     println!("rank {} of {}: {}", comm.rank(), comm.size(), gradients[0]);
//!     Ok(())
//! }
//! ```
//! Start it once per rank, for instance with `HERRINGBONE_STORE=127.0.0.1:29400 RANK=0 WORLD_SIZE=2 ./program` and the
//! same with `RANK=1`; ranks as threads need only [`local`]. Reducers are processes of their own
//! ([`server`], or `herringbone serve`), named in `HERRINGBONE_REDUCERS`.
//!
//! How it works: [`core`] plans, proves and explains; this crate moves data. A [`Communicator`] compiles each kind of
//! call into a flat program once, and waiting threads drive the engine. All unsafe code is in `herringbone_sys`.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "named"), allow(dead_code, reason = "what only named operations use"))]
#![forbid(unsafe_code)]
// What decides and what moves data stands within the fences of clippy.toml; the other modules say why they do not.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub use herringbone_core as core;

#[expect(clippy::disallowed_methods, reason = "it starts what drives a process")]
mod assembly;
#[expect(clippy::disallowed_methods, reason = "it measures")]
pub mod calibrate;
#[expect(clippy::disallowed_methods, reason = "it is the engine's clock")]
mod clock;
mod communicator;
mod completion;
mod config;
#[expect(clippy::disallowed_methods, reason = "it has threads, and times what they run")]
#[cfg(feature = "dependency")]
pub mod dependency;
mod descriptors;
#[expect(clippy::disallowed_methods, reason = "a group has a thread for a device, which naps between looks")]
pub mod device;
mod engine;
mod error;
mod execute;
#[expect(clippy::disallowed_methods, reason = "it waits for other processes, by deadlines")]
mod fabric;
mod feedback;
#[expect(clippy::disallowed_methods, reason = "it is set before there is a configuration")]
pub mod flight;
#[expect(clippy::disallowed_methods, reason = "it has deadlines")]
mod joining;
mod local;
#[expect(clippy::disallowed_methods, reason = "it is set before there is a configuration")]
pub mod log;
#[expect(clippy::disallowed_methods, reason = "it measures")]
pub mod measure;
mod memory;
#[expect(clippy::disallowed_methods, reason = "a controller has a thread, which runs in cycles")]
#[cfg(feature = "named")]
mod named;
#[expect(clippy::disallowed_methods, reason = "threads wait and sleep there")]
mod node;
mod observe;
#[expect(clippy::disallowed_methods, reason = "it waits for other processes, by deadlines")]
pub mod ps_lite;
#[expect(clippy::disallowed_methods, reason = "it waits for other processes, by deadlines")]
pub mod rabit;
#[expect(clippy::disallowed_methods, reason = "it waits for other processes, by deadlines")]
mod rendezvous;
mod request;
mod residuals;
#[cfg(any(test, feature = "simulator"))]
mod seen;
#[expect(clippy::disallowed_methods, reason = "it is a process's main loop")]
pub mod server;
pub mod shards;
#[expect(clippy::disallowed_methods, reason = "it waits for other processes, by deadlines")]
pub mod status;
#[doc(hidden)]
pub mod svg;
#[expect(clippy::disallowed_methods, reason = "it has threads, and waits for other processes")]
pub mod table;
mod tcp_table;
#[expect(clippy::disallowed_methods, reason = "its threads wait for what happens")]
mod timeline;
mod transport;
mod user_file;
mod work;
#[cfg(any(test, feature = "simulator"))]
mod world;

pub use crate::core::{
    algorithm::Algorithm,
    collective::Collective,
    element::{DType, Element, ReduceOp},
    group::FoldOrder,
};
pub use communicator::{
    Communicator, Work,
    lines::LineTurn,
    view::{JobFigures, JobPlace, JobView},
};
pub use config::{
    AdminSettings, Config, NcclInterface, NcclNetwork, Rendezvous, Route, Transport, UnknownName,
    check_exposure, is_own_address, nearest_name, parse_algorithm, route_to, settings, token_from_env,
    token_from_file, token_of_listener, token_openness, transport_from_env,
};
pub use descriptors::raise_limit_of_descriptors;
pub use error::{ADVICE, Error, ErrorCode, ErrorKind, Result};
pub use herringbone_sys::{heap::Mapped, plain::Plain, region::Region};
pub use local::{local, local_with};
#[cfg(feature = "named")]
pub use named::{
    AutotuneOptions, NamedController, NamedFailure, NamedOptions, NamedResult, NamedSubmission, NamedWork,
};
pub use observe::{
    ListenerId, OperationId, OperationPurpose, OperationState, OperationTimes, Recent, Sink, StepKind,
    StepWork, TraceEvent,
};
pub use rendezvous::{Store, StoreError};
pub use request::{Compression, MessageRequest, Request};
pub use residuals::{Residual, Residuals};
pub use transport::stats::{Moved, Stats};
pub use user_file::{
    FileError, LARGEST_FILE, open_user_file, read_user_file, read_user_stream, read_user_text,
};
pub use work::Pending;

#[cfg(feature = "simulator")]
#[doc(hidden)]
pub use world::simulation as simulator;

use herringbone_sys as sys;
