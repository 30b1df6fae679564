//! What copies alone take of an all-reduce of private buffers inside a host.
//!
//! Memory that others have not mapped they reach by system calls only, which copy slowly; so a buffer is copied to where they
//! see it, and what they made of it back. Here each of N threads does that with a buffer of its own, piece by piece, to and
//! from a place that stays in its core's cache. Nobody waits, nothing is folded, and no line goes from one core to another.
//!
//! It is what to compare with, and no proof of a limit: a rank need not copy its own part of the sum, and reads and writes of
//! memory may overlap better. What no all-reduce passes is one read and one write of each buffer (the rigs' "floor").
//!
//! `cargo bench -p herringbone-sys --bench copies` prints a table of medians; `-- --json` an object for each row.

use herringbone_sys::span::Span;
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

const RANKS: [usize; 3] = [2, 4, 8];
const MIB: usize = 1 << 20;
const BUFFERS: [usize; 3] = [MIB, 25 * MIB, 100 * MIB];
/// Beside the part of the buffer it fits a first cache of 48 KiB.
const PIECE: usize = 16 << 10;
/// How many bytes all ranks together copy each way in a sample, by and large.
const SAMPLE: usize = 1 << 30;
const SAMPLES: usize = 5;

/// Copies a buffer out and in again, `times` times.
fn copy_out_and_in(buffer: &mut [u8], piece: &mut [u8], times: usize) {
    for _ in 0..times {
        for part in buffer.chunks_mut(PIECE) {
            let shown = Span::of(piece).slice(0..part.len());
            shown.copy_from(Span::of(part));
            Span::of(part).copy_from(shown);
        }
    }
}

/// How long it takes `ranks` threads to do so at once.
fn sample(ranks: usize, bytes: usize) -> Duration {
    let times = (SAMPLE / (ranks * bytes)).max(1);
    let gate = Barrier::new(ranks + 1);
    let elapsed = thread::scope(|scope| {
        for rank in 0..ranks {
            let gate = &gate;
            scope.spawn(move || {
                let (mut buffer, mut piece) = (vec![rank as u8 + 1; bytes], vec![0; PIECE]);
                copy_out_and_in(&mut buffer, &mut piece, 1);
                gate.wait();
                copy_out_and_in(&mut buffer, &mut piece, times);
                gate.wait();
                assert!(buffer.iter().all(|byte| *byte == rank as u8 + 1), "a copy has changed a buffer");
            });
        }
        gate.wait();
        let began = Instant::now();
        gate.wait();
        began.elapsed()
    });
    elapsed / times as u32
}

fn main() {
    let json = std::env::args().any(|arg| arg == "--json");
    if !json {
        println!("{:>5}  {:>8}  {:>10}", "ranks", "bytes", "ms");
    }
    for ranks in RANKS {
        for bytes in BUFFERS {
            let mut samples: Vec<_> = (0..SAMPLES).map(|_| sample(ranks, bytes)).collect();
            samples.sort();
            let ms = samples[SAMPLES / 2].as_secs_f64() * 1e3;
            match json {
                true => println!("{{\"ranks\": {ranks}, \"bytes\": {bytes}, \"ms\": {ms:.4}}}"),
                false => println!("{ranks:>5}  {:>4} MiB  {ms:>10.3}", bytes / MIB),
            }
        }
    }
}
