//! `herringbone show`: a schedule, as text.

use crate::failure::{ABOUT_ALGORITHM, Failure};
use crate::{layout, names, numbers::whole, outcome::Outcome, progress::LateBar, topologies};
use herringbone::core::algorithm::Layout;
use herringbone::{Algorithm, Collective, FoldOrder};
use serde_json::json;
use std::io::Write;

/// Print a schedule: what each rank sends, receives, folds and copies, step by step
///
/// u0 is a rank's buffer at chunk 0, s0 a slot of its own, c0 the chunk that a step is about, @1:acc the next message from
/// rank 1, of partial sums (:plain, of elements). Of a fold's sources each + merges the two newest; finish makes the
/// result of them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A name as verify takes it: radix, radix(8,8), tree, ...; in a shell, quoted
    #[arg(long, value_name = "NAME", value_parser = names::algorithm(), hide_possible_values = true)]
    algorithm: Algorithm,
    /// Workers
    #[arg(long, value_name = "N", value_parser = whole(1..=16384))]
    ranks: u32,
    /// Workers on each host, for hierarchical; else the largest power of two up to the square root of the workers
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    per_host: Option<u32>,
    /// The fold order, for workers of several hosts
    #[arg(long, default_value = "ranks", value_parser = crate::names::one_of::<FoldOrder>(&FoldOrder::ALL.map(FoldOrder::name)))]
    fold_order: FoldOrder,
    /// Reducers, for reduction_server, alone or in a hierarchy: 1 unless said
    #[arg(long, value_name = "M", value_parser = whole(1..=16384))]
    reducers: Option<u32>,
    /// all_reduce, reduce(root), broadcast(root), reduce_scatter, all_gather, gather(root), scatter(root), all_to_all or
    /// barrier
    #[arg(long, default_value = "all_reduce", value_name = "NAME", value_parser = names::collective(), hide_possible_values = true)]
    collective: Collective,
    /// Only this rank's program: workers count from 0, reducers follow
    #[arg(long, value_name = "RANK", value_parser = whole(0..=u32::MAX))]
    rank: Option<u32>,
    /// One JSON object per rank instead of the text: rank, steps, and what was asked for
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let Options { algorithm, ranks, per_host, fold_order, reducers, collective, rank, json } = options;
    let useless = [
        ("--per-host", per_host.is_some() && !layout::follows_hosts(algorithm, *fold_order)),
        ("--reducers", reducers.is_some() && !algorithm.needs_reducers()),
    ];
    Failure::if_useless(&useless, algorithm, ABOUT_ALGORITHM)?;
    let reducers = if algorithm.needs_reducers() { reducers.unwrap_or(1) } else { 0 };
    let hosts = layout::hosts(*ranks, per_host.unwrap_or_else(|| layout::usual_per_host(*ranks)));
    let known = Layout { reducers, hosts: &hosts, links: None };
    let progress = LateBar::without_end("making the schedule");
    let group = topologies::group(*fold_order, &hosts, &layout::sites(algorithm))?;
    let schedule = algorithm
        .schedule(*collective, &group, &known)
        .map_err(|why| Failure::Usage { problem: why.to_string(), hint: "see herringbone show --help" })?;
    drop(progress);
    if let Some(rank) = rank.filter(|rank| *rank >= schedule.ranks()) {
        return Err(Failure::Usage {
            problem: format!("--rank {rank} is none of {} ranks", schedule.ranks()),
            hint: "ranks count from 0: workers first, then reducers",
        });
    }
    if *json {
        for rank in rank.map_or(0..schedule.ranks(), |rank| rank..rank + 1) {
            let steps = schedule.program(rank).to_string();
            let steps: Vec<&str> = steps.lines().map(str::trim).filter(|step| !step.is_empty()).collect();
            let object = json!({
                "algorithm": algorithm.to_string(),
                "collective": collective.to_string(),
                "workers": ranks,
                "reducers": reducers,
                "rank": rank,
                "steps": steps,
            });
            writeln!(out, "{object}")?;
        }
        return Ok(Outcome::Passed);
    }
    match *rank {
        None => write!(out, "{schedule}")?,
        Some(rank) => write!(out, "rank {rank}\n{}", schedule.program(rank))?,
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;

    fn shown(args: &str) -> Result<String, Failure> {
        let command = Command::parse_from(["herringbone", "show"].into_iter().chain(args.split(' ')));
        let Verb::Show(options) = command.verb else { panic!("show is a verb") };
        let mut out = Vec::new();
        run(&options, &mut out).map(|_| String::from_utf8(out).unwrap())
    }

    #[test]
    fn schedules_look_as_they_are_kept() {
        for (args, kept) in [
            ("--algorithm radix(2,2) --ranks 4", "radix-2-2-4"),
            ("--algorithm ring --ranks 4", "ring-4"),
            ("--algorithm tree --ranks 4 --collective reduce(2)", "tree-reduce-2-4"),
            ("--algorithm reduction_server --ranks 3 --reducers 2", "reduction_server-3x2"),
            ("--algorithm hierarchical --ranks 4 --per-host 2", "hierarchical-2x2"),
            (
                "--algorithm hierarchical(radix,reduction_server) --ranks 4",
                "hierarchical-radix-reduction_server-2x2x1",
            ),
        ] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/schedules");
            assert_eq!(
                shown(args).unwrap(),
                std::fs::read_to_string(format!("{folder}/{kept}.txt")).unwrap()
            );
        }
    }

    #[test]
    fn one_rank_is_its_part_of_all() {
        let args = "--algorithm reduction_server --ranks 3 --reducers 2";
        let all = shown(args).unwrap();
        let parts: Vec<String> =
            (0..5).map(|rank| shown(&format!("{args} --rank {rank}")).unwrap()).collect();
        let (_head, programs) = all.split_once('\n').unwrap();
        assert_eq!(parts.concat(), programs);
    }

    #[test]
    fn json_has_the_steps_of_the_text() {
        let args = "--algorithm ring --ranks 3";
        let objects: Vec<serde_json::Value> = shown(&format!("{args} --json"))
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(objects.len(), 3);
        for (rank, object) in (0_u64..).zip(&objects) {
            let text = shown(&format!("{args} --rank {rank}")).unwrap();
            let steps: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
            assert_eq!((object["rank"].as_u64(), object["steps"].clone()), (Some(rank), json!(steps)));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (args, said) in [
            ("--algorithm radix --ranks 4 --per-host 2", "--per-host changes nothing about radix"),
            ("--algorithm ring --ranks 4 --reducers 2", "--reducers changes nothing about ring"),
            ("--algorithm radix --ranks 4 --per-host 3 --fold-order hosts --rank 4", "--rank 4 is none of 4"),
            ("--algorithm ring --ranks 4 --rank 4", "--rank 4 is none of 4 ranks"),
            ("--algorithm radix --ranks 4 --fold-order sites", "needs the site of each of 4 ranks"),
            (
                "--algorithm sites(radix,radix,3x2) --ranks 5",
                "sites of 6 ranks in all need a group of as many",
            ),
            ("--algorithm ring --ranks 4 --collective broadcast", "ring has no broadcast: use tree"),
            (
                "--algorithm hierarchical(radix,doubling) --ranks 8 --per-host 3",
                "a whole node of the canonical tree",
            ),
        ] {
            let failure = shown(args).unwrap_err();
            assert!(failure.to_string().contains(said), "{failure}");
            assert_eq!(failure.code(), 2);
        }
    }
}
