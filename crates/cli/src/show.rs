//! `herringbone show`: a schedule, as text, as a picture and as a page.

mod arrows;
mod page;
mod picture;
mod words;

use crate::failure::{ABOUT_ALGORITHM, Failure};
use crate::{layout, names, numbers::whole, outcome::Outcome, progress::LateBar, topologies};
use herringbone::core::{
    algorithm::Layout,
    group::Group,
    schedule::Schedule,
    terms::{HistoryError, HistoryLimits, TermHistory, history},
    verify::verify,
};
use herringbone::{Algorithm, Collective, FoldOrder};
use serde_json::json;
use std::io::Write;
use words::Subject;

/// Print or draw a schedule, step by step
///
/// u0 is chunk 0 of a rank's buffer, s0 one of its slots, c0 the chunk of a step. @1:acc is the next message from
/// rank 1, of partial sums (:plain, of elements). In a fold, each + merges the two newest sources, and finish turns
/// them into the result.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A name as for verify, quoted in a shell: radix, radix(8,8), tree, ...
    #[arg(long, value_name = "NAME", value_parser = names::algorithm(), hide_possible_values = true, required_unless_present = "schedule")]
    algorithm: Option<Algorithm>,
    /// Number of workers
    #[arg(long, value_name = "N", value_parser = whole(1..=16384), required_unless_present = "schedule")]
    ranks: Option<u32>,
    /// Show the schedule in this file, in the form that this command prints
    #[arg(long, value_name = "FILE", conflicts_with_all = ["algorithm", "ranks", "reducers"])]
    schedule: Option<String>,
    /// Workers per host, for hierarchical [default: largest power of two up to the square root of the workers]
    #[arg(long, value_name = "P", value_parser = whole(1..=u32::MAX))]
    per_host: Option<u32>,
    /// Fold order, for workers on several hosts
    #[arg(long, value_name = "ORDER", default_value = "ranks", value_parser = crate::names::one_of::<FoldOrder>(&FoldOrder::ALL.map(FoldOrder::name)))]
    fold_order: FoldOrder,
    /// Reducers, for reduction_server, alone or in a hierarchy [default: 1]
    #[arg(long, value_name = "M", value_parser = whole(1..=16384))]
    reducers: Option<u32>,
    /// all_reduce, reduce(root), broadcast(root), reduce_scatter, all_gather, gather(root), scatter(root), all_to_all or
    /// barrier
    #[arg(long, default_value = "all_reduce", value_name = "NAME", value_parser = names::collective(), hide_possible_values = true)]
    collective: Collective,
    /// Show only this rank's program; workers count from 0, reducers follow
    #[arg(long, value_name = "RANK", value_parser = whole(0..=u32::MAX))]
    rank: Option<u32>,
    /// Print one JSON object per rank: its steps, and the parameters of the schedule
    #[arg(long)]
    json: bool,
    /// Draw the steps into this file: the messages, and each rank's sums after each step
    #[arg(long, value_name = "FILE")]
    svg: Option<String>,
    /// Write a page that shows the steps in motion and the tree of a sum as it grows; it needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    // Schedules of thousands of ranks take gigabytes, so what cannot be drawn of them is refused before they are made.
    if let (Some(algorithm), Some(ranks)) = (&options.algorithm, options.ranks) {
        refuse_undrawn(options, &algorithm.to_string(), ranks)?;
    }
    let shown = match (&options.schedule, &options.algorithm, options.ranks) {
        (Some(path), ..) => of_file(options, path)?,
        (None, Some(algorithm), Some(ranks)) => of_algorithm(options, algorithm, ranks)?,
        _ => unreachable!("clap requires an algorithm and ranks without a file"),
    };
    let schedule = &shown.schedule;
    if let Some(rank) = options.rank.filter(|rank| *rank >= schedule.ranks()) {
        return Err(Failure::Usage {
            problem: format!("--rank {rank} is not one of the {} ranks", schedule.ranks()),
            hint: "ranks count from 0: workers first, then reducers",
        });
    }
    if options.svg.is_none() && options.html.is_none() {
        print(options, &shown, out)?;
        return Ok(Outcome::Passed);
    }
    refuse_undrawn(options, &shown.name, schedule.ranks())?;
    // The text comes last, so that a refused picture is all that is said.
    let mut text = Vec::new();
    print(options, &shown, &mut text)?;
    draw(options, shown)?;
    out.write_all(&text)?;
    Ok(Outcome::Passed)
}

/// A schedule, and what it was made of.
struct Shown {
    name: String,
    group: Group,
    schedule: Schedule,
}

