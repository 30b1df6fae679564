//! `herringbone trace`: merges the timelines of a job's processes.

mod clocks;
mod figures;
mod merge;
mod page;
mod part;
mod read;
mod sorter;
mod steps;
#[cfg(test)]
mod tests;

use crate::{chrome, failure::Failure, numbers::above_zero, outcome::Outcome, simulate};
use herringbone::core::trace::timeline;
use page::Page;
use std::{
    fs,
    io::{BufReader, BufWriter, Write},
    path::PathBuf,
};

/// Merge, check and report a job's timelines
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TraceOptions {
    #[command(subcommand)]
    verb: TraceVerb,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum TraceVerb {
    Merge(MergeOptions),
    Report(ReportOptions),
    Check(CheckOptions),
}

/// Merge the timelines of a job's processes into one file
///
/// Clocks are aligned by rank 0's measurements. Perfetto (ui.perfetto.dev), speedscope and chrome://tracing open the
/// result. If a process died, its file is used as far as it goes.
#[derive(Clone, Debug, clap::Args)]
struct MergeOptions {
    /// Folder with the files
    folder: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "job.json")]
    output: PathBuf,
    /// The job, if the folder has several
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
}

/// Report slow ranks, steps, and the speed of operations
///
/// The slowest rank of an operation is the last one to call it; it costs the others the time that they waited with
/// that operation. The page needs no other file and no network.
#[derive(Clone, Debug, clap::Args)]
struct ReportOptions {
    /// A file from `herringbone trace merge`
    file: PathBuf,
    /// The page to write
    #[arg(short, long, value_name = "FILE", required_unless_present = "json")]
    output: Option<PathBuf>,
    /// Print one JSON object, in seconds and bytes
    #[arg(long)]
    json: bool,
    /// Gbit/s of each host's port, each way [default: the built-in constants]
    #[arg(long, value_name = "G", value_parser = above_zero(1e6))]
    gbps: Option<f64>,
}

/// Check that viewers show files of Chrome events correctly
#[derive(Clone, Debug, clap::Args)]
struct CheckOptions {
    /// Files to check
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(crate) fn run(options: &TraceOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    match &options.verb {
        TraceVerb::Merge(options) => merged(options, out),
        TraceVerb::Report(options) => reported(options, out),
        TraceVerb::Check(options) => checked(options, out),
    }
}

fn merged(options: &MergeOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let merged = merge::merge(&options.folder, options.job.as_deref(), &options.output)?;
    for remark in &merged.remarks {
        writeln!(out, "{remark}")?;
    }
    let each = timeline::ROLES.iter().zip(merged.processes).filter(|(_, count)| *count > 0);
    let each = each.map(|(role, count)| format!("{count} {role}{}", if count == 1 { "" } else { "s" }));
    let each: Vec<String> = each.collect();
    writeln!(
        out,
        "{}: job {}, {}, {} events; clocks agree to {:.3} ms",
        options.output.display(),
        merged.job,
        each.join(", "),
        merged.events,
        merged.error as f64 / 1e6
    )?;
    Ok(Outcome::Passed)
}

fn reported(options: &ReportOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let name = options.file.display();
    if let Some(output) =
        options.output.as_deref().filter(|output| chrome::is_same_file(output, &options.file))
    {
        return Err(Failure::Usage {
            problem: format!("-o {} is the timeline itself, which would be overwritten", output.display()),
            hint: "pass another file with -o, like report.html",
        });
    }
    let file = chrome::open(&options.file).map_err(Failure::system(format!("cannot read {name}")))?;
    let read = read::read(BufReader::with_capacity(1 << 20, file)).map_err(|problem| Failure::Usage {
        problem: format!("{name}: {problem}"),
        hint: "`herringbone trace merge DIR -o FILE` writes a job's timeline",
    })?;
    let figures = figures::figures(&read);
    // A job without all-reduces has no roofs.
    let roofline = simulate::of_trace(&options.file, options.gbps).unwrap_or_default();
    if let Some(path) = &options.output {
        let page = Page { read: &read, figures: &figures, roofline: &roofline };
        fs::write(path, page.html()).map_err(Failure::system(format!("cannot write {}", path.display())))?;
    }
    if options.json {
        figures.write_json(&read, &roofline, &mut BufWriter::new(out))?;
    }
    Ok(Outcome::Passed)
}

fn checked(options: &CheckOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let mut is_right = true;
    for path in &options.files {
        let name = path.display();
        let file = chrome::open(path).map_err(Failure::system(format!("cannot read {name}")))?;
        let review = match chrome::check(BufReader::new(file)) {
            Ok(review) => review,
            Err(problem) => {
                writeln!(out, "{name}: {problem}")?;
                is_right = false;
                continue;
            }
        };
        is_right &= review.problems.is_empty();
        for problem in &review.problems {
            writeln!(out, "{name}: {problem}")?;
        }
        if review.more > 0 {
            writeln!(out, "{name}: {} more problems", review.more)?;
        }
        let end = if review.is_cut { ", without its end" } else { "" };
        let state = if review.problems.is_empty() { "right" } else { "wrong" };
        writeln!(out, "{name}: {} events{end}: {state}", review.events)?;
    }
    Ok(if is_right { Outcome::Passed } else { Outcome::Failed })
}
