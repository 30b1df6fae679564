//! `herringbone explain`: which algorithm a job would choose, and why.

mod candidates;
mod compressed;

use crate::codecs::Codecs;
use crate::failure::{ABOUT_COLLECTIVE, Failure};
use crate::numbers::{Sizes, elements, whole};
use crate::{layout, outcome::Outcome, progress::LateBar, table, topologies};
use candidates::Candidates;
use comfy_table::{ColumnConstraint, Width};
use compressed::CodecComparison;
use herringbone::core::{
    algorithm::{Layout, cost::Cost},
    group::FoldOrder,
    plan::{self, Choice, Guidance, Request},
    prepare::Sizing,
    topology::{Ports, RoundTrips, Wiring},
    verify::verify,
};
use herringbone::settings::{Environment, check};
use herringbone::{Algorithm, Collective, DType, ReduceOp};
use indicatif::HumanBytes;
use serde_json::{Value, json};
use std::{collections::BTreeMap, io::Write};

/// The most ranks, and reducers.
const MOST_RANKS: u32 = 16384;
/// Sizes that show most of the choices.
const SIZES: [usize; 5] = [4, 1 << 10, 64 << 10, 1 << 20, 25 << 20];

/// Show which algorithm a job would choose, and why
///
/// A running group makes the same choice: by bytes, ranks, hosts and reducers, or by predicted times with
/// HERRINGBONE_CALIBRATION. HERRINGBONE_PLAN and HERRINGBONE_ALGORITHM override it. The reduction is a sum.
///
/// messages: sent by the busiest worker. bytes/link: carried each way by the link of the busiest host; each reducer
/// has its own host. A single size, or --candidates, also shows all candidates: predicted time, bottleneck, staging
/// memory on the rank that needs most, and where the choice changes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of workers
    #[arg(long, value_name = "N", value_parser = whole(1..=MOST_RANKS))]
    ranks: u32,
    /// Workers per host, as consecutive ranks [default: all on one host]
    #[arg(long, value_name = "P", value_parser = whole(1..=MOST_RANKS))]
    per_host: Option<u32>,
    /// Fold order [default: HERRINGBONE_FOLD_ORDER, else ranks]
    #[arg(long, value_name = "ORDER", value_parser = crate::names::one_of::<FoldOrder>(&FoldOrder::ALL.map(FoldOrder::name)))]
    fold_order: Option<FoldOrder>,
    /// Number of reducers
    #[arg(long, default_value_t = 0, value_name = "M", value_parser = whole(0..=MOST_RANKS))]
    reducers: u32,
    /// Round trip between hosts in microseconds, which a job without a calibration measures; ignored below 1000
    #[arg(long, value_name = "T", value_parser = whole(1..=10_000_000))]
    round_trip_us: Option<u32>,
    /// Bytes per rank, or of the whole buffer for collectives with parts, in whole elements: 4,64K,1.5M,1GiB, or
    /// 1K..16M (doubling) [default: 4,1K,64K,1M,25M]
    #[arg(long, value_name = "LIST")]
    sizes: Option<Sizes>,
    /// all_reduce, reduce(root), broadcast(root), reduce_scatter, all_gather, gather(root), scatter(root), all_to_all
    /// or barrier
    #[arg(long, default_value = "all_reduce", value_name = "NAME", value_parser = crate::names::collective(), hide_possible_values = true)]
    collective: Collective,
    /// Type of the elements
    #[arg(long, default_value = "f32", value_parser = crate::names::one_of::<DType>(&DType::ALL.map(DType::name)))]
    dtype: DType,
    /// Also predict an all_reduce of f32 with these codecs: all, or a list like int8,topk:0.01
    #[arg(long, value_name = "LIST")]
    compression: Option<Codecs>,
    /// Show the candidates of every size, not only of a single one
    #[arg(long)]
    candidates: bool,
    /// Print one JSON object per size, with its candidates
    #[arg(long)]
    json: bool,
}

impl Options {
    fn per_host(&self) -> u32 {
        self.per_host.unwrap_or(self.ranks)
    }

    /// The measured latency between hosts, in picoseconds.
    fn latency(&self) -> Option<u64> {
        let trips = RoundTrips::new(&[0, self.round_trip_us?], &[0, 1]);
        trips.nanoseconds(&[0, 1]).map(|time| 1000 * time)
    }

