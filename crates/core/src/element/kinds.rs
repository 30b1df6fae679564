//! The names and codes of element types and operations.

use crate::choice::choices;

choices! {
    "an element type":
    /// The type of a buffer's elements.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum DType {
        /// IEEE 754 binary32.
        F32 = 0 => "f32",
        /// IEEE 754 binary64.
        F64 = 1 => "f64",
        /// IEEE 754 binary16.
        F16 = 2 => "f16",
        /// bfloat16: the upper half of a binary32.
        Bf16 = 3 => "bf16",
        /// Signed, 8 bits.
        I8 = 4 => "i8",
        /// Unsigned, 8 bits.
        U8 = 5 => "u8",
        /// Signed, 32 bits.
        I32 = 6 => "i32",
        /// Signed, 64 bits.
        I64 = 7 => "i64",
        /// Signed, 16 bits.
        I16 = 8 => "i16",
        /// Unsigned, 16 bits.
        U16 = 9 => "u16",
        /// Unsigned, 32 bits.
        U32 = 10 => "u32",
        /// Unsigned, 64 bits.
        U64 = 11 => "u64",
    }
}

choices! {
    "an operation":
    /// How elements are reduced.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum ReduceOp {
        /// a + b; integers wrap.
        Sum = 0 => "sum",
        /// The sum, divided by the number of contributors.
        Average = 1 => "average",
        /// a * b; integers wrap.
        Product = 2 => "product",
        /// The smaller one; of floats, IEEE 754-2019 `minimum`.
        Min = 3 => "min",
        /// The larger one; of floats, IEEE 754-2019 `maximum`.
        Max = 4 => "max",
        /// a & b, bit by bit; of integers only.
        BitAnd = 5 => "bit_and",
        /// a | b, bit by bit; of integers only.
        BitOr = 6 => "bit_or",
        /// a ^ b, bit by bit; of integers only.
        BitXor = 7 => "bit_xor",
    }
}

impl DType {
    /// How long an element is.
    pub fn bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::Bf16)
    }

    /// The type in which partial results of `op` are kept and sent. It is f32 for 16-bit floats, u64 for averages of
    /// u64, i64 for averages of other integers, and otherwise the type itself.
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
    /// Whether elements of this type can be reduced so: bit operations take integers, all others everything.
    pub fn takes(self, dtype: DType) -> bool {
        !self.joins_bits() || !dtype.is_float()
    }

    /// Whether it joins bits, each by itself.
    pub const fn joins_bits(self) -> bool {
        matches!(self, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor)
    }
}
