//! `herringbone bench --compression`: all-reduces with each codec, compared with plain ones.

use super::{Options, codecs::CompressedOptions, measure::time};
use crate::{codecs::Codecs, failure::Failure, outcome::Outcome};
use herringbone::{Communicator, Compression, ReduceOp, core::codec::CodecChoice, read_user_file};
use serde_json::json;
use std::{
    io::{self, Write},
    path::Path,
    time::Duration,
};

/// The result of one codec.
struct Row {
    codec: CodecChoice,
    bytes: usize,
    seconds: f64,
    /// The bytes that a worker sends, relative to the buffer.
    sent: f64,
    /// The root mean square of the difference from the plain sum, relative to that of the plain sum.
    error: f64,
}

/// Measures every size with every codec; rank 0 prints.
pub(super) fn rows(
    options: &Options,
    communicator: &Communicator,
    out: &mut dyn Write,
) -> Result<Outcome, Failure> {
    let CompressedOptions { compression: Some(Codecs(codecs)), gradients } = &options.ways.compressed else {
        return Ok(Outcome::Passed);
    };
    if !matches!(options.op(), ReduceOp::Sum | ReduceOp::Average) {
        return Err(Failure::Usage {
            problem: format!("codecs are for sums and averages, not for {}", options.op()),
            hint: "leave --op out, or pass --op average",
        });
    }
    let file = gradients.as_deref().map(numbers_of).transpose()?;
    let prints = communicator.rank() == 0;
    if prints && !options.json {
        for line in communicator.describe().lines() {
            writeln!(out, "# {line}")?;
        }
        let names = ["size (B)", "codec", "time (us)", "x plain", "sent", "error"];
        let [size, codec, time, times, sent, error] = names;
        writeln!(out, "#{size:>11} {codec:>16} {time:>12} {times:>8} {sent:>8} {error:>9}")?;
    }
    for bytes in &options.sizes.distinct(|bytes| bytes / 4) {
        let values = values(communicator.rank(), bytes / 4, file.as_deref());
        let mut plain = None;
        for codec in [CodecChoice::default()].iter().chain(codecs) {
            let (row, sum) = row(communicator, &values, *codec, options, plain.as_ref().map(|(_, sum)| sum))?;
            let (beside, _) = plain.get_or_insert((row.seconds, sum));
            if prints {
                print(&row, row.seconds / *beside, options.json, out)?;
            }
        }
    }
    communicator.barrier()?;
    Ok(Outcome::Passed)
}

/// How many bytes a file of gradients can have: a gigabyte of parameters and more.
const GRADIENTS: u64 = 4 << 30;

/// The numbers of a file of f32, little-endian.
fn numbers_of(path: &Path) -> Result<Vec<f32>, Failure> {
    let bytes = read_user_file(path, GRADIENTS)
        .map_err(io::Error::from)
        .map_err(Failure::system(format!("cannot read {}", path.display())))?;
    match bytes.as_chunks::<4>() {
        (numbers @ [_, ..], []) => Ok(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
        _ => Err(Failure::Usage {
            problem: format!(
                "{} has {} bytes, which is not a multiple of 4, as float32 numbers need",
                path.display(),
                bytes.len()
            ),
            hint: "write gradients with numpy's tofile, as float32",
        }),
    }
}

/// What a rank sums.
fn values(rank: u32, count: usize, file: Option<&[f32]>) -> Vec<f32> {
    if let Some(file) = file {
        // Each rank begins elsewhere, as if its gradients differed from others'.
        return file.iter().copied().cycle().skip(rank as usize * 977 % file.len()).take(count).collect();
    }
    let mut state = 0x2545_f491_u32 ^ (rank + 1).wrapping_mul(0x9e37_79b9);
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..count).map(|_| (uniform() + uniform() + uniform()) * 8f32.powf(uniform())).collect()
}

fn row(
    communicator: &Communicator,
    values: &[f32],
    codec: CodecChoice,
    options: &Options,
    plain: Option<&Vec<f32>>,
) -> Result<(Row, Vec<f32>), Failure> {
    let op = options.op();
    let mut sum = values.to_vec();
    let before = sent(communicator);
    communicator.all_reduce_compressed(&mut sum, op, Compression::by(codec))?;
    let sent = sent(communicator) - before;
    let mut buffer = values.to_vec();
    let budget = Duration::from_secs_f64(options.seconds);
    let timing = time(communicator, budget, || {
        buffer.copy_from_slice(values);
        let compression = Compression::by(codec).tensor(format!("{codec} {}", values.len()));
        Ok(communicator.all_reduce_compressed(&mut buffer, op, compression)?)
    })?;
    let bytes = size_of_val(values);
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let error = plain.map_or(0.0, |plain| {
        let wrong = norm(&mut sum.iter().zip(plain).map(|(one, other)| f64::from(one - other)));
        wrong / norm(&mut plain.iter().map(|value| f64::from(*value))).max(f64::MIN_POSITIVE)
    });
    let seconds = timing.quantile(5).as_secs_f64();
    Ok((Row { codec, bytes, seconds, sent: sent as f64 / bytes.max(1) as f64, error }, sum))
}

/// The payload bytes that this rank has sent up to now.
fn sent(communicator: &Communicator) -> u64 {
    let stats = communicator.stats();
    [stats.workers_shm, stats.workers_tcp, stats.reducers_tcp].iter().map(|moved| moved.sent).sum()
}

fn print(row: &Row, times: f64, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let Row { codec, bytes, seconds, sent, error } = row;
    if json {
        let row = json!({
            "bytes": bytes, "codec": codec.to_string(), "seconds": seconds, "times_plain": times, "sent": sent,
            "error": error,
        });
        writeln!(out, "{row}")?;
    } else {
        let (codec, us) = (codec.to_string(), seconds * 1e6);
        writeln!(out, "{bytes:>12} {codec:>16} {us:>12.1} {times:>8.2} {sent:>8.4} {error:>9.2e}")?;
    }
    Ok(out.flush()?)
}
