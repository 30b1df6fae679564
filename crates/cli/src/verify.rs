//! `herringbone verify`: proves the schedules of algorithms and prints what they cost.

use crate::numbers::Set;
use crate::{Failure, Outcome, layout, table};
use comfy_table::CellAlignment;
use herringbone::core::algorithm::{Layout, Unsupported, cost::Cost};
use herringbone::core::{group::Group, verify::Verified, verify::verify};
use herringbone::{Algorithm, Collective, UnknownName, parse_algorithm};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::{io::Write, str::FromStr};

/// Prove schedules for every message size, without running them, and show what they cost
///
/// One row per schedule: its fold order (fixed: the same bits as every other fixed one), whether it may run serially
/// and start again after a lost reducer, and the busiest worker's share: messages and buffers sent, partners.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// all, or names: radix, radix(8,8), radix(4;2,2), sharded, doubling, one_shot, star, tree, reduction_server,
    /// hierarchical, hierarchical(radix,reduction_server), ring; in a shell, quoted
    #[arg(long, default_value = "all", value_name = "NAMES", value_parser = algorithms)]
    algorithm: Choice<Algorithm>,
    /// all, or names: all_reduce, reduce(root), broadcast(root), reduce_scatter, all_gather, barrier
    #[arg(long, default_value = "all_reduce", value_name = "NAMES", value_parser = collectives)]
    collective: Choice<Collective>,
    /// Numbers of workers: 8, 2..64 (both included), 2..8,16
    #[arg(long, default_value = "2..16", value_name = "SET")]
    ranks: Set,
    /// Numbers of reducers, for reduction_server, alone or in a hierarchy
    #[arg(long, default_value = "1..2", value_name = "SET")]
    reducers: Set,
    /// Workers on each host, for hierarchical; else the power of two next below the square root of the workers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_host: Option<u32>,
    /// One JSON object per schedule instead of the table
    #[arg(long)]
    json: bool,
}

/// Everything there is, or what was named.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice<T> {
    All,
    Named(Vec<T>),
}

fn algorithms(text: &str) -> Result<Choice<Algorithm>, UnknownName> {
    Choice::read(text, parse_algorithm)
}

fn collectives(text: &str) -> Result<Choice<Collective>, <Collective as FromStr>::Err> {
    Choice::read(text, str::parse)
}

