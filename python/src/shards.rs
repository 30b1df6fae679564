//! Sums of shards, as `herringbone.shards` calls them.

use crate::{
    call::{parse, readable, regions},
    communicator::Communicator,
    errors,
    memory::PySpan,
    waiting::DropWithoutGil,
};
use herringbone::{
    DType, Region,
    core::shards::ShardRuns,
    shards::{ShardGroup, ShardSum, rounded},
};
use pyo3::prelude::*;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// How many consecutive shards each worker carries, so that each sends one partial sum.
#[pyfunction]
pub(crate) fn aligned_shards(shards: u32, workers: u32) -> PyResult<Vec<usize>> {
    let runs = ShardRuns::aligned(shards, workers).map_err(|error| errors::config(error.to_string()))?;
    Ok(lengths(&runs))
}

/// The same, so that the longest run is as short as possible: some workers send several partial sums.
#[pyfunction]
pub(crate) fn even_shards(shards: u32, workers: u32) -> PyResult<Vec<usize>> {
    let runs = ShardRuns::even(shards, workers).map_err(|error| errors::config(error.to_string()))?;
    Ok(lengths(&runs))
}

/// The runs, of these two kinds, with which a step is expected to take less time, and why. `shard_seconds`: the time for a shard's
/// gradients; `bytes`: the size of a partial sum.
#[pyfunction]
pub(crate) fn choose_shard_runs(
    py: Python<'_>,
    communicator: PyRef<'_, Communicator>,
    shards: u32,
    shard_seconds: f64,
    bytes: u64,
) -> PyResult<(Vec<usize>, String)> {
    let time = Duration::try_from_secs_f64(shard_seconds).unwrap_or_default();
    let inner = &communicator.inner;
    let chosen = py.detach(|| ShardGroup::choose_runs(inner, shards, time, bytes));
    let chosen = chosen.map_err(|error| errors::to_python(&error))?;
    Ok((lengths(&chosen.runs), chosen.why))
}

fn lengths(runs: &ShardRuns) -> Vec<usize> {
    (0..runs.workers()).map(|worker| runs.of(worker).len()).collect()
}

/// The type in which elements of `dtype` are added.
#[pyfunction]
pub(crate) fn accumulator(dtype: &str, op: &str) -> PyResult<&'static str> {
    Ok(parse::<DType>(dtype)?.accumulator(parse(op)?).name())
}

/// The ranks of a communicator, and how many shards each carries.
#[pyclass(frozen, name = "ShardGroup", module = "herringbone._herringbone")]
pub(crate) struct PyShardGroup(DropWithoutGil<ShardGroup>);

#[pymethods]
impl PyShardGroup {
    #[new]
    fn new(py: Python<'_>, communicator: PyRef<'_, Communicator>, lengths: Vec<u32>) -> PyResult<Self> {
        let runs = ShardRuns::of_lengths(&lengths).map_err(|error| errors::config(error.to_string()))?;
        let inner = &communicator.inner;
        let group = py.detach(|| ShardGroup::new(inner, runs));
        Ok(Self(group.map_err(|error| errors::to_python(&error))?.into()))
    }

    /// The first shard that this rank carries, and the one after its last.
    #[getter]
    fn mine(&self) -> (u32, u32) {
        let mine = self.0.mine();
        (mine.start, mine.end)
    }

    /// How many partial sums this rank sends.
    #[getter]
    fn partials(&self) -> usize {
        self.0.partials()
    }

    /// The communicator in which partial sums are folded, in the accumulator's type.
    #[getter]
    fn sums(&self) -> Communicator {
        Communicator { inner: self.0.sums().clone().into() }
    }

    /// The partial sums over the shards for each of these parts: a type, an operation and the memory of each partial sum. `keep` owns
    /// the memory.
    fn partial_sums(
        &self,
        py: Python<'_>,
        parts: Vec<(String, String, Vec<PySpan>)>,
        keep: &Bound<'_, PyAny>,
    ) -> PyResult<PyShardSums> {
        let sum = |(dtype, op, into): (String, String, Vec<PySpan>)| {
            let (dtype, op) = (parse(&dtype)?, parse(&op)?);
            let into: Vec<Region> = into.into_iter().map(|span| regions((0, 0), span, keep).1).collect();
            let sum = py.detach(|| self.0.sum(dtype, op, into));
            sum.map_err(|error| errors::to_python(&error))
        };
        let sums = parts.into_iter().map(sum).collect::<PyResult<Vec<ShardSum>>>()?;
        Ok(PyShardSums(Mutex::new(sums)))
    }
}

/// Memory, and its owner.
type Lent<'py> = (PySpan, Bound<'py, PyAny>);

/// The partial sums of this rank, while its shards are added one by one.
#[pyclass(frozen, name = "ShardSums", module = "herringbone._herringbone")]
pub(crate) struct PyShardSums(Mutex<Vec<ShardSum>>);

#[pymethods]
impl PyShardSums {
    /// Adds the next shard's gradients, or nothing, to the parts from `first` on.
    fn push(&self, py: Python<'_>, first: usize, gradients: Vec<Option<Lent<'_>>>) -> PyResult<()> {
        self.each(py, first, gradients, ShardSum::push)
    }

    /// Replaces the gradients of the last shard.
    fn push_again(&self, py: Python<'_>, first: usize, gradients: Vec<Option<Lent<'_>>>) -> PyResult<()> {
        self.each(py, first, gradients, ShardSum::push_again)
    }

    /// Whether any shard has given a gradient, for each part. All shards must have been added.
    fn there(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        let there = py.detach(|| {
            let sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let of_each = sums.iter().map(|sum| sum.check_complete().map(|()| sum.is_there()));
            of_each.collect::<herringbone::Result<Vec<bool>>>()
        });
        there.map_err(|error| errors::to_python(&error))
    }

    /// Begins the next step.
    fn restart(&self, py: Python<'_>) -> PyResult<()> {
        let restarted = py.detach(|| {
            let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            sums.iter_mut().try_for_each(ShardSum::restart)
        });
        restarted.map_err(|error| errors::to_python(&error))
    }
}

impl PyShardSums {
    fn each(
        &self,
        py: Python<'_>,
        first: usize,
        gradients: Vec<Option<Lent<'_>>>,
        take: fn(&mut ShardSum, Option<Region>) -> herringbone::Result<()>,
    ) -> PyResult<()> {
        let region = |(span, keep): Lent<'_>| readable(span, &keep);
        let gradients: Vec<Option<Region>> =
            gradients.into_iter().map(|gradient| gradient.map(region)).collect();
        let taken = py.detach(|| {
            let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let mut pairs = sums.iter_mut().skip(first).zip(gradients);
            pairs.try_for_each(|(sum, gradient)| take(sum, gradient))
        });
        taken.map_err(|error| errors::to_python(&error))
    }
}

/// Rounds a sum in the accumulator's type to elements of `dtype`. `keep` owns both.
#[pyfunction]
pub(crate) fn round_shard_sum(
    py: Python<'_>,
    dtype: &str,
    op: &str,
    total: PySpan,
    into: PySpan,
    keep: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (dtype, op) = (parse(dtype)?, parse(op)?);
    let (total, into) = regions(total, into, keep);
    py.detach(|| rounded(dtype, op, &total, &into)).map_err(|error| errors::to_python(&error))
}
