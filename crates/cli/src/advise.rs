//! `herringbone advise`: the number of reducers that is worth its price.

mod facts;
mod pictured;

use crate::numbers::{above_zero, decimal, whole};
use crate::{failure::Failure, outcome::Outcome, table, topologies};
use facts::JobFacts;
use herringbone::{
    core::plan::advice::{Offer, PricedJob},
    settings::Bytes,
};
use serde_json::{Value, json};
use std::{fmt::Write as _, io::Write, path::PathBuf};

/// Find how many reducers are worth their price
///
/// Uses closed forms for large buffers, where only links matter; `herringbone simulate` includes latencies and
/// threads. Each number of reducers uses the fastest of radix, mixed and reduction_server.
///
/// Workers, bytes, computing and overlap come from options or from a running job (--from).
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdviseOptions {
    #[command(flatten)]
    training: TrainingOptions,
    /// Gbit/s of a worker's port, each way
    #[arg(long, value_name = "G", value_parser = above_zero(1e9))]
    worker_gbps: f64,
    /// Gbit/s of a reducer's port, each way
    #[arg(long, value_name = "G", value_parser = above_zero(1e9))]
    reducer_gbps: f64,
    /// Price of a worker per hour
    #[arg(long, value_name = "P", value_parser = decimal(0.0..=1e9), requires = "price_reducer")]
    price_worker: Option<f64>,
    /// Price of a reducer per hour
    #[arg(long, value_name = "P", value_parser = decimal(0.0..=1e9), requires = "price_worker")]
    price_reducer: Option<f64>,
    /// Most reducers to try [default: a few more than enough]
    #[arg(long, value_name = "M", value_parser = whole(1..=65536))]
    most: Option<u32>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values
    #[arg(long)]
    csv: bool,
    /// Draw step time and price over the number of reducers into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What is known of the job.
#[derive(Clone, Debug, clap::Args)]
struct TrainingOptions {
    /// Facts that a job has written: an object of Python's group.size, group.stats() and group.recent(), or the
    /// output of bench --json or status --json, which have less. Options override the file
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Number of training machines
    #[arg(long, value_name = "N", value_parser = whole(1..=65536), required_unless_present = "from")]
    workers: Option<u32>,
    /// Bytes summed per step, of all gradients, like 1.3G
    #[arg(long, value_name = "B", required_unless_present = "from")]
    bytes: Option<Bytes>,
    /// Milliseconds of computing per step, without communication
    #[arg(long, value_name = "MS", value_parser = above_zero(1e9), required_unless_present = "from")]
    step_ms: Option<f64>,
    /// Fraction of computing that can hide communication, as in DDP, from 0 to 1 [default: 0]
    #[arg(long, value_name = "F", value_parser = decimal(0.0..=1.0))]
    overlap: Option<f64>,
}

/// The most rows of a table, unless `--most` asks for them.
const ROWS: u32 = 64;

pub(crate) fn run(options: &AdviseOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let facts = options.training.facts()?;
    let job = PricedJob {
        workers: facts.workers.unwrap_or(1),
        worker_rate: options.worker_gbps * 125e6,
        reducer_rate: options.reducer_gbps * 125e6,
        bytes: facts.bytes.unwrap_or(0.0),
        computing: facts.computing.unwrap_or(0.0),
        hidden: facts.hidden.unwrap_or(0.0),
        worker_price: options.price_worker.unwrap_or(0.0),
        reducer_price: options.price_reducer.unwrap_or(0.0),
    };
    let most = options.most.unwrap_or_else(|| job.enough().saturating_add(2).min(65_536));
    let offers: Vec<Offer> = (0..=most).map(|reducers| job.offer(reducers)).collect();
    let advice = Advice { job, offers, has_prices: options.price_worker.is_some() };
    if let Some(path) = &options.svg {
        topologies::write(&path.to_string_lossy(), &advice.picture())?;
    }
    if options.json {
        writeln!(out, "{}", advice.object())?;
    } else if options.csv {
        write!(out, "{}", advice.csv())?;
    } else {
        if !facts.said.is_empty() {
            writeln!(out, "# {}", facts.said)?;
        }
        write!(out, "{}", advice.text())?;
    }
    Ok(Outcome::Passed)
}

impl TrainingOptions {
    /// The facts from the options, and otherwise from the file.
    fn facts(&self) -> Result<JobFacts, Failure> {
        let facts = self.from.as_deref().map(facts::read).transpose()?.unwrap_or_default();
        let facts = JobFacts {
            workers: self.workers.or(facts.workers),
            bytes: self.bytes.map(|bytes| bytes.0 as f64).or(facts.bytes),
            computing: self.step_ms.map(|step| step / 1e3).or(facts.computing),
            hidden: self.overlap.or(facts.hidden),
            said: facts.said,
        };
        let missing = [
            ("--workers", facts.workers.is_none()),
            ("--bytes", facts.bytes.is_none()),
            ("--step-ms", facts.computing.is_none()),
        ];
        match (missing.iter().find(|(_, is)| *is), &self.from) {
            (Some((option, _)), Some(from)) => Err(Failure::Usage {
                problem: format!("{} lacks the value of {option}: {}", from.display(), facts.said),
                hint: "pass the option as well, or let the job write {\"size\": group.size, \"stats\": group.stats(), \"recent\": \
                       group.recent()}",
            }),
            _ => Ok(facts),
        }
    }
}

struct Advice {
    job: PricedJob,
    /// By number of reducers, from none.
    offers: Vec<Offer>,
    has_prices: bool,
}

impl Advice {
    /// The fewest reducers whose step takes the least time.
    fn fastest(&self) -> &Offer {
        self.least(|offer| offer.step)
    }

    /// The fewest reducers with the cheapest step.
    fn cheapest(&self) -> &Offer {
        self.least(|offer| offer.price)
    }

    fn least(&self, of: impl Fn(&Offer) -> f64) -> &Offer {
        let less = |best, other| if of(other) < of(best) * (1.0 - 1e-9) { other } else { best };
        self.offers.iter().reduce(less).unwrap_or(&self.offers[0])
    }

    fn picture(&self) -> String {
        let cheapest = self.has_prices.then(|| self.cheapest());
        pictured::picture(self.job.workers, &self.offers, self.fastest(), cheapest)
    }

    /// The most reducers with which a step costs no more than without.
    fn break_even(&self) -> u32 {
        let (none, last) = (self.offers[0].price, self.offers[self.offers.len() - 1]);
        if last.reducers >= self.job.enough() && last.price <= none && self.job.reducer_price > 0.0 {
            // More reducers do not shorten the step, and only the price rises.
            let hourly = none * 3600.0 / last.step - f64::from(self.job.workers) * self.job.worker_price;
            return (hourly / self.job.reducer_price) as u32;
        }
        let pays = self.offers.iter().rev().find(|offer| offer.price <= none);
        pays.map_or(0, |offer| offer.reducers)
    }

    fn text(&self) -> String {
        const COLUMNS: [&str; 6] =
            ["reducers", "by", "communication", "step", "faster", "price of 1,000 steps"];
        let columns = if self.has_prices { &COLUMNS[..] } else { &COLUMNS[..5] };
        let none = self.offers[0];
        let rows = self.offers.iter().filter(|offer| self.is_reported(offer)).map(|offer| {
            let mut cells = vec![
                offer.reducers.to_string(),
                offer.summed_by.name().to_owned(),
                format!("{:.1} ms", 1e3 * offer.communication),
                format!("{:.1} ms", 1e3 * offer.step),
                format!("{:.1} %", 100.0 * (none.step / offer.step - 1.0)),
            ];
            if self.has_prices {
                cells.push(format!("{:.3}", 1e3 * offer.price));
            }
            cells
        });
        let right = ["reducers", "communication", "step", "faster", "price of 1,000 steps"];
        let mut text = table::text(columns, &right, rows) + "\n";
        for line in self.sentences() {
            text += &line;
            text.push('\n');
        }
        text
    }

    /// Whether a row of many is shown: the first, powers of two, and where something begins or ends.
    fn is_reported(&self, offer: &Offer) -> bool {
        let special =
            [self.fastest().reducers, self.cheapest().reducers, self.job.enough(), self.break_even()];
        let last = self.offers.len() as u32 - 1;
        last < ROWS
            || offer.reducers.is_power_of_two()
            || offer.reducers == 0
            || offer.reducers == last
            || special.contains(&offer.reducers)
    }

    fn sentences(&self) -> Vec<String> {
        let fastest = self.fastest();
        let mut lines = vec![format!(
            "fastest: {} reducers, a step of {:.1} ms; more than {} do not help, because together they then have the workers' rate",
            fastest.reducers,
            1e3 * fastest.step,
            self.job.enough()
        )];
        if self.has_prices {
            let cheapest = self.cheapest();
            lines.push(format!(
                "cheapest: {} reducers, {:.3} for 1,000 steps",
                cheapest.reducers,
                1e3 * cheapest.price
            ));
            lines.push(match self.break_even() {
                0 => "break-even: steps are cheapest without reducers".to_owned(),
                most => format!("break-even: with up to {most} reducers a step costs no more than without"),
            });
        }
        let (worker, server) = self.job.rates_to_keep_up();
        lines.push(format!(
            "for sums to take no longer than computing, a worker's port needs {:.1} Gbit/s each way, and a single reducer for all workers {:.1} Gbit/s",
            worker / 125e6,
            server / 125e6
        ));
        lines
    }

    fn object(&self) -> Value {
        let rows = self.offers.iter().map(|offer| {
            json!({
                "reducers": offer.reducers,
                "algorithm": offer.summed_by.name(),
                "communication_s": offer.communication,
                "step_s": offer.step,
                "price": self.has_prices.then_some(offer.price),
            })
        });
        let PricedJob { workers, bytes, computing, hidden, .. } = self.job;
        json!({
            "job": { "workers": workers, "bytes": bytes, "computing_s": computing, "overlap": hidden },
            "offers": rows.collect::<Vec<_>>(),
            "fastest": self.fastest().reducers,
            "enough": self.job.enough(),
            "cheapest": self.has_prices.then(|| self.cheapest().reducers),
            "break_even": self.has_prices.then(|| self.break_even()),
        })
    }

    fn csv(&self) -> String {
        let mut text = String::from("reducers,algorithm,communication_s,step_s,price\n");
        for offer in &self.offers {
            let price = if self.has_prices { offer.price.to_string() } else { String::new() };
            let Offer { reducers, summed_by, communication, step, .. } = offer;
            // Writing to a text does not fail.
            let _written = writeln!(text, "{reducers},{},{communication},{step},{price}", summed_by.name());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;

    fn advised(args: &[&str]) -> String {
        let vertex = [
            "--workers",
            "8",
            "--worker-gbps",
            "100",
            "--reducer-gbps",
            "32",
            "--bytes",
            "1.3G",
            "--step-ms",
            "900",
        ];
        let command = Command::parse_from(["herringbone", "advise"].iter().chain(&vertex).chain(args));
        let Verb::Advise(options) = command.verb else { panic!("advise is a verb") };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_article_gets_its_25_reducers() {
        let text = advised(&["--price-worker", "30", "--price-reducer", "0.6"]);
        assert!(text.contains("fastest: 25 reducers"), "{text}");
        assert!(text.contains("more than 25 do not help"), "{text}");
        assert!(text.contains("break-even: with up to "), "{text}");
    }

    #[test]
    fn the_picture_marks_the_best_and_has_prices_only_where_they_are_known() {
        let path = std::env::temp_dir().join(format!("herringbone-advise-{}.svg", std::process::id()));
        let drawn = |args: &[&str]| {
            advised(&[args, &["--svg", path.to_str().unwrap()]].concat());
            let picture = std::fs::read_to_string(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            picture
        };
        let priced = drawn(&["--price-worker", "30", "--price-reducer", "0.6"]);
        for words in
            ["fastest: 25 reducers, 1.012 s", "cheapest: 18 reducers, 71.54", "prefers-color-scheme", ">20<"]
        {
            assert!(priced.contains(words), "{words}");
        }
        assert!(!drawn(&[]).contains("cheapest"));
        assert!(drawn(&["--most", "1"]).contains("fastest: 1 reducer, "));
        assert!(!drawn(&["--overlap", "1"]).contains("NaN"), "a flat line");
    }

    #[test]
    fn prices_are_said_only_where_they_are_known() {
        assert!(!advised(&[]).contains("price"));
        let object: Value = serde_json::from_str(&advised(&["--json"])).unwrap();
        assert_eq!(object["enough"], 25);
        assert_eq!(object["cheapest"], Value::Null);
        assert_eq!(object["offers"].as_array().unwrap().len(), 28);
    }

    fn from(file: &str, more: &[&str]) -> Result<String, Failure> {
        let rates = ["--worker-gbps", "10", "--reducer-gbps", "10", "--from", file];
        let command = Command::parse_from(["herringbone", "advise"].iter().chain(&rates).chain(more));
        let Verb::Advise(options) = command.verb else { panic!("advise is a verb") };
        let mut out = Vec::new();
        run(&options, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/advise/job.json");

    #[test]
    fn a_job_tells_what_options_would_and_options_go_before_it() {
        let job = |more: &[&str]| -> Value {
            serde_json::from_str(&from(JOB, &[more, &["--json"]].concat()).unwrap()).unwrap()
        };
        assert_eq!((&job(&[])["job"]["workers"], &job(&[])["job"]["bytes"]), (&json!(2), &json!(3.5e6)));
        let own = job(&["--workers", "8", "--bytes", "1000", "--step-ms", "5", "--overlap", "0.5"]);
        assert_eq!(own["job"], json!({"workers": 8, "bytes": 1000.0, "computing_s": 0.005, "overlap": 0.5}));
        assert!(from(JOB, &[]).unwrap().starts_with("# 2 workers, 3 calls and 3.50 MB per step"));
    }

    #[test]
    fn a_file_that_says_too_little_names_the_option() {
        let path = std::env::temp_dir().join(format!("herringbone-advise-{}.json", std::process::id()));
        std::fs::write(&path, "{\"collective\": \"all_reduce\", \"ranks\": 4, \"bytes\": 4096}\n").unwrap();
        let failure = from(path.to_str().unwrap(), &[]).unwrap_err().to_string();
        let whole = from(path.to_str().unwrap(), &["--step-ms", "3"]);
        std::fs::remove_file(&path).unwrap();
        assert!(failure.contains("lacks the value of --step-ms"), "{failure}");
        assert!(whole.unwrap().starts_with("# 4 workers, 4.00 KiB"));
        let failure = from("/nowhere/stats.json", &[]).unwrap_err().to_string();
        assert!(failure.contains("/nowhere/stats.json: cannot be read"), "{failure}");
    }

    #[test]
    fn csv_has_a_line_for_each_number_of_reducers() {
        let text = advised(&["--csv", "--most", "3"]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[1].starts_with("0,radix,"), "{text}");
    }

    /// Beyond what is enough only the price rises: there the step costs as much as without.
    #[test]
    fn break_even_is_where_prices_meet() {
        let text = advised(&["--price-worker", "30", "--price-reducer", "0.6", "--json"]);
        let object: Value = serde_json::from_str(&text).unwrap();
        let most = object["break_even"].as_u64().unwrap() as f64;
        let price = |reducers: f64, step: f64| (8.0 * 30.0 + 0.6 * reducers) * step;
        let steps = object["offers"].as_array().unwrap();
        let (none, last) = (steps[0]["step_s"].as_f64().unwrap(), steps[27]["step_s"].as_f64().unwrap());
        assert!(
            price(most, last) <= price(0.0, none) && price(most + 1.0, last) > price(0.0, none),
            "{most}"
        );
    }
}