impl<T> Choice<T> {
    /// Names are separated by commas outside parentheses.
    fn read<E>(text: &str, one: impl Fn(&str) -> Result<T, E>) -> Result<Self, E> {
        if text.trim() == "all" {
            return Ok(Self::All);
        }
        let mut depth = 0;
        let names = text.split(|character| {
            depth += match character {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            character == ',' && depth == 0
        });
        names.map(|name| one(name.trim())).collect::<Result<_, _>>().map(Self::Named)
    }
}

/// One schedule to prove.
#[derive(Debug)]
struct Case {
    algorithm: Algorithm,
    collective: Collective,
    ranks: u32,
    reducers: u32,
    hosts: Vec<u32>,
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let cases = cases(options);
    let bar = ProgressBar::new(cases.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").unwrap_or(ProgressStyle::default_bar()),
    );
    let mut rows = Vec::new();
    let mut refused = Vec::new();
    for case in cases {
        bar.set_message(format!("{} with {} ranks", case.algorithm, case.ranks));
        match case.prove() {
            Ok(proof) => rows.push(Row { case, proof }),
            Err(why) => refused.push((case.algorithm, why)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    every_named_one_is_there(&options.algorithm, &rows, refused)?;
    print(options, &rows, out)?;
    Ok(Outcome::passed_if(rows.iter().all(|row| row.proof.is_ok())))
}

fn cases(options: &Options) -> Vec<Case> {
    let algorithms = match &options.algorithm {
        Choice::All => Algorithm::all().into_iter().chain([Algorithm::hosts_and_reducers()]).collect(),
        Choice::Named(named) => named.clone(),
    };
    let collectives = match &options.collective {
        Choice::All => (1..).map_while(|code| Collective::from_code(code, 0)).collect(),
        Choice::Named(named) => named.clone(),
    };
    let none = Set::one(1);
    let mut cases = Vec::new();
    for algorithm in &algorithms {
        let helped = algorithm.needs_reducers();
        for collective in &collectives {
            for ranks in options.ranks.iter() {
                for reducers in if helped { &options.reducers } else { &none }.iter() {
                    cases.push(Case {
                        algorithm: algorithm.clone(),
                        collective: *collective,
                        ranks,
                        reducers: if helped { reducers } else { 0 },
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

/// A schedule with its cost, or what is wrong with it.
type Proof = Result<(Verified, Cost), String>;

impl Case {
    /// # Errors
    /// Where the algorithm offers no schedule for this case.
    fn prove(&self) -> Result<Proof, Unsupported> {
        let group = Group::of_size(self.ranks);
        let layout = Layout { reducers: self.reducers, hosts: &self.hosts };
        let schedule = self.algorithm.schedule(self.collective, &group, &layout)?;
        let proof = verify(schedule, self.collective, &group).map_err(|error| error.to_string());
        Ok(proof.map(|verified| {
            let cost = verified.cost();
            (verified, cost)
        }))
    }
}

struct Row {
    case: Case,
    proof: Proof,
}

/// An algorithm that was named and has no schedule in any case is a mistake of the caller; `all` means those there are.
fn every_named_one_is_there(
    choice: &Choice<Algorithm>,
    rows: &[Row],
    refused: Vec<(Algorithm, Unsupported)>,
) -> Result<(), Failure> {
    let missing = |algorithm: &Algorithm| rows.iter().all(|row| row.case.algorithm != *algorithm);
    let refused = refused.into_iter().find(|(algorithm, _)| missing(algorithm));
    match refused {
        Some((_, why)) if matches!(choice, Choice::Named(_)) || rows.is_empty() => {
            Err(Failure::Usage { problem: why.to_string(), hint: "see herringbone verify --help" })
        }
        _ => Ok(()),
    }
}

const COLUMNS: [&str; 12] = [
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
    "result",
];

fn print(options: &Options, rows: &[Row], out: &mut dyn Write) -> Result<(), Failure> {
    if options.json {
        for row in rows {
            writeln!(out, "{}", row.object())?;
        }
        return Ok(());
    }
    let mut table = table::new(&COLUMNS);
    table.add_rows(rows.iter().map(Row::cells));
    let figures = ["ranks", "reducers", "rounds", "messages", "bytes/worker", "peers"];
    table::align(&mut table, &COLUMNS, &figures, CellAlignment::Right);
    writeln!(out, "{table}")?;
    let proven = rows.iter().filter(|row| row.proof.is_ok()).count();
    writeln!(out, "{proven} of {} schedules proven; K: the bytes of the whole buffer", rows.len())?;
    Ok(())
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
        let Case { algorithm, collective, ranks, reducers, .. } = &self.case;
        let mut cells =
            vec![algorithm.to_string(), collective.to_string(), ranks.to_string(), reducers.to_string()];
        match &self.proof {
            Ok((verified, cost)) => cells.extend([
                verified.order().to_string(),
                yes(verified.serial()),
                yes(verified.restartable()),
                cost.rounds.to_string(),
                cost.worker.sent.count().to_string(),
                format!("{:.3} K", buffers(cost)),
                cost.worker.partners.to_string(),
                "proven".to_owned(),
            ]),
            Err(fault) => {
                cells.extend(std::iter::repeat_n(String::new(), 7));
                cells.push(format!("WRONG: {fault}"));
            }
        }
        cells
    }

    fn object(&self) -> serde_json::Value {
        let Case { algorithm, collective, ranks, reducers, .. } = &self.case;
        let mut object = json!({
            "algorithm": algorithm.to_string(),
            "collective": collective.to_string(),
            "ranks": ranks,
            "reducers": reducers,
            "proven": self.proof.is_ok(),
        });
        match &self.proof {
            Ok((verified, cost)) => {
                object["order"] = json!(verified.order().name());
                object["serial"] = json!(verified.serial());
                object["restartable"] = json!(verified.restartable());
                object["rounds"] = json!(cost.rounds);
                object["messages"] = json!(cost.worker.sent.count());
                object["buffers_sent"] = json!(buffers(cost));
                object["peers"] = json!(cost.worker.partners);
            }
            Err(fault) => object["fault"] = json!(fault),
        }
        object
    }
}

/// How many times the buffer the busiest worker sends, of an element type that is its own accumulator.
fn buffers(cost: &Cost) -> f64 {
    cost.worker.sent.buffers(cost.chunks, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;

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
        for name in names.into_iter().chain(["hierarchical(radix,reduction_server)"]) {
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
            hosts: vec![],
        };
        let row = Row { case, proof: Err("rank 1 step 0: sends to itself".to_owned()) };
        assert_eq!(row.cells().len(), COLUMNS.len());
        assert!(row.cells()[11].starts_with("WRONG: rank 1"));
        assert_eq!(row.object()["proven"], json!(false));
    }
}
