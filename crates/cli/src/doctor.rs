//! `herringbone doctor`: what of this machine would get into a job's way, and the command that mends it.

mod finding;
mod machine;
mod network;
mod programs;

use crate::{failure::Failure, outcome::Outcome, table};
use comfy_table::{ColumnConstraint, Width};
use finding::{Finding, Severity};
use herringbone::Config;
use machine::HostFiles;
use std::io::Write;
use std::path::PathBuf;

/// The widest columns' widths, so that a line fits a wide terminal.
const SENTENCE_WIDTH: ColumnConstraint = ColumnConstraint::UpperBoundary(Width::Fixed(64));
const COMMAND_WIDTH: ColumnConstraint = ColumnConstraint::UpperBoundary(Width::Fixed(48));

/// Check this machine before a job: what is wrong, and the command that mends it
///
/// It looks at settings, launchers, ports, names, the network interface, limits, memory, the scheduler and torch, and
/// changes nothing. Run it in the shell, or in the script of the launcher, that starts the ranks: then it reads the variables
/// and limits that the ranks get.
///
/// "wrong" means that a job fails here, and makes the exit code 1. "warning" means that some jobs fail or are slow here, and
/// the sentence says which.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DoctorOptions {
    /// The Python whose torch is looked at; python3 on the path unless said
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// The host of rank 0, to which the network interface is chosen; HERRINGBONE_STORE's unless said
    #[arg(long, value_name = "HOST")]
    rank0: Option<String>,
    /// One JSON object per check instead of the table: check, level (ok, warning or wrong), says, command
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &DoctorOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let findings = examine(options, &HostFiles::this());
    if options.json {
        for finding in &findings {
            writeln!(out, "{}", finding.object())?;
        }
    } else {
        print(&findings, out)?;
    }
    Ok(Outcome::passed_if(findings.iter().all(|finding| finding.level != Severity::Wrong)))
}

/// Every check, in the order in which a job would meet them.
fn examine(options: &DoctorOptions, machine: &HostFiles) -> Vec<Finding> {
    let mut findings = programs::settings();
    let config = Config::new(0, 1, herringbone::Rendezvous::Tcp(String::new())).with_env();
    findings.push(programs::launcher());
    // Settings that cannot be read are among the findings.
    if let Ok(config) = config {
        findings.extend(network::check(&config, options.rank0.as_deref()));
    }
    findings.extend(machine.check());
    findings.push(programs::torch(options.python.as_deref()));
    findings
}

fn print(findings: &[Finding], out: &mut dyn Write) -> Result<(), Failure> {
    let columns = ["check", "result", "what was found", "what to do"];
    let narrow = ColumnConstraint::ContentWidth;
    let widths = [(0, narrow), (1, narrow), (2, SENTENCE_WIDTH), (3, COMMAND_WIDTH)];
    writeln!(out, "{}", table::sentences(&columns, &widths, findings.iter().map(Finding::cells)))?;
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (wrong, warnings) = (count(Severity::Wrong), count(Severity::Warning));
    let sum = match (wrong, warnings) {
        (0, 0) => "All is well: a job can start here.".to_owned(),
        (0, 1) => "A job can start here; 1 check warns.".to_owned(),
        (0, warnings) => format!("A job can start here; {warnings} checks warn."),
        (wrong, warnings) => format!("{wrong} wrong, {warnings} with a warning."),
    };
    Ok(writeln!(out, "\n{sum}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_how_many_and_rows_say_what_to_do() {
        let text = |findings: &[Finding]| {
            let mut out = Vec::new();
            print(findings, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let fine = Finding::ok("ports", "a port is free");
        assert!(text(std::slice::from_ref(&fine)).ends_with("\nAll is well: a job can start here.\n"));
        let slow = Finding::warning("autogroup", "it is on", "sysctl -w x=0");
        assert!(text(&[fine.clone(), slow.clone()]).ends_with("start here; 1 check warns.\n"));
        let wrong = Finding::wrong("names", "there is no such host", "hostname");
        let all = text(&[fine, slow, wrong]);
        assert!(all.ends_with("\n1 wrong, 1 with a warning.\n"), "{all}");
        assert!(
            all.lines().any(|line| line.contains("autogroup") && line.contains("sysctl -w x=0")),
            "{all}"
        );
    }
}
