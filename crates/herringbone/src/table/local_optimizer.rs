//! The optimizers of tables for arrays in this process, as MXNet's local stores apply them.

use super::arithmetic::{Rule, Scalar, StoredRow};
use crate::{
    Error, ErrorKind, Result,
    core::{
        element::{DType, Element},
        table::{OptimizerKind, OptimizerSpec, Unusable},
    },
    sys::{
        plain::{self, Plain},
        region::Region,
    },
};
use half::{bf16, f16};

/// How many elements take a step at once: their bytes, gradients and state fit a core's cache.
const BLOCK: usize = 4096;

/// How many of an array's elements take a step at once: all where a norm of all of them is needed.
fn block_of(kind: OptimizerKind, elements: usize) -> usize {
    if kind == OptimizerKind::Lamb { elements.max(1) } else { BLOCK }
}

/// An optimizer with its state for one array in this process: its steps have the bits of a table's.
///
/// The rules are MXNet's: [`OptimizerKind`](crate::core::table::OptimizerKind) has the formulas. Arithmetic and state
/// are `f64` for elements of `f64`, and `f32` for all others.
///
/// ```
/// use herringbone::core::table::{OptimizerKind, OptimizerSpec};
/// use herringbone::{DType, table::LocalOptimizer};
///
/// # fn main() -> Result<(), herringbone::Error> {
/// let mut optimizer = LocalOptimizer::new(OptimizerSpec::of(OptimizerKind::Sgd), DType::F32, 2)?;
/// let mut weights = [1.0_f32, 2.0];
/// optimizer.step(&mut weights, &[10.0, 20.0])?;
/// assert_eq!(weights, [1.0 - 0.01 * 10.0, 2.0 - 0.01 * 20.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LocalOptimizer {
    spec: OptimizerSpec,
    dtype: DType,
    elements: usize,
    steps: u32,
    state: State,
}

/// Block after block what the optimizer keeps for it: all first numbers of its elements, then all second ones.
#[derive(Clone, Debug)]
enum State {
    Single(Vec<f32>),
    Double(Vec<f64>),
}

impl LocalOptimizer {
    /// An optimizer for an array of so many elements that has taken no step.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if one of its numbers cannot be; [`ErrorKind::Unsupported`] for elements other than `f16`, `bf16`, `f32`
    /// and `f64`.
    pub fn new(spec: OptimizerSpec, dtype: DType, elements: usize) -> Result<Self> {
        spec.check().map_err(unusable)?;
        if let OptimizerKind::Own(_) = spec.kind {
            let problem = format_args!("{} in this process: table servers have it", spec.kind);
            return Err(Error::unsupported(problem));
        }
        let numbers = spec.planes() * elements;
        let state = match dtype {
            DType::F64 => State::Double(vec![0.0; numbers]),
            DType::F16 | DType::Bf16 | DType::F32 => State::Single(vec![0.0; numbers]),
            _ => {
                let problem = format_args!("an optimizer for elements of {dtype}: use f16, bf16, f32 or f64");
                return Err(Error::unsupported(problem));
            }
        };
        Ok(Self { spec, dtype, elements, steps: 0, state })
    }

    /// Its specification.
    pub fn spec(&self) -> &OptimizerSpec {
        &self.spec
    }

    /// Takes other numbers of the same optimizer, such as another learning rate, from the next step on. The state
    /// stays. A momentum that was 0 before begins at 0.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if one of the numbers cannot be, or it is another optimizer.
    pub fn set(&mut self, spec: OptimizerSpec) -> Result<()> {
        spec.check().map_err(unusable)?;
        if spec.kind != self.spec.kind {
            let (now, wanted) = (self.spec.kind, spec.kind);
            return Err(Error::config("optimizer", format!("this is {now}: make another one for {wanted}")));
        }
        if spec.planes() != self.spec.planes() {
            let fresh = Self::new(spec, self.dtype, self.elements)?;
            *self = Self { steps: self.steps, ..fresh };
        }
        self.spec = spec;
        Ok(())
    }

    /// Changes the weights by their gradients.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the elements have another type than this optimizer's, [`ErrorKind::BufferSize`] if
    /// there are more or fewer of them. Nothing is changed then.
    pub fn step<T: Element + Plain>(&mut self, weights: &mut [T], gradients: &[T]) -> Result<()> {
        if T::DTYPE != self.dtype {
            let problem = format!("elements of {} for an optimizer of {}", T::DTYPE, self.dtype);
            return Err(Error::config("optimizer", problem));
        }
        Region::lend(weights, |weights| {
            Region::lend_shared(gradients, |gradients| self.step_regions(weights, gradients))
        })
    }

