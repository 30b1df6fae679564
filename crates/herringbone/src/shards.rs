//! Sums of shards: the same bits whatever the number of ranks that carry them.
//!
//! A job has a fixed number of shards, and each rank carries a run of them: see [`core::shards`](crate::core::shards).
//! A [`ShardGroup`] folds the gradients of all shards, in the canonical tree over the shards, on whichever ranks they
//! are.
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
//!                 let gradients: Vec<_> = group.mine().map(|shard| Some(gradient(shard))).collect();
//!                 group.all_reduce(2, gradients, ReduceOp::Average).unwrap().unwrap()
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
        plan::ChosenRuns,
        schedule::Form,
        shards::{ShardFold, ShardRuns},
    },
    sys::{
        kernel::{Source, Target, fold},
        plain::Plain,
        region::Region,
    },
};
use std::{ops::Range, sync::Arc, time::Duration};

/// The ranks that carry the shards of a job.
#[derive(Clone, Debug)]
pub struct ShardGroup {
    ranks: Communicator,
    sums: Communicator,
    runs: ShardRuns,
    folds: Arc<[ShardFold]>,
}

impl ShardGroup {
    /// The group of these ranks: rank r carries the r-th run. All ranks call this with the same runs, and make equally
    /// many of these groups.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there are not as many runs as ranks. If another rank has other runs, the first sum fails on all with
    /// [`ErrorKind::Mismatch`], which names both.
    pub fn new(communicator: &Communicator, runs: ShardRuns) -> Result<Self> {
        let sums = communicator.shard_group(&runs)?;
        let folds = runs.folds(sums.rank()).into();
        Ok(Self { ranks: communicator.clone(), sums, runs, folds })
    }

    /// Chooses the runs of `shards` shards with the lower expected time of a training step. They are aligned, or even,
    /// in which case a rank can give several partial sums. `shard_time` is the time of a shard's gradients, and `bytes`
    /// the size of one partial sum. This rank computes the choice, and no message is sent. If the arguments differ
    /// between ranks, let one rank choose and send the choice to the others.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there are no shards, or too many.
    pub fn choose_runs(
        communicator: &Communicator,
        shards: u32,
        shard_time: Duration,
        bytes: u64,
    ) -> Result<ChosenRuns> {
        communicator.choose_shard_runs(shards, shard_time, bytes)
    }

    /// The shards of each rank.
    pub fn runs(&self) -> &ShardRuns {
        &self.runs
    }

    /// The shards that this rank carries.
    pub fn mine(&self) -> Range<u32> {
        self.runs.of(self.sums.rank())
    }

    /// How many partial sums this rank gives: one for each of its nodes, and one of nothing if it has none.
    pub fn partials(&self) -> usize {
        self.folds.last().map_or(1, |last| last.node as usize + 1)
    }

    /// The communicator in which partial sums are folded: it makes all-reduces with sum and average only, of
    /// [`DType::accumulator`] elements, and [`rounded`] makes elements of their results.
    pub fn sums(&self) -> &Communicator {
        &self.sums
    }

    /// Folds the gradients of all shards, `count` elements each. This rank gives the gradients of [its own](Self::mine)
    /// shards, in their order. A shard without a gradient adds nothing to the sum, but the average still divides by the
    /// number of all shards. The result is on all ranks; there is none if no shard has a gradient.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if an operation is not sum or average, or the number of gradients is not the number
    /// of shards; [`ErrorKind::BufferSize`] for a gradient of another length; otherwise see [`ErrorKind`].
    pub fn all_reduce<T: Element + Plain>(
        &self,
        count: usize,
        gradients: Vec<Option<Vec<T>>>,
        op: ReduceOp,
    ) -> Result<Option<Vec<T>>> {
        let dtype = T::DTYPE.accumulator(op);
        let bytes = count * dtype.bytes();
        let input = Region::zeroed(self.partials() * bytes);
        let parts = (0..self.partials()).map(|node| input.part(node * bytes..(node + 1) * bytes));
        let mut sum = self.sum(T::DTYPE, op, parts.collect())?;
        for gradient in gradients {
            sum.push(gradient.map(|gradient| Region::own(gradient).region().clone()))?;
        }
        sum.check_complete()?;
        let mut givers = [u32::from(sum.is_there())];
        self.ranks.all_reduce(&mut givers, ReduceOp::Sum)?;
        let total = Region::zeroed(bytes);
        let request = Request::new(Collective::AllReduce, dtype, count, input, total.clone());
        self.sums.execute(request.op(op))?;
        if givers == [0] {
            return Ok(None);
        }
        let mut result = vec![T::default(); count];
        Region::lend(&mut result, |result| rounded(T::DTYPE, op, &total, result))?;
        Ok(Some(result))
    }

