//! Sums of shards: whoever carries them, and whatever algorithm joins their partial sums, the bits are those of a single worker.

use herringbone_core::{
    algorithm::{Algorithm, Layout, Unsupported},
    collective::Collective,
    element::{DType, Element, ReduceOp, Reduction, Visitor, dispatch},
    group::Group,
    interpret::interpret,
    plan::{Request, choose},
    schedule::Schedule,
    shards::{ShardFold, ShardRuns},
    verify::{Order, Verified, verify},
};

/// How many elements a gradient has.
const COUNT: usize = 5;

/// The algorithms that take members whose shards are several nodes.
const SEVERAL_INPUTS: [&str; 5] = ["radix", "one_shot", "star", "reduction_server", "mixed"];

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

/// What a worker gives of a node: the partial sum of its shards, as elements of the accumulator's type. It is -0.0 of what is missing.
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
    let group = runs.group();
    let layout = Layout { reducers, hosts, links: None };
    let schedule = match algorithm.schedule(Collective::AllReduce, &group, &layout) {
        Ok(schedule) => schedule,
        Err(Unsupported::SeveralInputs { .. }) if group.has_several() => return None,
        Err(error) => {
            assert!(!SEVERAL_INPUTS.contains(&name) && error.is_layout(), "{name} {runs:?}: {error}");
            return None;
        }
    };
    let proved = verify(schedule, Collective::AllReduce, &group).unwrap();
    assert_eq!(proved.order(), Order::Fixed, "{name} {runs:?}");
    assert!(reducers == 0 || proved.restartable());
    Some(proved)
}

/// What a worker gives: of each of its nodes the partial sum, one after the other. Without shards it is that of nothing.
fn given(runs: &ShardRuns, worker: u32, dtype: DType, op: ReduceOp, gradients: &Gradients) -> Vec<u8> {
    let folds = runs.folds(worker);
    let node = |folds| dispatch(dtype, op, NodeSum { folds, gradients });
    if folds.is_empty() {
        return node(&[]);
    }
    folds.chunk_by(|a, b| a.node == b.node).flat_map(node).collect()
}

fn check(proved: &Verified, runs: &ShardRuns, dtype: DType, op: ReduceOp, gradients: &Gradients) {
    let inputs: Vec<Vec<u8>> =
        (0..runs.workers()).map(|worker| given(runs, worker, dtype, op, gradients)).collect();
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
    let (mut checked, mut several) = (0, 0);
    for shards in 1..=8 {
        for mut lengths in cuts(shards) {
            // Some with workers that carry nothing.
            lengths.extend(vec![0; noise.next() as usize % 3]);
            let runs = ShardRuns::of_lengths(&lengths).unwrap();
            let hosts: Vec<u32> = (0..runs.workers()).map(|worker| worker / 2).collect();
            for (name, reducers) in [
                ("radix", 0),
                ("radix(2,2)", 0),
                ("doubling", 0),
                ("one_shot", 0),
                ("star", 0),
                ("tree", 0),
                ("reduction_server", 1),
                ("reduction_server", 2),
                ("reduction_server", 3),
                ("mixed", 1),
                ("mixed", 2),
                ("mixed", 3),
                ("hierarchical", 0),
                ("hierarchical(radix,reduction_server)", 2),
            ] {
                let Some(proved) = proved(name, &runs, reducers, &hosts) else { continue };
                // Each type and operation in its turn.
                for turn in [noise.next(), noise.next()] {
                    let dtypes = [DType::F32, DType::F64, DType::Bf16, DType::F16, DType::I32];
                    let dtype = dtypes[turn as usize % dtypes.len()];
                    let op = [ReduceOp::Sum, ReduceOp::Average][(turn >> 32) as usize % 2];
                    check(&proved, &runs, dtype, op, &noise.gradients(dtype, shards));
                }
                checked += 1;
                several += usize::from(runs.group().has_several());
            }
        }
    }
    assert!(checked > 2500 && several > 1500, "{checked} {several}");
}