fn of_algorithm(options: &Options, algorithm: &Algorithm, ranks: u32) -> Result<Shown, Failure> {
    let Options { per_host, fold_order, reducers, collective, .. } = options;
    let useless = [
        ("--per-host", per_host.is_some() && !layout::follows_hosts(algorithm, *fold_order)),
        ("--reducers", reducers.is_some() && !algorithm.needs_reducers()),
    ];
    Failure::if_useless(&useless, algorithm, ABOUT_ALGORITHM)?;
    let reducers = if algorithm.needs_reducers() { reducers.unwrap_or(1) } else { 0 };
    let hosts = layout::hosts(ranks, per_host.unwrap_or_else(|| layout::usual_per_host(ranks)));
    let known = Layout { reducers, hosts: &hosts, links: None };
    let _progress = LateBar::without_end("making the schedule");
    let group = topologies::group(*fold_order, &hosts, &layout::sites(algorithm))?;
    let schedule = algorithm
        .schedule(*collective, &group, &known)
        .map_err(|why| Failure::Usage { problem: why.to_string(), hint: "see herringbone show --help" })?;
    Ok(Shown { name: algorithm.to_string(), group, schedule })
}

fn of_file(options: &Options, path: &str) -> Result<Shown, Failure> {
    let schedule = topologies::schedule(path.as_ref())?;
    let workers = schedule.workers();
    if workers == 0 {
        let problem = format!("{path} has a schedule without workers");
        return Err(Failure::Usage { problem, hint: "pass a schedule with one worker or more" });
    }
    let by_host = options.per_host.is_some() && options.fold_order == FoldOrder::Ranks;
    Failure::if_useless(&[("--per-host", by_host)], path, "leave it out, or pass --fold-order hosts")?;
    let hosts = layout::hosts(workers, options.per_host.unwrap_or_else(|| layout::usual_per_host(workers)));
    let group = topologies::group(options.fold_order, &hosts, &[])?;
    Ok(Shown { name: path.to_owned(), group, schedule })
}

fn print(options: &Options, shown: &Shown, out: &mut dyn Write) -> Result<(), Failure> {
    let (rank, schedule) = (options.rank, &shown.schedule);
    if options.json {
        for rank in rank.map_or(0..schedule.ranks(), |rank| rank..rank + 1) {
            let steps = schedule.program(rank).to_string();
            let steps: Vec<&str> = steps.lines().map(str::trim).filter(|step| !step.is_empty()).collect();
            let object = json!({
                "algorithm": shown.name,
                "collective": options.collective.to_string(),
                "workers": schedule.workers(),
                "reducers": schedule.reducers(),
                "rank": rank,
                "steps": steps,
            });
            writeln!(out, "{object}")?;
        }
        return Ok(());
    }
    match rank {
        None => write!(out, "{schedule}")?,
        Some(rank) => write!(out, "rank {rank}\n{}", schedule.program(rank))?,
    }
    Ok(())
}

/// Refuses more ranks than what was asked for has room for.
fn refuse_undrawn(options: &Options, name: &str, ranks: u32) -> Result<(), Failure> {
    let asked =
        [("--svg", options.svg.is_some(), picture::LIMITS), ("--html", options.html.is_some(), page::LIMITS)];
    for (option, _, limits) in asked.into_iter().filter(|(_, is_asked, _)| *is_asked) {
        limits.allow(ranks).map_err(no_room(option, name))?;
    }
    Ok(())
}

fn no_room(option: &str, name: &str) -> impl Fn(HistoryError) -> Failure {
    move |why| Failure::Usage {
        problem: format!("{option} has no room for {name}: {why}"),
        hint: "use fewer ranks, or leave it out and read the text",
    }
}

/// Writes the picture and the page that were asked for.
fn draw(options: &Options, shown: Shown) -> Result<(), Failure> {
    let Shown { name, group, schedule } = shown;
    let proven = verify(schedule, options.collective, &group).map_err(|why| Failure::Usage {
        problem: format!("{name} cannot be drawn as {}: {why}", options.collective),
        hint: "only proven schedules are drawn: correct it, or pass its --collective",
    })?;
    let followed = |option: &str, limits: HistoryLimits| -> Result<TermHistory, Failure> {
        history(&proven, limits).map_err(no_room(option, &name))
    };
    // The file's name without its folder is enough for a title.
    let title = name.rsplit('/').next().unwrap_or(&name);
    let subject = Subject { name: &title, collective: &options.collective };
    let folds = options.collective.folds();
    if let Some(path) = &options.svg {
        let history = followed("--svg", picture::LIMITS)?;
        topologies::write(path, &picture::picture(&history, &subject, folds))?;
    }
    if let Some(path) = &options.html {
        let history = followed("--html", page::LIMITS)?;
        topologies::write(path, &page::page(&history, &subject, folds))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
