//! Sums of shards: whoever carries them, and whatever algorithm joins their partial sums, the bits are those of a single worker.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, Element, ReduceOp, Reduction, Visitor, dispatch},
    interpret::interpret,
    shards::{ShardFold, ShardRuns},
    verify::{Order, Verified, verify},
};

/// How many elements a gradient has.
const COUNT: usize = 5;

/// The gradients of all shards, each of one parameter; a shard may have none.
type Gradients = Vec<Option<Vec<u8>>>;

/// The definition: the canonical tree over the shards, in which a node whose one side has nothing is its other side.
struct Definition<'a>(&'a Gradients);

impl Visitor for Definition<'_> {
    type Output = Option<Vec<u8>>;

    fn visit<R: Reduction>(self) -> Option<Vec<u8>> {
        fn tree<R: Reduction>(first: usize, gradients: &[Option<&[u8]>]) -> Option<R::Acc> {
            let [_, .., _] = gradients else { return gradients[0].map(|it| R::lift(R::Element::load(it))) };
            let bit = (first ^ (first + gradients.len() - 1)).ilog2();
            let split = (first..first + gradients.len()).position(|shard| shard >> bit & 1 == 1).unwrap();
            let (left, right) = gradients.split_at(split);
            match (tree::<R>(first, left), tree::<R>(first + split, right)) {
                (Some(left), Some(right)) => Some(R::merge(left, right)),
                (left, right) => left.or(right),
            }
        }
        let width = R::Element::DTYPE.bytes();
        let element = |at: usize| {
            let at = at * width..(at + 1) * width;
            let shards: Vec<_> = self.0.iter().map(|it| it.as_ref().map(|it| &it[at.clone()])).collect();
            let finished = R::finish(tree::<R>(0, &shards)?, self.0.len() as u32);
            let mut bytes = vec![0; width];
            finished.store(&mut bytes);
            Some(bytes)
        };
        (0..COUNT).map(element).collect::<Option<Vec<_>>>().map(|elements| elements.concat())
    }
}

/// What a worker gives of its node: the partial sum of its shards, as elements of the accumulator's type. It is -0.0 of what is missing.
struct NodeSum<'a> {
    folds: &'a [ShardFold],
    gradients: &'a Gradients,
}

impl Visitor for NodeSum<'_> {
    type Output = Vec<u8>;

    fn visit<R: Reduction>(self) -> Vec<u8> {
        let width = R::Element::DTYPE.bytes();
        let element = |at: usize| {
            let mut kept: Vec<Option<R::Acc>> = Vec::new();
            for fold in self.folds {
                let gradient = self.gradients[fold.shard as usize].as_ref();
                let mut sum = gradient.map(|it| R::lift(R::Element::load(&it[at * width..(at + 1) * width])));
                for _ in 0..fold.merges {
                    sum = match (kept.pop().unwrap(), sum) {
                        (Some(left), Some(right)) => Some(R::merge(left, right)),
                        (left, right) => left.or(right),
                    };
                }
                kept.push(sum);
            }
            assert!(kept.len() <= 1, "one node, one sum");
            let mut bytes = vec![0; R::Acc::DTYPE.bytes()];
            match kept.pop().flatten() {
                Some(sum) => sum.store(&mut bytes),
                None if R::Acc::DTYPE.is_float() => *bytes.last_mut().unwrap() = 0x80,
                None => {}
            }
            bytes
        };
        (0..COUNT).flat_map(element).collect()
    }
}

/// Rounds elements of the accumulator's type to the type of the parameter.
struct Rounded<'a>(&'a [u8]);

impl Visitor for Rounded<'_> {
    type Output = Vec<u8>;

    fn visit<R: Reduction>(self) -> Vec<u8> {
        let elements = self.0.chunks(R::Acc::DTYPE.bytes()).flat_map(|bytes| {
            let mut element = vec![0; R::Element::DTYPE.bytes()];
            R::round(R::Acc::load(bytes)).store(&mut element);
            element
        });
        elements.collect()
    }
}

