//! Every kernel computes what `herringbone_core::element` means, bit for bit.

use herringbone_core::element::{DType, Element, Number, ReduceOp, Reduction, Visitor, dispatch};
use herringbone_core::{group::merges, schedule::Form};
use herringbone_sys::kernel::{Level, Source, Target, fold_with};
use herringbone_sys::span::Span;
use proptest::{prelude::*, test_runner::RngSeed};

/// A fold to be tried: its sources' bytes, forms and merges, and where things lie.
#[derive(Clone, Debug)]
struct Trial {
    dtype: DType,
    op: ReduceOp,
    count: usize,
    sources: Vec<(Form, u8)>,
    finish: Option<u32>,
    /// How far from an aligned address each source lies, and after them each place of the target.
    offsets: Vec<usize>,
    /// The places of the target: sources, if they have the right form and are not places already, or others.
    places: Vec<Option<usize>>,
    seed: u64,
}

impl Trial {
    /// All sources plain, the canonical shape, finished, everything aligned.
    fn canonical(dtype: DType, op: ReduceOp, count: usize, sources: u32) -> Self {
        let keys: Vec<u32> = (0..sources).collect();
        Self {
            dtype,
            op,
            count,
            sources: merges(&keys).into_iter().map(|merges| (Form::Plain, merges)).collect(),
            finish: Some(sources),
            offsets: vec![0],
            places: vec![None],
            seed: u64::from(sources) << 32 | count as u64,
        }
    }

    fn width(&self, form: Form) -> usize {
        match form {
            Form::Acc => self.dtype.accumulator(self.op).bytes(),
            _ => self.dtype.bytes(),
        }
    }

    fn result_form(&self) -> Form {
        if self.finish.is_some() { Form::Plain } else { Form::Acc }
    }

    /// Values of all sorts for each source.
    fn values(&self) -> Vec<Vec<u8>> {
        let mut random = Random(self.seed);
        let value = |form| match form {
            Form::Acc => self.dtype.accumulator(self.op),
            _ => self.dtype,
        };
        (self.sources.iter())
            .map(|(form, _)| (0..self.count).flat_map(|_| random.value(value(*form))).collect())
            .collect()
    }

    /// Runs at all levels that this CPU has, and compares with the meaning.
    fn check(&self) {
        let values = self.values();
        let expected = self.meaning(&values);
        for level in levels() {
            let result = self.fold(level, &values);
            self.assert_same(level, &result, &expected);
        }
    }

    /// Compares results, and shows the items that differ in hexadecimal.
    fn assert_same(&self, level: Level, result: &[u8], expected: &[u8]) {
        let width = self.width(self.result_form());
        let hex = |item: &[u8]| item.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
        let differ = |(_, (got, wanted)): &(usize, (&[u8], &[u8]))| got != wanted;
        let items = result.chunks(width).zip(expected.chunks(width)).enumerate();
        if let Some((at, (got, wanted))) = items.clone().find(differ) {
            let count = items.filter(differ).count();
            panic!("{level}: {count} items differ; item {at} is {}, not {}: {self:?}", hex(got), hex(wanted));
        }
        assert_eq!(result.len(), expected.len());
    }

    fn meaning(&self, values: &[Vec<u8>]) -> Vec<u8> {
        dispatch(self.dtype, self.op, Meaning { trial: self, values })
    }

