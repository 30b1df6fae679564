//! What is timed, and how.

use super::codecs::CompressedOptions;
use crate::names::one_of;
use crate::numbers::{Sizes, whole};
use herringbone::{Collective, DType, ReduceOp};
use std::{path::PathBuf, time::Duration};

/// Time collectives and check every result
///
/// Inside a job (torchrun, mpirun, srun or another launcher has started this process) every process is one rank and rank 0
/// prints. Without a job, --processes or --local makes one on this machine.
///
/// time is that of one operation; algbw is bytes / time, and busbw what each link carries for that at the least: 2 (N-1)/N
/// of it for all_reduce, (N-1)/N for those that have parts, all of it for reduce and broadcast. #wrong counts
/// elements that are not what they must be, as does the line below the table.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("ranks").args(["local", "processes", "rig"]))]
pub(crate) struct Options {
    /// What to run
    #[arg(long, default_value = "all_reduce", value_name = "NAME", value_parser = one_of::<Collective>(&COLLECTIVES))]
    pub(super) collective: Collective,
    /// The rank that a reduce or gather ends at and a broadcast or scatter starts from: 0 unless said
    #[arg(long, value_name = "RANK", value_parser = whole(0..=u32::MAX))]
    pub(super) root: Option<u32>,
    /// Bytes per rank (of the whole buffer, for those that have parts, like all_gather): 4,64K,1.5M,1GiB, or 1K..16M doubling; rounded
    /// up to whole elements, and each measured once
    #[arg(long, default_value = "4,1K,64K,1M,25M", value_name = "LIST")]
    pub(super) sizes: Sizes,
    /// The elements' type
    #[arg(long, default_value = "f32", value_parser = one_of::<DType>(&DType::ALL.map(DType::name)))]
    pub(super) dtype: DType,
    /// What becomes of them where they are reduced: their sum unless said
    #[arg(long, value_parser = one_of::<ReduceOp>(&ReduceOp::ALL.map(ReduceOp::name)))]
    pub(super) op: Option<ReduceOp>,
    /// Seconds to spend on each row
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS", value_parser = positive)]
    pub(super) seconds: f64,
    /// One JSON object per size instead of the table
    #[arg(long)]
    pub(super) json: bool,
    /// Run N ranks as threads of this process
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub(super) local: Option<u32>,
    /// Start N processes on this machine, one rank each
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub(super) processes: Option<u32>,
    /// With --processes: start M reducers as well, and send all-reduces through them unless HERRINGBONE_ALGORITHM is set
    #[arg(long, value_name = "M", requires = "processes", conflicts_with_all = ["local", "rig"], value_parser = whole(1..=256))]
    pub(super) reducers: Option<u32>,
    /// Fulfil the contract of the comparison rigs: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, BENCH_SIZES,
    /// BENCH_BUDGET_S, and a reducer at port 7070 of each of BENCH_EXTRA_HOSTS; a line per size goes to r<RANK>.jsonl in
    /// the folder BENCH_OUT, or in this one. In place where the collective can be
    #[arg(long, conflicts_with_all = ["sizes", "seconds", "json"])]
    pub(super) rig: bool,
    #[command(flatten)]
    pub(super) ways: BenchWays,
    /// Started by --processes: ends with its parent
    #[arg(long, hide = true)]
    pub(super) child: bool,
}

/// In which way buffers are reduced, and what for.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchWays {
    /// In place: buffers in memory that all ranks of a host map, as from Communicator::allocate
    #[arg(long)]
    pub(super) mapped: bool,
    /// 1, 50 and N all-reduces in a row, as a KVStore pushes and pulls: one by one, and as operations of a dependency engine
    #[arg(long, value_name = "N", value_parser = whole(1..=100_000), conflicts_with_all = ["collective", "root", "dtype", "op", "seconds", "rig", "mapped"])]
    pub(super) pushpull: Option<u32>,
    /// Time a few sums, fit the constants of `simulate` and of choices by predicted times to them, and write them to a file,
    /// herringbone.calibration unless said. They begin as HERRINGBONE_CALIBRATION's, if that is set
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "herringbone.calibration", conflicts_with_all = ["sizes", "collective", "dtype", "op", "root", "rig", "local", "mapped", "pushpull"])]
    pub(super) calibrate: Option<PathBuf>,
    /// With --calibrate: Gbit/s of each host's port, which are fitted unless said
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

/// What to do where there is no job.
pub(super) const START: &str =
    "start it with torchrun, mpirun or srun, or add --processes 4 or --local 4 to run on this machine alone";
