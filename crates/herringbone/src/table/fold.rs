//! The sum of the workers' pushes in a step, in the canonical tree of their ranks: the bits of an all-reduce.

use super::kept_push::KeptPush;
use crate::{
    core::{
        element::{DType, ReduceOp},
        group::merges,
        schedule::Form,
        table::{EndedStep, RowKeys},
    },
    sys::{
        kernel::{Source, Target, fold},
        span::Span,
    },
};
use std::collections::BTreeMap;

/// A row of one worker's push.
struct PushedRow<'a> {
    worker: u32,
    row: &'a [u8],
}

/// Tells `apply` the sums of a step, row by row or many rows at once. Who has not pushed a row does not count for it. If workers
/// push a row several times, their first pushes are summed and applied, then their second ones.
pub(super) fn fold_step(
    dtype: DType,
    row_bytes: usize,
    step: &EndedStep<KeptPush>,
    mut apply: impl FnMut(&RowKeys, &[u8]),
) {
    let Some(((_, first), others)) = step.pushes.split_first() else { return };
    let workers: Vec<u32> = step.pushes.iter().map(|(worker, _)| *worker).collect();
    let are_same =
        |pushes: &Vec<KeptPush>| pushes.iter().map(|push| &push.keys).eq(first.iter().map(|push| &push.keys));
    let mut sums = Vec::new();
    if others.iter().all(|(_, pushes)| are_same(pushes)) {
        for (at, push) in first.iter().enumerate().filter(|(_, push)| !push.keys.is_empty()) {
            let sources: Vec<&[u8]> = step.pushes.iter().map(|(_, pushes)| pushes[at].values()).collect();
            sum(dtype, &workers, &sources, &mut sums);
            apply(&push.keys, &sums);
        }
        return;
    }
    for (keys, pushed) in by_row(row_bytes, step) {
        let workers: Vec<u32> = pushed.iter().map(|pushed| pushed.worker).collect();
        let sources: Vec<&[u8]> = pushed.iter().map(|pushed| pushed.row).collect();
        sum(dtype, &workers, &sources, &mut sums);
        apply(&keys, &sums);
    }
}

/// The pushes of each row, of each worker the first, then of each the second, and so on.
fn by_row(
    row_bytes: usize,
    step: &EndedStep<KeptPush>,
) -> impl Iterator<Item = (RowKeys, Vec<PushedRow<'_>>)> {
    let mut rows: BTreeMap<(u32, u64), Vec<PushedRow<'_>>> = BTreeMap::new();
    for (worker, pushes) in &step.pushes {
        let mut times: BTreeMap<u64, u32> = BTreeMap::new();
        for push in pushes {
            for (key, row) in push.keys.iter().zip(push.values().chunks_exact(row_bytes)) {
                let time = times.entry(key).or_default();
                rows.entry((*time, key)).or_default().push(PushedRow { worker: *worker, row });
                *time += 1;
            }
        }
    }
    rows.into_iter().map(|((_, key), pushed)| (RowKeys::Run { first: key, count: 1 }, pushed))
}

/// Makes `into` the sum of sources of these workers, ascending.
fn sum(dtype: DType, workers: &[u32], sources: &[&[u8]], into: &mut Vec<u8>) {
    into.resize(sources[0].len(), 0);
    let with_merges = sources.iter().zip(merges(workers));
    let sources: Vec<Source<'_>> = with_merges
        .map(|(source, merges)| Source { span: Span::of_shared(source), form: Form::Plain, merges })
        .collect();
    let target = Target::of(Span::of(into), Form::Plain);
    fold(dtype, ReduceOp::Sum, target, &sources, Some(workers.len() as u32));
}
