//! `herringbone compare`: real training under several architectures, in the Python package.

use crate::{failure::Failure, outcome::Outcome, package::PackageProgram};
use std::ffi::OsString;

const COMPARISON: PackageProgram = PackageProgram { verb: "compare", module: "herringbone.compare.__main__" };

/// Train one network under several architectures and compare
///
/// Workers, reducers and servers are real processes on this machine, over rate-limited links if you ask for them. The
/// result is a table, and with --html FILE also a page.
///
/// The program is in the Python package, needs torch, and runs in the first python3 on PATH. `python3 -m
/// herringbone.compare --help` lists the flags. Exit code 1: an architecture failed; the others have their rows.
#[derive(Debug, clap::Args)]
#[command(override_usage = "herringbone compare [FLAGS]")]
pub(crate) struct CompareOptions {
    /// The comparison's flags
    #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub(crate) fn run(options: &CompareOptions) -> Result<Outcome, Failure> {
    COMPARISON.run(&options.words)
}
