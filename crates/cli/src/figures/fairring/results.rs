//! Simulations of the article's measurements.

use super::{
    super::fitted,
    inputs::{FEWEST, FairringInputs, SliceStaging},
    machines::{FairringSums, Library, machines},
};
use crate::failure::Failure;
use herringbone::core::simulate::{Picoseconds, SECOND};

/// NCCL's best scaling efficiency in the article, from which the cost of a message is found.
pub(super) const EFFICIENCY: f64 = 0.68;
/// Picoseconds of the tenths of a microsecond in which it is found.
const TENTH: Picoseconds = SECOND / 10_000_000;
/// The most that it can be, in tenths.
const MOST_TENTHS: u64 = 5_000;
/// The GPUs of the baseline.
const BASELINE: u32 = 16;
/// Machines of the microbenchmarks of one size.
pub(super) const BENCHED: u32 = 8;
/// MiB of single tensors.
pub(super) const MIB: [u32; 9] = [1, 2, 3, 4, 6, 12, 25, 50, 100];
/// Slices in flight.
pub(super) const IN_FLIGHT: [u32; 6] = [1, 2, 3, 4, 8, 16];
/// Slices in flight where memory is no limit.
const ENDLESS: u32 = 1024;
/// The machines from which buckets grow with them in the last microbenchmark.
const GROWING: u32 = 8;

/// For both libraries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Both<T> {
    pub(super) nccl: T,
    pub(super) fairring: T,
}

impl<T> Both<T> {
    fn of(mut each: impl FnMut(Library) -> Result<T, Failure>) -> Result<Self, Failure> {
        Ok(Self { nccl: each(Library::Nccl)?, fairring: each(Library::Fairring)? })
    }
}

impl Both<Picoseconds> {
    /// By how much Fairring is faster; 0.5: half again as fast.
    pub(super) fn gain(self) -> f64 {
        self.nccl as f64 / self.fairring as f64 - 1.0
    }
}

/// A point of a curve: what was changed, and both libraries' times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FairringPoint {
    /// GPUs, MiB or slices in flight.
    pub(super) at: u32,
    pub(super) time: Both<Picoseconds>,
}

/// All that is simulated.
#[derive(Clone, Debug)]
pub(super) struct FairringResults {
    /// What a message between machines costs at either end.
    pub(super) message: Picoseconds,
    /// Whether that was found from NCCL's efficiency.
    pub(super) is_fitted: bool,
    /// Steps of the training, by GPUs.
    pub(super) steps: Vec<FairringPoint>,
    /// One tensor on [`BENCHED`] machines, by MiB.
    pub(super) sizes: Vec<FairringPoint>,
    /// All buckets on as many machines, by slices in flight.
    pub(super) in_flight: Vec<FairringPoint>,
    /// All buckets with slices without limit, by GPUs.
    pub(super) scaling: Vec<FairringPoint>,
    /// The same with buckets that grow with the machines.
    pub(super) grown: Vec<FairringPoint>,
}

impl FairringResults {
    /// # Errors
    /// If a schedule has no form for as many GPUs.
    pub(super) fn of(inputs: &FairringInputs) -> Result<Self, Failure> {
        let trained = inputs.trained()?;
        let message = match inputs.message_us {
            Some(said) => (said * 1e6) as Picoseconds,
            None => message(inputs)?,
        };
        let machines = machines(inputs, message);
        let kind = trained.buckets.first().map_or(0, |bucket| bucket.kind);
        let mut sums = FairringSums::new(&machines, kind);
        let (staging, gpus) = (inputs.staging(), inputs.all_gpus());
        let steps = points(&gpus, |at, library| {
            Ok(sums.step(library, at / inputs.gpus, &trained.step, &trained.buckets, staging)?.total)
        })?;
        let sizes =
            points(&MIB, |at, library| sums.together(library, BENCHED, u64::from(at) << 20, 1, staging))?;
        let slice = inputs.slice();
        let in_flight = points(&IN_FLIGHT, |at, library| {
            let staging = SliceStaging { slice, in_flight: at };
            sums.together(library, BENCHED, slice, inputs.buckets, staging)
        })?;
        let mut grown_by = |at: u32, library, times: u32| {
            let slice = slice * u64::from(times);
            let staging = SliceStaging { slice, in_flight: ENDLESS };
            sums.together(library, at / inputs.gpus, slice, inputs.buckets, staging)
        };
        let scaling = points(&gpus, |at, library| grown_by(at, library, 1))?;
        let grown = points(&gpus, |at, library| grown_by(at, library, times_grown(at / inputs.gpus)))?;
        let is_fitted = inputs.message_us.is_none();
        Ok(Self { message, is_fitted, steps, sizes, in_flight, scaling, grown })
    }

    /// The words/s of a GPU with this many GPUs, as a fraction of NCCL's with the fewest.
    pub(super) fn efficiency(&self, gpus: u32) -> Both<f64> {
        let base = at(&self.steps, FEWEST).time.nccl as f64;
        let Both { nccl, fairring } = at(&self.steps, gpus).time;
        Both { nccl: base / nccl as f64, fairring: base / fairring as f64 }
    }

    /// The slices in flight from which on more of them gain less than 5 %.
    pub(super) fn best_in_flight(&self) -> u32 {
        let last = self.in_flight.last().map_or(0, |point| point.time.fairring);
        let is_enough = |point: &&FairringPoint| point.time.fairring as f64 <= 1.05 * last as f64;
        self.in_flight.iter().find(is_enough).map_or(0, |point| point.at)
    }

    /// The most MiB up to which NCCL's sum of one tensor is the faster one, and the fewest from which on Fairring's is.
    pub(super) fn sides(&self) -> (Option<u32>, Option<u32>) {
        let is_slower = |point: &FairringPoint| point.time.gain() <= 0.0;
        let until = self.sizes.iter().take_while(|point| is_slower(point)).last();
        let first = self.sizes.iter().rposition(is_slower).map_or(0, |at| at + 1);
        (until.map(|point| point.at), self.sizes.get(first).map(|point| point.at))
    }
}

/// How many times as large buckets are that grow with the machines.
pub(super) fn times_grown(machines: u32) -> u32 {
    (machines / GROWING).max(1)
}

/// The point of a curve.
///
/// # Panics
/// If the curve has none there.
pub(super) fn at(points: &[FairringPoint], at: u32) -> FairringPoint {
    *points.iter().find(|point| point.at == at).expect("curves have the points of their lists")
}

fn points(
    all: &[u32],
    mut time: impl FnMut(u32, Library) -> Result<Picoseconds, Failure>,
) -> Result<Vec<FairringPoint>, Failure> {
    all.iter()
        .map(|at| Ok(FairringPoint { at: *at, time: Both::of(|library| time(*at, library))? }))
        .collect()
}

/// What a message has to cost for NCCL's efficiency, to a tenth of a microsecond.
fn message(inputs: &FairringInputs) -> Result<Picoseconds, Failure> {
    let trained = inputs.trained()?;
    let reaches = |tenths| {
        let machines = machines(inputs, tenths * TENTH);
        let kind = trained.buckets.first().map_or(0, |bucket| bucket.kind);
        let mut sums = FairringSums::new(&machines, kind);
        let mut total = |gpus: u32| {
            let machines = gpus / inputs.gpus;
            let step =
                sums.step(Library::Nccl, machines, &trained.step, &trained.buckets, inputs.staging())?;
            Ok::<_, Failure>(step.total as f64)
        };
        Ok(total(FEWEST)? / total(BASELINE)? <= EFFICIENCY)
    };
    Ok(fitted::least(MOST_TENTHS, reaches)? * TENTH)
}
