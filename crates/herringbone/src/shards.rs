//! Sums of shards: the same bits whatever the number of ranks that carry them.
//!
//! A job has a fixed number of shards, and each rank carries a run of them: see [`core::shards`](crate::core::shards). A
//! [`ShardGroup`] folds what all shards give, in the canonical tree over the shards, wherever they lie.
//!
//! ```
//! use herringbone::{Communicator, ReduceOp, core::shards::ShardRuns, shards::ShardGroup};
//!
//! /// The mean of all shards' gradients, on so many ranks, each a thread of this process.
//! fn mean(ranks: u32) -> Vec<f32> {
//!     let gradient = |shard: u32| vec![0.1 * shard as f32, 1e8];
//!     let comms = herringbone::local(ranks).unwrap();
//!     let means = std::thread::scope(|scope| {
//!         let of_rank = |comm: Communicator| {
//!             scope.spawn(move || {
//!                 let group = ShardGroup::new(&comm, ShardRuns::aligned(8, ranks).unwrap()).unwrap();
//!                 let gradients: Vec<_> = group.mine().map(gradient).collect();
//!                 let gradients: Vec<_> = gradients.iter().map(|gradient| Some(&gradient[..])).collect();
//!                 group.all_reduce(2, &gradients, ReduceOp::Average).unwrap().unwrap()
//!             })
//!         };
//!         let ranks: Vec<_> = comms.into_iter().map(of_rank).collect();
//!         ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
//!     });
//!     means[0].clone()
//! }
//! assert_eq!(mean(1), mean(3));
//! assert_eq!(mean(1), mean(8));
//! ```

use crate::{
    Communicator, Error, ErrorKind, ReduceOp, Request, Result,
    core::{
        collective::Collective,
        element::{DType, Element},
        schedule::Form,
        shards::{ShardFold, ShardRuns},
    },
    sys::{
        kernel::{Source, Target, fold},
        plain::Plain,
        region::Region,
    },
};
use std::ops::Range;

/// The ranks that carry the shards of a job.
#[derive(Clone, Debug)]
pub struct ShardGroup {
    sums: Communicator,
    runs: ShardRuns,
}

impl ShardGroup {
    /// Of these ranks: rank r carries the r-th run. All ranks call this with the same runs, and make equally many of these groups.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there are not as many runs as ranks, or one of them is not one node of the canonical tree. If another
    /// rank has other runs, the first call fails on all with [`ErrorKind::Mismatch`], which names both.
    pub fn new(communicator: &Communicator, runs: ShardRuns) -> Result<Self> {
        Ok(Self { sums: communicator.shard_group(&runs)?, runs })
    }

    /// Who carries what.
    pub fn runs(&self) -> &ShardRuns {
        &self.runs
    }

    /// The shards that this rank carries.
    pub fn mine(&self) -> Range<u32> {
        self.runs.of(self.sums.rank())
    }

    /// The communicator in which partial sums are folded: it makes all-reduces with sum and average only.
    pub fn sums(&self) -> &Communicator {
        &self.sums
    }

    /// Folds what all shards give, `count` elements each; this rank gives those of [its own](Self::mine), in their order. A shard may
    /// give nothing, and does not count for the sum then; the average divides by the number of all shards all the same. The result
    /// is on all ranks; none if no shard gives anything.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if an operation is not sum or average, or there are not as many gradients as shards;
    /// [`ErrorKind::BufferSize`] for one of another length; else see [`ErrorKind`].
    pub fn all_reduce<T: Element + Plain>(
        &self,
        count: usize,
        gradients: &[Option<&[T]>],
        op: ReduceOp,
    ) -> Result<Option<Vec<T>>> {
        let mut sum = self.sum(T::DTYPE, op, count);
        for gradient in gradients {
            match gradient {
                Some(gradient) => Region::lend_shared(gradient, |gradient| sum.push(Some(gradient)))?,
                None => sum.push(None)?,
            }
        }
        let partial = sum.finish()?;
        let mut givers = [u32::from(partial.is_there)];
        self.sums.all_reduce(&mut givers, ReduceOp::Sum)?;
        let total = Region::zeroed(partial.region.len());
        let request = Request::new(
            Collective::AllReduce,
            T::DTYPE.accumulator(op),
            count,
            partial.region,
            total.clone(),
        );
        self.sums.execute(request.op(op))?;
        if givers == [0] {
            return Ok(None);
        }
        let mut result = vec![T::default(); count];
        Region::lend(&mut result, |result| rounded(T::DTYPE, op, &total, result))?;
        Ok(Some(result))
    }

    /// The partial sum of what this rank's shards give, of so many elements each. The all-reduce that joins the partial sums is one
    /// of [`DType::accumulator`], and [`rounded`] makes elements of its result.
    pub fn sum(&self, dtype: DType, op: ReduceOp, count: usize) -> ShardSum {
        let folds = self.runs.folds(self.sums.rank());
        ShardSum { dtype, op, count, folds, pushed: 0, kept: Vec::new() }
    }
}

