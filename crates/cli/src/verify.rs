//! `herringbone verify`: proves the schedules of algorithms and prints what they cost.

mod case;
mod left_out;
mod summary;

use crate::failure::{ABOUT_ALGORITHM, Failure};
use crate::names::{self, Completed, NameChoice};
use crate::numbers::{Set, whole};
use crate::progress::LateBar;
use crate::{layout, outcome::Outcome, table};
use case::{Case, Row};
use herringbone::{Algorithm, Collective, FoldOrder, parse_algorithm};
use left_out::LeftOut;
use std::io::Write;

/// Prove schedules without running them, and show their costs
///
/// One row per algorithm and collective: the fold order (all fixed ones give the same bits), rounds, and the buffers
/// that the busiest worker sends. With --all one row per schedule, with the messages and partners of the busiest
/// worker, and whether the schedule can run serially and restart without a lost reducer. Combinations without a
/// schedule follow the table, with the reason.
///
/// If all ranks do the same, one is proven for all: 16384 ranks take no time.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// all, or names, quoted in a shell: radix, radix(8,8), radix(4;2,2), sharded, doubling, one_shot, star, tree,
    /// reduction_server, mixed, mixed(3,1), chain, double_tree, hierarchical, hierarchical(radix,doubling),
    /// hierarchical(radix,reduction_server), ring, trees, trees(mxnet), trees(best), trees(throughput),
    /// trees(best,single), weighted(radix,16x3,1), sites(radix,radix,3x2)
    #[arg(long, default_value = "all", value_name = "NAMES", value_parser = algorithms(), hide_possible_values = true)]
    algorithm: NameChoice<Algorithm>,
    /// all, or names: all_reduce, reduce(root), broadcast(root), reduce_scatter, all_gather, gather(root), scatter(root),
    /// all_to_all, barrier
    #[arg(long, default_value = "all_reduce", value_name = "NAMES", value_parser = collectives(), hide_possible_values = true)]
    collective: NameChoice<Collective>,
    /// Numbers of workers: 8, 2..64 (both included), 2..8,16
    #[arg(long, default_value = "2..16", value_name = "SET")]
    ranks: Set,
    /// Numbers of reducers, for reduction_server, alone or in a hierarchy [default: 1..2]
    #[arg(long, value_name = "SET")]
    reducers: Option<Set>,
    /// Workers per host, for hierarchical [default: largest power of two up to the square root of the workers]
    #[arg(long, value_name = "P", value_parser = whole(1..=u32::MAX))]
    per_host: Option<u32>,
    /// Fold order, for workers on several hosts
    #[arg(long, value_name = "ORDER", default_value = "ranks", value_parser = crate::names::one_of::<FoldOrder>(&FoldOrder::ALL.map(FoldOrder::name)))]
    fold_order: FoldOrder,
    /// Show a row for each schedule
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Print one JSON object per schedule, proven or left out
    #[arg(long)]
    json: bool,
}

/// Everything there is, or what was named.
fn algorithms() -> Completed<NameChoice<Algorithm>> {
    let read =
        |text: &str| NameChoice::read(text, |name| parse_algorithm(name).map_err(|error| error.to_string()));
    Completed::new(read, [vec!["all"], names::algorithms()].concat())
}

fn collectives() -> Completed<NameChoice<Collective>> {
    let read = |text: &str| NameChoice::read(text, names::read_collective);
    Completed::new(read, [vec!["all"], names::collectives()].concat())
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let algorithms = chosen(options)?;
    let cases = cases(options, &algorithms);
    let progress = LateBar::of(cases.len() as u64);
    let mut rows = Vec::new();
    let mut refused = Vec::new();
    for case in cases {
        progress.tell(format!("{} with {} ranks", case.algorithm, case.ranks));
        match case.prove() {
            Ok(proof) => rows.push(Row { case, proof }),
            Err(why) => refused.push(LeftOut { case, why }),
        }
        progress.step();
    }
    drop(progress);
    every_named_one_is_there(&options.algorithm, &rows, &refused)?;
    let named = options.algorithm != NameChoice::All && options.collective != NameChoice::All;
    refused.retain(|left_out| named || left_out.is_news(&rows));
    print(options, &rows, &refused, out)?;
    Ok(Outcome::passed_if(rows.iter().all(|row| row.proof.is_ok())))
}

