//! How fast folds run on this machine: bytes of all sources per second, for every level of instructions.
//!
//! `cargo run --release -p herringbone-sys --example fold_throughput [KiB per source] [op]`

use herringbone_core::element::{DType, ReduceOp};
use herringbone_core::group::merges;
use herringbone_core::schedule::Form;
use herringbone_sys::kernel::{Level, Source, Target, fold_with};
use herringbone_sys::span::Span;
use std::time::{Duration, Instant};

const SOURCES: [usize; 5] = [1, 2, 4, 8, 64];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kib: usize = arguments.next().map_or(64, |kib| kib.parse().expect("KiB per source: a number"));
    let op: ReduceOp = arguments.next().map_or(ReduceOp::Sum, |op| op.parse().expect("an operation"));
    println!("{op}, {kib} KiB per source, GB/s of sources; by number of sources");
    println!("{:6} {:9} {:>7} {:>7} {:>7} {:>7} {:>7}", "dtype", "level", 1, 2, 4, 8, 64);
    for dtype in DType::ALL {
        for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
            let rates = SOURCES.map(|sources| gigabytes_per_second(level, dtype, op, sources, kib << 10));
            println!("{dtype:6} {level:9} {}", rates.map(|rate| format!("{rate:7.1}")).join(" "));
        }
    }
}

/// The best of many short runs, each folding in place into the first source.
fn gigabytes_per_second(level: Level, dtype: DType, op: ReduceOp, sources: usize, bytes: usize) -> f64 {
    let keys: Vec<u32> = (0..sources as u32).collect();
    let mut memory = vec![vec![0u8; bytes]; sources];
    let spans: Vec<Span<'_>> = memory.iter_mut().map(|bytes| Span::of(bytes)).collect();
    let sources: Vec<Source<'_>> = (spans.iter().zip(merges(&keys)))
        .map(|(&span, merges)| Source { span, form: Form::Plain, merges })
        .collect();
    let mut best = Duration::MAX;
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(60) {
        let repeats = (1 << 20) / bytes + 1;
        let start = Instant::now();
        for _ in 0..repeats {
            fold_with(level, dtype, op, Target::of(spans[0], Form::Plain), &sources, Some(keys.len() as u32));
        }
        best = best.min(start.elapsed() / repeats as u32);
    }
    (sources.len() * bytes) as f64 / best.as_nanos() as f64
}
