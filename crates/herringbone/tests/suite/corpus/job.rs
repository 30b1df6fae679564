//! One call on every rank: its inputs, what must come of it, and the comparison.

use super::case::Values;
use crate::world::World;
use half::{bf16, f16};
use herringbone::{
    Collective, Communicator, DType, ReduceOp, Region, Request,
    core::{algorithm::Layout, codec::Codec, group::Group, interpret::interpret, plan, verify::verify},
};

/// What outputs hold before a call.
const UNTOUCHED: u8 = 0xA5;

pub(super) struct Job {
    label: String,
    call: (Collective, DType, ReduceOp, usize),
    in_place: bool,
    inputs: Vec<Vec<u8>>,
    expected: Vec<Vec<u8>>,
}

impl Job {
    pub(super) fn new(
        label: String,
        call: (Collective, DType, ReduceOp, usize),
        values: Values,
        in_place: bool,
        world: &World,
    ) -> Self {
        let (collective, dtype, op, count) = call;
        let length = |rank| collective.input_elements(world.size, rank, count);
        let mut random = Random::new(&label);
        let inputs: Vec<Vec<u8>> = (0..world.size)
            .map(|rank| (0..length(rank)).flat_map(|_| values.draw(dtype, &mut random)).collect())
            .collect();
        let (group, hosts) = (Group::of_size(world.size), vec![0; world.size as usize]);
        let layout = Layout { reducers: world.reducers.len() as u32, hosts: &hosts, links: None };
        let root = collective.root().unwrap_or(0);
        let elements = length(root).max(collective.output_elements(world.size, root, count));
        let choice = plan::choose(&plan::Request {
            collective,
            bytes: (elements * dtype.bytes()) as u64,
            widening: (dtype.accumulator(op).bytes() / dtype.bytes()) as u32,
            group: &group,
            reducers: layout.reducers,
            hosts: &hosts,
            links: None,
            ports: None,
            forced: world.algorithm.as_ref(),
            codec: Codec::Plain,
        })
        .expect("an algorithm");
        let schedule = choice.algorithm.schedule(collective, &group, &layout).expect("a schedule");
        let verified = verify(schedule, collective, &group).expect("a proof");
        let seen: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
        let expected = interpret(&verified, dtype, op, count, &seen).expect("inputs that fit");
        Self { label: format!("{label}, {}", choice.algorithm), call, in_place, inputs, expected }
    }

    /// Does the call on one rank.
    pub(super) fn check(&self, comm: &Communicator) {
        let rank = comm.rank() as usize;
        let (collective, dtype, op, count) = self.call;
        let input = Region::own(self.inputs[rank].clone());
        let output = (!self.in_place).then(|| Region::own(vec![UNTOUCHED; self.expected[rank].len()]));
        let place = output.as_ref().unwrap_or(&input).region().clone();
        let request = Request::new(collective, dtype, count, input.region().clone(), place);
        let result = comm.execute(request.op(op));
        result.unwrap_or_else(|error| panic!("{}: {error}", self.label));
        let input = input.take();
        let has_result = collective.has_result(comm.size(), rank as u32);
        let Some(output) = output.map(|output| output.take()) else {
            let expected = if has_result { &self.expected[rank] } else { &self.inputs[rank] };
            return self.compare("the buffer", rank, &input, expected);
        };
        self.compare("the input", rank, &input, &self.inputs[rank]);
        let untouched = vec![UNTOUCHED; output.len()];
        self.compare("the output", rank, &output, if has_result { &self.expected[rank] } else { &untouched });
    }

    fn compare(&self, what: &str, rank: usize, actual: &[u8], expected: &[u8]) {
        assert_eq!(actual.len(), expected.len(), "{}: length of {what}", self.label);
        if let Some(at) = (0..actual.len()).find(|at| actual[*at] != expected[*at]) {
            let (width, count) = (self.call.1.bytes(), actual.len() / self.call.1.bytes());
            let element = at / width;
            let wrong = actual.chunks(width).zip(expected.chunks(width)).filter(|(a, b)| a != b).count();
            let bytes = element * width..(element + 1) * width;
            panic!(
                "{}: {what} of rank {rank}: {wrong} of {count} elements are wrong, first {element}: {:02x?}, not {:02x?}",
                self.label,
                &actual[bytes.clone()],
                &expected[bytes]
            );
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014), seeded by a text.
struct Random(u64);

impl Random {
    fn new(text: &str) -> Self {
        Self(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn pick(&mut self, from: &[u64]) -> u64 {
        from[(self.next() % from.len() as u64) as usize]
    }
}

impl Values {
    /// The bytes of one element.
    fn draw(self, dtype: DType, random: &mut Random) -> impl Iterator<Item = u8> + use<> {
        let bits = match self {
            Values::Small => small(dtype, random.next() % 17),
            Values::Bits => random.next(),
            Values::Specials => random.pick(specials(dtype)),
        };
        bits.to_le_bytes().into_iter().take(dtype.bytes())
    }
}

fn small(dtype: DType, number: u64) -> u64 {
    let signed = number as i64 - 8;
    match dtype {
        DType::F32 => u64::from((signed as f32).to_bits()),
        DType::F64 => (signed as f64).to_bits(),
        DType::F16 => u64::from(f16::from_f32(signed as f32).to_bits()),
        DType::Bf16 => u64::from(bf16::from_f32(signed as f32).to_bits()),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => number,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => signed as u64,
    }
}

/// Zeros, one, the largest, infinities, the smallest and largest denormals, a quiet and a signalling NaN with payloads;
/// of integers the ends and what lies around zero.
fn specials(dtype: DType) -> &'static [u64] {
    match dtype {
        DType::F32 => &[
            0,
            0x8000_0000,
            0x3f80_0000,
            0x7f7f_ffff,
            0xff7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            1,
            0x807f_ffff,
            0x7fc1_2345,
            0xff80_0001,
        ],
        DType::F64 => &[
            0,
            1 << 63,
            0x3ff0 << 48,
            0x7fef_ffff_ffff_ffff,
            0xffef_ffff_ffff_ffff,
            0x7ff0 << 48,
            0xfff0 << 48,
            1,
            0x800f_ffff_ffff_ffff,
            0x7ff8_0000_1234_5678,
            0xfff0_0000_0000_0001,
        ],
        DType::F16 => &[0, 0x8000, 0x3c00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 1, 0x83ff, 0x7e55, 0xfc01],
        DType::Bf16 => &[0, 0x8000, 0x3f80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 1, 0x807f, 0x7fd5, 0xff81],
        DType::I8 | DType::U8 => &[0, 1, 0x7f, 0x80, 0xff],
        DType::I16 | DType::U16 => &[0, 1, 0x7fff, 0x8000, 0xffff],
        DType::I32 | DType::U32 => &[0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff],
        DType::I64 | DType::U64 => &[0, 1, i64::MAX as u64, 1 << 63, u64::MAX],
    }
}