/// Wrong in the group rather than in a step: what is proved for another group is not of the canonical order, or averages otherwise.
#[test]
fn a_group_that_is_not_of_the_shards_is_found() {
    let mut noise = Noise(54);
    let runs = ShardRuns::even(8, 3).unwrap();
    let right = runs.group();
    let proved = proved("reduction_server", &runs, 2, &[]).unwrap();
    let of_group = |group: &Group| {
        let layout = Layout { reducers: 2, hosts: &[], links: None };
        let schedule = Algorithm::ReductionServer.schedule(Collective::AllReduce, group, &layout).unwrap();
        verify(schedule, Collective::AllReduce, group)
    };
    let group = |keys: &[u32], inputs: &[u32], contributors| {
        let group = Group::with_keys(keys.to_vec()).unwrap().with_inputs(inputs).unwrap();
        group.with_contributors(contributors).unwrap()
    };
    assert_eq!(group(&[0, 2, 3, 4, 6], &[2, 2, 1], 8), right);
    // The same tree is the same proof, whoever has which input: of other keys it is not.
    for keys in [[0, 1, 2, 4, 6], [1, 3, 4, 5, 7], [0, 2, 4, 5, 6], [1, 2, 3, 4, 8]] {
        let schedule = of_group(&group(&keys, &[2, 2, 1], 8)).unwrap();
        let programs = (0..schedule.ranks()).map(|rank| schedule.program(rank).into_owned());
        let listed = Schedule::listed(schedule.workers(), schedule.cut().clone(), programs.collect());
        assert_eq!(
            verify(listed, Collective::AllReduce, &right).unwrap().order(),
            Order::Schedule,
            "{keys:?}"
        );
    }
    // Inputs that another member has are not there.
    let moved = of_group(&group(&[0, 2, 3, 4, 6], &[2, 1, 2], 8)).unwrap();
    let programs = (0..moved.ranks()).map(|rank| moved.program(rank).into_owned());
    let listed = Schedule::listed(moved.workers(), moved.cut().clone(), programs.collect());
    let refused = verify(listed, Collective::AllReduce, &right).unwrap_err().to_string();
    assert_eq!(refused, "rank 2 step 1: there is no chunk 2, only 2");
    let inputs: Vec<Vec<u8>> = (0..3)
        .map(|worker| {
            let gradients = noise.gradients(DType::F32, 8);
            given(&runs, worker, DType::F32, ReduceOp::Average, &gradients)
        })
        .collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let average =
        |proved: &Verified| interpret(proved, DType::F32, ReduceOp::Average, COUNT, &inputs).unwrap();
    let by_members = of_group(&group(&[0, 2, 3, 4, 6], &[2, 2, 1], 3)).unwrap();
    assert_ne!(average(&proved), average(&by_members));
}

#[test]
fn what_does_not_know_several_inputs_says_so() {
    let group = ShardRuns::even(8, 3).unwrap().group();
    let layout = Layout { reducers: 1, hosts: &[0, 0, 1], links: None };
    for algorithm in Algorithm::all() {
        let name = algorithm.to_string();
        let made = algorithm.schedule(Collective::AllReduce, &group, &layout);
        assert_eq!(made.is_ok(), SEVERAL_INPUTS.contains(&&name[..]), "{name}: {made:?}");
        for collective in [Collective::Reduce { root: 0 }, Collective::ReduceScatter] {
            let refused = algorithm.schedule(collective, &group, &layout).unwrap_err();
            assert!(matches!(refused, Unsupported::OneInputEach { .. }), "{name} {collective}: {refused}");
        }
    }
    let schedule = Algorithm::Tree.schedule(Collective::Reduce { root: 0 }, &Group::of_size(3), &layout);
    let refused = verify(schedule.unwrap(), Collective::Reduce { root: 0 }, &group).unwrap_err().to_string();
    assert!(refused.contains("reduce(0) folds one input of each member"), "{refused}");
}

/// What only moves data is what it is among members with one input each, and a barrier is one.
#[test]
fn what_folds_nothing_takes_one_input_of_each() {
    let group = ShardRuns::even(8, 3).unwrap().group();
    for collective in Collective::all(1) {
        if matches!(collective, Collective::Reduce { .. } | Collective::ReduceScatter) {
            continue;
        }
        let request = Request::of_elements(collective, DType::F32, ReduceOp::Sum, 1 << 20, &group);
        let algorithm = choose(&request).unwrap().algorithm;
        let schedule = algorithm.schedule(collective, &group, &Layout::default()).unwrap();
        let proved = verify(schedule, collective, &group).unwrap();
        assert_eq!(proved.group().has_several(), collective == Collective::AllReduce, "{collective}");
        assert_eq!(
            collective.elements_of(&group, 1, 7) == 14,
            matches!(collective, Collective::AllReduce),
            "{collective}"
        );
    }
}
