//! Which operations are run as one.

use super::{NamedKind, NamedResponse};
use crate::codec::Codec;
use alloc::{collections::VecDeque, vec::Vec};

/// Joins responses into operations of at most `threshold` bytes: they have the same kind, type, factors and folding.
/// The first of each batch is the oldest one. A batch skips operations that do not fit, as long as its own bytes and
/// the skipped bytes are within the threshold. So types can alternate. If groups are kept apart, tensors of different
/// groups are not joined.
pub fn fuse(responses: Vec<NamedResponse>, threshold: u64, across_groups: bool) -> Vec<Vec<NamedResponse>> {
    let mut left: VecDeque<NamedResponse> = responses.into();
    let mut batches = Vec::new();
    while let Some(first) = left.pop_front() {
        let mut batch = Vec::from([first]);
        // What is coded is coded block by block, and blocks begin with the tensor: together it would have other bits.
        let is_plain = batch[0].call.codec == Codec::Plain;
        if is_plain && matches!(batch[0].call.kind, NamedKind::AllReduce | NamedKind::AllGather) {
            grow(&mut batch, &mut left, threshold, across_groups);
        }
        batches.push(batch);
    }
    batches
}

fn grow(
    batch: &mut Vec<NamedResponse>,
    left: &mut VecDeque<NamedResponse>,
    threshold: u64,
    across_groups: bool,
) {
    let (mut size, mut skipped_size) = (batch[0].bytes(), 0u64);
    let mut skipped = Vec::new();
    while let Some(next) = left.pop_front() {
        let bytes = next.bytes();
        let first = &batch[0];
        let is_alike = first.call.key() == next.call.key() && (across_groups || first.group == next.group);
        if is_alike && size.saturating_add(bytes) <= threshold {
            size += bytes;
            batch.push(next);
            continue;
        }
        skipped_size = skipped_size.saturating_add(bytes);
        let goes_on = size.saturating_add(skipped_size) <= threshold;
        skipped.push(next);
        if !goes_on {
            break;
        }
    }
    skipped.into_iter().rev().for_each(|response| left.push_front(response));
}
