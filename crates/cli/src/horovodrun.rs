//! `herringbone horovodrun`: Horovod's launcher, which is the Python package's.

use crate::{failure::Failure, outcome::Outcome, package::PackageProgram};
use std::ffi::OsString;

const LAUNCHER: PackageProgram =
    PackageProgram { verb: "horovodrun", module: "herringbone.horovod.horovodrun" };

/// Start a Horovod program, with Horovod's flags
///
/// The launcher is in the Python package, and the `herringbone` command of the wheel runs it at once, so its --help lists the
/// flags. This command becomes that program in the first python3 of PATH: `python3 -m herringbone.horovod.horovodrun --help`
/// lists the flags, too. The exit code is that of the rank that failed first.
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