/// The algorithms, if no option has no effect on all of them.
fn chosen(options: &Options) -> Result<Vec<Algorithm>, Failure> {
    let algorithms: Vec<Algorithm> = match &options.algorithm {
        NameChoice::All => Algorithm::all().into_iter().chain([Algorithm::hosts_and_reducers()]).collect(),
        NameChoice::Named(named) => named.clone(),
    };
    if options.fold_order == FoldOrder::Sites
        && let Some(other) = algorithms.iter().find(|algorithm| layout::sites(algorithm).is_empty())
    {
        return Err(Failure::Usage {
            problem: format!("the fold order `sites` needs sites, but {other} has none"),
            hint: "pass algorithms with the sizes of sites, as in sites(radix,radix,3x2)",
        });
    }
    let follows = |algorithm: &Algorithm| layout::follows_hosts(algorithm, options.fold_order);
    let useless = [
        ("--per-host", options.per_host.is_some() && !algorithms.iter().any(follows)),
        ("--reducers", options.reducers.is_some() && !algorithms.iter().any(Algorithm::needs_reducers)),
    ];
    let names: Vec<String> = algorithms.iter().map(Algorithm::to_string).collect();
    Failure::if_useless(&useless, names.join(", "), ABOUT_ALGORITHM)?;
    Ok(algorithms)
}

fn cases(options: &Options, algorithms: &[Algorithm]) -> Vec<Case> {
    let collectives = match &options.collective {
        NameChoice::All => Collective::all(0).to_vec(),
        NameChoice::Named(named) => named.clone(),
    };
    let (none, usual) = (Set::of([1]), Set::of([1, 2]));
    let helpers = options.reducers.as_ref().unwrap_or(&usual);
    let mut cases = Vec::new();
    for algorithm in algorithms {
        let helped = algorithm.needs_reducers();
        for collective in &collectives {
            for ranks in options.ranks.iter() {
                for reducers in if helped { helpers } else { &none }.iter() {
                    cases.push(Case {
                        algorithm: algorithm.clone(),
                        collective: *collective,
                        ranks,
                        reducers: if helped { reducers } else { 0 },
                        order: options.fold_order,
                        hosts: layout::hosts(
                            ranks,
                            options.per_host.unwrap_or_else(|| layout::usual_per_host(ranks)),
                        ),
                    });
                }
            }
        }
    }
    cases
}

/// An algorithm that was named and has no schedule in any case is a mistake of the caller; `all` means those there are.
fn every_named_one_is_there(
    choice: &NameChoice<Algorithm>,
    rows: &[Row],
    refused: &[LeftOut],
) -> Result<(), Failure> {
    let missing = |left_out: &&LeftOut| rows.iter().all(|row| row.case.algorithm != left_out.case.algorithm);
    match refused.iter().find(missing) {
        Some(LeftOut { why, .. }) if matches!(choice, NameChoice::Named(_)) || rows.is_empty() => {
            Err(Failure::Usage { problem: why.to_string(), hint: "see herringbone verify --help" })
        }
        _ => Ok(()),
    }
}

const COLUMNS: [&str; 13] = [
    "algorithm",
    "collective",
    "ranks",
    "reducers",
    "order",
    "serial",
    "restartable",
    "rounds",
    "messages",
    "bytes/worker",
    "peers",
    "proof",
    "result",
];

