//! Codecs as one would write them down, to compare bits with: the real ones are shaped so that they become vector code.

use super::*;
use alloc::vec;

/// The code of a block. It is finite unless the codec is [`TopK`](Codec::TopK).
fn encoded(codec: Codec, values: &[f32]) -> Vec<u8> {
    let mut coded = vec![tag::CODED];
    match codec {
        Codec::Int8 => {
            let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            if !(127.0 / largest).is_finite() {
                // The least scale whose 127 steps reach the largest, and the nearest step in exact arithmetic.
                let units = |value: f32| f64::from(value) / f64::from(f32::from_bits(1));
                let scale = (units(largest) / 127.0).ceil();
                coded.extend((scale as u32).to_le_bytes());
                let code = |value: &f32| (units(*value) / scale.max(1.0)).round_ties_even() as i8 as u8;
                coded.extend(values.iter().map(code));
                return coded;
            }
            let inverse = 127.0 / largest;
            let scale = largest / 127.0;
            let scale = if (scale * 127.0).is_finite() { scale } else { f32::from_bits(scale.to_bits() - 1) };
            coded.extend(scale.to_le_bytes());
            let code = |value: &f32| (value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
            coded.extend(values.iter().map(code));
        }
        Codec::TwoBit { threshold } => {
            coded.resize(1 + 4 * values.len().div_ceil(16), 0);
            for (at, value) in values.iter().enumerate() {
                let code = match *value {
                    value if value >= threshold.value() => 0b11,
                    value if value <= -threshold.value() => 0b10,
                    _ => 0,
                };
                coded[1 + at / 4] |= code << (6 - 2 * (at % 4));
            }
        }
        Codec::Threshold { threshold } => {
            let exceeds = |(_, value): &(u16, &f32)| value.abs() > threshold.value();
            let sign = |value: f32| if value < 0.0 { 1 << 15 } else { 0 };
            let indices: Vec<u16> =
                (0..).zip(values).filter(exceeds).map(|(index, value)| index | sign(*value)).collect();
            coded.extend((indices.len() as u16).to_le_bytes());
            coded.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
        }
        Codec::TopK { share } => {
            let mut indices: Vec<u16> = (0..values.len() as u16).collect();
            // A stable sort: of equal ones the first stay first. Bits have the order of magnitudes, and NaNs are above all.
            let magnitude = |index: &u16| values[usize::from(*index)].to_bits() & 0x7fff_ffff;
            indices.sort_by_key(|index| core::cmp::Reverse(magnitude(index)));
            indices.truncate((f64::from(share.value()) * values.len() as f64).ceil() as usize);
            indices.sort_unstable();
            coded.clear();
            coded.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
            coded.extend(indices.iter().flat_map(|index| values[usize::from(*index)].to_le_bytes()));
        }
        _ => unreachable!("{codec} has no plain twin"),
    }
    coded
}

/// Blocks of all kinds that could be coded wrongly, of a length.
fn blocks(count: usize) -> Vec<Vec<f32>> {
    let mut state = count as u64 + 1;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let any = |random: &mut dyn FnMut() -> u32| (0..count).map(|_| f32::from_bits(random())).collect();
    let few = [0.5, -0.5, 0.0, -0.0, 0.25, -0.25, 1.0];
    let denormal = |bits: u32| f32::from_bits(bits & 0x8000_ffff);
    let mut blocks: Vec<Vec<f32>> = vec![
        (0..count).map(|_| random() as i32 as f32 * 2f32.powi(-31)).collect(),
        (0..count).map(|_| few[random() as usize % few.len()]).collect(),
        (0..count).map(|_| denormal(random())).collect(),
        (0..count).map(|_| if random() % 2 == 0 { f32::MAX } else { -f32::MAX }).collect(),
        (0..count).map(|at| at as f32 * 0.25).collect(),
        vec![0.5; count],
        vec![-0.0; count],
        vec![f32::from_bits(1); count],
    ];
    for magnitude in [2e-43, 1e-41, 1e-39, 2.9e-39, 1e-38, 1e-30, 1.0, 1e30] {
        // Halves of a step of int8, and what lies beside them.
        let half = |steps: u32| (steps % 255) as f32 - 127.0 + [0.0, 0.5][steps as usize / 255 % 2];
        let beside =
            |value: f32, by: u32| f32::from_bits(value.to_bits().wrapping_add(by % 3).wrapping_sub(1));
        let mut steps: Vec<f32> = (0..count).map(|_| beside(half(random()), random())).collect();
        steps[0] = 127.0;
        blocks.push(steps.into_iter().map(|step| step * magnitude).collect());
    }
    // Any bits: many NaNs and infinities are among them.
    blocks.push(any(&mut random));
    let mut odd: Vec<f32> = any(&mut random);
    let values = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
    odd.iter_mut().for_each(|value| *value = values[random() as usize % values.len()]);
    blocks.push(odd);
    blocks
}

const COUNTS: [usize; 12] = [1, 2, 3, 5, 8, 15, 17, 64, 100, 1023, BLOCK - 1, BLOCK];

fn codecs(names: &[&str]) -> Vec<Codec> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

#[test]
fn blocks_are_coded_as_one_would_write_it_down() {
    let names = ["int8", "twobit:0.5", "threshold:0.25", "topk:0.01", "topk:0.3", "topk:0.999", "topk:1"];
    let mut compared = 0;
    for (codec, count) in codecs(&names).into_iter().flat_map(|codec| COUNTS.map(|count| (codec, count))) {
        for (number, values) in blocks(count).iter().enumerate() {
            if codec.is_tagged() && !values.iter().all(|value| value.is_finite()) {
                continue;
            }
            let mut coded = Vec::new();
            codec.encode(0, values, &mut coded);
            assert!(coded == encoded(codec, values), "{codec}, block {number} of {count}");
            compared += 1;
        }
    }
    assert!(compared > 800, "{compared}");
}

/// What is left is what the receiver lacks, to the bit: what one gets from decoding and subtracting.
#[test]
fn what_is_left_is_what_decoding_and_subtracting_leaves() {
    let codecs = Codec::EXAMPLES.into_iter().chain([Codec::Plain]).chain(codecs(&[
        "topk:0.5",
        "onebit:0.5",
        "onebit:-0.5",
    ]));
    for (codec, count) in codecs.flat_map(|codec| COUNTS.map(|count| (codec, count))) {
        let blocks = blocks(count);
        for (number, (values, other)) in blocks.iter().zip(blocks.iter().cycle().skip(3)).enumerate() {
            // What was left is finite.
            let before: Vec<f32> =
                other.iter().map(|value| if value.is_finite() { *value } else { 0.25 }).collect();
            let (mut coded, mut after) = (Vec::new(), vec![9.0; count]);
            codec.encode_with(7, values, &before, &mut after, &mut coded);
            let whole: Vec<f32> = values.iter().zip(&before).map(|(value, before)| value + before).collect();
            let (mut alone, mut decoded) = (Vec::new(), vec![0.0; count]);
            codec.encode(7, &whole, &mut alone);
            assert!(coded == alone, "{codec}, block {number} of {count}");
            assert_eq!(codec.decode(&coded, &mut decoded), Ok(coded.len()));
            let is_kept = codec.is_tagged() && coded[0] == tag::NOT_FINITE;
            for at in 0..count {
                let left = whole[at] - decoded[at];
                let left = if left.is_finite() { left } else { 0.0 };
                let left = if is_kept { before[at] } else { left };
                assert_eq!(
                    after[at].to_bits(),
                    left.to_bits(),
                    "{codec}, block {number} of {count}, element {at}: {} of {}",
                    after[at],
                    whole[at]
                );
            }
        }
    }
}
