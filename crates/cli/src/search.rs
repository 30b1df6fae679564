//! `herringbone search`: a schedule that is faster on given machines than the algorithms' schedules.

use crate::numbers::{elements, whole, whole_of_64_bits};
use crate::progress::LateBar;
use crate::{failure::Failure, layout, names, outcome::Outcome, topologies};
use herringbone::core::{
    plan::{Request, predicted},
    prepare::Call,
    search::{FoundSchedule, Listed, Problem, SEARCHED_RANKS, ScheduleSearch, listed},
    session::FILES_BYTES,
    simulate::{Picoseconds, SECOND},
    topology::{LinkMatrix, Ports, Switches, Topology, Wiring},
    verify::Order,
};
use herringbone::settings::{Bytes, Environment};
use herringbone::{Collective, DType, FoldOrder, ReduceOp};
use indicatif::HumanBytes;
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

/// Search for a faster all_reduce for a topology
///
/// It helps with unequal ports and with slow or missing links. A schedule that is found is proved, gives the bits of
/// the algorithms, and is compared with them by simulation (constants: HERRINGBONE_CALIBRATION). A job runs the file
/// of --output with HERRINGBONE_PLAN="all_reduce:64K-inf:file=FILE".
///
/// The seed and the number of rounds fix the result; pass --rounds to get it again.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SearchOptions {
    /// File with ports of hosts or links between ranks, in a form that topo reads, or FILE#NAME
    #[arg(long, value_name = "FILE")]
    topology: String,
    /// Workers per host, as consecutive ranks, if the topology has ports of hosts
    #[arg(long, default_value_t = 1, value_name = "P", value_parser = whole(1..=SEARCHED_RANKS))]
    per_host: u32,
    /// Bytes of f32 per rank: 25M, 64KiB
    #[arg(long, default_value = "4M", value_name = "B")]
    bytes: Bytes,
    /// Fold order [default: HERRINGBONE_FOLD_ORDER, else ranks]
    #[arg(long, value_name = "ORDER", value_parser = names::one_of::<FoldOrder>(&FoldOrder::ALL.map(FoldOrder::name)))]
    fold_order: Option<FoldOrder>,
    /// Seconds to search
    #[arg(long, default_value_t = 10, value_name = "S", value_parser = whole(1..=86_400))]
    seconds: u32,
    /// Rounds to search, in place of --seconds
    #[arg(long, value_name = "N", value_parser = whole(1..=1_000_000), conflicts_with = "seconds")]
    rounds: Option<u32>,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole_of_64_bits)]
    seed: u64,
    /// Write the schedule into this file if it is faster than the best algorithm
    #[arg(long, value_name = "FILE")]
    output: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What came of it.
struct Compared<'a> {
    options: &'a SearchOptions,
    ranks: u32,
    order: FoldOrder,
    list: Vec<Listed>,
    found: Option<FoundSchedule>,
    rounds: u32,
}

/// By how much, in thousandths, a schedule has to be faster than the best algorithm to be worth a file.
const WORTH_PER_MILLE: u64 = 10;

pub(crate) fn run(options: &SearchOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let environment = Environment::of_process();
    let topology = topologies::read(&options.topology)?;
    let known = environment.calibration()?.unwrap_or_default();
    let wiring = wiring(&topology, &options.topology)?;
    let hosts = layout::hosts(ranks(&wiring, options)?, options.per_host);
    let wiring = topologies::among(wiring, &hosts)?;
    let sites = wiring.ports.as_ref().map(Ports::site_numbers).unwrap_or_default();
    let order = options.fold_order.or(environment.fold_order()?).unwrap_or_default();
    let group = topologies::group(order, &hosts, &sites)?;
    let count = elements(Collective::AllReduce, group.size(), options.bytes.0, DType::F32.bytes());
    let request = Request {
        hosts: &hosts,
        links: wiring.links.as_ref(),
        ports: wiring.ports.as_ref(),
        ..Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, count, &group)
    };
    let mut rig = predicted::machine(&request, &known, 0);
    rig.switches = Some(&topology).filter(|_| rig.links.is_some()).and_then(Switches::of);
    let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, count);
    let problem = Problem { group: &group, rig: &rig, call, sizing: environment.sizing(&hosts)? };
    let compared = compare(options, problem, &request, order)?;
    let written = compared.write()?;
    match options.json {
        true => writeln!(out, "{}", compared.object(written))?,
        false => write!(out, "{}", compared.report(written))?,
    }
    Ok(Outcome::Passed)
}

