//! How many instructions an all-reduce costs: counted, compared with testdata/instructions.json, and wrong if they differ.
//!
//! ```sh
//! make instructions                # compare
//! make instructions ARGS=--update  # a cost that is meant: keep the new counts
//! ```
//! Times differ from run to run, instructions hardly: one thread drives all ranks of a world by hand, in a process of
//! its own that is stepped through, instruction by instruction ([`tracer`]); no counter of the CPU and no tool is needed.
//! What is counted is the code of this program, in user space: not the C library's, of which there are many, nor the
//! kernel's. Allocations are counted as well, and on machines on which nobody may step through a process only they are.
//!
//! It is no test of the `dev` profile, since the instructions that count are the optimised ones.
#![forbid(unsafe_code)]

mod baseline;
#[cfg(target_arch = "x86_64")]
mod loops;
mod tracer;
mod workload;

use baseline::{Baseline, Build, Verdict};
use std::process::ExitCode;
use tracer::Untraceable;
use workload::{CASES, Case};

/// What an operation costs one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Of this program's code; unknown where processes cannot be stepped through.
    pub(crate) instructions: Option<u64>,
    /// Of all ranks together.
    pub(crate) allocations: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [workload::MARK, case, ..] => workload::run(&CASES[case.parse::<usize>().expect("a case's number")]),
        _ if cfg!(debug_assertions) => {
            println!("instructions: not counted, since this build is not optimised: use make instructions");
            return ExitCode::FAILURE;
        }
        _ => return compare(arguments.contains(&"--update")),
    }
    ExitCode::SUCCESS
}

fn compare(update: bool) -> ExitCode {
    let build = Build::this();
    let mut baseline = Baseline::read();
    println!("instructions per all-reduce and rank: {build}");
    let mut failed = false;
    for (number, case) in CASES.iter().enumerate() {
        let cost = measure(number, case);
        if update {
            baseline.keep(case, &build, cost);
        }
        let verdict = baseline.judge(case, &build, cost);
        println!("  {case:<24} {verdict}");
        failed |= matches!(verdict, Verdict::Differs { .. });
    }
    if update {
        baseline.write();
        println!("kept in testdata/instructions.json");
    }
    if failed {
        println!(
            "An operation costs more than it did, or less. If that is meant, keep the new counts and commit them:\n  \
             make instructions ARGS=--update"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn measure(number: usize, case: &Case) -> Cost {
    match tracer::count(number) {
        Ok(counted) => {
            let empty = counted.instructions[0].expect("nothing loops between two marks");
            // The control threads look at the engine ten times a second, which makes some operations cost more. On a busy
            // machine so does a wait for others.
            let least = counted.instructions[1..].iter().flatten().min();
            let least =
                least.unwrap_or_else(|| panic!("{case}: no operation could be counted; run it again"));
            Cost {
                instructions: Some((least - empty) / case.counted_ranks()),
                allocations: counted.allocations,
            }
        }
        Err(Untraceable { problem, allocations }) => {
            println!("  NOT COUNTED: {problem}; only allocations are compared");
            Cost { instructions: None, allocations }
        }
    }
}
