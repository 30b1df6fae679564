//! The simulator as a command: many seeds, or one of them with all that happens in it. See CONTRIBUTING.md.
//!
//! ```sh
//! make soak                                       # 10,000 seeds and the planted errors, to record/soak.md
//! make soak ARGS="--seeds 0..500"                 # others, without a record
//! make soak ARGS="--seed 7 --plant no-fence"      # one, with its events
//! ```
#![forbid(unsafe_code)]

mod options;
mod record;
mod soak;

use herringbone::simulator::{plants, run};
use options::{Job, Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    // Cargo starts it in the crate's folder.
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::env::set_current_dir(root).expect("the repository is where this was built");
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n{}", options::USAGE);
            return ExitCode::FAILURE;
        }
    };
    match options.job {
        Job::One(seed) => replay(seed, options.plant),
        Job::Many(_) => many(&options),
    }
}

/// Runs one seed's world and prints its events.
fn replay(seed: u64, plant: Option<&'static str>) -> ExitCode {
    match run(seed, plant, true) {
        Ok(ended) => {
            println!("seed {seed}: {ended:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(options: &Options) -> ExitCode {
    // A panic is a failure of its seed, which says so.
    std::panic::set_hook(Box::new(|_| {}));
    let result = soak::run(options);
    let planted = match options.plant {
        None if options.record.is_some() => plants().map(soak::find).collect(),
        _ => Vec::new(),
    };
    let is_well = result.is_well() && planted.iter().all(|(_, found)| found.is_some());
    if options.json {
        println!("{}", record::json(options, &result, &planted));
    } else {
        print!("{}", record::text(options, &result, &planted));
    }
    if let Some(path) = &options.record
        && let Err(error) = std::fs::write(path, record::page(options, &result, &planted))
    {
        eprintln!("{}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
