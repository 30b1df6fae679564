//! The codec of a call, and the error feedback of its tensor.

use crate::{
    Error, Result,
    core::{
        codec::Codec,
        collective::Collective,
        element::{DType, ReduceOp},
        prepare::Call,
    },
    feedback::{Fed, Feedback},
    request::Compression,
    residuals::{CodedOperation, Residuals},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// How many operations without a name have drawn elements: each draws others, and all ranks draw alike.
#[derive(Debug, Default)]
pub(crate) struct Draws(AtomicU64);

/// The codecs of a group that the plan has chosen, by class of size, each with the reason.
///
/// They depend on nothing but what the group's members knew when they formed it. So a reducer that dies, of which some ranks hear
/// later than others, changes none of them.
#[derive(Debug, Default)]
pub(crate) struct AutomaticCodecs(pub(super) Mutex<BTreeMap<u64, (Codec, String)>>);

impl Draws {
    /// Those that begin at a number which the other ranks have, too.
    pub(super) fn from(number: u64) -> Self {
        Self(AtomicU64::new(number))
    }

    /// For an operation that draws elements and feeds nothing back.
    fn next(&self) -> Arc<Feedback> {
        Arc::new(Feedback::of(self.0.fetch_add(1, Ordering::Relaxed), Vec::new()))
    }
}

/// What is fed back of a call whose messages are coded, after a check that they can be.
///
/// # Errors
/// As [`check`].
pub(super) fn checked(
    call: &Call,
    compression: &Compression,
    group: &Residuals,
    draws: &Draws,
    rank: u32,
) -> Result<Option<Fed>> {
    check(call)?;
    let Call { codec, count, .. } = *call;
    let owner = compression.residuals.as_ref().unwrap_or(group);
    let feedback = match &compression.tensor {
        Some(tensor) if codec == Codec::Plain => {
            owner.drop_of(tensor, rank);
            None
        }
        None if codec == Codec::Plain => None,
        Some(tensor) => Some(owner.of(tensor, CodedOperation { codec, elements: count, group, rank })),
        None if matches!(codec, Codec::RandomK { .. }) => Some(draws.next()),
        None => None,
    };
    Ok(feedback.as_ref().map(Fed::next))
}

/// Whether a call's messages can be coded by its codec.
///
/// # Errors
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) with the reason.
pub(super) fn check(call: &Call) -> Result<()> {
    let Call { collective, dtype, op, codec, .. } = *call;
    let name = collective.name();
    let why = match codec {
        Codec::Plain => return Ok(()),
        _ if collective != Collective::AllReduce => {
            format!("{name} compressed with {codec}: only all_reduce is; leave the compression out")
        }
        _ if dtype != DType::F32 => format!(
            "{name} of {dtype} compressed with {codec}: codecs are for f32; pass f32, or leave the compression out"
        ),
        _ if !matches!(op, ReduceOp::Sum | ReduceOp::Average) => format!(
            "{name} with {op} compressed with {codec}: codecs are for sums and averages; leave the compression out"
        ),
        _ => return Ok(()),
    };
    Err(Error::unsupported(why))
}
