//! Codecs in predicted times: the bytes that are expected are those that come, and a codec is taken where it is worth it.

use herringbone_core::{
    algorithm::Algorithm,
    codec::{BLOCK, Codec, PREFIX_BYTES},
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    plan::{Guidance, Request, automatic, compare_codecs},
    prepare::Sizing,
    simulate::{Calibration, Costs, Workload},
};
use proptest::prelude::*;

const MIB: usize = 1 << 20;
const MBIT_100: u64 = 12_500_000;

fn gradients(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| 0.8 * (uniform() + uniform() + uniform())).collect()
}

/// Encodes a whole tensor, block by block, with a prefix as messages have one.
fn encoded(codec: Codec, values: &[f32]) -> Vec<u8> {
    let mut coded = vec![0; PREFIX_BYTES];
    for (block, values) in values.chunks(BLOCK).enumerate() {
        codec.encode(block as u64, values, &mut coded);
    }
    coded
}

fn decoded(codec: Codec, coded: &[u8], count: usize) -> Vec<f32> {
    let (mut values, mut at) = (vec![0.0; count], PREFIX_BYTES);
    for block in values.chunks_mut(BLOCK) {
        at += codec.decode(&coded[at..], block).unwrap();
    }
    values
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// What is expected is what comes, unless the numbers decide; then it is no less. Of results it is no less either, and not much
    /// more where sums do not happen to be alike.
    #[test]
    fn the_bytes_that_are_expected_come(count in 1usize..3 * BLOCK, workers in 1u32..9, seed in any::<u64>()) {
        for codec in Codec::EXAMPLES {
            let mut sum = vec![0.0f32; count];
            for worker in 0..workers {
                let coded = encoded(codec, &gradients(seed ^ u64::from(worker), count));
                let expected = codec.expected_bytes(count);
                prop_assert!(coded.len() <= expected, "{codec}: {} of {expected}", coded.len());
                prop_assert!(codec.depends_on_numbers() || coded.len() == expected, "{codec}");
                for (sum, value) in sum.iter_mut().zip(decoded(codec, &coded, count)) {
                    *sum += value;
                }
            }
            let (result, expected) = (encoded(codec.result(), &sum), codec.expected_result_bytes(count, workers));
            prop_assert!(result.len() <= expected, "{codec} of {workers}: {} of {expected}", result.len());
        }
    }
}

/// For the codecs of which results have few values, on a tensor of some blocks.
#[test]
fn results_take_about_what_is_expected() {
    for (codec, workers) in
        [("twobit:0.5", 4), ("onebit:0", 4), ("sign", 4), ("topk:0.01", 4), ("randomk:0.01", 8)]
    {
        let (codec, count): (Codec, _) = (codec.parse().unwrap(), 16 * BLOCK);
        let mut sum = vec![0.0f32; count];
        for worker in 0..workers {
            let coded = encoded(codec, &gradients(worker, count));
            sum.iter_mut().zip(decoded(codec, &coded, count)).for_each(|(sum, value)| *sum += value);
        }
        let (came, expected) =
            (encoded(Codec::Exact, &sum).len(), codec.expected_result_bytes(count, workers as u32));
        let part = came as f64 / expected as f64;
        assert!((0.7..=1.0).contains(&part), "{codec}: {came} of {expected}");
    }
}

/// A request for an all-reduce of f32 among hosts of so many ranks, and how it is cut.
fn request<'a>(group: &'a Group, hosts: &'a [u32], reducers: u32, bytes: usize) -> (Request<'a>, Sizing) {
    let request = Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, bytes / 4, group);
    let hosts_count = Sizing::distinct(hosts);
    let sizing = Sizing {
        hosts: hosts_count,
        shared: hosts_count == 1,
        segment_bytes: 0,
        most_staged: Workload::STAGED,
    };
    (Request { reducers, hosts, ..request }, sizing)
}

fn guidance(port: u64) -> Guidance {
    let calibration = Calibration { port, reducer_port: port, ..Calibration::DEFAULT };
    Guidance { calibration: Some(calibration), ..Guidance::default() }
}

/// What `auto` takes among ranks with a host each, or all on one.
fn taken(n: u32, per_host: u32, reducers: u32, guidance: &Guidance, bytes: usize) -> (String, String) {
    let hosts: Vec<u32> = (0..n).map(|rank| rank / per_host).collect();
    let group = Group::of_size(n);
    let (request, sizing) = request(&group, &hosts, reducers, bytes);
    let (codec, why) = automatic(guidance, &request, sizing);
    (codec.to_string(), why)
}

