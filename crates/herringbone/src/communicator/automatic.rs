//! The codecs of calls that leave them to the plan: the same on all ranks, whatever happens to reducers meanwhile.

use super::{
    handle::{GroupHandle, settings_of},
    residuals,
};
use crate::{
    config::settings::Bytes,
    core::{
        codec::{Codec, CodecChoice},
        collective::Collective,
        element::{DType, ReduceOp},
        plan::{self, predicted::class_of},
        prepare::Call,
    },
    fabric::Fabric,
    log,
    request::Request,
};
use std::sync::{Once, PoisonError};

/// The codec of a request.
pub(super) fn codec_of(fabric: &Fabric, group: &GroupHandle, request: &Request) -> Codec {
    match request.compression.choice {
        CodecChoice::Of(codec) => codec,
        CodecChoice::Automatic => chosen(fabric, group, &request.call).0,
    }
}

/// What the plan chooses for a call, and why. What cannot be coded goes as it is.
pub(super) fn chosen(fabric: &Fabric, group: &GroupHandle, call: &Call) -> (Codec, String) {
    if residuals::check(&Call { codec: Codec::Int8, ..*call }).is_err() {
        return (Codec::Plain, "codecs are for all_reduces of f32, sums and averages".to_owned());
    }
    if group.origin.shards.is_some() {
        return (Codec::Plain, "sums of shards are exact".to_owned());
    }
    let class = class_of((call.count * call.dtype.bytes()) as u64);
    let mut chosen = group.codecs.0.lock().unwrap_or_else(PoisonError::into_inner);
    chosen.entry(class).or_insert_with(|| predicted(fabric, group, class)).clone()
}

/// In a process, whatever its groups.
static WARNED: Once = Once::new();

fn predicted(fabric: &Fabric, group: &GroupHandle, bytes: u64) -> (Codec, String) {
    let settings = settings_of(fabric, group.number, group.rank, &group.members, Vec::new());
    let (fold, links) = (settings.sums.fold.clone(), settings.links());
    let guidance = &fabric.settings.guidance;
    let count = bytes as usize / DType::F32.bytes();
    let forced = guidance.for_call(Collective::AllReduce, count, bytes);
    let request = plan::Request {
        bytes,
        reducers: settings.parameters.reducers.len() as u32,
        hosts: &settings.hosts,
        links: links.as_ref(),
        forced: forced.as_ref(),
        ..plan::Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, 0, &fold)
    };
    let (codec, why) = plan::automatic(guidance, &request, settings.sizing);
    let about = format!("rank {}", fabric.job.rank);
    match guidance.calibration {
        // What the user has to do comes out without being asked for, once.
        None if group.rank == 0 && fold.size() > 1 => WARNED.call_once(|| {
            log::warn(&about, format_args!("compression=auto compresses nothing: {why}"));
        }),
        _ if group.rank == 0 => log::info(
            &about,
            format_args!(
                "compression=auto: all_reduces of about {} take {codec}; {why}",
                Bytes(bytes as usize)
            ),
        ),
        _ => {}
    }
    (codec, why)
}