fn wiring(topology: &Topology, file: &str) -> Result<Wiring, Failure> {
    let found = match topology.ports().is_empty() && topology.sites().is_empty() {
        // If only links are known, some might be missing.
        true => LinkMatrix::of(topology).map(Wiring::from),
        false => Wiring::of(topology),
    };
    found.map_err(|error| Failure::Usage {
        problem: format!("{file}: {error}"),
        hint: "herringbone topo shows the content of the file",
    })
}

/// How many ranks there are: one for each node, or where only ports are known, as many as hosts have.
fn ranks(wiring: &Wiring, options: &SearchOptions) -> Result<u32, Failure> {
    let of_nodes = wiring.size().map_or(0, |size| size as u32);
    let ranks = if wiring.links.is_some() { of_nodes } else { of_nodes.saturating_mul(options.per_host) };
    if (2..=SEARCHED_RANKS).contains(&ranks) {
        return Ok(ranks);
    }
    Err(Failure::Usage {
        problem: format!("{} has {ranks} ranks, but a search needs 2 to {SEARCHED_RANKS}", options.topology),
        hint: "pass a topology with that many ranks",
    })
}

fn compare<'a>(
    options: &'a SearchOptions,
    problem: Problem<'_>,
    request: &Request<'_>,
    order: FoldOrder,
) -> Result<Compared<'a>, Failure> {
    let unsearchable = |error| Failure::Usage {
        problem: format!("{}: {error}", options.topology),
        hint: "herringbone topo shows the topology",
    };
    let mut search = ScheduleSearch::new(problem, options.seed).map_err(unsearchable)?;
    let list = listed(&problem, request);
    let progress = match options.rounds {
        Some(rounds) => LateBar::of(rounds.into()),
        None => LateBar::of(options.seconds.into()),
    };
    let (began, limit) = (Instant::now(), Duration::from_secs(options.seconds.into()));
    let mut seconds = 0;
    loop {
        if search.round() {
            progress
                .tell(search.best().map_or_else(String::new, |best| format!("{} so far", shown(best.time))));
        }
        let elapsed = began.elapsed();
        match options.rounds {
            Some(_) => progress.step(),
            None => {
                (seconds..elapsed.as_secs()).for_each(|_| progress.step());
                seconds = elapsed.as_secs();
            }
        }
        if options.rounds.map_or(elapsed >= limit, |rounds| search.rounds() >= rounds) {
            break;
        }
    }
    let rounds = search.rounds();
    Ok(Compared { options, ranks: problem.group.size(), order, list, found: search.into_best(), rounds })
}

fn shown(time: Picoseconds) -> String {
    format!("{:.3} ms", time as f64 / (SECOND / 1000) as f64)
}

