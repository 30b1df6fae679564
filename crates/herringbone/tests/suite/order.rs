//! The fold-order contract: every sum has the bits of the canonical tree, however the elements get there.
//!
//! The tree is computed here on its own: of n partial sums, those below the largest power of two under n meet first,
//! then the rest, then both. Nothing of the engine or of its oracle is used for that.

mod number;

use crate::world::{Reducers, Transport, World};
use half::{bf16, f16};
use herringbone::{Communicator, ReduceOp};
use number::{Number, Random};

/// Elements of the tensor that the contract is about; no multiple of any cut.
const LENGTH: usize = 2309;
/// Where it is cut when it is reduced in slices.
const CUTS: [usize; 8] = [0, 1, 3, 66, 67, 579, 1603, LENGTH];
/// What lies before and behind it when it is fused with others.
const FUSED: (usize, usize) = (771, 130);

/// One tensor per rank, and what their sum and average must be.
struct Tensors<T> {
    inputs: Vec<Vec<T>>,
    sum: Vec<T>,
    average: Vec<T>,
}

impl<T: Number> Tensors<T> {
    fn new(ranks: u32) -> Self {
        let mut random = Random::new(0x5eed + u64::from(ranks));
        let inputs: Vec<Vec<T>> =
            (0..ranks).map(|_| (0..LENGTH).map(|element| T::draw(element, &mut random)).collect()).collect();
        let column =
            |element: usize| -> Vec<T::Wide> { inputs.iter().map(|input| input[element].widen()).collect() };
        let sum = (0..LENGTH).map(|element| T::narrow(tree::<T>(&column(element)))).collect();
        let average =
            (0..LENGTH).map(|element| T::narrow(T::divide(tree::<T>(&column(element)), ranks))).collect();
        Self { inputs, sum, average }
    }

    /// Reduces the tensor in every arrangement.
    fn check(&self, comm: &Communicator) {
        let mine = &self.inputs[comm.rank() as usize];
        let mut alone = mine.clone();
        comm.all_reduce(&mut alone, ReduceOp::Sum).unwrap();
        same("alone", &alone, &self.sum);
        let mut average = mine.clone();
        comm.all_reduce(&mut average, ReduceOp::Average).unwrap();
        same("the average", &average, &self.average);
        let mut fused = vec![mine[0]; FUSED.0];
        fused.extend_from_slice(mine);
        fused.extend(vec![mine[1]; FUSED.1]);
        comm.all_reduce(&mut fused, ReduceOp::Sum).unwrap();
        same("fused", &fused[FUSED.0..][..LENGTH], &self.sum);
        let mut sliced = mine.clone();
        for cut in CUTS.windows(2) {
            comm.all_reduce(&mut sliced[cut[0]..cut[1]], ReduceOp::Sum).unwrap();
        }
        same("in slices", &sliced, &self.sum);
        self.check_in_flight(comm, mine);
        self.check_scattered(comm, mine);
        let (root, mut reduced) = (comm.size() - 1, vec![T::default(); LENGTH]);
        comm.reduce(mine, &mut reduced, root, ReduceOp::Sum).unwrap();
        if comm.rank() == root {
            same("reduced to a root", &reduced, &self.sum);
        }
    }

    /// All slices under way at once, waited for backwards.
    fn check_in_flight(&self, comm: &Communicator, mine: &[T]) {
        let issue =
            |cut: &[usize]| comm.all_reduce_async(mine[cut[0]..cut[1]].to_vec(), ReduceOp::Sum).unwrap();
        let works: Vec<_> = CUTS.windows(2).map(issue).collect();
        for (work, cut) in works.into_iter().zip(CUTS.windows(2)).rev() {
            same("in flight", &work.wait().unwrap(), &self.sum[cut[0]..cut[1]]);
        }
    }

    fn check_scattered(&self, comm: &Communicator, mine: &[T]) {
        let (ranks, rank) = (comm.size() as usize, comm.rank() as usize);
        let part = LENGTH / ranks;
        let mut scattered = vec![T::default(); part];
        comm.reduce_scatter(&mine[..part * ranks], &mut scattered, ReduceOp::Sum).unwrap();
        same("scattered", &scattered, &self.sum[part * rank..part * (rank + 1)]);
    }
}

/// The fold of partial sums in the canonical tree's shape.
fn tree<T: Number>(partials: &[T::Wide]) -> T::Wide {
    let [only] = partials else {
        let (left, right) = partials.split_at(1 << (partials.len() - 1).ilog2());
        return T::add(tree::<T>(left), tree::<T>(right));
    };
    *only
}

