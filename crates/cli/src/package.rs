//! Verbs of the Python package: this process becomes the package's program.

use crate::{failure::Failure, outcome::Outcome};
use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

/// A program of the package.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackageProgram {
    /// The verb that it is.
    pub(crate) verb: &'static str,
    /// The module whose `main` takes the words.
    pub(crate) module: &'static str,
}

impl PackageProgram {
    /// What Python runs. Where the package is missing, this says what to do.
    fn text(self) -> String {
        let Self { verb, module } = self;
        format!(
            "\
import sys
try:
    from {module} import main
except ImportError as error:
    sys.exit(f'herringbone: {verb} is in the Python package, and {{sys.executable}} cannot import it: {{error}}; install it there')
sys.exit(main())"
        )
    }

    /// Becomes the program in the first python3 of PATH, with these words; its exit code is that of this process.
    pub(crate) fn run(self, words: &[OsString]) -> Result<Outcome, Failure> {
        let refusal = Command::new("python3").args(["-c", &self.text()]).args(words).exec();
        Err(Failure::system("cannot start `python3`, whose package has this command")(refusal))
    }
}