impl Compared<'_> {
    /// The first of the list whose sums are in an order.
    fn first(&self, order: Order) -> Option<&Listed> {
        self.list.iter().find(|listed| listed.order == order)
    }

    /// The schedule, if it is worth it.
    fn better(&self) -> Option<&FoundSchedule> {
        let found = self.found.as_ref()?;
        let Some(best) = self.first(Order::Fixed) else { return Some(found) };
        let enough = best.time - best.time / 1000 * WORTH_PER_MILLE;
        (found.time <= enough).then_some(found)
    }

    /// How much less time it takes than the list's best, in percent.
    fn percent(&self) -> Option<f64> {
        let (found, best) = (self.found.as_ref()?, self.first(Order::Fixed)?);
        Some(100.0 * (1.0 - found.time as f64 / best.time as f64))
    }

    /// Writes it where it is to go. Returns that place.
    fn write(&self) -> Result<Option<&str>, Failure> {
        let (Some(path), Some(found)) = (&self.options.output, self.better()) else { return Ok(None) };
        let SearchOptions { topology, bytes, seed, .. } = self.options;
        let text = format!(
            "# Found by herringbone search: topology {topology}, {} bytes, fold order {}, seed {seed}, round {}; {} by simulation.\n{}",
            bytes.0,
            self.order.name(),
            found.round,
            shown(found.time),
            found.verified.schedule()
        );
        if text.len() > FILES_BYTES {
            return Err(Failure::Usage {
                problem: format!(
                    "the schedule has {} bytes, but a job takes at most {FILES_BYTES}",
                    text.len()
                ),
                hint: "search for fewer ranks",
            });
        }
        topologies::write(path, &text)?;
        Ok(Some(path))
    }

    fn report(&self, written: Option<&str>) -> String {
        let SearchOptions { topology, bytes, seed, .. } = self.options;
        let (ranks, order) = (self.ranks, self.order.name());
        let mut lines = vec![format!(
            "# all_reduce of {}, ranks {ranks}, links of {topology}, fold order {order}",
            HumanBytes(bytes.0 as u64)
        )];
        let listed = |listed: &Listed| format!("{} by {}", shown(listed.time), listed.algorithm);
        lines.push(match self.first(Order::Fixed) {
            Some(best) => format!("best      {}", listed(best)),
            None => "best      no algorithm with this fold order can use these links".into(),
        });
        if let Some(other) = self.first(Order::Schedule) {
            lines.push(format!("others    {}, which adds in its own order", listed(other)));
        }
        lines.push(match (self.better(), &self.found) {
            (Some(found), _) => {
                let less = self.percent().map_or(String::new(), |percent| format!(", {percent:.1} % less"));
                let round = found.round;
                format!(
                    "found     {}{less}, in round {round} of {} with seed {seed}",
                    shown(found.time),
                    self.rounds
                )
            }
            (None, Some(found)) => format!(
                "found     {} in {} rounds with seed {seed}: the best algorithm stays ahead",
                shown(found.time),
                self.rounds
            ),
            (None, None) => {
                format!("found     nothing in {} rounds: the best algorithm stays ahead", self.rounds)
            }
        });
        if let Some(path) = written {
            lines.push(format!(
                "written   {path}; run it: HERRINGBONE_PLAN=\"all_reduce:64K-inf:file={path}\" on rank 0"
            ));
        } else if self.options.output.is_some() {
            lines.push("written   nothing".into());
        }
        lines.join("\n") + "\n"
    }

    fn object(&self, written: Option<&str>) -> Value {
        let seconds = |time: Picoseconds| time as f64 / SECOND as f64;
        let listed = |listed: &Listed| json!({ "algorithm": listed.algorithm.to_string(), "seconds": seconds(listed.time) });
        json!({
            "topology": self.options.topology,
            "ranks": self.ranks,
            "bytes": self.options.bytes.0,
            "fold_order": self.order.name(),
            "seed": self.options.seed,
            "rounds": self.rounds,
            "list": self.first(Order::Fixed).map(listed),
            "others": self.first(Order::Schedule).map(listed),
            "found": self.found.as_ref().map(|found| json!({ "seconds": seconds(found.time), "round": found.round })),
            "is_better": self.better().is_some(),
            "percent_less": self.percent(),
            "written": written,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;
    use herringbone::core::{algorithm::ScheduleFile, plan::files};
    use std::{fs, path::PathBuf};

    fn searched(args: &[&str]) -> Result<String, Failure> {
        let Verb::Search(options) = Command::parse_from(["herringbone", "search"].iter().chain(args)).verb
        else {
            panic!("search is a verb")
        };
        let mut out = Vec::new();
        run(&options, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    /// A file of this process, in the folder for such files.
    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("herringbone-search-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    /// Links of four ranks; two pairs have slow ones.
    const SLOW_PAIRS: &str = "0,0.1,1,1\n0.1,0,1,1\n1,1,0,0.1\n1,1,0.1,0\n";

    #[test]
    fn what_is_found_is_written_for_jobs() {
        let (topology, output) = (file("pairs.csv", SLOW_PAIRS), file("found.txt", ""));
        let [topology, output] = [&topology, &output].map(|path| path.to_str().unwrap());
        let args = ["--topology", topology, "--rounds", "4", "--output", output];
        let text = searched(&args).unwrap();
        assert!(text.contains("best  ") && text.contains("% less") && text.contains("file="), "{text}");
        let written = fs::read_to_string(output).unwrap();
        files::proved(&ScheduleFile::unread("f"), &written).unwrap();
        let object: Value =
            serde_json::from_str(&searched(&[&args[..], &["--json"]].concat()).unwrap()).unwrap();
        assert!(object["percent_less"].as_f64().unwrap() > 5.0, "{object}");
        assert_eq!(fs::read_to_string(output).unwrap(), written, "a seed and rounds fix it");
    }

    #[test]
    fn where_the_list_is_best_nothing_is_written() {
        let topology = file("one.csv", "0,1\n1,0\n");
        let output = std::env::temp_dir().join(format!("herringbone-search-{}-none", std::process::id()));
        let [topology, path] = [&topology, &output].map(|path| path.to_str().unwrap());
        let text = searched(&["--topology", topology, "--rounds", "2", "--output", path]).unwrap();
        assert!(
            text.contains("the best algorithm stays ahead") && text.contains("written   nothing"),
            "{text}"
        );
        assert!(!output.exists());
    }

    #[test]
    fn topologies_that_cannot_be_searched_are_refused() {
        let apart = file("apart.csv", "0,1,0\n1,0,0\n0,0,0\n");
        for (topology, said) in [
            (apart.to_str().unwrap(), "no way of links leads"),
            ("/nowhere/links", "cannot read the topology"),
        ] {
            let failure = searched(&["--topology", topology, "--rounds", "1"]).unwrap_err().to_string();
            assert!(failure.contains(said), "{failure}");
        }
    }
}