/// Any bits, also NaNs, infinities and denormal numbers; one in so many is a zero, half of them -0.0.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    fn element(&mut self, dtype: DType) -> Vec<u8> {
        let mut bytes = self.next().to_le_bytes()[..dtype.bytes()].to_vec();
        if self.next().is_multiple_of(5) {
            let sign = bytes.pop().unwrap() & if dtype.is_float() { 0x80 } else { 0 };
            bytes.fill(0);
            bytes.push(sign);
        }
        bytes
    }

    fn gradients(&mut self, dtype: DType, shards: u32) -> Gradients {
        let gradient = |noise: &mut Self| {
            let has = !noise.next().is_multiple_of(4);
            has.then(|| (0..COUNT).flat_map(|_| noise.element(dtype)).collect())
        };
        (0..shards).map(|_| gradient(self)).collect()
    }
}

/// All cuts of so many shards into runs of at least one.
fn cuts(shards: u32) -> impl Iterator<Item = Vec<u32>> {
    (0..1_u32 << (shards - 1)).map(move |ends| {
        let mut lengths = vec![1];
        for shard in 1..shards {
            match ends >> (shard - 1) & 1 {
                1 => lengths.push(1),
                _ => *lengths.last_mut().unwrap() += 1,
            }
        }
        lengths
    })
}

fn proved(name: &str, runs: &ShardRuns, reducers: u32, hosts: &[u32]) -> Option<Verified> {
    let algorithm: Algorithm = name.parse().unwrap();
    let group = runs.group().unwrap();
    let schedule =
        algorithm.schedule(Collective::AllReduce, &group, &Layout { reducers, hosts, links: None }).ok()?;
    let proved = verify(schedule, Collective::AllReduce, &group).unwrap();
    assert_eq!(proved.order(), Order::Fixed, "{name} {runs:?}");
    assert!(reducers == 0 || proved.restartable());
    Some(proved)
}

fn check(proved: &Verified, runs: &ShardRuns, dtype: DType, op: ReduceOp, gradients: &Gradients) {
    let inputs: Vec<Vec<u8>> = (0..runs.workers())
        .map(|worker| dispatch(dtype, op, NodeSum { folds: &runs.folds(worker), gradients }))
        .collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let outputs = interpret(proved, dtype.accumulator(op), op, COUNT, &inputs).unwrap();
    let Some(expected) = dispatch(dtype, op, Definition(gradients)) else { return };
    for output in outputs {
        assert_eq!(dispatch(dtype, op, Rounded(&output)), expected, "{runs:?} {dtype} {op}");
    }
}

#[test]
fn sums_of_shards_do_not_depend_on_who_carries_them() {
    let mut noise = Noise(53);
    let mut checked = 0;
    for shards in 1..=8 {
        for mut lengths in cuts(shards) {
            // Some with workers that carry nothing.
            lengths.extend(vec![0; noise.next() as usize % 3]);
            let runs = ShardRuns::of_lengths(&lengths).unwrap();
            if runs.group().is_err() {
                continue;
            }
            let hosts: Vec<u32> = (0..runs.workers()).map(|worker| worker / 2).collect();
            for (name, reducers) in [
                ("radix", 0),
                ("radix(2,2)", 0),
                ("doubling", 0),
                ("one_shot", 0),
                ("star", 0),
                ("tree", 0),
                ("reduction_server", 1),
                ("reduction_server", 3),
                ("mixed", 2),
                ("hierarchical", 0),
                ("hierarchical(radix,reduction_server)", 2),
            ] {
                let Some(proved) = proved(name, &runs, reducers, &hosts) else { continue };
                for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I32] {
                    for op in [ReduceOp::Sum, ReduceOp::Average] {
                        check(&proved, &runs, dtype, op, &noise.gradients(dtype, shards));
                    }
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 400, "{checked}");
}
