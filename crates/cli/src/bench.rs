//! `herringbone bench`: times collectives and checks every result, in the columns of nccl-tests.

mod calibrate;
mod codecs;
mod compressed;
mod measure;
mod options;
mod pushpull;
mod ranks;
mod rig;
mod sample;
mod table;

pub(crate) use options::Options;

use crate::failure::{ABOUT_COLLECTIVE, Failure};
use crate::{job, numbers, outcome::Outcome, progress::LateBar};
use half::{bf16, f16};
use herringbone::{Collective, Communicator, DType, settings::Bytes};
use rustix::process::Signal;
use sample::Sample;
use std::{ffi::OsString, io::Write, time::Duration};

/// Calls a function that is generic over the element type with the type that is named at run time.
macro_rules! with_type {
    ($dtype:expr, $($function:ident)::+($($argument:expr),*)) => {
        match $dtype {
            DType::F32 => $($function)::+::<f32>($($argument),*),
            DType::F64 => $($function)::+::<f64>($($argument),*),
            DType::F16 => $($function)::+::<f16>($($argument),*),
            DType::Bf16 => $($function)::+::<bf16>($($argument),*),
            DType::I8 => $($function)::+::<i8>($($argument),*),
            DType::U8 => $($function)::+::<u8>($($argument),*),
            DType::I32 => $($function)::+::<i32>($($argument),*),
            DType::I64 => $($function)::+::<i64>($($argument),*),
            DType::I16 => $($function)::+::<i16>($($argument),*),
            DType::U16 => $($function)::+::<u16>($($argument),*),
            DType::U32 => $($function)::+::<u32>($($argument),*),
            DType::U64 => $($function)::+::<u64>($($argument),*),
        }
    };
}

pub(crate) fn run(
    options: &Options,
    args: &[OsString],
    out: &mut (dyn Write + Send),
) -> Result<Outcome, Failure> {
    has_use(options)?;
    let options = &Options { collective: with_root(options), ..options.clone() };
    if options.rig {
        return with_type!(options.dtype, rig::run(options));
    }
    if let Some(ranks) = options.local {
        return ranks::threads(ranks, out, |communicator, out| rows(options, communicator, out));
    }
    if let Some(ranks) = options.processes {
        return ranks::processes(ranks, options.reducers.unwrap_or(0), args);
    }
    if options.child {
        crate::parent::end_with_parent(Signal::TERM)?;
    }
    if let Some(path) = &options.ways.calibrate {
        return calibrate::run(options, path, out);
    }
    let communicator = Communicator::connect(job::of_environment(options::START)?)?;
    herringbone_admin::attach(&communicator);
    rows(options, &communicator, out)
}

/// Refuses options without effect.
fn has_use(options: &Options) -> Result<(), Failure> {
    let useless = [
        ("--root", options.root.is_some() && options.collective.root().is_none()),
        ("--op", options.op.is_some() && !options.collective.folds()),
        ("--reducers", options.reducers.is_some() && options.collective != Collective::AllReduce),
        ("--mapped", options.ways.mapped && !measure::has_place(options.collective)),
    ];
    Failure::if_useless(&useless, options.collective.name(), ABOUT_COLLECTIVE)?;
    let (op, dtype) = (options.op(), options.dtype);
    if !op.takes(dtype) {
        return Err(Failure::Usage {
            problem: format!("--op {op} needs integers, and --dtype {dtype} is not an integer type"),
            hint: "pass an integer type, like --dtype i32",
        });
    }
    Ok(())
}

/// What to run, from or to the root.
fn with_root(options: &Options) -> Collective {
    options.collective.with_root(options.root.unwrap_or(0))
}

/// Measures every size on this rank; rank 0 prints.
fn rows(options: &Options, communicator: &Communicator, out: &mut dyn Write) -> Result<Outcome, Failure> {
    if let Some(most) = options.ways.pushpull {
        return pushpull::run(options, most as usize, communicator, out);
    }
    if options.ways.compressed.compression.is_some() {
        return compressed::rows(options, communicator, out);
    }
    with_type!(options.dtype, rows_of(options, communicator, out))
}

