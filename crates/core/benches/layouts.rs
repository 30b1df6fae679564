//! All algorithms on all layouts, each cell drawn by seeds, until one does not end. See CONTRIBUTING.md.
//!
//! ```sh
//! make layouts                                    # 4 seeds for each of some 4,000 cells
//! make layouts ARGS="--seeds 100..120"            # others
//! make layouts ARGS="--seeds 7..8 --only trees"   # the cells of algorithms whose names begin so
//! ```
#![forbid(unsafe_code)]

#[path = "../tests/layouts/cell.rs"]
mod cell;

use cell::{Cell, SIMULATOR, algorithms, layouts};
use herringbone_core::algorithm::Algorithm;
use std::{
    ops::Range,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

const USAGE: &str = "layouts [--seeds FROM..TO] [--only NAME]";
/// What Cargo adds to the arguments of every bench.
const CARGOS: &str = "--bench";

struct Options {
    seeds: Range<u64>,
    only: String,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { seeds: 0..4, only: String::new() };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                CARGOS => {}
                "--seeds" => {
                    let text = value()?;
                    let range = text
                        .split_once("..")
                        .and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
                    options.seeds = range.ok_or(format!("{text} is no range such as 0..4"))?;
                }
                "--only" => options.only = value()?,
                other => return Err(format!("there is no option {other}")),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let cells = cells(&options);
    let (next, tried, problems) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((algorithm, hosts, seed)) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(cell) = Cell::drawn(algorithm, hosts, *seed) else { continue };
                    tried.fetch_add(1, Ordering::Relaxed);
                    if let Err(problem) = cell.run(SIMULATOR) {
                        eprintln!("{problem}");
                        problems.lock().expect("no thread panics while it holds this").push(problem);
                    }
                }
            });
        }
    });
    let (tried, problems) =
        (tried.into_inner(), problems.into_inner().map_or(usize::MAX, |found| found.len()));
    println!("{tried} cells of {:?}: {problems} do not end", options.seeds);
    if problems == 0 && tried > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// All cells; each has a seed of its own, and is drawn again by it alone.
fn cells(options: &Options) -> Vec<(Algorithm, Vec<u32>, u64)> {
    let mut cells = Vec::new();
    for seed in options.seeds.clone() {
        let layouts = layouts(seed);
        for algorithm in algorithms() {
            if !algorithm.to_string().starts_with(&options.only) {
                continue;
            }
            for hosts in &layouts {
                cells.push((algorithm.clone(), hosts.clone(), seed << 32 | cells.len() as u64));
            }
        }
    }
    cells
}