    /// As [`step`](Self::step), of weights and gradients in regions, which are elements of the type that it was made for. The two
    /// are the same memory or have no byte in common.
    ///
    /// # Errors
    /// As [`step`](Self::step); [`ErrorKind::Closed`] if a region was revoked.
    pub fn step_regions(&mut self, weights: &Region, gradients: &Region) -> Result<()> {
        let expected = self.elements * self.dtype.bytes();
        for (buffer, actual) in [("weights", weights.len()), ("gradients", gradients.len())] {
            check_size(buffer, expected, actual)?;
        }
        let steps = &mut self.steps;
        match (self.dtype, &mut self.state) {
            (DType::F64, State::Double(state)) => {
                step_blocks::<f64>(&self.spec, steps, state, weights, gradients)
            }
            (DType::Bf16, State::Single(state)) => {
                step_blocks::<bf16>(&self.spec, steps, state, weights, gradients)
            }
            (DType::F16, State::Single(state)) => {
                step_blocks::<f16>(&self.spec, steps, state, weights, gradients)
            }
            (_, State::Single(state)) => step_blocks::<f32>(&self.spec, steps, state, weights, gradients),
            (_, State::Double(_)) => unreachable!("only an optimizer of f64 has a state of f64"),
        }
    }

    /// How many steps it has taken.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Its state, as bytes in this machine's order: the first number of all elements, then the second one, of the type
    /// of its arithmetic. It is empty for an optimizer without a state.
    pub fn state(&self) -> Vec<u8> {
        let block = block_of(self.spec.kind, self.elements);
        match &self.state {
            State::Single(state) => plain::bytes(&by_plane(state, self.elements, block)).to_vec(),
            State::Double(state) => plain::bytes(&by_plane(state, self.elements, block)).to_vec(),
        }
    }

    /// Continues after `steps` steps with the state that [`state`](Self::state) gave.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] if it has another length than this optimizer's: then nothing is changed.
    pub fn restore(&mut self, steps: u32, state: &[u8]) -> Result<()> {
        let length = match &self.state {
            State::Single(held) => size_of_val(&held[..]),
            State::Double(held) => size_of_val(&held[..]),
        };
        check_size("state", length, state.len())?;
        let block = block_of(self.spec.kind, self.elements);
        match &mut self.state {
            State::Single(held) => restore_planes(held, self.elements, block, state),
            State::Double(held) => restore_planes(held, self.elements, block, state),
        }
        self.steps = steps;
        Ok(())
    }
}

fn unusable(Unusable(what): Unusable) -> Error {
    Error::config("optimizer", what)
}

fn check_size(buffer: &'static str, expected: usize, actual: usize) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    Err(Error::new(ErrorKind::BufferSize { buffer, expected, actual }))
}

/// Takes a step with all elements, block after block. Each block counts the same step.
fn step_blocks<S: Scalar + Plain>(
    spec: &OptimizerSpec,
    steps: &mut u32,
    state: &mut [S::Real],
    weights: &Region,
    gradients: &Region,
) -> Result<()> {
    let closed = || Error::new(ErrorKind::Closed);
    let (weights, gradients) = (weights.access().ok_or_else(closed)?, gradients.access().ok_or_else(closed)?);
    let (weights, gradients) = (weights.span(), gradients.span());
    let (mut rule, planes, size) = (Rule::<S::Real>::new(*spec), spec.planes(), size_of::<S>());
    let elements = weights.len() / size;
    let block = block_of(spec.kind, elements);
    let mut values = vec![S::default(); block.min(elements)];
    let mut pushed = values.clone();
    let before = *steps;
    // An array without elements has an empty block, which counts the step.
    for begin in (0..elements.max(1)).step_by(block) {
        let end = (begin + block).min(elements);
        let (values, pushed) = (&mut values[..end - begin], &mut pushed[..end - begin]);
        let bytes = begin * size..end * size;
        weights.slice(bytes.clone()).read(plain::bytes_mut(values));
        gradients.slice(bytes.clone()).read(plain::bytes_mut(pushed));
        let state = &mut state[begin * planes..end * planes];
        *steps = before;
        let row = StoredRow { values: &mut *values, state, steps: Some(&mut *steps) };
        rule.step(row, plain::bytes(pushed));
        weights.slice(bytes).write(plain::bytes(values));
    }
    Ok(())
}

/// The parts of a state that belong together: of each block and plane where it is, and where it is among all of its plane.
fn parts(
    numbers: usize,
    elements: usize,
    block: usize,
) -> impl Iterator<Item = (std::ops::Range<usize>, std::ops::Range<usize>)> {
    let planes = numbers.checked_div(elements).unwrap_or(0);
    (0..elements).step_by(block).flat_map(move |begin| {
        let length = block.min(elements - begin);
        (0..planes).map(move |plane| {
            let (held, listed) = (begin * planes + plane * length, plane * elements + begin);
            (held..held + length, listed..listed + length)
        })
    })
}

fn by_plane<R: Copy + Default>(state: &[R], elements: usize, block: usize) -> Vec<R> {
    let mut listed = vec![R::default(); state.len()];
    for (held, place) in parts(state.len(), elements, block) {
        listed[place].copy_from_slice(&state[held]);
    }
    listed
}

