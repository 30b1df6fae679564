//! Whether the ranks ask for the same, and Horovod's words if they do not.

use super::{NamedCall, NamedKind, NamedRequest, NamedResponse};
use crate::{
    codec::Codec,
    element::{DType, ReduceOp},
    group::Rank,
};
use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

/// What all ranks are to do for the requests of a name, of all ranks that have not joined.
///
/// # Errors
/// The text that every rank is told if they differ.
pub(super) fn agree(
    requests: &BTreeMap<Rank, NamedRequest>,
    size: u32,
    any_joined: bool,
) -> Result<NamedResponse, String> {
    let mut all = requests.values();
    let first = all.next().ok_or_else(|| "no rank has asked for it".to_string())?;
    let others: Vec<&NamedRequest> = all.collect();
    for other in &others {
        check_pair(&first.call, &other.call)?;
        check_groups(first, other)?;
    }
    let kind = first.call.kind;
    if any_joined && !kind.takes_zeros() {
        let name = match kind {
            NamedKind::AllGather => "Allgather",
            NamedKind::AllToAll => "Alltoall",
            NamedKind::ReduceScatter => "Reducescatter",
            NamedKind::Broadcast => "Broadcast",
            _ => "Barrier",
        };
        return Err(format!("{name} is not supported with Join at this time."));
    }
    if any_joined && matches!(first.call.codec, Codec::OneBit { .. }) {
        // It has no code for zero, which is what a rank that has joined adds.
        let codec = first.call.codec;
        return Err(format!(
            "Allreduce compressed with {codec} is not supported with Join; use twobit or int8."
        ));
    }
    let has_rows = matches!(kind, NamedKind::AllGather | NamedKind::AllToAll | NamedKind::ReduceScatter);
    if has_rows && first.call.shape.is_empty() {
        return Err(format!("Process-set rank zero tried to {} a rank-zero tensor.", kind.name()));
    }
    if kind == NamedKind::Broadcast && first.call.root >= size {
        let root = first.call.root;
        return Err(format!("the root rank {root} is none of the {size} ranks; pass one of them"));
    }
    let rows = |request: &NamedRequest| request.call.shape.first().copied().unwrap_or(1);
    let sizes = if kind == NamedKind::AllGather { requests.values().map(rows).collect() } else { Vec::new() };
    Ok(NamedResponse {
        name: first.name.clone(),
        call: first.call.clone(),
        sizes,
        group: first.group.as_ref().map(|group| group.name.clone()),
        priority: first.priority,
    })
}

fn check_pair(first: &NamedCall, other: &NamedCall) -> Result<(), String> {
    if first.dtype != other.dtype {
        return Err(format!(
            "Mismatched data types: One rank had type {}, but another rank had type {}.",
            type_name(first.dtype),
            type_name(other.dtype)
        ));
    }
    if first.kind != other.kind {
        return Err(format!(
            "Mismatched operations: One rank did an {}, but another rank did an {}.",
            first.kind.name(),
            other.kind.name()
        ));
    }
    let kind = first.kind.name();
    let one_shape = first.kind.folds() || first.kind == NamedKind::Broadcast;
    if one_shape && first.shape != other.shape {
        return Err(format!(
            "Mismatched {kind} tensor shapes: One rank sent a tensor of shape {}, but another rank sent a tensor of shape {}.",
            shape(&first.shape),
            shape(&other.shape)
        ));
    }
    if first.kind.folds() {
        check_folding(first, other)?;
    }
    if matches!(first.kind, NamedKind::AllGather | NamedKind::AllToAll) {
        check_rows(first, other)?;
    }
    if first.kind == NamedKind::Broadcast && first.root != other.root {
        return Err(format!(
            "Mismatched BROADCAST root ranks: One rank specified root rank {}, but another rank specified root rank {}.",
            first.root, other.root
        ));
    }
    Ok(())
}

fn check_folding(first: &NamedCall, other: &NamedCall) -> Result<(), String> {
    if first.codec.code() != other.codec.code() {
        return Err(format!(
            "Mismatched compression: One rank sent codec {}, but another rank sent codec {}.",
            first.codec, other.codec
        ));
    }
    let factors = |call: &NamedCall| (call.prescale.to_bits(), call.postscale.to_bits());
    if factors(first) != factors(other) {
        return Err(format!(
            "Mismatched prescale and/or postscale factors: One rank sent factors ({}, {}), but another rank sent factors ({}, {}).",
            first.prescale, first.postscale, other.prescale, other.postscale
        ));
    }
    if first.op != other.op {
        return Err(format!(
            "Mismatched reduction operation: One rank sent reduction op {}, but another rank sent reduction op {}.",
            op_name(first.op),
            op_name(other.op)
        ));
    }
    Ok(())
}

/// Tensors may differ in their first dimension.
fn check_rows(first: &NamedCall, other: &NamedCall) -> Result<(), String> {
    let kind = first.kind.name();
    if first.shape.len() != other.shape.len() {
        return Err(format!(
            "Mismatched {kind} tensor shapes: One rank sent a tensor of rank {}, but another rank sent a tensor of rank {}.",
            first.shape.len(),
            other.shape.len()
        ));
    }
    let differing =
        first.shape.iter().zip(&other.shape).enumerate().skip(1).find(|(_, (one, two))| one != two);
    match differing {
        None => Ok(()),
        Some((dimension, (one, two))) => Err(format!(
            "Mismatched {kind} tensor shapes: One rank sent a tensor with dimension {dimension} equal to {one}, but another \
             rank sent a tensor with dimension {dimension} equal to {two}."
        )),
    }
}

fn check_groups(first: &NamedRequest, other: &NamedRequest) -> Result<(), String> {
    if first.group == other.group {
        return Ok(());
    }
    let said = |request: &NamedRequest| match &request.group {
        None => "no group".to_string(),
        Some(group) => format!("group {} of {} tensors", group.name, group.members),
    };
    Err(format!(
        "Mismatched groups: One rank submitted the tensor in {}, but another rank submitted it in {}.",
        said(first),
        said(other)
    ))
}

/// As Horovod writes shapes.
fn shape(dimensions: &[u64]) -> String {
    let all: Vec<String> = dimensions.iter().map(ToString::to_string).collect();
    format!("[{}]", all.join(", "))
}

/// As Horovod writes types.
fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        DType::I8 => "int8",
        DType::U8 => "uint8",
        DType::I16 => "int16",
        DType::U16 => "uint16",
        DType::I32 => "int32",
        DType::U32 => "uint32",
        DType::I64 => "int64",
        DType::U64 => "uint64",
    }
}

/// As Horovod writes operations.
fn op_name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "SUM",
        ReduceOp::Average => "AVERAGE",
        ReduceOp::Product => "PRODUCT",
        ReduceOp::Min => "MIN",
        ReduceOp::Max => "MAX",
        other => other.name(),
    }
}
