//! What is left of tensors whose messages were coded: kept by name, for each group and rank.

use crate::{
    Error, Result,
    core::{
        codec::Codec,
        collective::Collective,
        element::{DType, ReduceOp},
        prepare::Call,
    },
    feedback::{Fed, Feedback},
    log,
    request::{Compression, Request},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What is left of one tensor on this rank: what its messages lacked up to now.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// The tensor's name.
    pub tensor: String,
    /// How many operations on it are complete.
    pub steps: u64,
    /// For each element.
    pub left: Vec<f32>,
}

/// What is left of tensors, by their names.
#[derive(Debug, Default)]
pub(crate) struct Residuals {
    kept: Mutex<BTreeMap<String, Arc<Feedback>>>,
    /// How many operations without a name have drawn elements: each draws others, and all ranks draw alike.
    draws: AtomicU64,
}

/// The codecs of a group that the plan has chosen, by class of size, each with the reason.
///
/// They depend on nothing but what the group's members knew when they formed it. So a reducer that dies, of which some ranks hear
/// later than others, changes none of them.
#[derive(Debug, Default)]
pub(crate) struct AutomaticCodecs(pub(super) Mutex<BTreeMap<u64, (Codec, String)>>);

impl Residuals {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Feedback>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For an operation that draws elements and feeds nothing back.
    fn drawing(&self) -> Arc<Feedback> {
        Arc::new(Feedback::of(self.draws.fetch_add(1, Ordering::Relaxed), Vec::new()))
    }

    /// What is left of a tensor of so many elements: nothing if it is new, or had another number of them.
    fn of(&self, tensor: &str, elements: usize, rank: u32) -> Arc<Feedback> {
        let mut all = self.lock();
        if let Some(known) = all.get(tensor) {
            let before = known.len();
            if before == elements {
                return known.clone();
            }
            log::info(
                &format!("rank {rank}"),
                format_args!(
                    "what compression has left of {tensor:?} is dropped: it has {elements} elements now, and had {before}"
                ),
            );
        }
        let new = Arc::new(Feedback::of(0, vec![0.0; elements]));
        all.insert(tensor.to_owned(), new.clone());
        new
    }

    /// A tensor goes as it is from now on. What other codecs have left of it would be out of date when one comes again.
    fn drop_of(&self, tensor: &str, rank: u32) {
        if self.lock().remove(tensor).is_some_and(|left| left.committed().1.iter().any(|left| *left != 0.0)) {
            log::warn(
                &format!("rank {rank}"),
                format_args!(
                    "what compression has left of {tensor:?} is dropped: it is not compressed any more"
                ),
            );
        }
    }

    /// Nothing is left of a tensor any more.
    pub(super) fn forget(&self, tensor: &str) {
        self.lock().remove(tensor);
    }

    /// A group with other members follows, which starts without.
    pub(crate) fn say_dropped(&self, rank: u32) {
        let tensors = match self.lock().len() {
            0 => return,
            1 => "a tensor".to_owned(),
            many => format!("{many} tensors"),
        };
        log::warn(
            &format!("rank {rank}"),
            format_args!(
                "what compression has left of {tensors} is dropped: the group goes on with other members"
            ),
        );
    }

    /// All of it, by name. Of an operation under way it is what was left before that.
    pub(super) fn saved(&self) -> Vec<Residual> {
        let saved = |(tensor, feedback): (&String, &Arc<Feedback>)| {
            let (steps, left) = feedback.committed();
            Residual { tensor: tensor.clone(), steps, left }
        };
        self.lock().iter().map(saved).collect()
    }

    /// Puts this in place of all that is kept.
    pub(super) fn restore(&self, saved: Vec<Residual>) {
        let restored = |Residual { tensor, steps, left }| (tensor, Arc::new(Feedback::of(steps, left)));
        *self.lock() = saved.into_iter().map(restored).collect();
    }
}

/// What is fed back of a request whose messages are coded, after a check that they can be.
///
/// # Errors
/// As [`check`].
pub(super) fn checked(request: &Request, codec: Codec, kept: &Residuals, rank: u32) -> Result<Option<Fed>> {
    let Request { collective, dtype, op, count, compression: Compression { tensor, .. }, .. } = request;
    check(&Call { codec, ..Call::new(*collective, *dtype, *op, *count) })?;
    let feedback = match tensor {
        Some(tensor) if codec == Codec::Plain => {
            kept.drop_of(tensor, rank);
            None
        }
        None if codec == Codec::Plain => None,
        Some(tensor) => Some(kept.of(tensor, *count, rank)),
        None if matches!(codec, Codec::RandomK { .. }) => Some(kept.drawing()),
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
