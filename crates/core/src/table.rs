//! Tables of rows on servers: parameters that workers push to and pull from, each at its own time.
//!
//! This is the parameter server of Li et al. (OSDI 2014) and ps-lite. A push of one worker is no schedule, so it uses
//! [requests](TableRequest) and [answers](TableAnswer), each with a number. [`Ranges`] divides keys among servers. A
//! [`RangeState`] decides which pushes of a range a pull sees, and an [`OptimizerSpec`] how a push changes a row. This
//! module makes the decisions. The caller has the rows.

mod error;
mod hot;
mod image;
mod known_keys;
mod message;
mod operation;
mod optimizer;
mod payload;
mod range;
mod ranges;
pub mod replication;
mod routes;
mod row_keys;
mod spec;
mod values;

pub use error::{TableError, Unusable};
pub use hot::HotKeys;
pub use image::{IMAGE_CLOCKS, ImageHead, ImageRecord};
pub use known_keys::{KeyForm, KnownKeys};
pub use message::{RequestAddress, TableAnswer, TableRequest};
pub use operation::TableOperation;
pub use optimizer::{OptimizerKind, OptimizerParameter, OptimizerSpec, OwnOptimizerName, PARAMETERS};
pub use payload::{BODY_BYTES, PAYLOAD_BYTES};
pub use range::{
    Asking, EndedStep, Entered, NumberedPush, RangeState, TakenPush, WithdrawnPushes, WorkerClock,
};
pub use ranges::{RangePiece, Ranges};
pub use routes::{RoutedRequest, Routes};
pub use row_keys::RowKeys;
pub use spec::{
    BOUND_MOST, Consistency, Initializer, NAME_BYTES, NotANumber, TableSpec, WIDTH_MOST, WORKERS_MOST,
    check_name,
};
pub use values::ValueCodec;
