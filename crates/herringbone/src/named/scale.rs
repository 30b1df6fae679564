//! Multiplying elements with a factor, in their own type; 16-bit floats in f32.

use super::NamedFailure;
use crate::{
    Error, ErrorKind, Region,
    core::element::{DType, Element},
    sys::{region::Access, span::Span},
};

/// How many bytes are taken at a time. A multiple of every element's length.
const BLOCK: usize = 8 << 10;

/// The memory of a region.
///
/// # Errors
/// If it was taken away.
pub(super) fn open(region: &Region) -> Result<Access<'_>, NamedFailure> {
    region.access().ok_or_else(|| NamedFailure::Engine(Error::new(ErrorKind::Closed)))
}

/// Writes the elements of `from` to `to`, each multiplied with `factor`. Both may be the same.
pub(super) fn copy_scaled(from: Span<'_>, to: Span<'_>, dtype: DType, factor: f64) {
    if factor == 1.0 {
        if !from.same_start(to) {
            to.copy_from(from);
        }
        return;
    }
    let mut block = [0u8; BLOCK];
    let mut at = 0;
    while at < from.len() {
        let bytes = BLOCK.min(from.len() - at);
        let block = &mut block[..bytes];
        from.slice(at..at + bytes).read(block);
        multiply(block, dtype, factor);
        to.slice(at..at + bytes).write(block);
        at += bytes;
    }
}

fn multiply(bytes: &mut [u8], dtype: DType, factor: f64) {
    let narrow = factor as f32;
    match dtype {
        DType::F32 => each(bytes, |value: f32| value * narrow),
        DType::F64 => each(bytes, |value: f64| value * factor),
        DType::F16 => each(bytes, |value: half::f16| half::f16::round(value.lift() * narrow)),
        DType::Bf16 => each(bytes, |value: half::bf16| half::bf16::round(value.lift() * narrow)),
        DType::I8 => each(bytes, |value: i8| (f64::from(value) * factor) as i8),
        DType::U8 => each(bytes, |value: u8| (f64::from(value) * factor) as u8),
        DType::I16 => each(bytes, |value: i16| (f64::from(value) * factor) as i16),
        DType::U16 => each(bytes, |value: u16| (f64::from(value) * factor) as u16),
        DType::I32 => each(bytes, |value: i32| (f64::from(value) * factor) as i32),
        DType::U32 => each(bytes, |value: u32| (f64::from(value) * factor) as u32),
        DType::I64 => each(bytes, |value: i64| (value as f64 * factor) as i64),
        DType::U64 => each(bytes, |value: u64| (value as f64 * factor) as u64),
    }
}

fn each<E: Element>(bytes: &mut [u8], f: impl Fn(E) -> E) {
    for element in bytes.chunks_exact_mut(size_of::<E>()) {
        f(E::load(element)).store(element);
    }
}
