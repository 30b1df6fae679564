//! Many all-reduces in a row, as a store pushes and pulls the gradients of a model: one by one, and as operations of a
//! dependency engine.

use super::options::Options;
use crate::{failure::Failure, outcome::Outcome};
use herringbone::{
    Communicator, ReduceOp,
    dependency::{DependencyEngine, DependencyError, EngineBuffer},
    settings::Bytes,
};
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

/// How many threads the dependency engine has: none of its functions does more than issue.
const THREADS: usize = 2;
/// How often each way is timed, after one untimed run; the least time is used.
const TIMES: usize = 7;

/// A row for 1, 50 and `most` push-pulls of each size; rank 0 prints.
pub(super) fn run(
    options: &Options,
    most: usize,
    communicator: &Communicator,
    out: &mut dyn Write,
) -> Result<Outcome, Failure> {
    let is_first = communicator.rank() == 0;
    if is_first && !options.json {
        writeln!(out, "# {}", communicator.describe())?;
        writeln!(
            out,
            "# push-pulls of float32 sums by size: one by one, and in a row on a dependency engine"
        )?;
        writeln!(
            out,
            "{:>12} {:>8} {:>14} {:>12} {:>8} {:>7}",
            "bytes", "count", "one_by_one(ms)", "in_a_row(ms)", "ratio", "#wrong"
        )?;
    }
    let mut counts = vec![1, 50, most];
    counts.retain(|count| *count <= most);
    counts.dedup();
    let mut all_wrong = 0;
    for bytes in &options.sizes.distinct(|bytes| bytes.div_ceil(size_of::<f32>())) {
        for count in &counts {
            let row = Row::measured(communicator, *bytes, *count)?;
            all_wrong += row.wrong;
            if is_first {
                row.print(options.json, out)?;
            }
        }
    }
    communicator.barrier()?;
    Ok(Outcome::passed_if(all_wrong == 0))
}

struct Row {
    bytes: usize,
    count: usize,
    one_by_one: Duration,
    in_a_row: Duration,
    wrong: u64,
}

impl Row {
    fn measured(communicator: &Communicator, bytes: usize, count: usize) -> Result<Self, Failure> {
        let engine = DependencyEngine::new(THREADS).map_err(started)?;
        let elements = bytes.div_ceil(size_of::<f32>());
        let buffers: Vec<EngineBuffer<f32>> =
            (0..count).map(|_| EngineBuffer::new(vec![0.0; elements], engine.var())).collect();
        let mut wrong = 0;
        let mut least = [Duration::MAX; 2];
        for time in 0..=TIMES {
            for (way, least) in least.iter_mut().enumerate() {
                let rank = communicator.rank();
                (0..).zip(&buffers).for_each(|(at, buffer)| buffer.values().fill((at + rank) as f32));
                communicator.barrier()?;
                let begin = Instant::now();
                for buffer in &buffers {
                    if way == 0 {
                        communicator.all_reduce(&mut buffer.values(), ReduceOp::Sum)?;
                    } else {
                        engine.all_reduce(communicator, buffer, ReduceOp::Sum, 0).map_err(failed)?;
                    }
                }
                engine.wait_all().map_err(failed)?;
                if time > 0 {
                    *least = begin.elapsed().min(*least);
                }
                wrong += wrong_sums(&buffers, communicator.size());
            }
        }
        let mut all = [wrong as i64];
        communicator.all_reduce(&mut all, ReduceOp::Sum)?;
        let [one_by_one, in_a_row] = least;
        Ok(Self { bytes: elements * size_of::<f32>(), count, one_by_one, in_a_row, wrong: all[0] as u64 })
    }

    fn print(&self, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
        let Self { bytes, count, one_by_one, in_a_row, wrong } = self;
        let [apart, together] = [one_by_one, in_a_row].map(|time| time.as_secs_f64() * 1e3);
        if json {
            let row = serde_json::json!({
                "bytes": bytes, "count": count, "one_by_one_ms": apart, "in_a_row_ms": together, "wrong": wrong
            });
            writeln!(out, "{row}")?;
        } else {
            let ratio = apart / together;
            let bytes = Bytes(*bytes).to_string();
            writeln!(out, "{bytes:>12} {count:>8} {apart:>14.3} {together:>12.3} {ratio:>7.2}x {wrong:>7}")?;
        }
        Ok(())
    }
}

/// How many elements are not the sum of all ranks' values; these are small whole numbers, so it is exact.
fn wrong_sums(buffers: &[EngineBuffer<f32>], ranks: u32) -> u64 {
    let of_ranks: u64 = (0..u64::from(ranks)).sum();
    let wrong = (0..).zip(buffers).map(|(at, buffer): (u64, _)| {
        let sum = (at * u64::from(ranks) + of_ranks) as f32;
        buffer.values().iter().filter(|value| **value != sum).count() as u64
    });
    wrong.sum()
}

fn started(source: io::Error) -> Failure {
    Failure::System { action: "starting the threads of the dependency engine".to_owned(), source }
}

/// What a collective said, or the dependency engine itself.
fn failed(error: DependencyError) -> Failure {
    if let DependencyError::Failed(failure) = &error
        && let Some(error) = failure.error().downcast_ref::<herringbone::Error>()
    {
        return Failure::Engine(error.clone());
    }
    Failure::System { action: "push-pulls in a row".to_owned(), source: io::Error::other(error) }
}
