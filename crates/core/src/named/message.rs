//! Lists of requests and of answers as bytes: little-endian numbers, texts and lists with their lengths in front.
//!
//! Every length is checked against the arrived bytes before it is used, so no bytes can make a reader panic or reserve
//! memory that they do not fill.

use super::{
    NAME_BYTES, NamedAnswer, NamedCall, NamedGroup, NamedKind, NamedRequest, NamedResponse, Tuning,
    request::DIMENSIONS,
};
use crate::{
    codec::{Codec, CodecCode},
    element::{DType, ReduceOp},
};
use alloc::{string::String, vec::Vec};
use core::time::Duration;

/// The most bytes of a rank's list; further requests are in the next one.
pub const LIST_BYTES: usize = 1 << 20;
/// The longest text of an error, in bytes.
const TEXT_BYTES: usize = 1 << 16;

/// Bytes that make no list, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a list of named operations is malformed: {0}")]
pub struct MalformedList(&'static str);

/// The list of a rank's requests.
pub fn encode_requests<'a>(requests: impl IntoIterator<Item = &'a NamedRequest>) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.into_iter().for_each(|request| write_request(&mut bytes, request));
    bytes
}

/// # Errors
/// If the bytes are no list.
pub fn decode_requests(bytes: &[u8]) -> Result<Vec<NamedRequest>, MalformedList> {
    let mut from = Bytes(bytes);
    let mut requests = Vec::new();
    while !from.0.is_empty() {
        requests.push(read_request(&mut from)?);
    }
    Ok(requests)
}

/// The list of answers to all ranks.
pub fn encode_answers(answers: &[NamedAnswer]) -> Vec<u8> {
    let mut bytes = Vec::new();
    answers.iter().for_each(|answer| write_answer(&mut bytes, answer));
    bytes
}

/// # Errors
/// If the bytes are no list.
pub fn decode_answers(bytes: &[u8]) -> Result<Vec<NamedAnswer>, MalformedList> {
    let mut from = Bytes(bytes);
    let mut answers = Vec::new();
    while !from.0.is_empty() {
        answers.push(read_answer(&mut from)?);
    }
    Ok(answers)
}

fn write_request(to: &mut Vec<u8>, request: &NamedRequest) {
    text(to, &request.name);
    write_call(to, &request.call);
    to.extend_from_slice(&request.priority.to_le_bytes());
    match &request.group {
        None => to.extend_from_slice(&0u32.to_le_bytes()),
        Some(group) => {
            to.extend_from_slice(&group.members.max(1).to_le_bytes());
            text(to, &group.name);
        }
    }
}

fn read_request(from: &mut Bytes<'_>) -> Result<NamedRequest, MalformedList> {
    let (name, call) = (from.text(NAME_BYTES)?, read_call(from)?);
    let priority = i32::from_le_bytes(from.array()?);
    let group = match from.u32()? {
        0 => None,
        members => Some(NamedGroup { name: from.text(NAME_BYTES)?, members }),
    };
    Ok(NamedRequest { name, call, group, priority })
}

fn write_call(to: &mut Vec<u8>, call: &NamedCall) {
    to.extend_from_slice(&[call.kind.code(), call.dtype.code(), call.op.code()]);
    to.extend_from_slice(&call.root.to_le_bytes());
    to.extend_from_slice(&call.prescale.to_bits().to_le_bytes());
    to.extend_from_slice(&call.postscale.to_bits().to_le_bytes());
    let CodecCode { number, parameter } = call.codec.code();
    to.extend_from_slice(&number.to_le_bytes());
    to.extend_from_slice(&parameter.to_le_bytes());
    numbers(to, &call.shape);
}