    fn fold_order(&self) -> FoldOrder {
        self.fold_order.unwrap_or_default()
    }
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    has_use(options)?;
    let environment = Environment::of_process();
    check(&environment)?;
    let fold_order = options.fold_order.or(environment.fold_order()?);
    let options = &Options { fold_order, ..options.clone() };
    let hosts = layout::hosts(options.ranks, options.per_host());
    let wiring = topologies::among(environment.wiring()?, &hosts)?;
    let progress = LateBar::without_end("making and proving schedules");
    let guidance = Guidance { latency: options.latency(), ..environment.guidance()? };
    let job = JobSettings { guidance, wiring, sizing: environment.sizing(&hosts)? };
    let rows = rows(options, &job)?;
    drop(progress);
    if options.json {
        for row in &rows {
            writeln!(out, "{}", row.object(options))?;
        }
    } else {
        print(options, &rows, out)?;
    }
    Ok(Outcome::Passed)
}

/// Refuses options without effect.
fn has_use(options: &Options) -> Result<(), Failure> {
    if options.per_host() > options.ranks {
        return Err(Failure::Usage {
            problem: format!("--per-host {} is more than the {} ranks", options.per_host(), options.ranks),
            hint: "leave it out if all ranks share a host",
        });
    }
    if options.round_trip_us.is_some() && options.per_host() == options.ranks {
        return Err(Failure::Usage {
            problem: "--round-trip-us has no effect if all ranks share a host".into(),
            hint: "pass --per-host, or leave it out",
        });
    }
    let barrier = options.collective == Collective::Barrier && options.sizes.is_some();
    let reducers = options.collective != Collective::AllReduce && options.reducers > 0;
    if options.compression.is_some()
        && (options.collective, options.dtype) != (Collective::AllReduce, DType::F32)
    {
        return Err(Failure::Usage {
            problem: format!("{} of {} cannot be compressed", options.collective, options.dtype),
            hint: "codecs are for all_reduce of f32; leave --compression out",
        });
    }
    if options.compression.is_some() && options.ranks == 1 {
        return Err(Failure::Usage {
            problem: "one rank alone sends nothing, so codecs have no effect".into(),
            hint: "pass more --ranks, or leave --compression out",
        });
    }
    let useless = [("--sizes", barrier), ("--reducers", reducers)];
    Failure::if_useless(&useless, options.collective.name(), ABOUT_COLLECTIVE)
}

/// One size.
struct Row {
    bytes: u64,
    count: usize,
    choice: Choice,
    cost: Cost,
    link: u64,
    candidates: Option<Candidates>,
    codecs: Option<CodecComparison>,
}

/// What settings say of a job's plans.
struct JobSettings {
    guidance: Guidance,
    wiring: Wiring,
    sizing: Sizing,
}

fn rows(options: &Options, job: &JobSettings) -> Result<Vec<Row>, Failure> {
    let Options { collective, dtype, ranks, reducers, .. } = *options;
    let JobSettings { guidance, wiring, sizing } = job;
    let hosts = layout::hosts(ranks, options.per_host());
    let sites = wiring.ports.as_ref().map(Ports::site_numbers).unwrap_or_default();
    let group = topologies::group(options.fold_order(), &hosts, &sites)?;
    let sizes = match (&options.sizes, collective) {
        (Some(Sizes(sizes)), _) => &sizes[..],
        (None, Collective::Barrier) => &[0],
        (None, _) => &SIZES,
    };
    let mut known = BTreeMap::new();
    let mut rows = Vec::new();
    for bytes in sizes {
        let count = elements(collective, ranks, *bytes, dtype.bytes());
        let request = Request {
            reducers,
            hosts: &hosts,
            links: wiring.links.as_ref(),
            ports: wiring.ports.as_ref(),
            ..Request::of_elements(collective, dtype, ReduceOp::Sum, count, &group)
        };
        let forced = guidance.for_call(collective, count, request.bytes);
        let request = Request { forced: forced.as_ref(), ..request };
        let choice = guidance.choose(&request, *sizing).map_err(unusable)?;
        let name = choice.algorithm.to_string();
        if !known.contains_key(&name) {
            known.insert(name.clone(), load(&request, &choice.algorithm)?);
        }
        let (cost, units) = known[&name];
        let link = (u128::from(units) * u128::from(request.bytes)).div_ceil(u128::from(cost.chunks));
        let link = u64::try_from(link).unwrap_or(u64::MAX);
        let shows = options.json || options.candidates || sizes.len() == 1;
        let has_several =
            matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather);
        let candidates =
            (shows && has_several && ranks > 1).then(|| Candidates::of(&request, guidance, *sizing));
        let candidates = candidates.transpose()?;
        let codecs = options.compression.as_ref();
        let codecs = codecs.map(|codecs| CodecComparison::of(&request, guidance, *sizing, &codecs.known()));
        rows.push(Row { bytes: request.bytes, count, choice, cost, link, candidates, codecs });
    }
    Ok(rows)
}