fn rows_of<T: Sample>(
    options: &Options,
    communicator: &Communicator,
    out: &mut dyn Write,
) -> Result<Outcome, Failure> {
    if let Some(root) = options.collective.root().filter(|root| *root >= communicator.size()) {
        return Err(Failure::Usage {
            problem: format!("--root {root} is not one of the {} ranks", communicator.size()),
            hint: "ranks count from 0",
        });
    }
    let mut printer =
        (communicator.rank() == 0).then(|| table::Printer::new(options, communicator.size(), out));
    if let Some(printer) = &mut printer {
        printer.head(&communicator.describe())?;
    }
    let budget = Duration::from_secs_f64(options.seconds);
    let rounded = |bytes| numbers::elements(options.collective, communicator.size(), bytes, size_of::<T>());
    let sizes = options.sizes.distinct(rounded);
    let progress = printer.is_some().then(|| LateBar::of(sizes.len() as u64));
    let mut wrong = 0;
    for bytes in &sizes {
        progress.iter().for_each(|progress| progress.tell(format!("{} now", Bytes(*bytes))));
        let case = measure::Case::<T>::new(communicator, options.collective, options.op(), *bytes);
        let row = case.row(options.ways.mapped, budget)?;
        wrong += row.wrong();
        if let (Some(printer), Some(progress)) = (&mut printer, &progress) {
            progress.beside(|| printer.row(&row))?;
            progress.step();
        }
    }
    drop(progress);
    if let Some(printer) = &mut printer {
        printer.trailer()?;
    }
    communicator.barrier()?;
    Ok(Outcome::passed_if(wrong == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb, bench::options::COLLECTIVES};
    use clap::Parser;
    use herringbone::ReduceOp;

    fn options(args: &[&str]) -> Options {
        let command = Command::parse_from(["herringbone", "bench"].iter().chain(args));
        let Verb::Bench(options) = command.verb else { panic!("bench is a verb") };
        options
    }

    /// Every dtype, operation and collective, between threads: each row checks its own results.
    #[test]
    fn every_result_is_right() {
        let mut cases: Vec<Vec<&str>> = Vec::new();
        for collective in COLLECTIVES {
            cases.push(vec!["--collective", collective]);
        }
        for collective in ["reduce", "broadcast"] {
            cases.push(vec!["--collective", collective, "--root", "2"]);
        }
        for op in ReduceOp::ALL {
            for dtype in DType::ALL.into_iter().filter(|dtype| op.takes(*dtype)) {
                cases.push(vec!["--op", op.name(), "--dtype", dtype.name()]);
            }
        }
        for case in cases {
            let mut args = vec!["--sizes", "0,8,4K,100K", "--seconds", "0.001"];
            args.extend(&case);
            let options = options(&args);
            let options = &Options { collective: with_root(&options), ..options };
            let outcome =
                ranks::threads(3, &mut Vec::new(), |communicator, out| rows(options, communicator, out));
            assert_eq!(outcome.unwrap(), Outcome::Passed, "{case:?}");
        }
    }

    /// An argument is not needed where what excludes it is there, so both have to be said.
    #[test]
    fn arguments_that_would_do_nothing_are_refused() {
        for args in
            [&["--local", "2", "--reducers", "1"][..], &["--rig", "--reducers", "1"], &["--reducers", "1"]]
        {
            let command = Command::try_parse_from(["herringbone", "bench"].iter().chain(args));
            assert!(command.is_err(), "{args:?}");
        }
        for (args, name) in [
            (&["--root", "1"][..], "--root has no effect on all_reduce"),
            (&["--collective", "broadcast", "--op", "max"], "--op has no effect on broadcast"),
            (&["--collective", "all_gather", "--mapped"], "--mapped has no effect on all_gather"),
            (&["--collective", "reduce", "--processes", "2", "--reducers", "1"], "--reducers has no effect"),
        ] {
            let error = run(&options(args), &[], &mut Vec::new()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let mut text = Vec::new();
        let error = run(&options(&["--local", "2", "--collective", "reduce", "--root", "2"]), &[], &mut text);
        assert!(
            error.unwrap_err().to_string().contains("--root 2 is not one of the 2 ranks") && text.is_empty()
        );
    }

    #[test]
    fn push_pulls_are_shown_one_by_one_and_in_a_row() {
        let options = &options(&["--pushpull", "60", "--sizes", "4,1K", "--json"]);
        let mut text = Vec::new();
        let outcome = ranks::threads(2, &mut text, |communicator, out| rows(options, communicator, out));
        assert_eq!(outcome.unwrap(), Outcome::Passed);
        let rows = serde_json::Deserializer::from_slice(&text).into_iter::<serde_json::Value>();
        let shown: Vec<_> =
            rows.map(|row| row.unwrap()).map(|row| (row["bytes"].as_u64(), row["count"].as_u64())).collect();
        let expected =
            [4, 1024].into_iter().flat_map(|bytes| [1, 50, 60].map(|count| (Some(bytes), Some(count))));
        assert_eq!(shown, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_misspelt_name_is_answered_with_the_nearest() {
        for (option, slip, meant) in [
            ("--collective", "allreduce", "all_reduce"),
            ("--dtype", "bf61", "bf16"),
            ("--op", "averge", "average"),
        ] {
            let error =
                Command::try_parse_from(["herringbone", "bench", option, slip]).unwrap_err().to_string();
            assert!(error.contains(&format!("a similar value exists: '{meant}'")), "{error}");
        }
    }

    #[test]
    fn sizes_are_rounded_up_to_whole_elements_and_parts() {
        let rounded = |args: &[&str]| {
            let options = &options(&[args, &["--seconds", "0.001", "--json"]].concat());
            let mut text = Vec::new();
            let outcome = ranks::threads(3, &mut text, |communicator, out| rows(options, communicator, out));
            assert_eq!(outcome.unwrap(), Outcome::Passed);
            let row: serde_json::Value = serde_json::from_slice(&text).unwrap();
            (row["bytes"].as_u64(), row["count"].as_u64())
        };
        assert_eq!(rounded(&["--sizes", "3"]), (Some(4), Some(1)));
        assert_eq!(rounded(&["--sizes", "0"]), (Some(0), Some(0)));
        assert_eq!(
            rounded(&["--sizes", "4", "--collective", "all_gather", "--dtype", "f64"]),
            (Some(24), Some(1))
        );
    }

    #[test]
    fn codecs_are_timed_beside_none() {
        let options =
            &options(&["--sizes", "100K", "--seconds", "0.001", "--compression", "int8,exact", "--json"]);
        let mut text = Vec::new();
        let outcome = ranks::threads(2, &mut text, |communicator, out| rows(options, communicator, out));
        assert_eq!(outcome.unwrap(), Outcome::Passed);
        let rows: Vec<serde_json::Value> = String::from_utf8(text)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let codecs: Vec<_> = rows.iter().map(|row| row["codec"].as_str().unwrap()).collect();
        assert_eq!(codecs, ["none", "int8", "exact"]);
        let [_, int8, exact] = &rows[..] else { panic!("{rows:?}") };
        assert!((0.2..0.3).contains(&int8["sent"].as_f64().unwrap()), "{int8}");
        assert!((1e-5..0.1).contains(&int8["error"].as_f64().unwrap()) && exact["error"] == 0.0, "{rows:?}");
    }

    #[test]
    fn a_table_has_the_columns_of_nccl_tests() {
        let options = &options(&["--sizes", "1K,2K", "--seconds", "0.001"]);
        let mut text = Vec::new();
        let outcome = ranks::threads(2, &mut text, |communicator, out| rows(options, communicator, out));
        assert_eq!(outcome.unwrap(), Outcome::Passed);
        let text = String::from_utf8(text).unwrap();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert!(rows.iter().all(|row| row.len() == 13), "{text}");
        assert_eq!(rows[0][..5], ["1024", "256", "f32", "sum", "-1"]);
        assert!(text.contains("# Algorithm            : one_shot (1024 to 2048 B)"), "{text}");
        assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
        assert!(text.contains("# Avg bus bandwidth    : "), "{text}");
    }
}
