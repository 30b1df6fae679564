//! Boosted trees of one split each, learned as gradient boosting does it: a program that continues where it was if processes are lost.
//!
//! ```sh
//! cargo build -p herringbone --example rabit_boosting
//! herringbone launch -n 4 --max-attempts 9 -- target/debug/examples/rabit_boosting testdata/digits/digits.txt
//! ```
//! Kill any of its processes, also several: the program ends with the same trees.

use herringbone::{ReduceOp, rabit::Rabit};
use std::{
    env,
    error::Error,
    fs,
    hash::{DefaultHasher, Hasher},
    thread,
    time::Duration,
};

/// Pixels of a digit, and how much ink each may have.
const PIXELS: usize = 64;
const INKS: usize = 17;
const ROUNDS: u32 = 300;
/// How much of each tree's answer is taken.
const RATE: f64 = 0.3;

/// A handwritten digit. The program learns whether it is even.
struct Digit {
    pixels: [u8; PIXELS],
    is_even: bool,
}

/// A tree with one split: what it adds to the score of a digit with at most so much ink in a pixel, and of others.
#[derive(Clone, Copy)]
struct Stump {
    pixel: u32,
    ink: u32,
    light: f64,
    dark: f64,
}

impl Stump {
    const BYTES: usize = 24;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.pixel.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.ink.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.light.to_le_bytes());
        bytes[16..].copy_from_slice(&self.dark.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let float = |at: usize| f64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Self { pixel: number(0), ink: number(4), light: float(8), dark: float(16) }
    }

    fn answer(self, digit: &Digit) -> f64 {
        if u32::from(digit.pixels[self.pixel as usize]) <= self.ink { self.light } else { self.dark }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let path = arguments.next().ok_or("which digits? testdata/digits/digits.txt, for example")?;
    // So that there is time to kill a process.
    let pause: u64 = arguments.next().map_or(Ok(0), |milliseconds| milliseconds.parse())?;

    let mut rabit = Rabit::init()?;
    // Each rank looks at its own digits.
    let digits: Vec<Digit> =
        read(&path)?.into_iter().skip(rabit.rank() as usize).step_by(rabit.size() as usize).collect();
    let mut trees: Vec<Stump> = match rabit.load_checkpoint()? {
        Some(models) => models.global.as_chunks().0.iter().map(Stump::from_bytes).collect(),
        None => Vec::new(),
    };
    let score = |digit: &Digit| trees.iter().fold(0.0, |score, tree| score + tree.answer(digit));
    let mut scores: Vec<f64> = digits.iter().map(score).collect();

    while rabit.version() < ROUNDS {
        let mut sums = vec![0.0; 2 * PIXELS * INKS];
        // If the others have the sums already, they are not computed.
        rabit.all_reduce_prepared(&mut sums, ReduceOp::Sum, |sums| add_up(&digits, &scores, sums))?;
        let tree = best_split(&sums);
        scores.iter_mut().zip(&digits).for_each(|(score, digit)| *score += tree.answer(digit));
        trees.push(tree);
        rabit.checkpoint(bytes_of(&trees))?;
        if rabit.rank() == 0 && rabit.version() % 10 == 0 {
            println!("tree {} of {ROUNDS}", rabit.version());
        }
        thread::sleep(Duration::from_millis(pause));
    }

    let is_right = |(score, digit): &(&f64, &Digit)| (**score > 0.0) == digit.is_even;
    let mut right = [scores.iter().zip(&digits).filter(is_right).count() as u64, digits.len() as u64];
    rabit.all_reduce(&mut right, ReduceOp::Sum)?;
    let mut digest = DefaultHasher::new();
    digest.write(&bytes_of(&trees));
    let share = 100.0 * right[0] as f64 / right[1] as f64;
    println!("{share:.1} % of the digits are known as even or odd; digest {:016x}", digest.finish());
    rabit.finalize()?;
    Ok(())
}

/// One digit a line: a character for each pixel, and the digit.
fn read(path: &str) -> Result<Vec<Digit>, Box<dyn Error>> {
    let digit = |line: &str| {
        let (image, digit) = line.split_once(' ')?;
        let inks: Option<Vec<u8>> = image.chars().map(|ink| Some(ink.to_digit(INKS as u32)? as u8)).collect();
        Some(Digit { pixels: inks?.try_into().ok()?, is_even: digit.parse::<u8>().ok()? % 2 == 0 })
    };
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let digits: Option<Vec<Digit>> = text.lines().map(digit).collect();
    digits.ok_or_else(|| format!("{path}: a line is no digit").into())
}

fn bytes_of(trees: &[Stump]) -> Vec<u8> {
    trees.iter().flat_map(|tree| tree.to_bytes()).collect()
}

/// For each pixel and ink the sums of the first and second derivatives of the logistic loss.
fn add_up(digits: &[Digit], scores: &[f64], sums: &mut [f64]) {
    sums.fill(0.0);
    for (digit, score) in digits.iter().zip(scores) {
        let likely = 1.0 / (1.0 + (-score).exp());
        let (first, second) = (likely - f64::from(u8::from(digit.is_even)), likely * (1.0 - likely));
        for (pixel, ink) in digit.pixels.iter().enumerate() {
            let at = 2 * (pixel * INKS + usize::from(*ink));
            sums[at] += first;
            sums[at + 1] += second;
        }
    }
}

/// The split that lowers the loss most, by the sums of all ranks.
fn best_split(sums: &[f64]) -> Stump {
    let mut best = Stump { pixel: 0, ink: 0, light: 0.0, dark: 0.0 };
    let mut most = f64::NEG_INFINITY;
    for (pixel, inks) in (0..).zip(sums.chunks(2 * INKS)) {
        let sum =
            |inks: &[f64]| inks.chunks(2).fold([0.0, 0.0], |sum, ink| [sum[0] + ink[0], sum[1] + ink[1]]);
        let gain = |[first, second]: [f64; 2]| first * first / (second + 1.0);
        let answer = |[first, second]: [f64; 2]| -RATE * first / (second + 1.0);
        for (ink, at) in (0..).zip((2..2 * INKS).step_by(2)) {
            let (light, dark) = (sum(&inks[..at]), sum(&inks[at..]));
            if gain(light) + gain(dark) > most {
                most = gain(light) + gain(dark);
                best = Stump { pixel, ink, light: answer(light), dark: answer(dark) };
            }
        }
    }
    best
}