fn print(options: &Options, rows: &[Row], left_out: &[LeftOut], out: &mut dyn Write) -> Result<(), Failure> {
    if options.json {
        for object in rows.iter().map(Row::object).chain(left_out.iter().map(LeftOut::object)) {
            writeln!(out, "{object}")?;
        }
        return Ok(());
    }
    let (proven, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.proof.is_ok());
    if options.all {
        writeln!(out, "{}", each(rows.iter()))?;
    } else {
        if !proven.is_empty() {
            writeln!(out, "{}", summary::table(&proven))?;
        }
        // What is not proven is never summed up.
        if !others.is_empty() {
            writeln!(out, "{}", each(others.into_iter()))?;
        }
    }
    let of = summary::of_one(&proven).map_or(String::new(), |collective| format!(" of {collective}"));
    let (proven, schedules) = (proven.len(), rows.len());
    writeln!(out, "{proven} of {schedules} schedules{of} proven; K: bytes of the whole buffer")?;
    if !options.all && schedules > 1 {
        writeln!(out, "--all shows a row for each")?;
    }
    for line in left_out::lines(left_out) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// A row for each schedule.
fn each<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let figures = ["ranks", "reducers", "rounds", "messages", "bytes/worker", "peers"];
    table::text(&COLUMNS, &figures, rows.map(Row::cells))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::{CommandFactory, Parser};
    use herringbone::core::verify::{StepFault, VerifyError};
    use serde_json::json;

    fn verified(args: &[&str]) -> Result<(Outcome, String), Failure> {
        let command = Command::parse_from(["herringbone", "verify"].iter().chain(args));
        let Verb::Verify(options) = command.verb else { panic!("verify is a verb") };
        let mut out = Vec::new();
        let outcome = run(&options, &mut out)?;
        Ok((outcome, String::from_utf8(out).unwrap()))
    }

    #[test]
    fn everything_is_proven() {
        let (outcome, text) =
            verified(&["--collective", "all", "--ranks", "1..9", "--reducers", "1,3"]).unwrap();
        assert_eq!(outcome, Outcome::Passed, "{text}");
        let names = Algorithm::all().map(|algorithm| algorithm.name());
        for name in names.into_iter().chain(["(radix,reduction_server)"]) {
            assert!(text.lines().any(|line| line.trim_start().starts_with(name)), "{name}\n{text}");
        }
        assert!(!text.contains("WRONG"));
    }

    #[test]
    fn figures_are_those_of_the_schedule() {
        let args = ["--algorithm", "radix(2,2,2),ring", "--ranks", "8", "--json"];
        let (_, text) = verified(&args).unwrap();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!((&rows[0]["rounds"], &rows[0]["peers"]), (&json!(6), &json!(3)));
        assert_eq!((&rows[0]["order"], &rows[1]["order"]), (&json!("fixed"), &json!("schedule")));
        assert_eq!((&rows[1]["rounds"], &rows[1]["messages"]), (&json!(14), &json!(14)));
        assert_eq!(rows[1]["buffers_sent"], json!(1.75));
    }

    #[test]
    fn a_named_algorithm_must_exist() {
        let failure = verified(&["--algorithm", "ring", "--collective", "broadcast"]).unwrap_err();
        assert!(failure.to_string().contains("tree"), "{failure}");
        assert_eq!(failure.code(), 2);
        assert!(verified(&["--algorithm", "all", "--collective", "broadcast"]).is_ok());
    }

    #[test]
    fn a_wrong_schedule_is_shown_as_one() {
        let case = Case {
            algorithm: Algorithm::Ring,
            collective: Collective::AllReduce,
            ranks: 2,
            reducers: 0,
            order: FoldOrder::Ranks,
            hosts: vec![],
        };
        let fault = VerifyError::Step { rank: 1, step: 0, fault: StepFault::OwnLane };
        let row = Row { case, proof: Err(fault) };
        assert_eq!(row.cells().len(), COLUMNS.len());
        assert!(row.cells()[12].starts_with("WRONG: rank 1"));
        assert_eq!(row.object()["proven"], json!(false));
        assert!(row.object()["fault"].as_str().unwrap().starts_with("rank 1 step 0"));
    }

    #[test]
    fn what_is_too_large_is_not_called_wrong() {
        let args = ["--algorithm", "ring", "--ranks", "2,40000"];
        let (outcome, text) = verified(&args).unwrap();
        assert_eq!(outcome, Outcome::Failed);
        assert!(
            text.contains("not proven: too large (too many places)") && !text.contains("WRONG"),
            "{text}"
        );
        let (_, text) = verified(&[&args[..], &["--json"]].concat()).unwrap();
        let row: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((&row["proven"], &row["too_large"]), (&json!(false), &json!("too many places")));
        assert!(row.get("fault").is_none());
    }

    #[test]
    fn many_alike_ranks_are_proven_by_one_and_the_row_says_so() {
        let args = ["--algorithm", "radix(128,128),star,ring", "--ranks", "16384", "--json"];
        let (outcome, text) = verified(&args).unwrap();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let proofs: Vec<_> = rows.iter().map(|row| &row["proof"]).collect();
        assert_eq!(
            (outcome, proofs),
            (Outcome::Passed, vec![&json!("symmetry"), &json!("each rank"), &json!("symmetry")])
        );
        assert_eq!((&rows[0]["messages"], &rows[0]["peers"]), (&json!(508), &json!(254)));
    }

    #[test]
    fn options_that_change_nothing_are_refused() {
        for (args, said) in [
            (["--algorithm", "radix,ring", "--per-host", "2"], "--per-host has no effect on radix, ring"),
            (["--algorithm", "ring", "--reducers", "4"], "--reducers has no effect on ring"),
        ] {
            let failure = verified(&args).unwrap_err();
            assert!(failure.to_string().contains(said), "{failure}");
            assert_eq!(failure.code(), 2);
        }
    }

    #[test]
    fn what_is_left_out_is_said_with_the_reason() {
        let args = ["--ranks", "2..4,8", "--per-host", "3", "--reducers", "1"];
        let (outcome, text) = verified(&args).unwrap();
        assert_eq!(outcome, Outcome::Passed);
        for (name, ranks, why) in [
            ("radix", "2..3", "all 2 workers are on one"),
            ("reduction_server", "2..3", "all 2 workers are on one"),
            ("reduction_server", "4,8", "one node of the canonical tree, but rank 0's host is 2"),
        ] {
            let start = format!("left out: hierarchical(radix,{name}) all_reduce for {ranks}");
            let line = text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{text}"));
            assert!(line.contains(why), "{text}");
        }
        let (_, text) = verified(&[&args[..], &["--json"]].concat()).unwrap();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let left_out: Vec<_> = rows.iter().filter(|row| row["proven"].is_null()).collect();
        assert_eq!(left_out.len(), 6);
        assert!(left_out.iter().all(|row| row["left_out"].as_str().unwrap().to_lowercase().contains("use ")));
    }

    #[test]
    fn sites_of_three_are_nodes_in_the_order_of_sites() {
        let args = ["--ranks", "6", "--fold-order", "sites", "--algorithm"];
        let (outcome, text) = verified(&[&args[..], &["sites(radix,radix,3x2)"]].concat()).unwrap();
        assert_eq!((outcome, text.contains("1 of 1 schedules")), (Outcome::Passed, true), "{text}");
        let failure = verified(&[&args[..], &["radix"]].concat()).unwrap_err();
        assert!(failure.to_string().contains("but radix has none"), "{failure}");
    }

    #[test]
    fn hosts_of_three_are_nodes_in_the_order_of_hosts() {
        let args = [
            "--algorithm",
            "hierarchical(radix,reduction_server),radix(4,4)",
            "--ranks",
            "6..9",
            "--per-host",
            "3",
        ];
        let (outcome, text) = verified(&[&args[..], &["--fold-order", "hosts"]].concat()).unwrap();
        assert!(outcome == Outcome::Passed && !text.contains("left out"), "{text}");
        let refused = verified(&args).unwrap_err().to_string();
        assert!(refused.contains("is 2 nodes"), "{refused}");
    }

    /// With `all`, only algorithms that have the collective are included; named ones always are.
    #[test]
    fn what_an_algorithm_does_not_do_is_left_out_where_it_was_named() {
        let both = "broadcast,all_reduce";
        let (_, text) = verified(&["--collective", both, "--ranks", "4"]).unwrap();
        assert!(!text.contains("left out"), "{text}");
        let (_, text) =
            verified(&["--collective", both, "--ranks", "4", "--algorithm", "ring,tree"]).unwrap();
        let left_out = |text: &str| {
            let lines = text.lines().filter(|line| line.starts_with("left out"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let line = "left out: ring broadcast(0) for 4 ranks: ring has no broadcast: use tree";
        assert_eq!(left_out(&text), [line]);
        let (_, text) = verified(&["--collective", "reduce(4)", "--ranks", "3..6"]).unwrap();
        let found = left_out(&text);
        let names = ["radix", "tree", "chain", "trees", "trees(mxnet)", "trees(best)", "trees(throughput)"];
        let why = "reduce(4) for 3..4 ranks: root 4 is not in a group of 3: use a rank below 3";
        assert_eq!(found, names.map(|name| format!("left out: {name} {why}")));
    }

    #[test]
    fn names_count_once_and_help_has_all_of_them() {
        let (_, text) = verified(&["--algorithm", "radix,sharded, radix", "--ranks", "2", "--json"]).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let said = "none".parse::<Algorithm>().unwrap_err().to_string();
        let (_, names) = said.split_once(": use ").unwrap();
        let help = Command::command().find_subcommand_mut("verify").unwrap().render_long_help().to_string();
        let help: String = help.split_whitespace().collect();
        assert!(help.contains(&names.replace(" or ", ", ").replace(' ', "")), "{names}\n{help}");
    }
}
