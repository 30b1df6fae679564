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
    /// Signed, 16 bits.
    I16 = 8,
    /// Unsigned, 16 bits.
    U16 = 9,
    /// Unsigned, 32 bits.
    U32 = 10,
    /// Unsigned, 64 bits.
    U64 = 11,
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
    /// a & b, bit by bit; of integers only.
    BitAnd = 5,
    /// a | b, bit by bit; of integers only.
    BitOr = 6,
    /// a ^ b, bit by bit; of integers only.
    BitXor = 7,
}

const KNOWN_TYPES: &str = "f32, f64, f16, bf16, i8, u8, i32, i64, i16, u16, u32, u64";
const KNOWN_OPERATIONS: &str = "sum, average, product, min, max, bit_and, bit_or, bit_xor";

/// A name that stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what}; known are {known}")]
pub struct UnknownName {
    what: &'static str,
    known: &'static str,
}

impl DType {
    /// All element types, in the order of their codes.
    pub const ALL: [DType; 12] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I8,
        DType::U8,
        DType::I32,
        DType::I64,
        DType::I16,
        DType::U16,
        DType::U32,
        DType::U64,
    ];

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
            DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
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
            DType::I16 => "i16",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::Bf16)
    }

    /// The type that partial results of `op` are kept and sent in: f32 for 16-bit floats, i64 for the average of
    /// integers (but u64 for that of u64), and otherwise the type itself.
    pub fn accumulator(self, op: ReduceOp) -> DType {
        match (self, op) {
            (DType::F16 | DType::Bf16, _) => DType::F32,
            (DType::I8 | DType::U8 | DType::I16 | DType::U16, ReduceOp::Average)
            | (DType::I32 | DType::U32, ReduceOp::Average) => DType::I64,
            _ => self,
        }
    }
}

impl ReduceOp {
    /// All operations, in the order of their codes.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Average,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
    ];

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
            ReduceOp::BitAnd => "bit_and",
            ReduceOp::BitOr => "bit_or",
            ReduceOp::BitXor => "bit_xor",
        }
    }

    /// Whether elements of this type can be reduced so: bit operations take integers, all others everything.
    pub fn takes(self, dtype: DType) -> bool {
        !self.joins_bits() || !dtype.is_float()
    }

    /// Whether it joins bits, each by itself.
    pub const fn joins_bits(self) -> bool {
        matches!(self, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor)
    }
}

impl FromStr for DType {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let error = UnknownName { what: "element type", known: KNOWN_TYPES };
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or(error)
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let error = UnknownName { what: "operation", known: KNOWN_OPERATIONS };
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
