//! `herringbone completions`: the completion script of a shell.

use crate::{failure::Failure, outcome::Outcome};
use std::io::Write;

/// Print the completion script for a shell
///
/// For bash: herringbone completions bash > ~/.local/share/bash-completion/completions/herringbone
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The shell
    shell: clap_complete::Shell,
}

/// `command` is the command that the script completes.
pub(crate) fn run(
    options: &Options,
    command: &mut clap::Command,
    out: &mut dyn Write,
) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, command, "herringbone", &mut script);
    out.write_all(&script)?;
    Ok(Outcome::Passed)
}