    fn fold(&self, level: Level, values: &[Vec<u8>]) -> Vec<u8> {
        const GUARD: usize = 64;
        let offset = |index: usize| self.offsets[index % self.offsets.len()];
        let into_len = self.count * self.width(self.result_form());
        let places = self.where_to(values.len());
        let others = vec![vec![0xa5; into_len]; self.places.len()];
        let mut memory: Vec<Vec<u8>> = (values.iter().chain(&others).enumerate())
            .map(|(index, bytes)| [&vec![0x5a; offset(index)], &bytes[..], &[0x5a; GUARD]].concat())
            .collect();
        let before = memory.clone();

        let spans: Vec<Span<'_>> = (memory.iter_mut().enumerate())
            .map(|(index, bytes)| {
                let end = bytes.len() - GUARD;
                Span::of(bytes).slice(offset(index)..end)
            })
            .collect();
        let sources: Vec<Source<'_>> = (self.sources.iter().zip(&spans))
            .map(|(&(form, merges), &span)| Source { span, form, merges })
            .collect();
        let targets: Vec<Span<'_>> = places.iter().map(|index| spans[*index]).collect();
        let into = Target { span: targets[0], form: self.result_form(), copies: &targets[1..] };
        fold_with(level, self.dtype, self.op, into, &sources, self.finish);

        let result = targets[0].to_vec();
        assert!(targets.iter().all(|place| place.to_vec() == result), "{level}: places differ: {self:?}");
        for (index, (after, before)) in memory.iter().zip(&before).enumerate() {
            let start = offset(index);
            let written = if places.contains(&index) { start..start + into_len } else { 0..0 };
            assert_eq!(after[..written.start], before[..written.start], "{level}: wrote elsewhere: {self:?}");
            assert_eq!(after[written.end..], before[written.end..], "{level}: wrote elsewhere: {self:?}");
        }
        result
    }

    /// The places of the target: positions among so many sources, and behind them.
    fn where_to(&self, sources: usize) -> Vec<usize> {
        let mut places = Vec::new();
        for (number, source) in self.places.iter().enumerate() {
            let is_free =
                |source: &usize| self.sources[*source].0 == self.result_form() && !places.contains(source);
            places.push(source.filter(is_free).unwrap_or(sources + number));
        }
        places
    }
}

/// The definition: for each element by itself, a stack.
struct Meaning<'a> {
    trial: &'a Trial,
    values: &'a [Vec<u8>],
}

impl Visitor for Meaning<'_> {
    type Output = Vec<u8>;

    fn visit<R: Reduction>(self) -> Vec<u8> {
        let trial = self.trial;
        // An element may be several of the reduction's.
        let split = trial.dtype.bytes() / R::Element::DTYPE.bytes();
        let width = |form| trial.width(form) / split;
        let item = |source: usize, at: usize| {
            let width = width(trial.sources[source].0);
            &self.values[source][at * width..][..width]
        };
        let mut result = vec![0; trial.count * trial.width(trial.result_form())];
        for (at, out) in result.chunks_mut(width(trial.result_form())).enumerate() {
            let mut stack = Vec::new();
            for (source, &(form, merges)) in trial.sources.iter().enumerate() {
                stack.push(match form {
                    Form::Acc => R::Acc::load(item(source, at)),
                    _ => R::lift(R::Element::load(item(source, at))),
                });
                for _ in 0..merges {
                    let (right, left) = (stack.pop().unwrap(), stack.pop().unwrap());
                    stack.push(R::merge(left, right));
                }
            }
            let folded = stack.pop().unwrap();
            match trial.finish {
                Some(contributors) => R::finish(folded, contributors).store(out),
                None => folded.canonical().store(out),
            }
        }
        result
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// An ordinary number, an edge, or any bits at all.
    fn value(&mut self, dtype: DType) -> Vec<u8> {
        let (choice, bits) = (self.next() % 8, self.next());
        let edges = edges(dtype);
        let bits = match (choice, dtype) {
            (0, _) => edges[bits as usize % edges.len()],
            (1, _) => bits,
            (_, DType::F32) => u64::from((bits as i16 as f32 / 1024.0).to_bits()),
            (_, DType::F64) => (bits as i32 as f64 / 1024.0).to_bits(),
            (_, DType::F16) => 0x3000 | bits & 0x8fff,
            (_, DType::Bf16) => 0x3f00 | bits & 0x80ff,
            _ => bits,
        };
        bits.to_le_bytes()[..dtype.bytes()].to_vec()
    }
}

/// Zeros, the least and largest denormal, normal and infinite numbers, of either sign, and NaNs of all sorts.
fn edges(dtype: DType) -> Vec<u64> {
    let (exponent, mantissa) = match dtype {
        DType::F32 => (8, 23),
        DType::F64 => (11, 52),
        DType::F16 => (5, 10),
        DType::Bf16 => (8, 7),
        _ => return integer_edges(dtype),
    };
    let one = |bit: u32| 1u64 << bit;
    let infinity = (one(exponent) - 1) << mantissa;
    let quiet = infinity | one(mantissa - 1);
    let unit = (one(exponent - 1) - 1) << mantissa;
    let magnitudes = [
        0,
        1,
        one(mantissa) - 1,
        one(mantissa),
        unit,
        unit + 1,
        infinity - 1,
        infinity,
        infinity + 1,
        quiet,
        quiet + 1,
        quiet | (one(mantissa) - 1),
    ];
    magnitudes.into_iter().flat_map(|magnitude| [magnitude, magnitude | one(exponent + mantissa)]).collect()
}

