//! Whether a codec is worth its time.

use super::{
    Guidance, Request,
    predicted::{Candidate, best, class_of, shown},
};
use crate::{codec::Codec, prepare::Sizing, simulate::Calibration};
use alloc::{format, string::String, vec::Vec};

/// What [`automatic`] takes into account, the more exact first.
const AUTOMATIC: [Codec; 2] = [Codec::Bf16, Codec::Int8];

/// Of a hundred parts of a time, what has to be left of it for a coarser codec to be taken.
const WORTH_PERCENT: u128 = 90;

/// The best candidate of an all-reduce of f32 for each codec, by predicted time.
pub fn compare_codecs(
    request: &Request<'_>,
    known: &Calibration,
    sizing: Sizing,
    codecs: &[Codec],
) -> Vec<(Codec, Candidate)> {
    let of = |codec: &Codec| Some((*codec, best(&Request { codec: *codec, ..*request }, known, sizing)?));
    codecs.iter().filter_map(of).collect()
}

/// The codec of an all-reduce of f32 that leaves the choice to the plan, and why. [`Codec::Bf16`] is compared with no
/// codec, and then [`Codec::Int8`], which is coarser, with the better of these. A codec is chosen if it reduces the
/// predicted time by at least a tenth. All ranks with the same constants choose alike.
pub fn automatic(guidance: &Guidance, request: &Request<'_>, sizing: Sizing) -> (Codec, String) {
    let Some(known) = guidance.calibration.filter(|_| request.group.size() > 1) else {
        let why = match request.group.size() {
            1 => "a single rank has nobody to send to",
            _ => "without a calibration nothing is known of the links; see HERRINGBONE_CALIBRATION",
        };
        return (Codec::Plain, String::from(why));
    };
    // As plans are made: calls of many sizes take one choice.
    let request = &Request { bytes: class_of(request.bytes), ..*request };
    let plain = [Codec::Plain];
    let compared = compare_codecs(request, &known, sizing, &[&plain[..], &AUTOMATIC].concat());
    let Some(((_, without), coded)) = compared.split_first() else {
        return (Codec::Plain, String::from("it cannot be coded"));
    };
    let (mut codec, mut least) = (Codec::Plain, without);
    for (next, candidate) in coded {
        let worth = u128::from(least.outcome.total()) * WORTH_PERCENT / 100;
        if u128::from(candidate.outcome.total()) <= worth {
            (codec, least) = (*next, candidate);
        }
    }
    let alternatives = coded.iter().map(|(codec, candidate)| format!(", {codec} {}", shown(candidate)));
    (codec, format!("predicted: none {}{}", shown(without), alternatives.collect::<String>()))
}
