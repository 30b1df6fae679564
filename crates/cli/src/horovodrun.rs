//! `herringbone horovodrun`: Horovod's launcher, which is the Python package's.

use crate::{failure::Failure, outcome::Outcome, package::PackageProgram};
use std::ffi::OsString;

const LAUNCHER: PackageProgram =
    PackageProgram { verb: "horovodrun", module: "herringbone.horovod.horovodrun" };

/// Start a Horovod program, with Horovod's flags
///
/// The launcher is in the Python package and runs in the first python3 on PATH. `python3 -m
/// herringbone.horovod.horovodrun --help` lists the flags. The exit code is that of the first rank to fail.
#[derive(Debug, clap::Args)]
#[command(override_usage = "herringbone horovodrun -np N [FLAGS] COMMAND...")]
pub(crate) struct HorovodrunOptions {
    /// Horovod's flags, then the program and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub(crate) fn run(options: &HorovodrunOptions) -> Result<Outcome, Failure> {
    LAUNCHER.run(&options.words)
}
