//! `herringbone doctor`: anything on this machine that would stop or slow a job, and the command that fixes it.

mod finding;
mod machine;
mod network;
mod programs;
mod python;
mod servers;
mod within;

use crate::{failure::Failure, outcome::Outcome, table};
use comfy_table::{ColumnConstraint, Width};
use finding::{DoctorVerdict, Finding};
use herringbone::core::algorithm::Algorithm;
use herringbone::settings::Environment;
use herringbone::{Config, Rendezvous};
use machine::HostFiles;
use servers::ServerKind;
use std::io::Write;
use std::path::PathBuf;

/// The widest column's width, so that a line fits a wide terminal.
const SENTENCE_WIDTH: ColumnConstraint = ColumnConstraint::UpperBoundary(Width::Fixed(88));

/// Check this machine before a job, and print fixes
///
/// Checks settings, launchers, ports, names, the network interface, limits, memory, the scheduler and Python; calls
/// the reducers of HERRINGBONE_REDUCERS and the table servers of HERRINGBONE_TABLES; changes nothing. Run it in the
/// shell or launcher script that starts the ranks, so that it reads their variables and limits. It waits at most ten
/// seconds for answers.
///
/// "wrong" means that a job fails here; "warning", that some jobs fail or are slow, and the sentence names them.
/// Fixes follow the table as shell lines to paste. The last line shows whether a job can start here: exit code 0 if
/// it can, even with warnings, and 1 if it cannot.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DoctorOptions {
    /// Python of your programs, which is "wrong" if it lacks herringbone [default: python3 on the path]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Host of rank 0, which decides on the network interface [default: HERRINGBONE_STORE's]
    #[arg(long, value_name = "HOST")]
    rank0: Option<String>,
    /// Print one JSON object per check: check, level (ok, warning or wrong), says, advice, command. The last one is
    /// the verdict, with can_start and the numbers of wrong and warnings
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &DoctorOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let findings = examine(options, &HostFiles::this());
    let verdict = DoctorVerdict::of(&findings);
    if options.json {
        for finding in &findings {
            writeln!(out, "{}", finding.object())?;
        }
        writeln!(out, "{}", verdict.object())?;
    } else {
        print(&findings, out)?;
    }
    Ok(Outcome::passed_if(verdict.can_start()))
}

/// Every check, in the order in which a job would meet them.
fn examine(options: &DoctorOptions, machine: &HostFiles) -> Vec<Finding> {
    let environment = Environment::of_process();
    let mut findings = programs::settings(&environment);
    findings.push(programs::launcher(&environment));
    // Settings that cannot be read are among the findings, and the others are checked as if these were not set.
    let plain = || Config::new(0, 1, Rendezvous::Tcp(String::new()));
    let read = plain().with_environment(&environment);
    let token = herringbone::token_from_env();
    let config = read.unwrap_or_else(|_| plain());
    findings.extend(network::check(&config, options.rank0.as_deref(), token.as_ref().ok()));
    // Without a readable token all servers would refuse.
    if let Ok(token) = &token {
        let is_forced = config.guided_by().forced.as_ref().is_some_and(Algorithm::needs_reducers);
        for (kind, name) in [
            (ServerKind::Reducer { is_forced }, "HERRINGBONE_REDUCERS"),
            (ServerKind::Tables, "HERRINGBONE_TABLES"),
        ] {
            let addresses = network::listed(&environment, name);
            findings.extend(servers::check(kind, &addresses, token.as_deref()));
        }
    }
    findings.extend(machine.check());
    findings.push(python::check(options.python.as_deref()));
    findings
}

/// A table of the findings, a script with the fixes, and the verdict.
fn print(findings: &[Finding], out: &mut dyn Write) -> Result<(), Failure> {
    let columns = ["check", "result", "finding"];
    let narrow = ColumnConstraint::ContentWidth;
    let widths = [(0, narrow), (1, narrow), (2, SENTENCE_WIDTH)];
    writeln!(out, "{}", table::sentences(&columns, &[], &widths, findings.iter().map(Finding::cells)))?;
    let mut titled = false;
    for finding in findings {
        let Some(remedy) = &finding.remedy else { continue };
        if !std::mem::replace(&mut titled, true) {
            writeln!(out, "\nFixes:")?;
        }
        let [prose, command] = [&remedy.prose, &remedy.command].map(|text| table::visible(text));
        writeln!(out, "\n# {}: {prose}\n{command}", finding.check)?;
    }
    Ok(writeln!(out, "\n{}", DoctorVerdict::of(findings).says())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use finding::Remedy;

    #[test]
    fn commands_stand_alone_on_their_lines_and_the_verdict_comes_last() {
        let text = |findings: &[Finding]| {
            let mut out = Vec::new();
            print(findings, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let fine = Finding::ok("ports", "a port is free");
        assert!(text(std::slice::from_ref(&fine)).ends_with("\nA job can start here.\n"));
        assert!(!text(std::slice::from_ref(&fine)).contains("Fixes"));
        let slow = Finding::warning("autogroup", "it is on", Remedy::new("turn it off", "sysctl -w x=0"));
        let wrong = Finding::wrong("names", "there is no such host", Remedy::new("see its name", "hostname"));
        let all = text(&[fine, slow, wrong]);
        assert!(all.ends_with("\nNo job can start here: 1 problem, and 1 warning.\n"), "{all}");
        let lines: Vec<&str> = all.lines().collect();
        let at = lines.iter().position(|line| *line == "# autogroup: turn it off").unwrap();
        assert_eq!(lines[at + 1], "sysctl -w x=0");
    }

    #[test]
    fn texts_of_the_environment_do_not_steer_the_terminal() {
        let (coloured, mut out) = ("\u{1b}[31mhost\u{7}:5", Vec::new());
        let remedy = Remedy::new(format!("look {coloured} up"), format!("getent hosts {coloured}"));
        print(&[Finding::warning("reducer", format!("{coloured} is away"), remedy)], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches(r"\u{1b}[31mhost\u{7}:5").count(), 3, "{text}");
        assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
    }
}
