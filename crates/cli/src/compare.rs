//! `herringbone compare`: real training under several architectures, which the Python package does.

use crate::{failure::Failure, outcome::Outcome, package::PackageProgram};
use std::ffi::OsString;

const COMPARISON: PackageProgram = PackageProgram { verb: "compare", module: "herringbone.compare.__main__" };

/// Train one network under several architectures and compare
///
/// Workers, reducers and servers are real processes of this machine, over links of a limited rate if you ask for that. The result is
/// a table, with --html FILE a page, too. For example: herringbone compare --workers 4 --rate 100Mbit --slow-worker 1:3x
/// --architecture all-reduce,reduction-server,async,local-sgd:8
///
/// The program is in the Python package and needs torch. The `herringbone` command of the wheel runs it at once, so its --help
/// lists the flags. This command becomes that program in the first python3 of PATH: `python3 -m herringbone.compare --help` lists
/// the flags, too. Exit code 1: an architecture failed, and the others have their rows.
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
