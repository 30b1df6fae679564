//! How many bytes of f32 one core encodes and decodes in a second, with each codec.
//!
//! A tensor is larger than a core's own caches. It is coded block by block, as operations do it, into memory that has been
//! written before. The tensor is passed several times, and of each part of it the fastest time counts, since other programs
//! only make it slower.
//!
//! `cargo bench -p herringbone-sys --bench codecs` prints a table; `-- --json` an object for each row; `-- topk` only the rows
//! whose name contains this.

use herringbone_core::codec::{BLOCK, Codec};
use herringbone_sys::codec;
use std::time::{Duration, Instant};

const ELEMENTS: usize = 25 << 18;
/// The elements of a part.
const PART: usize = 64 * BLOCK;
const PASSES: usize = 15;

/// The goals in GB/s, for encoding and decoding alike.
fn goal(codec: Codec) -> Option<f64> {
    match codec {
        Codec::Bf16 | Codec::Fp16 | Codec::Int8 => Some(4.0),
        Codec::OneBit { .. } | Codec::TwoBit { .. } | Codec::Sign => Some(2.0),
        Codec::TopK { .. } => Some(1.0),
        _ => None,
    }
}

/// Normal numbers like gradients, with the deviation 0.4: sums of twelve uniform ones.
fn gradients(mut state: u64) -> Vec<f32> {
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..ELEMENTS).map(|_| 0.4 * ((0..12).map(|_| uniform()).sum::<f32>() - 6.0)).collect()
}

/// The fastest times of the parts.
struct Fastest(Vec<Duration>);

impl Fastest {
    fn new() -> Self {
        Self(vec![Duration::MAX; ELEMENTS.div_ceil(PART)])
    }

    fn time(&mut self, part: usize, run: impl FnOnce()) {
        let began = Instant::now();
        run();
        self.0[part] = self.0[part].min(began.elapsed());
    }

    /// In GB/s.
    fn rate(&self) -> f64 {
        (4 * ELEMENTS) as f64 / self.0.iter().sum::<Duration>().as_secs_f64() / 1e9
    }
}

/// The rates of encoding, encoding with what was left, and decoding.
fn rates(codec: Codec, values: &[f32]) -> [f64; 3] {
    let mut fastest = [(); 3].map(|()| Fastest::new());
    let [encoding, feedback, decoding] = &mut fastest;
    let mut coded = Vec::with_capacity(codec.bound(ELEMENTS));
    let (mut before, mut after) = (vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]);
    for _ in 0..PASSES {
        coded.clear();
        let parts = before.chunks(PART).zip(after.chunks_mut(PART));
        for (part, (values, (before, after))) in values.chunks(PART).zip(parts).enumerate() {
            feedback.time(part, || {
                let left = before.chunks(BLOCK).zip(after.chunks_mut(BLOCK));
                for ((block, (before, after)), seed) in values.chunks(BLOCK).zip(left).zip(0..) {
                    codec::encode_with(codec, seed, block, before, after, &mut coded);
                }
            });
        }
        std::mem::swap(&mut before, &mut after);
    }
    for _ in 0..PASSES {
        coded.clear();
        for (part, values) in values.chunks(PART).enumerate() {
            encoding.time(part, || {
                for (block, seed) in values.chunks(BLOCK).zip(0..) {
                    codec::encode(codec, seed, block, &mut coded);
                }
            });
        }
    }
    for _ in 0..PASSES {
        let mut left = &coded[..];
        for (part, values) in after.chunks_mut(PART).enumerate() {
            decoding.time(part, || {
                for block in values.chunks_mut(BLOCK) {
                    let bytes = codec::decode(codec, left, block).expect("what was encoded is decoded");
                    left = &left[bytes..];
                }
            });
        }
        assert!(left.is_empty(), "all blocks are decoded");
    }
    [&fastest[0], &fastest[1], &fastest[2]].map(Fastest::rate)
}

/// A row of the table.
struct Row {
    name: String,
    goal: Option<f64>,
    rates: [f64; 3],
}

impl Row {
    fn print(&self, json: bool) {
        let Self { name, goal, rates: [encode, feedback, decode] } = self;
        if json {
            let goal = goal.map_or("null".to_owned(), |goal| goal.to_string());
            println!(
                "{{\"codec\": \"{name}\", \"goal\": {goal}, \"encode\": {encode:.3}, \"encode_with_feedback\": {feedback:.3}, \
                 \"decode\": {decode:.3}}}"
            );
        } else {
            let goal = goal.map_or("-".to_owned(), |goal| goal.to_string());
            println!("{name:<24}  {goal:>6}  {encode:>8.2}  {feedback:>14.2}  {decode:>8.2}");
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let json = words.iter().any(|word| word == "--json");
    let wanted = words.iter().find(|word| !word.starts_with("--")).map_or("", |word| word);
    if !json {
        println!("{:<24}  {:>6}  {:>8}  {:>14}  {:>8}", "GB/s", "goal", "encode", "with feedback", "decode");
    }
    let values = gradients(1);
    for codec in Codec::EXAMPLES {
        let name = codec.to_string();
        if name.contains(wanted) {
            Row { name, goal: goal(codec), rates: rates(codec, &values) }.print(json);
        }
    }
    // What comes back where messages of few values were folded.
    let few: Vec<f32> = values.iter().map(|value| (value * 5.0).clamp(-4.0, 4.0).round() * 0.125).collect();
    let name = "exact, 9 values".to_owned();
    if name.contains(wanted) {
        Row { name, goal: None, rates: rates(Codec::Exact, &few) }.print(json);
    }
}
