//! `herringbone horovodrun`: Horovod's launcher, which is the Python package's.

use crate::{failure::Failure, outcome::Outcome};
use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

/// Where the package is missing, this says what to do.
const PROGRAM: &str = "\
import sys
try:
    from herringbone.horovod.run import main
except ImportError as error:
    sys.exit(f'herringbone: horovodrun is in the Python package, and {sys.executable} cannot import it: {error}; install it there')
sys.exit(main())";

/// Start a program for Horovod's interface on this host and others, with Horovod's flags
///
/// The launcher is in the Python package, and the `herringbone` command of the wheel runs it at once, so its --help lists the
/// flags. This command becomes that program in the first python3 of PATH: `python3 -m herringbone.horovod.run --help` lists
/// the flags, too. The exit code is that of the rank that failed first.
#[derive(Debug, clap::Args)]
#[command(override_usage = "herringbone horovodrun -np N [FLAGS] COMMAND...")]
pub(crate) struct HorovodrunOptions {
    /// Horovod's flags, then the program and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub(crate) fn run(options: &HorovodrunOptions) -> Result<Outcome, Failure> {
    let refusal = Command::new("python3").args(["-c", PROGRAM]).args(&options.words).exec();
    Err(Failure::system("cannot start `python3`, whose package has the launcher")(refusal))
}