#[test]
fn a_codec_is_taken_where_the_link_is_what_takes_time() {
    for reducers in [0, 4] {
        let (codec, why) = taken(4, 1, reducers, &guidance(MBIT_100), 25 * MIB);
        assert_eq!(codec, "int8", "{why}");
        assert!(why.starts_with("predicted: none ") && why.contains(", int8 "), "{why}");
    }
    for (what, (codec, why)) in [
        ("a fast link", taken(4, 1, 0, &guidance(50_000_000_000), 25 * MIB)),
        ("no link", taken(4, 4, 0, &guidance(MBIT_100), 25 * MIB)),
        ("few bytes", taken(4, 1, 0, &guidance(MBIT_100), 64)),
        ("a single rank", taken(1, 1, 0, &guidance(MBIT_100), 25 * MIB)),
        ("no calibration", taken(4, 1, 0, &Guidance::default(), 25 * MIB)),
    ] {
        assert_eq!(codec, "none", "{what}: {why}");
    }
    let (_, why) = taken(4, 1, 0, &Guidance::default(), 25 * MIB);
    assert!(why.contains("HERRINGBONE_CALIBRATION"), "{why}");
}

/// The coarser one has to gain a tenth once more, or the finer one stays.
#[test]
fn what_loses_more_has_to_gain_more() {
    let slow_int8 = Costs { encode: 150_000_000, decode: 150_000_000, ..Costs::DEFAULT };
    let calibration = Calibration { port: MBIT_100, costs: slow_int8, ..Calibration::DEFAULT };
    let guidance = Guidance { calibration: Some(calibration), ..Guidance::default() };
    let hosts = [0, 1, 2, 3];
    let group = Group::of_size(4);
    let (request, sizing) = request(&group, &hosts, 0, 25 * MIB);
    let codecs = [Codec::Plain, Codec::Bf16, Codec::Int8];
    let known = guidance.calibration.unwrap();
    let times: Vec<u64> = compare_codecs(&request, &known, sizing, &codecs)
        .iter()
        .map(|(_, candidate)| candidate.outcome.total())
        .collect();
    let (codec, why) = automatic(&guidance, &request, sizing);
    let [plain, bf16, int8] = times[..] else { panic!("three codecs: {times:?}") };
    let worth = |time: u64, least: u64| u128::from(time) * 10 <= u128::from(least) * 9;
    let expected = match (worth(bf16, plain), worth(int8, if worth(bf16, plain) { bf16 } else { plain })) {
        (_, true) => Codec::Int8,
        (true, false) => Codec::Bf16,
        (false, false) => Codec::Plain,
    };
    assert_eq!(codec, expected, "{why}");
}

/// Of 25 MiB among four hosts the busiest port carries what the codecs say, and the time falls with it where links are slow. For
/// topk the workers alone are faster than with reducers: 1.5 x 0.0376 of what the port carries with reducers and no codec.
#[test]
fn times_fall_with_the_bytes_on_slow_links() {
    let hosts = [0, 1, 2, 3];
    let group = Group::of_size(4);
    let known = guidance(MBIT_100).calibration.unwrap();
    let codecs: Vec<Codec> =
        ["none", "bf16", "int8", "twobit:0.5", "topk:0.01"].map(|name| name.parse().unwrap()).to_vec();
    let parts = |reducers: u32| -> Vec<(f64, f64)> {
        let (request, sizing) = request(&group, &hosts, reducers, 25 * MIB);
        let compared = compare_codecs(&request, &known, sizing, &codecs);
        let cost = |at: usize| {
            let outcome = &compared[at].1.outcome;
            (outcome.total() as f64, outcome.busiest_link_bytes() as f64)
        };
        let (time, bytes) = cost(0);
        (0..codecs.len()).map(|at| (cost(at).0 / time, cost(at).1 / bytes)).collect()
    };
    for (reducers, expected) in
        [(0, [1.0, 0.5, 0.2505, 0.096, 0.0376]), (4, [1.0, 0.5, 0.2505, 0.128, 0.0564])]
    {
        for ((codec, (time, bytes)), expected) in codecs.iter().zip(parts(reducers)).zip(expected) {
            assert!(
                (bytes / expected - 1.0).abs() < 0.02,
                "{codec}, {reducers} reducers: {bytes} of the bytes"
            );
            assert!(time < expected + 0.04, "{codec}, {reducers} reducers: {time} of the time");
        }
    }
}

/// Predicted times choose between both coded forms; without them, and forced, reducers decide.
#[test]
fn a_coded_form_is_chosen() {
    let hosts = [0, 1, 2, 3];
    let group = Group::of_size(4);
    let chosen = |guidance: &Guidance, reducers, forced: Option<&Algorithm>| {
        let (request, sizing) = request(&group, &hosts, reducers, 25 * MIB);
        let request = Request { codec: Codec::Int8, forced, ..request };
        guidance.choose(&request, sizing).unwrap().algorithm.to_string()
    };
    let plain = Guidance::default();
    assert_eq!(chosen(&plain, 0, None), "coded(radix)");
    assert_eq!(chosen(&plain, 1, None), "coded(reduction_server)");
    assert_eq!(chosen(&plain, 1, Some(&Algorithm::Ring)), "coded(radix)");
    assert_eq!(chosen(&plain, 2, Some(&Algorithm::ReductionServer)), "coded(reduction_server)");
    assert_eq!(chosen(&guidance(MBIT_100), 4, None), "coded(reduction_server)");
    assert_eq!(chosen(&guidance(MBIT_100), 1, None), "coded(radix)", "one reducer is a bottleneck");
}