/// What a schedule costs, and how many of its chunks, by their weights, the busiest link carries.
fn load(request: &Request<'_>, algorithm: &Algorithm) -> Result<(Cost, u64), Failure> {
    let Request { collective, group, reducers, hosts, widening, links, .. } = *request;
    let schedule =
        algorithm.schedule(collective, group, &Layout { reducers, hosts, links }).map_err(unusable)?;
    let units = plan::busiest_link(&schedule, hosts, widening);
    let verified = verify(schedule, collective, group).map_err(unusable)?;
    Ok((verified.cost(), units))
}

fn unusable(why: impl ToString) -> Failure {
    Failure::Usage { problem: why.to_string(), hint: "see herringbone explain --help" }
}

const COLUMNS: [&str; 6] = ["bytes", "algorithm", "rounds", "messages", "bytes/link", "reason"];
/// The widest column's width, so that a line has 120 characters where standard output is no terminal.
const REASON_WIDTH: ColumnConstraint = ColumnConstraint::UpperBoundary(Width::Fixed(39));

fn print(options: &Options, rows: &[Row], out: &mut dyn Write) -> Result<(), Failure> {
    let Options { collective, dtype, ranks, reducers, .. } = options;
    let per_host = options.per_host();
    write!(out, "# {collective} of {dtype}, ranks {ranks}, per host {per_host}, reducers {reducers}")?;
    match options.fold_order() {
        FoldOrder::Ranks => writeln!(out)?,
        order => writeln!(out, ", fold order {}", order.name())?,
    }
    let figures = ["bytes", "rounds", "messages", "bytes/link"];
    let widths = [(5, REASON_WIDTH)];
    writeln!(out, "{}", table::sentences(&COLUMNS, &figures, &widths, rows.iter().map(Row::cells)))?;
    rows.iter().try_for_each(|row| {
        row.candidates.as_ref().map_or(Ok(()), |candidates| candidates.print(out))?;
        row.codecs.as_ref().map_or(Ok(()), |codecs| codecs.print(out))
    })
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let Self { bytes, choice, cost, link, .. } = self;
        let messages = cost.worker.messages;
        let size = |bytes: u64| HumanBytes(bytes).to_string();
        [
            size(*bytes),
            choice.algorithm.to_string(),
            cost.rounds.to_string(),
            messages.to_string(),
            size(*link),
            choice.why.clone(),
        ]
    }

    fn object(&self, options: &Options) -> Value {
        let Self { bytes, count, choice, cost, link, candidates, codecs } = self;
        json!({
            "collective": options.collective.to_string(),
            "ranks": options.ranks,
            "per_host": options.per_host(),
            "reducers": options.reducers,
            "fold_order": options.fold_order().name(),
            "bytes": bytes,
            "count": count,
            "dtype": options.dtype.name(),
            "algorithm": choice.algorithm.to_string(),
            "why": choice.why,
            "rounds": cost.rounds,
            "messages": cost.worker.messages,
            "link_bytes": link,
            "candidates": candidates.as_ref().map(Candidates::object),
            "codecs": codecs.as_ref().map(CodecComparison::object),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;

    fn options(args: &[&str]) -> Options {
        let command = Command::parse_from(["herringbone", "explain"].iter().chain(args));
        let Verb::Explain(options) = command.verb else { panic!("explain is a verb") };
        options
    }

    /// A job without settings but these.
    fn job(options: &Options, guidance: Guidance) -> JobSettings {
        let hosts = layout::hosts(options.ranks, options.per_host());
        JobSettings {
            guidance,
            wiring: Wiring::default(),
            sizing: Environment::default().sizing(&hosts).unwrap(),
        }
    }

    fn explained(args: &[&str]) -> Vec<Row> {
        let options = options(args);
        rows(&options, &job(&options, Guidance::default())).unwrap()
    }

    const COLLECTIVES: [&str; 9] = [
        "all_reduce",
        "reduce(2)",
        "broadcast",
        "reduce_scatter",
        "all_gather",
        "gather(2)",
        "scatter",
        "all_to_all",
        "barrier",
    ];

    /// Not a copy of the rules: a group of threads says the same of every collective, type and size.
    #[test]
    fn a_running_group_says_the_same() {
        let ranks = herringbone::local(4).unwrap();
        for collective in COLLECTIVES {
            for dtype in ["f32", "bf16", "i8"] {
                let mut args = vec!["--ranks", "4", "--collective", collective, "--dtype", dtype];
                if collective != "barrier" {
                    args.extend(["--sizes", "0,4,5,4K..1M,25M"]);
                }
                let options = options(&args);
                for row in rows(&options, &job(&options, Guidance::default())).unwrap() {
                    let said = ranks[0].explain(options.collective, options.dtype, row.count).unwrap();
                    let Choice { algorithm, why } = &row.choice;
                    assert_eq!(format!("{algorithm}: {why}"), said, "{collective} of {} B", row.bytes);
                }
            }
        }
    }

    #[test]
    fn forced_trees_are_those_that_a_job_takes() {
        let guidance = Guidance { forced: Some("trees".parse().unwrap()), ..Guidance::default() };
        let options = options(&["--ranks", "6", "--per-host", "2", "--sizes", "25M,39M"]);
        let rows = rows(&options, &job(&options, guidance)).unwrap();
        let names: Vec<String> = rows.iter().map(|row| row.choice.algorithm.to_string()).collect();
        assert_eq!(names, ["trees(single)", "trees"]);
    }

    #[test]
    fn a_round_trip_between_hosts_counts() {
        let job = ["--ranks", "4", "--per-host", "1", "--sizes", "64K", "--json"];
        let explained = |more: &[&str]| {
            let mut out = Vec::new();
            run(&options(&[&job[..], more].concat()), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let (near, far) = (explained(&[]), explained(&["--round-trip-us", "40000"]));
        assert!(near.contains("\"radix(2,2)\"") && !near.contains("messages between hosts"), "{near}");
        assert!(far.contains("messages between hosts take 16.38 ms"), "{far}");
    }

    #[test]
    fn links_carry_what_the_reason_says() {
        let job = ["--ranks", "8", "--per-host", "2", "--sizes", "25M"];
        for (reducers, algorithm, buffers, part) in [
            (
                "4",
                "hierarchical(radix,reduction_server)",
                1.0,
                "so 4 reducers pay: 1.00 x the buffer per link",
            ),
            ("1", "radix(2,2,2)", 1.5, "1 reducer does not pay: 4.00 x the buffer per link, 1.50 x without"),
            ("0", "radix(2,2,2)", 1.5, "each host sums its 2 workers first"),
        ] {
            let row = &explained(&[&job[..], &["--reducers", reducers]].concat())[0];
            assert_eq!(row.choice.algorithm.to_string(), algorithm, "{}", row.choice.why);
            assert_eq!(row.link, (buffers * f64::from(25 << 20)) as u64, "{}", row.choice.why);
            assert!(row.choice.why.contains(part), "{}", row.choice.why);
        }
        assert!(explained(&["--ranks", "8"]).iter().all(|row| row.link == 0), "one host needs no link");
    }

    #[test]
    fn a_row_has_the_schedules_figures_and_all_columns_line_up() {
        let options =
            options(&["--ranks", "24", "--per-host", "8", "--reducers", "2", "--sizes", "4,64K,25M"]);
        let rows = rows(&options, &job(&options, Guidance::default())).unwrap();
        let figures: Vec<(u64, usize, u32)> =
            rows.iter().map(|row| (row.bytes, row.count, row.cost.rounds)).collect();
        assert_eq!(figures, [(4, 1, 5), (65_536, 16_384, 4), (25 << 20, 25 << 18, 4)]);
        let mut text = Vec::new();
        print(&options, &rows, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "# all_reduce of f32, ranks 24, per host 8, reducers 2");
        assert!(lines.iter().all(|line| line.chars().count() <= 120), "{text}");
        // A reason takes several lines, in a column of its own.
        let at = lines[1].find("reason").unwrap();
        let mut reasons: Vec<String> = Vec::new();
        for line in &lines[3..] {
            match (line[..at].trim(), reasons.last_mut()) {
                ("", Some(reason)) => *reason += &format!(" {}", line[at..].trim()),
                _ => reasons.push(line[at..].trim().to_owned()),
            }
        }
        assert_eq!(reasons, rows.iter().map(|row| row.choice.why.clone()).collect::<Vec<_>>());
    }

    #[test]
    fn hosts_send_one_partial_sum_where_the_order_goes_by_them() {
        for (reducers, order, algorithm, buffers) in [
            ("0", "ranks", "hierarchical(radix,radix)", 2.25),
            ("0", "hosts", "radix(4,2,2)", 1.5),
            ("4", "hosts", "hierarchical(radix,reduction_server)", 1.0),
        ] {
            let args = ["--ranks", "12", "--per-host", "3", "--sizes", "36M", "--fold-order", order];
            let row = &explained(&[&args[..], &["--reducers", reducers]].concat())[0];
            assert_eq!(row.choice.algorithm.to_string(), algorithm, "{}", row.choice.why);
            assert_eq!(row.link, (buffers * f64::from(36 << 20)) as u64, "{}", row.choice.why);
        }
    }

    #[test]
    fn choices_of_16384_ranks_are_explained() {
        let rows = explained(&["--ranks", "16384", "--per-host", "1", "--sizes", "1M,25M"]);
        for row in rows {
            assert_eq!((row.cost.rounds, row.cost.worker.partners), (10, 7 * 4 + 3), "{}", row.choice.why);
            assert_eq!(row.link, row.bytes * 2 * 16383 / 16384);
        }
    }

    /// What has to be simulated rank by rank is left out, and named.
    #[test]
    fn candidates_of_16384_ranks_are_those_that_few_messages_tell() {
        let args = ["--ranks", "16384", "--per-host", "1", "--reducers", "5", "--sizes", "1M"];
        let (rows, mut out) = (explained(&args), Vec::new());
        print(&options(&args), &rows, &mut out).unwrap();
        let output = String::from_utf8(out).unwrap();
        assert!(output.contains("tree is not compared, because 1048512 messages"), "{output}");
        assert!(output.contains("radix(4,4,4,4,4,4,4) ") && output.contains("doubling "), "{output}");
    }

    #[test]
    fn no_size_is_too_large() {
        let most = usize::MAX.to_string();
        let args = ["--ranks", "4", "--per-host", "1", "--sizes", &most];
        for (more, tables) in [(["--collective", "all_gather"], 1), (["--compression", "all"], 2)] {
            let args = [&args[..], &more].concat();
            let (rows, mut out) = (explained(&args), Vec::new());
            assert_eq!(rows[0].bytes, u64::MAX);
            print(&options(&args), &rows, &mut out).unwrap();
            let output = String::from_utf8(out).unwrap();
            assert_eq!(output.matches("too many segments to count").count(), tables, "{output}");
        }
    }

    #[test]
    fn what_would_change_nothing_is_refused() {
        for (args, said) in [
            (&["--ranks", "4", "--per-host", "8"][..], "--per-host 8 is more than the 4 ranks"),
            (
                &["--ranks", "4", "--round-trip-us", "9"],
                "--round-trip-us has no effect if all ranks share a host",
            ),
            (
                &["--ranks", "4", "--collective", "reduce", "--reducers", "1"],
                "--reducers has no effect on reduce",
            ),
            (
                &["--ranks", "4", "--collective", "barrier", "--sizes", "4"],
                "--sizes has no effect on barrier",
            ),
            (&["--ranks", "4", "--collective", "reduce(4)"], "root 4 is not in a group of 4"),
        ] {
            let failure = run(&options(args), &mut Vec::new()).unwrap_err();
            assert!(failure.to_string().contains(said), "{failure}");
            assert_eq!(failure.code(), 2);
        }
    }
}
