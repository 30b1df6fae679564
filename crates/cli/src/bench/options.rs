//! The options of `herringbone bench`.

use super::codecs::CompressedOptions;
use crate::names::one_of;
use crate::numbers::{Sizes, whole};
use herringbone::{Collective, DType, ReduceOp};
use std::{path::PathBuf, time::Duration};

/// Time collectives and check every result
///
/// In a job (started by torchrun, mpirun, srun or another launcher) each process is one rank, and rank 0 prints.
/// Without a job, --processes or --local starts one on this machine.
///
/// time is per operation; algbw is bytes / time. busbw is the least that each link carries: 2 (N-1)/N of algbw for
/// all_reduce, (N-1)/N for collectives with parts, all of it for reduce and broadcast. #wrong is the number of
/// incorrect elements.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("ranks").args(["local", "processes", "rig"]))]
pub(crate) struct Options {
    /// Collective to time
    #[arg(long, default_value = "all_reduce", value_name = "NAME", value_parser = one_of::<Collective>(&COLLECTIVES))]
    pub(super) collective: Collective,
    /// Root of a reduce, gather, broadcast or scatter [default: 0]
    #[arg(long, value_name = "RANK", value_parser = whole(0..=u32::MAX))]
    pub(super) root: Option<u32>,
    /// Bytes per rank, or of the whole buffer for collectives with parts, in whole elements: 4,64K,1.5M,1GiB, or
    /// 1K..16M (doubling)
    #[arg(long, default_value = "4,1K,64K,1M,25M", value_name = "LIST")]
    pub(super) sizes: Sizes,
    /// Type of the elements
    #[arg(long, default_value = "f32", value_parser = one_of::<DType>(&DType::ALL.map(DType::name)))]
    pub(super) dtype: DType,
    /// Reduction [default: sum]
    #[arg(long, value_parser = one_of::<ReduceOp>(&ReduceOp::ALL.map(ReduceOp::name)))]
    pub(super) op: Option<ReduceOp>,
    /// Seconds to measure each row
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS", value_parser = positive)]
    pub(super) seconds: f64,
    /// Print one JSON object per size
    #[arg(long)]
    pub(super) json: bool,
    /// Run N ranks as threads of this process
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub(super) local: Option<u32>,
    /// Start N processes on this machine, one rank each
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub(super) processes: Option<u32>,
    /// With --processes: also start M reducers, and send all-reduces through them unless HERRINGBONE_ALGORITHM is set
    #[arg(long, value_name = "M", requires = "processes", conflicts_with_all = ["local", "rig"], value_parser = whole(1..=256))]
    pub(super) reducers: Option<u32>,
    /// Run as in the comparison rigs, by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, BENCH_SIZES and BENCH_BUDGET_S,
    /// with a reducer at port 7070 of each of BENCH_EXTRA_HOSTS. Writes a line per size to BENCH_OUT/r<RANK>.jsonl;
    /// in place where the collective can be
    #[arg(long, hide = true, conflicts_with_all = ["sizes", "seconds", "json"])]
    pub(super) rig: bool,
    #[command(flatten)]
    pub(super) ways: BenchWays,
    /// Started by --processes: ends with its parent
    #[arg(long, hide = true)]
    pub(super) child: bool,
}

/// How buffers are reduced, and for which purpose.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchWays {
    /// In place: buffers in memory that all ranks of a host map, so that sums need no copies
    #[arg(long)]
    pub(super) mapped: bool,
    /// Time 1, 50 and N all-reduces in a row, like a KVStore: one by one, and on a dependency engine
    #[arg(long, value_name = "N", value_parser = whole(1..=100_000), conflicts_with_all = ["collective", "root", "dtype", "op", "seconds", "rig", "mapped"])]
    pub(super) pushpull: Option<u32>,
    /// Time a few sums, fit the constants of `simulate` and of predicted choices, and write them to FILE [default:
    /// herringbone.calibration]. Starts from HERRINGBONE_CALIBRATION, if set
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "herringbone.calibration", conflicts_with_all = ["sizes", "collective", "dtype", "op", "root", "rig", "local", "mapped", "pushpull"])]
    pub(super) calibrate: Option<PathBuf>,
    /// With --calibrate: Gbit/s of each host's port [default: fitted]
    #[arg(long, value_name = "G", requires = "calibrate", value_parser = positive)]
    pub(super) gbps: Option<f64>,
    #[command(flatten)]
    pub(super) compressed: CompressedOptions,
}

impl Options {
    pub(super) fn op(&self) -> ReduceOp {
        self.op.unwrap_or(ReduceOp::Sum)
    }
}

/// The collectives that can be timed.
pub(super) const COLLECTIVES: [&str; 8] =
    ["all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"];

pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && Duration::try_from_secs_f64(number).is_ok() => Ok(number),
        _ => Err("write a number above 0, like 0.5".to_owned()),
    }
}

/// The advice without a job.
pub(super) const START: &str =
    "start it with torchrun, mpirun or srun, or add --processes 4 or --local 4 to run on this machine alone";
