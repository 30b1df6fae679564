use super::*;
use half::{bf16, f16};

/// One element of every sort that rounding, ordering or NaNs treat in their own way.
const F32_EDGES: [u32; 22] = [
    0x0000_0000, // 0
    0x8000_0000, // -0
    0x0000_0001, // the least denormal
    0x807f_ffff, // the largest denormal, negative
    0x0080_0000, // the least normal number
    0x3380_0000, // 2^-24: the least f16
    0x3300_0000, // 2^-25: a tie between that and 0
    0x3300_0001, // just above the tie
    0x387f_e000, // between the largest denormal f16 and the least normal one
    0x3f80_0000, // 1
    0xbf80_8000, // -1.00390625: a tie for bf16
    0x3f81_8000, // a tie for bf16, to the other side
    0x3f80_1000, // a tie for f16
    0x3f80_3000, // a tie for f16, to the other side
    0x477f_efff, // just below 65520: the largest that does not round to an infinite f16
    0x477f_f000, // 65520
    0x7f7f_7fff, // the largest that does not round to an infinite bf16
    0x7f7f_8000, // the least that does
    0xff80_0000, // -infinity
    0x7f80_0001, // a signalling NaN that loses its payload when cut to 16 bits
    0xffc1_2345, // a quiet one, negative
    0x7fff_ffff,
];

struct Fold<'a> {
    elements: &'a [u8],
    width: usize,
    contributors: u32,
}

impl Visitor for Fold<'_> {
    type Output = Vec<u8>;

    fn visit<R: Reduction>(self) -> Vec<u8> {
        let Fold { elements, width, contributors } = self;
        let own = R::Element::DTYPE.bytes();
        let folded = (0..width / own).flat_map(|at| {
            let parts = elements.chunks(width).map(|element| &element[at * own..(at + 1) * own]);
            let lifted = parts.map(|bytes| R::lift(R::Element::load(bytes)));
            let mut out = vec![0; own];
            R::finish(lifted.reduce(R::merge).unwrap(), contributors).store(&mut out);
            out
        });
        folded.collect()
    }
}

/// Folds from left to right and finishes.
fn fold<E: Element>(op: ReduceOp, elements: &[E]) -> E {
    fold_of(op, elements, elements.len() as u32)
}

fn fold_of<E: Element>(op: ReduceOp, elements: &[E], contributors: u32) -> E {
    let width = E::DTYPE.bytes();
    let mut bytes = vec![0; width * elements.len()];
    elements.iter().zip(bytes.chunks_mut(width)).for_each(|(element, bytes)| element.store(bytes));
    E::load(&dispatch(E::DTYPE, op, Fold { elements: &bytes, width, contributors }))
}

struct Types;

impl Visitor for Types {
    type Output = (DType, DType, ReduceOp);

    fn visit<R: Reduction>(self) -> Self::Output {
        (R::Element::DTYPE, R::Acc::DTYPE, R::OP)
    }
}

#[test]
fn dispatch_agrees_with_the_accumulator_table() {
    for (dtype, op) in pairs() {
        let (element, accumulator, dispatched) = dispatch(dtype, op, Types);
        assert_eq!(dispatched, op);
        let expected = match op {
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => (DType::U8, DType::U8),
            ReduceOp::Sum | ReduceOp::Product => (signed(dtype), signed(dtype.accumulator(op))),
            _ => (dtype, dtype.accumulator(op)),
        };
        assert_eq!((element, accumulator), expected, "{dtype} {op}");
    }
}

fn signed(dtype: DType) -> DType {
    match dtype {
        DType::U8 => DType::I8,
        DType::U16 => DType::I16,
        DType::U32 => DType::I32,
        DType::U64 => DType::I64,
        other => other,
    }
}

/// All types with the operations that take them.
fn pairs() -> impl Iterator<Item = (DType, ReduceOp)> {
    let pairs = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    pairs.filter(|(dtype, op)| op.takes(*dtype))
}

#[test]
#[should_panic(expected = "bit_or takes integers, not f32")]
fn floats_have_no_bits_to_join() {
    fold(ReduceOp::BitOr, &[1.0f32]);
}

#[test]
fn bits_are_joined_one_by_one() {
    assert_eq!(fold(ReduceOp::BitAnd, &[0b1100u8, 0b1010]), 0b1000);
    assert_eq!(fold(ReduceOp::BitOr, &[0b1100i32, 0b1010]), 0b1110);
    assert_eq!(fold(ReduceOp::BitXor, &[-1i64, 0b1010, 0b1000]), !0b0010);
    assert_eq!(fold(ReduceOp::BitXor, &[0xf0f0u16, 0xffff]), 0x0f0f);
    assert_eq!(fold(ReduceOp::BitOr, &[u64::MAX << 63, 1]), 1 << 63 | 1);
    assert_eq!(fold(ReduceOp::BitAnd, &[i16::MIN, -1]), i16::MIN);
}

