//! Choices that calls leave to the plan: codecs, which are the same on all ranks, whatever happens to reducers
//! meanwhile, and runs of shards.

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
        plan::{self, ChosenRuns, predicted::class_of},
        prepare::{Call, Sizing},
        shards::ShardsError,
    },
    fabric::Fabric,
    log,
    request::Request,
};
use std::{
    sync::{Once, PoisonError},
    time::Duration,
};

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

/// Has the plan asked about an all-reduce of so many bytes in a group.
fn asked<T>(
    fabric: &Fabric,
    group: &GroupHandle,
    bytes: u64,
    ask: impl FnOnce(&plan::Request<'_>, Sizing) -> T,
) -> T {
    let settings = settings_of(fabric, group.number, group.rank, &group.members, Vec::new());
    let (fold, wiring) = (settings.sums.fold.clone(), settings.wiring());
    let count = bytes as usize / DType::F32.bytes();
    let forced = fabric.settings.guidance.for_call(Collective::AllReduce, count, bytes);
    let request = plan::Request {
        bytes,
        reducers: settings.parameters.reducers.len() as u32,
        hosts: &settings.hosts,
        links: wiring.links.as_ref(),
        ports: wiring.ports.as_ref(),
        forced: forced.as_ref(),
        ..plan::Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, 0, &fold)
    };
    ask(&request, settings.sizing)
}

/// Which runs of shards make a training's step shorter, of which `bytes` are summed: see [`plan::choose_runs`].
pub(super) fn chosen_runs(
    fabric: &Fabric,
    group: &GroupHandle,
    shards: u32,
    shard_time: Duration,
    bytes: u64,
) -> Result<ChosenRuns, ShardsError> {
    let known = fabric.settings.guidance.calibration.unwrap_or_default();
    let time = u64::try_from(shard_time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
    asked(fabric, group, bytes, |request, sizing| plan::choose_runs(shards, time, request, &known, sizing))
}

fn predicted(fabric: &Fabric, group: &GroupHandle, bytes: u64) -> (Codec, String) {
    let guidance = &fabric.settings.guidance;
    let (codec, why) =
        asked(fabric, group, bytes, |request, sizing| plan::automatic(guidance, request, sizing));
    let about = format!("rank {}", fabric.job.rank);
    match guidance.calibration {
        // What the user has to do comes out without being asked for, once.
        None if group.rank == 0 && group.members.len() > 1 => WARNED.call_once(|| {
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