    /// The partial sums of this rank's shards, step after step: one for each of its nodes, written to these places,
    /// which are of [`DType::accumulator`] elements.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if there is not one place for each of [`partials`](Self::partials); [`ErrorKind::BufferSize`] if
    /// they are not equally long.
    pub fn sum(&self, dtype: DType, op: ReduceOp, into: Vec<Region>) -> Result<ShardSum> {
        if into.len() != self.partials() {
            let (given, needed) = (into.len(), self.partials());
            return Err(Error::unsupported(format_args!("{given} places for {needed} partial sums")));
        }
        let expected = into[0].len();
        if let Some(other) = into.iter().find(|place| place.len() != expected) {
            let (buffer, actual) = ("a partial sum", other.len());
            return Err(Error::new(ErrorKind::BufferSize { buffer, expected, actual }));
        }
        let (folds, kept, spare) = (self.folds.clone(), Vec::new(), Vec::new());
        let (before_last, was_there, is_there) = (Vec::new(), false, false);
        let mut sum =
            ShardSum { dtype, op, folds, into, pushed: 0, kept, spare, before_last, was_there, is_there };
        sum.restart()?;
        Ok(sum)
    }
}

/// The partial sums of a rank's nodes, while its shards come one after the other. It keeps at most log2 of their number, rounded up,
/// gradients or partial sums, and never adds into zeros.
#[derive(Debug)]
pub struct ShardSum {
    dtype: DType,
    op: ReduceOp,
    folds: Arc<[ShardFold]>,
    /// Where the partial sum of each node goes.
    into: Vec<Region>,
    pushed: usize,
    /// Of nodes that wait for the ones beside them; nothing of one in which no shard gave anything.
    kept: Vec<Option<KeptSum>>,
    /// Memory for partial sums.
    spare: Vec<Region>,
    /// What the last shard's gradient was added to, and whether a shard before it has given anything.
    before_last: Vec<KeptSum>,
    was_there: bool,
    is_there: bool,
}

/// What waits for what is to be added to it: a lone shard's gradient, or a partial sum in memory of this module's own.
#[derive(Debug)]
struct KeptSum {
    region: Region,
    form: Form,
}

impl KeptSum {
    fn lone(region: Region) -> Self {
        Self { region, form: Form::Plain }
    }
}

impl ShardSum {
    /// The next shard gives this, or nothing. It is read until the sum is complete.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if all shards have come; [`ErrorKind::BufferSize`] if its length is wrong;
    /// [`ErrorKind::Closed`] if it was revoked. The sum is not usable until it is [restarted](Self::restart).
    pub fn push(&mut self, gradient: Option<Region>) -> Result<()> {
        let Some(next) = self.folds.get(self.pushed).cloned() else {
            return Err(Error::unsupported(format_args!(
                "more gradients than this rank has shards, which are {}: give one for each",
                self.folds.len()
            )));
        };
        self.check_length(gradient.as_ref())?;
        let first = self.kept.len() - usize::from(next.merges);
        let parts: Vec<KeptSum> = self.kept.drain(first..).flatten().collect();
        self.pushed += 1;
        if self.pushed == self.folds.len() {
            (self.before_last, self.was_there) = (parts, self.is_there);
            return self.end(gradient);
        }
        self.is_there |= gradient.is_some();
        let parts = parts.into_iter().chain(gradient.map(KeptSum::lone)).collect();
        match next.ends_node {
            true => self.end_node(parts, next.node as usize)?,
            false => {
                let kept = self.joined(parts)?;
                self.kept.push(kept);
            }
        }
        Ok(())
    }

    /// The last shard gives this instead of its earlier gradient; all have come.
    ///
    /// # Errors
    /// As of [`push`](Self::push), and [`ErrorKind::Unsupported`] if they have not.
    pub fn push_again(&mut self, gradient: Option<Region>) -> Result<()> {
        self.check_complete()?;
        self.check_length(gradient.as_ref())?;
        match self.folds.is_empty() {
            true => self.restart(),
            false => self.end(gradient),
        }
    }