fn same<T: Number>(how: &str, actual: &[T], expected: &[T]) {
    assert_eq!(actual.len(), expected.len(), "{how}");
    for (element, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let (a, b) = (actual.bits(), expected.bits());
        assert!(a == b, "{how}: element {element} of {} is {a:x}, not {b:x}", std::any::type_name::<T>());
    }
}

/// The tensors of every type, for worlds of one size.
struct All(Tensors<f32>, Tensors<f64>, Tensors<f16>, Tensors<bf16>);

impl All {
    fn new(ranks: u32) -> Self {
        Self(Tensors::new(ranks), Tensors::new(ranks), Tensors::new(ranks), Tensors::new(ranks))
    }

    fn check(&self, world: &World) {
        world.run(|comm| {
            self.0.check(comm);
            self.1.check(comm);
            self.2.check(comm);
            self.3.check(comm);
        });
    }
}

const CANONICAL: [&str; 8] =
    ["radix", "radix(2,2)", "radix(4)", "doubling", "one_shot", "star", "tree", "hierarchical"];

fn over_all_algorithms(transport: Transport) {
    for ranks in 2..=8 {
        let all = All::new(ranks);
        for (turn, algorithm) in CANONICAL.iter().enumerate() {
            let segment_bytes = [0, 4096, 65536][(turn + ranks as usize) % 3];
            all.check(&World::new(ranks, transport).forced(algorithm).segment_bytes(segment_bytes));
        }
    }
}

#[test]
fn the_same_bits_over_shared_memory() {
    over_all_algorithms(Transport::Shm);
}

#[test]
fn the_same_bits_over_tcp() {
    over_all_algorithms(Transport::Tcp);
}

/// With 0 to 4 reducers, forced and not.
#[test]
fn the_same_bits_with_any_number_of_reducers() {
    let servers = Reducers::start(4);
    for ranks in 2..=8 {
        let all = All::new(ranks);
        for count in 0..=4 {
            let transport = [Transport::Shm, Transport::Tcp][(count + ranks as usize) % 2];
            let world = World::new(ranks, transport).reducers(servers.first(count));
            all.check(&if count == 0 { world } else { world.segment_bytes(4096).forced("reduction_server") });
        }
    }
}

/// The shares of so many owners, of which some fold little or nothing.
fn shares(owners: usize, turn: usize) -> String {
    let share = |owner: usize| ["16", "0", "5", "1"][(owner + turn) % 4];
    (0..owners).map(share).collect::<Vec<_>>().join(",")
}

/// Whoever folds how much, in memory and over sockets, with reducers and without.
#[test]
fn the_same_bits_by_shares() {
    let servers = Reducers::start(3);
    for ranks in 2..=6 {
        let all = All::new(ranks);
        for (turn, transport) in [Transport::Local, Transport::Shm, Transport::Tcp].into_iter().enumerate() {
            let turn = turn + ranks as usize;
            let (segment_bytes, world) = ([0, 4096, 65536][turn % 3], World::new(ranks, transport));
            let by_ranks = shares(ranks as usize, turn);
            for plain in ["radix", "radix(2,2)"] {
                let world = world.clone().forced(&format!("weighted({plain},{by_ranks})"));
                all.check(&world.segment_bytes(segment_bytes));
            }
            if transport == Transport::Local {
                continue;
            }
            let world = world.reducers(servers.first(3)).segment_bytes(segment_bytes);
            all.check(&world.clone().forced(&format!("weighted(reduction_server,{})", shares(3, turn))));
            let by_all = shares(ranks as usize + 3, turn + 1);
            all.check(&world.forced(&format!("weighted(mixed,{by_all})")));
        }
    }
}

/// The tree itself, on sums whose bits tell its shape.
#[test]
fn the_tree_is_the_canonical_one() {
    let big = 16_777_216.0_f32; // 2^24, where f32 drops a 1 that comes alone.
    assert_eq!(tree::<f32>(&[big, 1.0, 1.0]), big, "(big + 1) + 1");
    assert_eq!(tree::<f32>(&[1.0, 1.0, big]), big + 2.0, "(1 + 1) + big");
    assert_eq!(tree::<f32>(&[big, -big, 1.0, 1.0, 0.5]), 2.5, "((big - big) + (1 + 1)) + 0.5");
    assert_eq!(tree::<f32>(&[0.0, big, 1.0, 1.0, -big]), 2.0, "((0 + big) + (1 + 1)) - big");
}