/// The partial sum of a rank's node, while its shards come one after the other. It keeps at most log2 of their number, rounded up,
/// partial sums, and never adds into zeros.
#[derive(Debug)]
pub struct ShardSum {
    dtype: DType,
    op: ReduceOp,
    count: usize,
    folds: Vec<ShardFold>,
    pushed: usize,
    /// Of nodes that wait for the ones beside them; nothing of one in which no shard gave anything.
    kept: Vec<Option<Region>>,
}

/// What a rank gives to the sum of all.
#[derive(Debug)]
pub struct ShardPartial {
    /// Elements of the accumulator's type: -0.0, or 0 of integers, if no shard gave anything.
    pub region: Region,
    /// Whether one did.
    pub is_there: bool,
}

impl ShardSum {
    /// The next shard gives this, or nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if all shards have come; [`ErrorKind::BufferSize`] if it is not as long as said.
    pub fn push(&mut self, gradient: Option<&Region>) -> Result<()> {
        let Some(next) = self.folds.get(self.pushed) else {
            return Err(Error::unsupported(format_args!(
                "more gradients than this rank has shards, which are {}: give one for each",
                self.folds.len()
            )));
        };
        let expected = self.count * self.dtype.bytes();
        if let Some(actual) = gradient.map(Region::len).filter(|actual| *actual != expected) {
            return Err(Error::new(ErrorKind::BufferSize { buffer: "a gradient", expected, actual }));
        }
        let first = self.kept.len() - usize::from(next.merges);
        let partials: Vec<Region> = self.kept.drain(first..).flatten().collect();
        self.kept.push(self.merged(partials, gradient)?);
        self.pushed += 1;
        Ok(())
    }

    /// One node of these, the oldest first, and what the newest shard gives. It takes the place of the oldest.
    fn merged(&self, partials: Vec<Region>, gradient: Option<&Region>) -> Result<Option<Region>> {
        let merges = (partials.len() + usize::from(gradient.is_some())).saturating_sub(1);
        let into = match (&partials[..], gradient) {
            ([], None) => return Ok(None),
            ([lone], None) => return Ok(Some(lone.clone())),
            ([oldest, ..], _) => oldest.clone(),
            ([], Some(_)) => Region::zeroed(self.count * self.dtype.accumulator(self.op).bytes()),
        };
        let closed = || Error::new(ErrorKind::Closed);
        let with_form = partials.iter().map(|partial| (partial, Form::Acc));
        let with_form = with_form.chain(gradient.map(|gradient| (gradient, Form::Plain)));
        let accesses = with_form.map(|(region, form)| Some((region.access()?, form)));
        let accesses = accesses.collect::<Option<Vec<_>>>().ok_or_else(closed)?;
        let last = accesses.len() - 1;
        let sources = accesses.iter().enumerate().map(|(at, (access, form))| Source {
            span: access.span(),
            form: *form,
            merges: if at == last { merges as u8 } else { 0 },
        });
        let sources: Vec<Source<'_>> = sources.collect();
        let access = into.access().ok_or_else(closed)?;
        fold(self.dtype, self.op, Target::of(access.span(), Form::Acc), &sources, None);
        Ok(Some(into.clone()))
    }

    /// All shards have come.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if they have not.
    pub fn finish(mut self) -> Result<ShardPartial> {
        if self.pushed != self.folds.len() {
            return Err(Error::unsupported(format_args!(
                "{} gradients of this rank's {} shards: give one for each, or nothing",
                self.pushed,
                self.folds.len()
            )));
        }
        if let Some(region) = self.kept.pop().flatten() {
            return Ok(ShardPartial { region, is_there: true });
        }
        let dtype = self.dtype.accumulator(self.op);
        let mut nothing = vec![0_u8; self.count * dtype.bytes()];
        if dtype.is_float() {
            nothing.iter_mut().skip(dtype.bytes() - 1).step_by(dtype.bytes()).for_each(|byte| *byte = 0x80);
        }
        Ok(ShardPartial { region: Region::own(nothing).region().clone(), is_there: false })
    }
}

/// Rounds a result of the accumulator's type to elements, once.
///
/// # Errors
/// [`ErrorKind::BufferSize`] if one is not as long as the other.
pub fn rounded(dtype: DType, op: ReduceOp, total: &Region, into: &Region) -> Result<()> {
    let expected = into.len() / dtype.bytes() * dtype.accumulator(op).bytes();
    if total.len() != expected {
        let (buffer, actual) = ("the sum", total.len());
        return Err(Error::new(ErrorKind::BufferSize { buffer, expected, actual }));
    }
    let closed = || Error::new(ErrorKind::Closed);
    let (total, into) = (total.access().ok_or_else(closed)?, into.access().ok_or_else(closed)?);
    let source = Source { span: total.span(), form: Form::Acc, merges: 0 };
    // It is divided already.
    fold(dtype, op, Target::of(into.span(), Form::Plain), &[source], Some(1));
    Ok(())
}
