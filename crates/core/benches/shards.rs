//! Every way to cut up to 16 shards into runs: each algorithm that sums them is proved to follow the canonical tree. See
//! CONTRIBUTING.md.
//!
//! ```sh
//! make shards                     # all 65,535 cuts
//! make shards ARGS="--most 12"    # of up to so many shards
//! ```
#![forbid(unsafe_code)]

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    shards::ShardRuns,
    verify::{Order, verify},
};
use std::{process::ExitCode, thread, time::Instant};

const USAGE: &str = "shards [--most SHARDS]";
/// What Cargo adds to the arguments of every bench.
const CARGOS: &str = "--bench";
const MOST: u32 = 16;

/// What sums shards, and with how many reducers.
const SUMS: [(&str, u32); 6] = [
    ("radix", 0),
    ("one_shot", 0),
    ("star", 0),
    ("reduction_server", 1),
    ("reduction_server", 3),
    ("mixed", 2),
];

fn most(mut words: impl Iterator<Item = String>) -> Result<u32, String> {
    let mut most = MOST;
    while let Some(word) = words.next() {
        match word.as_str() {
            CARGOS => {}
            "--most" => {
                let number = words.next().and_then(|text| text.parse().ok());
                most = number
                    .filter(|most| (1..=24).contains(most))
                    .ok_or("--most needs a number from 1 to 24")?;
            }
            other => return Err(format!("there is no option {other}")),
        }
    }
    Ok(most)
}

/// The runs that end after the shards whose bits are set in `ends`, and after the last one; then workers without shards.
fn runs(shards: u32, ends: u32) -> ShardRuns {
    let mut lengths = vec![1];
    for shard in 1..shards {
        match ends >> (shard - 1) & 1 {
            1 => lengths.push(1),
            _ => *lengths.last_mut().expect("a run") += 1,
        }
    }
    lengths.extend(vec![0; ends as usize % 3]);
    ShardRuns::of_lengths(&lengths).expect("runs of one shard or more")
}

/// What is wrong with a cut.
fn fault(algorithms: &[(Algorithm, u32)], runs: &ShardRuns) -> Option<String> {
    let group = runs.group();
    algorithms.iter().find_map(|(algorithm, reducers)| {
        let layout = Layout { reducers: *reducers, hosts: &[], links: None };
        let said = match algorithm.schedule(Collective::AllReduce, &group, &layout) {
            Err(error) => error.to_string(),
            Ok(schedule) => match verify(schedule, Collective::AllReduce, &group) {
                Err(error) => error.to_string(),
                Ok(proved) if proved.order() != Order::Fixed => String::from("another order of additions"),
                Ok(proved) if *reducers > 0 && !proved.restartable() => String::from("it cannot start again"),
                Ok(_) => return None,
            },
        };
        Some(format!("{algorithm} with {reducers} reducers, {runs:?}: {said}"))
    })
}

fn main() -> ExitCode {
    let most = match most(std::env::args().skip(1)) {
        Ok(most) => most,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let algorithms = SUMS.map(|(name, reducers)| (name.parse().expect("the name of an algorithm"), reducers));
    let cores = thread::available_parallelism().map_or(1, usize::from) as u32;
    let began = Instant::now();
    let of_core = |core: u32| {
        let cuts = (1..=most).flat_map(|shards| (0..1_u32 << (shards - 1)).map(move |ends| (shards, ends)));
        let mine = cuts.filter(|(_, ends)| ends % cores == core);
        mine.filter_map(|(shards, ends)| fault(&algorithms, &runs(shards, ends))).collect::<Vec<_>>()
    };
    let faults: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|core| scope.spawn(move || of_core(core))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    println!(
        "{} cuts of up to {most} shards, {} ways each: {} wrong, in {:.0} s",
        (1_u64 << most) - 1,
        SUMS.len(),
        faults.len(),
        began.elapsed().as_secs_f64()
    );
    faults.iter().take(20).for_each(|fault| println!("{fault}"));
    ExitCode::from(u8::from(!faults.is_empty()))
}
