//! The `herringbone` command: one module per verb, one function that runs it all.
//!
//! The binary and the Python wheel's console script both call [`main_from`], so they are the same program.
#![forbid(unsafe_code)]

mod advise;
mod bench;
mod chart;
mod chrome;
mod codecs;
mod compare;
mod completions;
mod constants;
mod doctor;
mod drawing;
mod explain;
mod failure;
mod figures;
mod horovodrun;
mod html;
mod job;
mod launch;
mod layout;
mod machine;
mod man;
mod names;
mod numbers;
mod outcome;
mod package;
mod parent;
mod progress;
mod search;
mod serve;
mod settings;
mod show;
mod simulate;
mod status;
mod table;
mod token;
mod topo;
mod topologies;
mod trace;
mod training;
mod trees;
mod unique_json;
mod verbs;
mod verify;

pub use failure::RankFailure;
pub use launch::{RankDecision, Restarter};

use clap::{CommandFactory, FromArgMatches, Parser};
use failure::Failure;
use herringbone::settings::Bytes;
use outcome::Outcome;
use std::{
    any::TypeId,
    ffi::OsString,
    io::{self, BufWriter, Write},
};

/// Sum gradients across machines, by proven schedules, to the same bits every time.
#[derive(Debug, Parser)]
#[command(name = "herringbone", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Verify(verify::Options),
    Explain(explain::Options),
    Show(show::Options),
    Simulate(simulate::SimulateOptions),
    SimulateTraining(training::SimulateTrainingOptions),
    Roofline(simulate::RooflineOptions),
    Advise(advise::AdviseOptions),
    Search(search::SearchOptions),
    Topo(topo::Options),
    Trees(trees::Options),
    Figures(figures::FiguresOptions),
    Trace(trace::TraceOptions),
    Bench(bench::Options),
    Compare(compare::CompareOptions),
    Launch(launch::Options),
    Horovodrun(horovodrun::HorovodrunOptions),
    Serve(serve::Options),
    Settings(settings::Options),
    Status(status::Options),
    Doctor(doctor::DoctorOptions),
    Completions(completions::Options),
    Man(man::ManOptions),
}

const EXIT_CODES: &str = "\
`herringbone VERB --help` shows a verb's options, examples and guide.

Exit codes:
  0  success
  1  a check failed: an unproven schedule, a wrong result
  2  a bad command line or setting
  3  a failure at run time: a lost rank, a timeout, an address in use
launch and horovodrun exit with the code of the first rank to fail.";

/// Runs the command line `args`, whose first item is the program's name, and returns the exit code.
///
/// 0: success; 1: a check failed; 2: bad arguments or settings; 3: a failure at run time.
///
/// Results go to standard output, progress and errors to standard error. A reader that closes standard output early
/// ends the command without an error.
pub fn main_from(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    let parsed = command().try_get_matches_from(&args).and_then(|found| Command::from_arg_matches(&found));
    let command = match parsed {
        Ok(command) => command,
        Err(refusal) => return refuse(&refusal),
    };
    let mut out = BufWriter::new(io::stdout());
    let result = command.verb.run(&args, &mut out).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    });
    match result {
        Ok(Outcome::Passed) => 0,
        Ok(Outcome::Failed) => failure::CHECK,
        Err(failure) if failure.is_closed_output() => 0,
        Err(failure) => {
            let said = match &failure {
                Failure::Engine(_) | Failure::Settings(_) => format!("{failure}\n"),
                other => format!("herringbone: {other}\n"),
            };
            // In one write, since several ranks can have the same standard error; nobody else can be told.
            let _unheard = io::stderr().write_all(table::visible(&said).as_bytes());
            failure.code()
        }
    }
}

