use super::*;
use alloc::{string::ToString, vec};

/// Each kind of codec, some with several parameters.
fn all() -> Vec<Codec> {
    let others =
        ["none", "onebit", "topk:1", "randomk:0.1", "threshold:0.25"].map(|name| name.parse().unwrap());
    Codec::EXAMPLES.into_iter().chain(others).collect()
}

/// Numbers of many magnitudes.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let number = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * 2f32.powi((state >> 7) as i32 % 8 - 4)
    };
    (0..count).map(number).collect()
}

fn decoded(codec: Codec, coded: &[u8], count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    assert_eq!(codec.decode(coded, &mut values), Ok(coded.len()), "{codec}");
    values
}

#[test]
fn names_and_numbers_round_trip() {
    for codec in all() {
        assert_eq!(codec.to_string().parse(), Ok(codec), "{codec}");
        let code = codec.code();
        assert_eq!(Codec::from_code(code), Some(codec), "{codec}");
    }
    assert_eq!(" topk : 0.5 ".parse(), "topk:0.5".parse::<Codec>());
    assert_eq!(
        Codec::from_code(CodecCode { number: 0, parameter: 1 }),
        None,
        "a parameter that it does not have"
    );
    assert_eq!(Codec::from_code(CodecCode { number: 99, parameter: 0 }), None);
    for (text, said) in [
        ("", "topk:SHARE"),
        ("INT8", "no codec is called \"INT8\""),
        ("int8:1", "int8 takes no number"),
        ("topk", "at most 1, as in topk:0.01"),
        ("topk:0", "above 0 and at most 1"),
        ("topk:1.5", "above 0 and at most 1"),
        ("topk:nan", "above 0 and at most 1"),
        ("twobit:0", "above 0, as in twobit:0.5"),
        ("twobit:-1", "above 0"),
        ("onebit:inf", "a finite number"),
        ("threshold", "above 0, as in threshold:0.5"),
    ] {
        let error = text.parse::<Codec>().expect_err(text);
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// Every codec, for blocks of many lengths: within its bound, decoded whole, and what is left makes up for what is lost.
#[test]
fn what_is_decoded_and_what_is_left_are_the_values() {
    for codec in all() {
        for count in [1, 2, 7, 8, 9, 31, 32, 33, 100, BLOCK - 1, BLOCK] {
            let (values, before) = (values(count, 1), values(count, 2));
            let (mut coded, mut after) = (Vec::new(), vec![9.0; count]);
            codec.encode_with(5, &values, &before, &mut after, &mut coded);
            assert!(coded.len() <= codec.bound(count) - PREFIX_BYTES, "{codec} {count}");
            assert_eq!(codec.check(&coded, count), Ok(()), "{codec} {count}");
            let decoded = decoded(codec, &coded, count);
            for at in 0..count {
                let whole = values[at] + before[at];
                assert_eq!(after[at], whole - decoded[at], "{codec} {count} at {at}");
            }
            if matches!(codec, Codec::Plain | Codec::Exact) {
                assert!(after.iter().all(|left| *left == 0.0), "{codec}");
            }
        }
    }
}

#[test]
fn messages_end_where_their_blocks_do() {
    for codec in all() {
        let count = 2 * BLOCK + 5;
        let values = values(count, 3);
        let mut coded = Vec::new();
        values.chunks(BLOCK).for_each(|block| codec.encode(0, block, &mut coded));
        assert!(coded.len() <= codec.bound(count) - PREFIX_BYTES, "{codec}");
        assert_eq!(codec.check(&coded, count), Ok(()), "{codec}");
        assert_eq!(codec.check(&coded[..coded.len() - 1], count), Err(CodedError::Short), "{codec}");
        coded.push(0);
        assert_eq!(codec.check(&coded, count), Err(CodedError::Long), "{codec}");
    }
    assert_eq!(Codec::Int8.check(&[], 0), Ok(()));
}

/// MXNet's own vectors of tests/nightly/dist_sync_kvstore.py and the kernel's masks: `r += g`, codes from the top bits, words
/// filled up with 0.
#[test]
fn twobit_is_mxnets() {
    let codec: Codec = "twobit:0.5".parse().unwrap();
    let gradient = [0.5, -0.5, 0.49, -0.49, 2.0, -2.0, 0.0];
    let (mut coded, mut left) = (Vec::new(), [0.0; 7]);
    codec.encode_with(0, &gradient, &[0.0; 7], &mut left, &mut coded);
    assert_eq!(coded, [tag::CODED, 0b1110_0000, 0b1110_0000, 0, 0]);
    assert_eq!(left, [0.0, 0.0, 0.49, -0.49, 1.5, -1.5, 0.0]);
    assert_eq!(decoded(codec, &coded, 7), [0.5, -0.5, 0.0, 0.0, 0.5, -0.5, 0.0]);
    let mut later = [0.0; 7];
    coded.clear();
    codec.encode_with(0, &[0.25; 7], &left, &mut later, &mut coded);
    assert_eq!(decoded(codec, &coded, 7), [0.0, 0.0, 0.5, 0.0, 0.5, -0.5, 0.0]);
    assert_eq!(later, [0.25, 0.25, 0.24000001, -0.24000001, 1.25, -0.75, 0.25]);
    assert_eq!(codec.check(&[tag::CODED, 0b0100_0000, 0, 0, 0], 7), Err(CodedError::Code));
}

#[test]
fn onebit_is_mxnets() {
    let codec: Codec = "onebit:0".parse().unwrap();
    let gradient = [0.5, -0.5, 0.0, 1.0, -3.0, 0.25, 0.1, -0.1, 7.0];
    let (mut coded, mut left) = (Vec::new(), [0.0; 9]);
    codec.encode_with(0, &gradient, &[0.0; 9], &mut left, &mut coded);
    assert_eq!(coded, [tag::CODED, 0b1001_0110, 0b1000_0000, 0, 0]);
    assert_eq!(left, [-0.5, 0.5, 1.0, 0.0, -2.0, -0.75, -0.9, 0.9, 6.0]);
}

#[test]
fn signs_have_the_mean_magnitude() {
    let mut coded = Vec::new();
    Codec::Sign.encode(0, &[1.0, -2.0, 3.0, -0.0], &mut coded);
    assert_eq!(decoded(Codec::Sign, &coded, 4), [1.5, -1.5, 1.5, 1.5]);
}

#[test]
fn int8_rounds_to_even_and_survives_tiny_blocks() {
    let mut coded = Vec::new();
    Codec::Int8.encode(0, &[127.0, 0.5, 1.5, -2.5, -127.0], &mut coded);
    assert_eq!(decoded(Codec::Int8, &coded, 5), [127.0, 0.0, 2.0, -2.0, -127.0]);
    for tiny in [0.0, f32::from_bits(1), 1e-44, 1e-40, 1e-38, 3e-37, 1e-36] {
        coded.clear();
        Codec::Int8.encode(0, &[tiny, 0.0, -tiny], &mut coded);
        let decoded = decoded(Codec::Int8, &coded, 3);
        assert!(decoded[1] == 0.0 && decoded[0] == -decoded[2], "{tiny:e}: {decoded:?}");
        // Half a step, where a step may be the smallest f32.
        let most = (tiny / 254.0).max(f32::from_bits(1));
        assert!(
            (decoded[0] - tiny).abs() <= most && (tiny == 0.0) == (decoded[0] == 0.0),
            "{tiny:e}: {decoded:?}"
        );
    }
    coded.clear();
    Codec::Int8.encode(0, &[f32::MAX, -f32::MAX], &mut coded);
    let largest = decoded(Codec::Int8, &coded, 2);
    assert!(largest.iter().all(|value| value.is_finite() && value.abs() > 0.999 * f32::MAX), "{largest:?}");
}

/// Values of one magnitude, with signs and fractions that differ.
fn values_of(magnitude: f32, count: usize, seed: u32) -> Vec<f32> {
    let mut values = values(count, seed);
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    values.iter_mut().for_each(|value| *value = *value / largest * magnitude);
    values
}

/// Whatever the magnitude, down to the smallest f32, no codec that follows the magnitude makes a block nothing: the relative error is
/// that of a block of ones, except for the last bit that such numbers have.
#[test]
fn tiny_blocks_arrive_as_others_do() {
    let following = ["int8", "sign", "topk:0.5", "exact"].map(|name| name.parse::<Codec>().unwrap());
    let length = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let unit = f64::from(f32::from_bits(1));
    for (codec, count) in
        following.into_iter().flat_map(|codec| [1, 7, 100, BLOCK].map(|count| (codec, count)))
    {
        let error = |values: &[f32]| {
            let (mut coded, mut after) = (Vec::new(), vec![0.0; count]);
            codec.encode_with(0, values, &vec![0.0; count], &mut after, &mut coded);
            length(&after) / length(values)
        };
        let usual = error(&values_of(1.0, count, 11));
        for exponent in (-149..=-100).step_by(3) {
            let magnitude = 2f64.powi(exponent);
            let values = values_of(magnitude as f32, count, 11);
            let of_all = (count as f64).sqrt() / length(&values);
            let most = match codec {
                // Half a step, which is a multiple of the smallest f32.
                Codec::Int8 => (magnitude / 127.0 + unit) / 2.0 * of_all,
                _ => 1.01 * usual + unit * of_all,
            };
            let tiny = error(&values);
            assert!(
                tiny <= most,
                "{codec}, {count} of 2^{exponent}: {tiny} above {most}, and {usual} of ones"
            );
        }
    }
}

/// With feedback nothing of a tiny gradient is lost for good: what has arrived differs from the sum by what is left, which stays small.
#[test]
fn tiny_gradients_are_not_left_for_good() {
    for magnitude in [1e-44, 1e-38, 2e-37] {
        let gradient = values_of(magnitude, 100, 3);
        let (mut before, mut after, mut arrived) = (vec![0.0; 100], vec![0.0; 100], vec![0.0f64; 100]);
        for _ in 0..64 {
            let mut coded = Vec::new();
            Codec::Int8.encode_with(0, &gradient, &before, &mut after, &mut coded);
            let decoded = decoded(Codec::Int8, &coded, 100);
            arrived.iter_mut().zip(&decoded).for_each(|(sum, value)| *sum += f64::from(*value));
            before.copy_from_slice(&after);
        }
        for ((sum, value), left) in arrived.iter().zip(&gradient).zip(&after) {
            let missing = 64.0 * f64::from(*value) - sum;
            assert!(
                missing.abs() <= f64::from(magnitude),
                "{missing:e} of {value:e} is missing, {left:e} is left"
            );
        }
    }
}

#[test]
fn the_largest_are_kept_and_of_equal_ones_the_first() {
    let codec: Codec = "topk:0.5".parse().unwrap();
    let mut coded = Vec::new();
    codec.encode(0, &[1.0, -3.0, 2.0, 2.0, -2.0], &mut coded);
    assert_eq!(coded.len(), 6 * 3);
    assert_eq!(decoded(codec, &coded, 5), [0.0, -3.0, 2.0, 2.0, 0.0]);
    let share: Codec = "topk:0.01".parse().unwrap();
    assert_eq!(share.bound(BLOCK) - PREFIX_BYTES, 6 * 41);
}

#[test]
fn ranks_draw_the_same_places_from_the_same_seed() {
    let codec: Codec = "randomk:0.25".parse().unwrap();
    let places = |seed| {
        let mut coded = Vec::new();
        codec.encode(seed, &[1.0; 64], &mut coded);
        decoded(codec, &coded, 64)
    };
    assert_eq!(places(1), places(1));
    assert_ne!(places(1), places(2));
    assert_eq!(places(3).iter().filter(|value| **value == 1.0).count(), 16);
}

#[test]
fn what_exceeds_a_threshold_is_sent_with_its_sign() {
    let codec: Codec = "threshold:0.5".parse().unwrap();
    let mut coded = Vec::new();
    codec.encode(0, &[0.5, 0.6, -0.7, 0.0], &mut coded);
    assert_eq!(coded, [tag::CODED, 2, 0, 1, 0, 2, 0x80]);
    assert_eq!(decoded(codec, &coded, 4), [0.0, 0.5, -0.5, 0.0]);
}

/// Sums of a few coded numbers: exact, and short.
#[test]
fn exact_takes_the_shortest_way() {
    let few: Vec<f32> = (0..BLOCK).map(|at| (at % 9) as f32 * 0.5 - 2.0).collect();
    let mut sparse = vec![0.0; BLOCK];
    (0..164).for_each(|at| sparse[at * 7] = at as f32 + 0.25);
    let cases = [(few, 1 + 1 + 36 + BLOCK / 2), (sparse, 1 + 2 + 6 * 164), (values(BLOCK, 5), 1 + 4 * BLOCK)];
    for (values, bytes) in cases {
        let mut coded = Vec::new();
        Codec::Exact.encode(0, &values, &mut coded);
        assert_eq!(coded.len(), bytes);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&decoded(Codec::Exact, &coded, BLOCK)), bits(&values));
    }
    let odd = [-0.0, f32::NAN, f32::INFINITY, 0.0, -0.0];
    let mut coded = Vec::new();
    Codec::Exact.encode(0, &odd, &mut coded);
    let decoded = decoded(Codec::Exact, &coded, 5);
    assert!(odd.iter().zip(&decoded).all(|(one, other)| one.to_bits() == other.to_bits()));
}

/// A NaN or an infinity goes through casts as it is, and makes the whole block of a quantiser NaNs; what was left stays.
#[test]
fn what_is_not_finite_shows() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for codec in all() {
            let values = [1.0, odd, -1.0];
            let (mut coded, mut after) = (Vec::new(), [0.0; 3]);
            codec.encode_with(0, &values, &[0.125; 3], &mut after, &mut coded);
            let decoded = decoded(codec, &coded, 3);
            assert!(after.iter().all(|left| left.is_finite()), "{codec}: {after:?}");
            if codec.is_tagged() {
                assert!(decoded.iter().all(|value| value.is_nan()), "{codec}: {decoded:?}");
                assert_eq!(after, [0.125; 3], "{codec}");
            } else {
                assert!(!decoded[1].is_finite(), "{codec}: {decoded:?}");
            }
        }
    }
}