#[test]
fn unsigned_integers_are_not_taken_for_signed_ones() {
    assert_eq!(fold(ReduceOp::Sum, &[u16::MAX, 2]), 1);
    assert_eq!(fold(ReduceOp::Product, &[u32::MAX, u32::MAX]), 1);
    assert_eq!(fold(ReduceOp::Min, &[u32::MAX, 7]), 7);
    assert_eq!(fold(ReduceOp::Max, &[u64::MAX, 7]), u64::MAX);
    assert_eq!(fold(ReduceOp::Average, &[u16::MAX, u16::MAX]), u16::MAX);
    assert_eq!(fold_of(ReduceOp::Average, &[u64::MAX], 2), u64::MAX / 2);
    assert_eq!(fold(ReduceOp::Average, &[i16::MIN, i16::MIN]), i16::MIN);
}

#[test]
fn names_and_codes_round_trip() {
    for dtype in DType::ALL {
        assert_eq!(DType::from_code(dtype.code()), Some(dtype));
        assert_eq!(dtype.to_string().parse(), Ok(dtype));
    }
    for op in ReduceOp::ALL {
        assert_eq!(ReduceOp::from_code(op.code()), Some(op));
        assert_eq!(op.to_string().parse(), Ok(op));
    }
    assert_eq!((DType::from_code(12), ReduceOp::from_code(8)), (None, None));
    let error = "half".parse::<DType>().unwrap_err();
    let known = DType::ALL.map(DType::name).join(", ");
    assert_eq!(error.to_string(), format!("not an element type: use one of {known}"));
    let known = ReduceOp::ALL.map(ReduceOp::name).join(", ");
    let error = "xor".parse::<ReduceOp>().unwrap_err();
    assert_eq!(error.to_string(), format!("not an operation: use one of {known}"));
}

#[test]
fn every_16_bit_float_widens_exactly_and_back() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        let (wide_half, wide_brain) = (convert::f16_to_f32(half), convert::bf16_to_f32(brain));
        if half.is_nan() {
            assert!(wide_half.is_nan());
            assert_eq!(convert::f32_to_f16(wide_half).to_bits(), 0x7e00);
        } else {
            assert_eq!(wide_half.to_bits(), f32::from(half).to_bits(), "f16 {bits:#06x}");
            assert_eq!(convert::f32_to_f16(wide_half).to_bits(), bits);
        }
        if brain.is_nan() {
            assert!(wide_brain.is_nan());
            assert_eq!(convert::f32_to_bf16(wide_brain).to_bits(), 0x7fc0);
        } else {
            assert_eq!(wide_brain.to_bits(), f32::from(brain).to_bits(), "bf16 {bits:#06x}");
            assert_eq!(convert::f32_to_bf16(wide_brain).to_bits(), bits);
        }
    }
}

#[test]
fn narrowing_rounds_to_nearest_even() {
    let spread = (0..1 << 16).flat_map(|high: u32| {
        [0, 1, 0x0fff, 0x1000, 0x1001, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff]
            .map(|low| high << 16 | low)
    });
    for bits in spread.chain(F32_EDGES) {
        let value = f32::from_bits(bits);
        let (half, brain) = (convert::f32_to_f16(value), convert::f32_to_bf16(value));
        if value.is_nan() {
            assert_eq!((half.to_bits(), brain.to_bits()), (0x7e00, 0x7fc0));
        } else {
            assert_eq!(half.to_bits(), f16::from_f32(value).to_bits(), "f16 of {bits:#010x}");
            assert_eq!(brain.to_bits(), bf16::from_f32(value).to_bits(), "bf16 of {bits:#010x}");
        }
    }
}

#[test]
fn narrowing_at_the_edges() {
    let f16_of = |bits| convert::f32_to_f16(f32::from_bits(bits)).to_bits();
    let bf16_of = |bits| convert::f32_to_bf16(f32::from_bits(bits)).to_bits();
    assert_eq!([0x3300_0000, 0x3300_0001, 0x3380_0000].map(f16_of), [0, 1, 1]);
    assert_eq!([0x387f_e000, 0x3f80_1000, 0x3f80_3000].map(f16_of), [0x0400, 0x3c00, 0x3c02]);
    assert_eq!([0x477f_efff, 0x477f_f000, 0xff80_0000].map(f16_of), [0x7bff, 0x7c00, 0xfc00]);
    assert_eq!([0x0000_0001, 0x807f_ffff, 0x0000_8001].map(bf16_of), [0, 0x8080, 1]);
    assert_eq!([0xbf80_8000, 0x3f81_8000].map(bf16_of), [0xbf80, 0x3f82]);
    assert_eq!([0x7f7f_7fff, 0x7f7f_8000].map(bf16_of), [0x7f7f, 0x7f80]);
}

