//! Constants of machines on the command line: a file's or the built-in ones, with rates and latencies from options.

use crate::failure::Failure;
use crate::numbers::{above_zero, decimal, whole};
use herringbone::{
    core::simulate::{Calibration, Picoseconds},
    read_user_text,
};
use std::path::{Path, PathBuf};

/// Options for the costs of machines.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConstantsOptions {
    /// Gbit/s of each host's port, each way
    #[arg(long, value_name = "G", value_parser = above_zero(1e6))]
    pub(crate) gbps: Option<f64>,
    /// Gbit/s of each reducer's port, if it differs
    #[arg(long, value_name = "G", value_parser = above_zero(1e6))]
    reducer_gbps: Option<f64>,
    /// Microseconds from one host to another
    #[arg(long, value_name = "L", value_parser = decimal(0.0..=1e6))]
    latency_us: Option<f64>,
    /// Cores that all ranks share, if one computer plays all hosts; 0: each rank has its own
    #[arg(long, value_name = "N", value_parser = whole(0..=65536))]
    shared_cores: Option<u32>,
    /// File of machine constants [default: HERRINGBONE_CALIBRATION]
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
}

impl ConstantsOptions {
    /// The constants of a file, if one is named.
    fn known(&self) -> Result<Option<Calibration>, Failure> {
        let named =
            std::env::var_os("HERRINGBONE_CALIBRATION").filter(|path| !path.is_empty()).map(PathBuf::from);
        self.calibration.as_ref().or(named.as_ref()).map(|path| calibration(path)).transpose()
    }

    /// The constants by which a job would choose, if it had a calibration.
    pub(crate) fn calibrated(&self) -> Result<Option<Calibration>, Failure> {
        self.known()?.map(|_| self.constants()).transpose()
    }

    /// The constants: the file's or the built-in ones, overridden by other options.
    pub(crate) fn constants(&self) -> Result<Calibration, Failure> {
        let mut constants = self.known()?.unwrap_or_default();
        // 0 means unlimited, so a very slow rate is not rounded to 0.
        let rate = |gbps: f64| ((gbps * 125e6).round() as u64).max(1);
        if let Some(gbps) = self.gbps {
            (constants.port, constants.reducer_port) = (rate(gbps), rate(gbps));
        }
        if let Some(gbps) = self.reducer_gbps {
            constants.reducer_port = rate(gbps);
        }
        if let Some(latency) = self.latency_us {
            constants.latency = (latency * 1e6).round() as Picoseconds;
        }
        constants.shared_cores = self.shared_cores.unwrap_or(constants.shared_cores);
        Ok(constants)
    }
}

/// Reads a file of constants.
fn calibration(path: &Path) -> Result<Calibration, Failure> {
    let text = read_user_text(path).map_err(|error| Failure::Usage {
        problem: format!("cannot read the constants in {}: {error}", path.display()),
        hint: "`herringbone simulate --constants > FILE` writes a file to start with",
    })?;
    Calibration::parse(&text).map_err(|error| Failure::Usage {
        problem: format!("{}: {error}", path.display()),
        hint: "`herringbone simulate --constants` lists all names",
    })
}