fn restore_planes<R: Plain>(state: &mut [R], elements: usize, block: usize, listed: &[u8]) {
    for (held, place) in parts(state.len(), elements, block) {
        let bytes = place.start * size_of::<R>()..place.end * size_of::<R>();
        plain::bytes_mut(&mut state[held]).copy_from_slice(&listed[bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::table::PARAMETERS;

    fn numbers(count: usize, salt: u32) -> Vec<f32> {
        let mixed = |at: usize| (at as u32 ^ salt).wrapping_mul(0x9e37_79b9) >> 8;
        (0..count).map(|at| mixed(at) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    fn spec(kind: OptimizerKind) -> OptimizerSpec {
        let spec = OptimizerSpec::of(kind);
        let spec = spec.with("rescale_grad", 0.5).unwrap().with("clip_gradient", 0.4).unwrap();
        spec.with("wd", 0.01).unwrap_or(spec)
    }

    #[test]
    fn blocks_are_one_array_and_states_travel() {
        let elements = 2 * BLOCK + 17;
        for kind in OptimizerKind::ALL {
            let mut whole = LocalOptimizer::new(spec(kind), DType::F32, elements).unwrap();
            // Each element by itself has the same bits, except where the norm of all matters.
            let mut alone = LocalOptimizer::new(spec(kind), DType::F32, 1).unwrap();
            let (mut weights, at) = (numbers(elements, 7), 2 * BLOCK + 3);
            let mut weight = [weights[at]];
            for step in 0..5 {
                let gradients = numbers(elements, 100 + step);
                whole.step(&mut weights, &gradients).unwrap();
                alone.step(&mut weight, &gradients[at..=at]).unwrap();
                let mut restored = LocalOptimizer::new(spec(kind), DType::F32, elements).unwrap();
                restored.restore(whole.steps(), &whole.state()).unwrap();
                assert_eq!(restored.state(), whole.state());
                whole = restored;
            }
            assert_eq!(whole.steps(), 5, "{kind}");
            let is_alone = kind != OptimizerKind::Lamb;
            assert_eq!(weights[at].to_bits() == weight[0].to_bits(), is_alone, "{kind}");
            let state = whole.state();
            let states: Vec<&[u8]> = state.chunks(4 * elements).map(|plane| &plane[4 * at..][..4]).collect();
            assert!(!is_alone || states.concat() == alone.state(), "{kind}");
            let (given, before) = (numbers(elements, 3), state);
            whole.set(spec(kind).with("assigns", 1.0).unwrap()).unwrap();
            whole.step(&mut weights, &given).unwrap();
            assert!(weights == given && whole.state() == before, "{kind} keeps its state");
            assert_eq!(whole.steps(), 5, "{kind}");
        }
    }

    #[test]
    fn narrow_elements_keep_a_wide_state() {
        let momentum = OptimizerSpec::of(OptimizerKind::Sgd).with("momentum", 0.9).unwrap();
        let mut optimizer = LocalOptimizer::new(momentum, DType::F16, 3).unwrap();
        let mut weights = [f16::from_f32(1.0); 3];
        for _ in 0..2 {
            optimizer.step(&mut weights, &[f16::from_f32(0.001); 3]).unwrap();
        }
        assert_eq!(weights[0], f16::from_f32(1.0));
        let velocity: Vec<f32> =
            optimizer.state().as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four)).collect();
        assert!((velocity[0] + 1.9e-5).abs() < 1e-7, "{velocity:?}");
    }

    #[test]
    fn numbers_change_while_it_runs_and_nothing_else_does() {
        let sgd = OptimizerSpec::of(OptimizerKind::Sgd);
        let mut optimizer = LocalOptimizer::new(sgd, DType::F64, 1).unwrap();
        let mut weights = [1.0_f64];
        optimizer.set(sgd.with("learning_rate", 0.5).unwrap()).unwrap();
        optimizer.step(&mut weights, &[1.0]).unwrap();
        optimizer.set(sgd.with("momentum", 0.5).unwrap()).unwrap();
        optimizer.step(&mut weights, &[1.0]).unwrap();
        assert_eq!((weights, optimizer.steps()), ([1.0 - 0.5 - 0.01], 2));
        for wrong in [
            optimizer.step(&mut [0.0_f32], &[0.0]),
            optimizer.step(&mut [0.0_f64; 2], &[0.0; 2]),
            optimizer.restore(1, &[0; 3]),
            optimizer.set(OptimizerSpec::of(OptimizerKind::Nag)),
            LocalOptimizer::new(sgd, DType::I32, 1).map(drop),
            LocalOptimizer::new(OptimizerSpec { numbers: [f64::NAN; PARAMETERS], ..sgd }, DType::F32, 1)
                .map(drop),
        ] {
            wrong.unwrap_err();
        }
        assert_eq!((weights, optimizer.steps()), ([0.49], 2));
    }
}