#[test]
fn minimum_and_maximum_are_those_of_ieee_754_2019() {
    let floats = F32_EDGES.map(f32::from_bits);
    for a in floats {
        for b in floats {
            let (low, high) = (fold(ReduceOp::Min, &[a, b]), fold(ReduceOp::Max, &[a, b]));
            if a.is_nan() || b.is_nan() {
                assert_eq!((low.to_bits(), high.to_bits()), (0x7fc0_0000, 0x7fc0_0000));
            } else {
                let ordered = if a.total_cmp(&b).is_le() { [a, b] } else { [b, a] };
                assert_eq!([low, high].map(f32::to_bits), ordered.map(f32::to_bits), "{a} {b}");
            }
        }
    }
    assert_eq!(fold(ReduceOp::Min, &[-0.0f64, 0.0]).to_bits(), 1 << 63);
    assert_eq!(fold(ReduceOp::Max, &[-0.0f64, 0.0]).to_bits(), 0);
    assert_eq!(fold(ReduceOp::Max, &[f16::NEG_INFINITY, f16::from_bits(0xfc01)]).to_bits(), 0x7e00);
    assert_eq!(fold(ReduceOp::Min, &[bf16::NEG_ZERO, bf16::ZERO]).to_bits(), 0x8000);
}

#[test]
fn merges_commute_bit_for_bit() {
    let floats = F32_EDGES.map(f32::from_bits);
    for op in ReduceOp::ALL.into_iter().filter(|op| op.takes(DType::F32)) {
        for a in floats {
            for b in floats {
                assert_eq!(fold(op, &[a, b]).to_bits(), fold(op, &[b, a]).to_bits(), "{op} {a} {b}");
            }
        }
    }
}

#[test]
fn a_nan_is_canonical_and_everything_else_kept() {
    for bits in F32_EDGES {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.takes(DType::F32)) {
            let value = f32::from_bits(bits);
            let expected = if value.is_nan() { 0x7fc0_0000 } else { bits };
            assert_eq!(fold(op, &[value]).to_bits(), expected, "{op} of one");
        }
    }
    let signalling = f64::from_bits(0xfff0_0000_0000_0001);
    assert_eq!(fold(ReduceOp::Sum, &[signalling]).to_bits(), 0x7ff8_0000_0000_0000);
    assert_eq!(fold(ReduceOp::Sum, &[f32::INFINITY, f32::NEG_INFINITY]).to_bits(), 0x7fc0_0000);
}

#[test]
fn sixteen_bit_floats_round_once() {
    let eps = bf16::from_f32(1.0 / 256.0);
    assert_eq!(fold(ReduceOp::Sum, &[bf16::ONE, eps, eps]), bf16::from_f32(1.0 + 2.0 / 256.0));
    let large = f16::from_f32(60_000.0);
    assert_eq!(fold(ReduceOp::Average, &[large, large, large]), large);
    assert_eq!(fold(ReduceOp::Sum, &[large, large]), f16::INFINITY);
}

#[test]
fn averages_divide() {
    assert_eq!(fold_of(ReduceOp::Average, &[1.0f32], 41), 1.0 / 41.0);
    assert_ne!(fold_of(ReduceOp::Average, &[5.0f32], 41), 5.0 * (1.0f32 / 41.0));
    assert_eq!(fold_of(ReduceOp::Average, &[f64::MIN_POSITIVE], 2), f64::MIN_POSITIVE / 2.0);
    assert_eq!(fold(ReduceOp::Average, &[127i8, 127, 126]), 126);
    assert_eq!(fold(ReduceOp::Average, &[-3i32, -4]), -3);
    assert_eq!(fold(ReduceOp::Average, &[255u8, 254]), 254);
    assert_eq!(fold(ReduceOp::Average, &[i64::MAX, 1]), i64::MIN / 2);
}

#[test]
fn integers_wrap() {
    assert_eq!(fold(ReduceOp::Sum, &[i8::MAX, 1]), i8::MIN);
    assert_eq!(fold(ReduceOp::Product, &[16u8, 17]), 16);
    assert_eq!(fold(ReduceOp::Product, &[i64::MIN, -1]), i64::MIN);
    assert_eq!(fold(ReduceOp::Min, &[3i32, i32::MIN, 2]), i32::MIN);
    assert_eq!(fold(ReduceOp::Max, &[3u8, 200, 2]), 200);
}

#[test]
#[should_panic(expected = "divide by zero")]
fn an_integer_average_of_nobody_panics() {
    fold_of(ReduceOp::Average, &[1i32], 0);
}