fn integer_edges(dtype: DType) -> Vec<u64> {
    let sign = 1 << (dtype.bytes() * 8 - 1);
    vec![0, 1, 2, u64::MAX, u64::MAX - 1, sign, sign - 1, sign + 1]
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_available())
}

fn kinds() -> Vec<(DType, ReduceOp)> {
    if cfg!(miri) {
        return vec![
            (DType::F32, ReduceOp::Sum),
            (DType::F16, ReduceOp::Average),
            (DType::Bf16, ReduceOp::Max),
            (DType::I8, ReduceOp::Average),
        ];
    }
    let kinds = DType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    kinds.filter(|(dtype, op)| op.takes(*dtype)).collect()
}

#[test]
fn canonical_shapes() {
    let lengths: &[usize] =
        if cfg!(miri) { &[0, 17] } else { &[0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 200] };
    let sources = if cfg!(miri) { 1..=4 } else { 1..=9 };
    for (dtype, op) in kinds() {
        for &count in lengths {
            for sources in sources.clone() {
                Trial::canonical(dtype, op, count, sources).check();
            }
        }
    }
}

#[test]
fn partial_results_in_and_out() {
    let sources = if cfg!(miri) { 1..=2 } else { 1..=9 };
    for (dtype, op) in kinds() {
        for sources in sources.clone() {
            let plain = Trial::canonical(dtype, op, if cfg!(miri) { 19 } else { 77 }, sources);
            let acc = plain.sources.iter().map(|&(_, merges)| (Form::Acc, merges)).collect();
            let acc = Trial { sources: acc, ..plain.clone() };
            let from_acc_to_acc = Trial { finish: None, ..acc.clone() };
            let to_acc = Trial { finish: None, ..plain };
            [acc, from_acc_to_acc, to_acc].iter().for_each(Trial::check);
        }
    }
}

/// Sources of any forms, in a shape that may be any at all.
fn any_sources() -> impl Strategy<Value = Vec<(Form, u8)>> {
    prop::collection::vec((prop::bool::weighted(0.7), 0u8..5), 1..24).prop_map(|choices| {
        let (mut open, last) = (0, choices.len() - 1);
        (choices.into_iter().enumerate())
            .map(|(index, (plain, wanted))| {
                let merges = if index == last { open } else { wanted.min(open) };
                open = open + 1 - merges;
                (if plain { Form::Plain } else { Form::Acc }, merges)
            })
            .collect()
    })
}

fn any_trial() -> impl Strategy<Value = Trial> {
    let long = if cfg!(miri) { 40 } else { 10_000 };
    let count = prop_oneof![4 => 0usize..200.min(long), 1 => long / 50..long];
    let offsets = prop::collection::vec(0usize..64, 1..6);
    let places = prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 1..5);
    let finish = prop::option::of(prop_oneof![1u32..100, any::<u32>().prop_map(|n| n.max(1))]);
    let kind = prop::sample::select(kinds());
    (kind, count, any_sources(), finish, offsets, places, any::<u64>()).prop_map(
        |((dtype, op), count, sources, finish, offsets, places, seed)| {
            let source = |index: prop::sample::Index| index.index(sources.len());
            let places = places.into_iter().map(|place| place.map(source)).collect();
            Trial { dtype, op, count, sources, finish, offsets, places, seed }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 1500 },
        rng_seed: RngSeed::Fixed(0x4845_5252),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_shape_form_length_and_alignment(trial in any_trial()) {
        trial.check();
    }
}