    /// The last shard's gradient completes the last node's partial sum.
    fn end(&mut self, gradient: Option<Region>) -> Result<()> {
        self.is_there = self.was_there || gradient.is_some();
        let lone = gradient.map(KeptSum::lone);
        let parts: Vec<&KeptSum> = self.before_last.iter().chain(&lone).collect();
        match (&parts[..], self.into.last()) {
            (_, None) => Ok(()),
            ([], Some(into)) => nothing(into, self.dtype.accumulator(self.op)),
            (parts, Some(into)) => self.fold(parts, into),
        }
    }

    fn check_length(&self, gradient: Option<&Region>) -> Result<()> {
        let expected = self.into[0].len() / self.dtype.accumulator(self.op).bytes() * self.dtype.bytes();
        match gradient.map(Region::len).filter(|actual| *actual != expected) {
            Some(actual) => Err(Error::new(ErrorKind::BufferSize { buffer: "a gradient", expected, actual })),
            None => Ok(()),
        }
    }

    /// The partial sum of a node from its last parts.
    fn end_node(&mut self, parts: Vec<KeptSum>, node: usize) -> Result<()> {
        let all: Vec<&KeptSum> = parts.iter().collect();
        match &all[..] {
            [] => nothing(&self.into[node], self.dtype.accumulator(self.op))?,
            all => self.fold(all, &self.into[node])?,
        }
        self.reuse(parts);
        Ok(())
    }

    /// What these partial sums took is memory for others.
    fn reuse(&mut self, parts: Vec<KeptSum>) {
        let own = parts.into_iter().filter(|part| part.form == Form::Acc);
        self.spare.extend(own.map(|part| part.region));
    }

    /// One partial sum of these, the oldest first.
    fn joined(&mut self, mut parts: Vec<KeptSum>) -> Result<Option<KeptSum>> {
        if parts.len() < 2 {
            return Ok(parts.pop());
        }
        let mut own = parts.iter().filter(|part| part.form == Form::Acc).map(|part| part.region.clone());
        let into = own.next().or_else(|| self.spare.pop());
        let into = into.unwrap_or_else(|| Region::zeroed(self.into[0].len()));
        self.spare.extend(own);
        self.fold(&parts.iter().collect::<Vec<_>>(), &into)?;
        Ok(Some(KeptSum { region: into, form: Form::Acc }))
    }

    /// Folds the last into the one before it, and so on: the oldest is the left operand of the last addition.
    fn fold(&self, parts: &[&KeptSum], into: &Region) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed);
        let accesses = parts.iter().map(|part| Some((part.region.access()?, part.form)));
        let accesses = accesses.collect::<Option<Vec<_>>>().ok_or_else(closed)?;
        let last = accesses.len() - 1;
        let sources = accesses.iter().enumerate().map(|(at, (access, form))| Source {
            span: access.span(),
            form: *form,
            merges: if at == last { last as u8 } else { 0 },
        });
        let sources: Vec<Source<'_>> = sources.collect();
        let access = into.access().ok_or_else(closed)?;
        fold(self.dtype, self.op, Target::of(access.span(), Form::Acc), &sources, None);
        Ok(())
    }

    /// Whether a shard has given anything.
    pub fn is_there(&self) -> bool {
        self.is_there
    }

    /// Checks that all shards have come, so that the partial sums are complete.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if they have not.
    pub fn check_complete(&self) -> Result<()> {
        if self.pushed == self.folds.len() {
            return Ok(());
        }
        Err(Error::unsupported(format_args!(
            "{} gradients of this rank's {} shards: give one for each, or nothing",
            self.pushed,
            self.folds.len()
        )))
    }

    /// Begins the next step, in the same memory.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the memory was revoked.
    pub fn restart(&mut self) -> Result<()> {
        let kept = self.kept.drain(..).flatten().chain(self.before_last.drain(..)).collect();
        self.reuse(kept);
        (self.pushed, self.is_there) = (0, false);
        match self.folds.is_empty() {
            true => nothing(&self.into[0], self.dtype.accumulator(self.op)),
            false => Ok(()),
        }
    }
}

/// What changes no sum: -0.0, or 0 of integers.
fn nothing(into: &Region, dtype: DType) -> Result<()> {
    let mut bytes = vec![0_u8; into.len()];
    if dtype.is_float() {
        bytes.iter_mut().skip(dtype.bytes() - 1).step_by(dtype.bytes()).for_each(|byte| *byte = 0x80);
    }
    let into = into.access().ok_or_else(|| Error::new(ErrorKind::Closed))?;
    Region::lend(&mut bytes, |bytes| {
        let bytes = bytes.access().expect("it is lent");
        into.span().copy_from(bytes.span());
    });
    Ok(())
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
