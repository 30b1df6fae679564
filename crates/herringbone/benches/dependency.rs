//! What an operation of the dependency engine costs: a million empty functions are pushed and run.
//!
//! `taskset -c 0 cargo bench -p herringbone --bench dependency` has it on one core.

use herringbone::dependency::{DependencyEngine, DependencyResult};
use std::time::Instant;

const OPERATIONS: usize = 1_000_000;
const VARIABLES: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for threads in [1, 2, 4] {
        for kind in ["no variables", "a chain", "reads of one variable", "64 variables"] {
            let begin = Instant::now();
            run(threads, kind)?;
            let micros = begin.elapsed().as_secs_f64() * 1e6 / OPERATIONS as f64;
            println!("{threads} threads, {kind}: {micros:.2} us per operation");
        }
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    println!(
        "{}",
        status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("no peak of memory is known")
    );
    Ok(())
}

fn run(threads: usize, kind: &str) -> DependencyResult<()> {
    let engine = DependencyEngine::new(threads).unwrap_or_else(|error| panic!("{error}"));
    let tags: Vec<_> = (0..VARIABLES).map(|_| engine.var()).collect();
    for at in 0..OPERATIONS {
        let (first, second) = (&tags[at % VARIABLES], &tags[(at * 7 + 1) % VARIABLES]);
        match kind {
            "no variables" => engine.push(|| Ok(()), &[], &[], 0)?,
            "a chain" => engine.push(|| Ok(()), &[], &[&tags[0]], 0)?,
            "reads of one variable" => engine.push(|| Ok(()), &[&tags[0]], &[], 0)?,
            _ => engine.push(|| Ok(()), &[first], &[second], 0)?,
        }
    }
    engine.wait_all()
}
