//! The names and codes of element types and operations.

use core::{fmt, str::FromStr};

/// The type of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary64.
    F64 = 1,
    /// IEEE 754 binary16.
    F16 = 2,
    /// bfloat16: the upper half of a binary32.
    Bf16 = 3,
    /// Signed, 8 bits.
    I8 = 4,
    /// Unsigned, 8 bits.
    U8 = 5,
    /// Signed, 32 bits.
    I32 = 6,
    /// Signed, 64 bits.
    I64 = 7,
}

/// How elements are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// a + b; integers wrap.
    Sum = 0,
    /// The sum, divided by the number of contributors.
    Average = 1,
    /// a * b; integers wrap.
    Product = 2,
    /// The smaller one; of floats, IEEE 754-2019 `minimum`.
    Min = 3,
    /// The larger one; of floats, IEEE 754-2019 `maximum`.
    Max = 4,
}

/// A name that stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what}; known are {known}")]
pub struct UnknownName {
    what: &'static str,
    known: &'static str,
}

impl DType {
    /// All element types, in the order of their codes.
    pub const ALL: [DType; 8] =
        [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I8, DType::U8, DType::I32, DType::I64];

    /// The number that stands for it on the wire. Never changes.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The type with this [`code`](Self::code).
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// How long an element is.
    pub fn bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::Bf16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// As Rust writes it.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::I64 => "i64",
        }
    }

    /// The type that partial results of `op` are kept and sent in: f32 for 16-bit floats, i64 for the average of
    /// integers, and otherwise the type itself.
    pub fn accumulator(self, op: ReduceOp) -> DType {
        match (self, op) {
            (DType::F16 | DType::Bf16, _) => DType::F32,
            (DType::I8 | DType::U8 | DType::I32, ReduceOp::Average) => DType::I64,
            _ => self,
        }
    }
}

impl ReduceOp {
    /// All operations, in the order of their codes.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];

    /// The number that stands for it on the wire. Never changes.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The operation with this [`code`](Self::code).
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Average => "average",
            ReduceOp::Product => "product",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
        }
    }
}

impl FromStr for DType {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let error = UnknownName { what: "element type", known: "f32, f64, f16, bf16, i8, u8, i32, i64" };
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or(error)
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let error = UnknownName { what: "operation", known: "sum, average, product, min, max" };
        Self::ALL.into_iter().find(|op| op.name() == name).ok_or(error)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
