//! The element types whose memory is just bytes.

use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A number without padding, for which every pattern of bits is a value. So a slice of it can be viewed as bytes, and
/// any bytes can be written over it. Sealed.
///
/// # Safety
/// Not to be implemented elsewhere.
pub unsafe trait Plain: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($number:ty),*) => { $(
        impl sealed::Sealed for $number {}
        // SAFETY: no padding, no invalid pattern, no interior mutability, no pointers.
        unsafe impl Plain for $number {}
    )* };
}

plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, f16, bf16);

/// The bytes of `values`, in this machine's order.
pub fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: a Plain type has no padding, so each of its bytes is initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of `values`, in this machine's order, for reading and writing.
pub fn bytes_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes`, and whatever is written is a value of T.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