/// The command line. A value can be a negative number everywhere, and a list that begins with one where sizes and numbers are
/// wanted, so that the error is about the number. The summaries of `-h` leave out options below a heading.
fn command() -> clap::Command {
    let numbers = [
        TypeId::of::<Bytes>(),
        TypeId::of::<numbers::Sizes>(),
        TypeId::of::<numbers::Set>(),
        TypeId::of::<simulate::PartsOption>(),
        TypeId::of::<simulate::Slow>(),
        TypeId::of::<training::Workers>(),
    ];
    let is_numbers = |argument: &clap::Arg| {
        let value = argument.get_value_parser().type_id();
        numbers.iter().any(|number| value == *number)
    };
    verbs::with_groups(Command::command()).mut_subcommands(|verb| {
        verb.mut_args(|argument| {
            let is_below_heading = argument.get_help_heading().is_some();
            argument.hide_short_help(is_below_heading)
        })
        .mut_args(|argument| match argument.get_action().takes_values() {
            true if is_numbers(&argument) => argument.allow_hyphen_values(true),
            true => argument.allow_negative_numbers(true),
            false => argument,
        })
    })
}

/// Prints why the arguments cannot be used, in the form of other errors, or the requested help.
fn refuse(refusal: &clap::Error) -> i32 {
    let text = refusal.render().to_string();
    let said = match text.strip_prefix("error: ") {
        Some(problem) => io::stderr().write_all(format!("herringbone: {problem}").as_bytes()),
        None => refusal.print(),
    };
    if said.is_ok() { refusal.exit_code() } else { failure::RUN }
}

impl Verb {
    fn run(&self, args: &[OsString], out: &mut (dyn Write + Send)) -> Result<Outcome, Failure> {
        match self {
            Verb::Verify(options) => verify::run(options, out),
            Verb::Explain(options) => explain::run(options, out),
            Verb::Show(options) => show::run(options, out),
            Verb::Simulate(options) => simulate::run(options, out),
            Verb::SimulateTraining(options) => training::run(options, out),
            Verb::Roofline(options) => simulate::run_roofline(options, out),
            Verb::Advise(options) => advise::run(options, out),
            Verb::Search(options) => search::run(options, out),
            Verb::Topo(options) => topo::run(options, out),
            Verb::Trees(options) => trees::run(options, out),
            Verb::Figures(options) => figures::run(options, out),
            Verb::Trace(options) => trace::run(options, out),
            Verb::Bench(options) => bench::run(options, args, out),
            Verb::Compare(options) => compare::run(options),
            Verb::Launch(options) => launch::run(options, args),
            Verb::Horovodrun(options) => horovodrun::run(options),
            Verb::Serve(options) => serve::run(options, out),
            Verb::Settings(options) => settings::run(options, out),
            Verb::Status(options) => status::run(options, out),
            Verb::Doctor(options) => doctor::run(options, out),
            Verb::Completions(options) => completions::run(options, &mut command(), out),
            Verb::Man(options) => man::run(options, command(), out),
        }
    }
}

/// Its Rust runs as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/rust.md")]
struct Tutorial;

/// Its Rust runs as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/compression.md")]
struct CompressionPage;

/// Its Rust runs as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tables.md")]
struct TablesPage;

/// Its Rust runs as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rabit.md")]
struct RabitPage;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_summary_leaves_out_the_inputs_of_figures() {
        let mut command = command();
        let figures = command.find_subcommand_mut("figures").unwrap();
        let [short, long] = [figures.render_help(), figures.render_long_help()].map(|help| help.to_string());
        assert!(short.contains("--only") && !short.contains("--vertex-hosts"), "{short}");
        assert!(long.contains("--vertex-hosts"), "{long}");
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let code = |args: &[&str]| main_from(args.iter().map(OsString::from));
        assert_eq!(code(&["herringbone", "--version"]), 0);
        assert_eq!(code(&["herringbone", "verify", "--algorithm", "radix", "--ranks", "2"]), 0);
        assert_eq!(code(&["herringbone", "verify", "--ranks", "none"]), 2);
        assert_eq!(code(&["herringbone", "serve", "--listen", "nowhere"]), 2);
    }
}