#[test]
fn the_deepest_stack_and_many_blocks() {
    let count = if cfg!(miri) { 5 } else { 9_999 };
    for (dtype, op) in
        [(DType::F32, ReduceOp::Sum), (DType::F64, ReduceOp::Max), (DType::I8, ReduceOp::Average)]
    {
        let mut deep = Trial::canonical(dtype, op, count, 33);
        deep.sources = (0..33).map(|index| (Form::Plain, if index == 32 { 32 } else { 0 })).collect();
        deep.check();
        Trial::canonical(dtype, op, count, if cfg!(miri) { 20 } else { 100 }).check();
    }
}

#[test]
fn every_pair_of_edges() {
    for (dtype, op) in kinds() {
        let (edges, width) = (edges(dtype), dtype.bytes());
        let bytes = |edge: &u64| edge.to_le_bytes()[..width].to_vec();
        let left = edges.iter().flat_map(|a| edges.iter().flat_map(|_| bytes(a))).collect::<Vec<u8>>();
        let right = edges.iter().flat_map(|_| edges.iter().flat_map(bytes)).collect::<Vec<u8>>();
        let trial = Trial::canonical(dtype, op, edges.len() * edges.len(), 2);
        let expected = trial.meaning(&[left.clone(), right.clone()]);
        for level in levels() {
            let one = trial.fold(level, &[left.clone(), right.clone()]);
            let other = trial.fold(level, &[right.clone(), left.clone()]);
            trial.assert_same(level, &one, &expected);
            assert_eq!(one, other, "{level}: {dtype} {op} does not commute");
        }
    }
}

#[test]
#[cfg(not(miri))]
fn every_16_bit_float() {
    for dtype in [DType::F16, DType::Bf16] {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let reversed: Vec<u8> = (0..=u16::MAX).rev().flat_map(u16::to_le_bytes).collect();
        let widened = Trial { finish: None, ..Trial::canonical(dtype, ReduceOp::Sum, 1 << 16, 1) };
        let folded = Trial::canonical(dtype, ReduceOp::Product, 1 << 16, 2);
        let widened_meaning = widened.meaning(std::slice::from_ref(&all));
        let folded_meaning = folded.meaning(&[all.clone(), reversed.clone()]);
        for level in levels() {
            assert!(widened.fold(level, std::slice::from_ref(&all)) == widened_meaning, "{level}: {dtype}");
            assert!(
                folded.fold(level, &[all.clone(), reversed.clone()]) == folded_meaning,
                "{level}: {dtype}"
            );
        }
    }
}

#[test]
#[cfg(not(miri))]
fn rounding_to_16_bits() {
    let lows = [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001];
    let values: Vec<u8> = (0..1 << 16)
        .flat_map(|high: u32| lows.map(|low| high << 16 | low))
        .flat_map(u32::to_le_bytes)
        .collect();
    for dtype in [DType::F16, DType::Bf16] {
        let rounded = Trial {
            sources: vec![(Form::Acc, 0)],
            ..Trial::canonical(dtype, ReduceOp::Sum, values.len() / 4, 1)
        };
        let expected = rounded.meaning(std::slice::from_ref(&values));
        for level in levels() {
            assert!(rounded.fold(level, std::slice::from_ref(&values)) == expected, "{level}: {dtype}");
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod mode {
    use super::*;
    use std::arch::asm;

    fn read() -> u32 {
        let mut word = 0u32;
        // SAFETY: stmxcsr writes four bytes.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack)) }
        word
    }

    fn write(word: u32) {
        // SAFETY: ldmxcsr reads four bytes, of which no reserved bit is set; nothing but a fold runs until it is undone.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) }
    }

    #[test]
    fn of_the_caller_changes_nothing_and_is_kept() {
        const FLUSH_AND_ROUND_UP: u32 = 0x1f80 | 0x8000 | 0x0040 | 0x4000;
        let default = read();
        for (dtype, op) in kinds() {
            for sources in 1..5 {
                let trial = Trial::canonical(dtype, op, 100, sources);
                let values = trial.values();
                let expected = trial.meaning(&values);
                for level in levels() {
                    write(FLUSH_AND_ROUND_UP);
                    let result = trial.fold(level, &values);
                    let after = read();
                    write(default);
                    assert_eq!(after, FLUSH_AND_ROUND_UP, "{level}: {trial:?}");
                    trial.assert_same(level, &result, &expected);
                }
            }
        }
    }
}