fn read_call(from: &mut Bytes<'_>) -> Result<NamedCall, MalformedList> {
    let [kind, dtype, op] = from.array()?;
    Ok(NamedCall {
        kind: NamedKind::from_code(kind).ok_or(MalformedList("a kind that is unknown"))?,
        dtype: DType::from_code(dtype).ok_or(MalformedList("an element type that is unknown"))?,
        op: ReduceOp::from_code(op).ok_or(MalformedList("an operation that is unknown"))?,
        root: from.u32()?,
        prescale: f64::from_bits(from.u64()?),
        postscale: f64::from_bits(from.u64()?),
        codec: Codec::from_code(CodecCode { number: from.u32()?, parameter: from.u32()? })
            .ok_or(MalformedList("a codec that is unknown"))?,
        shape: from.numbers(DIMENSIONS)?,
    })
}

fn write_answer(to: &mut Vec<u8>, answer: &NamedAnswer) {
    match answer {
        NamedAnswer::Run(response) => {
            to.push(0);
            text(to, &response.name);
            write_call(to, &response.call);
            numbers(to, &response.sizes);
            to.extend_from_slice(&response.priority.to_le_bytes());
            to.push(u8::from(response.group.is_some()));
            response.group.iter().for_each(|group| text(to, group));
        }
        NamedAnswer::Fail { name, text: why } => {
            to.push(1);
            text(to, name);
            text(to, why);
        }
        NamedAnswer::Joined { last } => {
            to.push(2);
            to.extend_from_slice(&last.to_le_bytes());
        }
        NamedAnswer::Tuned(Tuning { threshold, cycle }) => {
            to.push(3);
            to.extend_from_slice(&threshold.to_le_bytes());
            to.extend_from_slice(&(cycle.as_nanos() as u64).to_le_bytes());
        }
    }
}

fn read_answer(from: &mut Bytes<'_>) -> Result<NamedAnswer, MalformedList> {
    let [code] = from.array()?;
    Ok(match code {
        0 => NamedAnswer::Run(NamedResponse {
            name: from.text(NAME_BYTES)?,
            call: read_call(from)?,
            sizes: from.numbers(usize::MAX)?,
            priority: i32::from_le_bytes(from.array()?),
            group: match from.array()? {
                [0] => None,
                _ => Some(from.text(NAME_BYTES)?),
            },
        }),
        1 => NamedAnswer::Fail { name: from.text(NAME_BYTES)?, text: from.text(TEXT_BYTES)? },
        2 => NamedAnswer::Joined { last: from.u32()? },
        3 => NamedAnswer::Tuned(Tuning { threshold: from.u64()?, cycle: Duration::from_nanos(from.u64()?) }),
        _ => return Err(MalformedList("an answer that is unknown")),
    })
}

fn text(to: &mut Vec<u8>, value: &str) {
    to.extend_from_slice(&(value.len() as u32).to_le_bytes());
    to.extend_from_slice(value.as_bytes());
}

fn numbers(to: &mut Vec<u8>, values: &[u64]) {
    to.extend_from_slice(&(values.len() as u32).to_le_bytes());
    values.iter().for_each(|value| to.extend_from_slice(&value.to_le_bytes()));
}

/// Takes a list apart.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], MalformedList> {
        let (value, rest) = self.0.split_at_checked(length).ok_or(MalformedList("it ends too early"))?;
        self.0 = rest;
        Ok(value)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedList> {
        let (value, rest) = self.0.split_first_chunk().ok_or(MalformedList("it ends too early"))?;
        self.0 = rest;
        Ok(*value)
    }

    fn u32(&mut self) -> Result<u32, MalformedList> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MalformedList> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, most: usize) -> Result<String, MalformedList> {
        let length = self.u32()? as usize;
        if length > most {
            return Err(MalformedList("a text is too long"));
        }
        let text =
            core::str::from_utf8(self.take(length)?).map_err(|_| MalformedList("a text is not UTF-8"))?;
        Ok(text.into())
    }

    fn numbers(&mut self, most: usize) -> Result<Vec<u64>, MalformedList> {
        let length = self.u32()? as usize;
        if length > most {
            return Err(MalformedList("a list is too long"));
        }
        let bytes = length.checked_mul(8).ok_or(MalformedList("a list is too long"))?;
        let (values, _) = self.take(bytes)?.as_chunks::<8>();
        Ok(values.iter().map(|value| u64::from_le_bytes(*value)).collect())
    }
}
