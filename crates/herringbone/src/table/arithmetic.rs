//! The effect of optimizers on a row, element by element.
//!
//! Numbers that do not depend on an element are computed in `f64` and rounded once to the type of the arithmetic. That
//! type is `f32` for rows of `f32`, `bf16` and `f16`, and `f64` for rows of `f64`. Nothing is fused or reordered: on
//! all machines the bits are the same.

mod mxnet;

use super::own::{OwnOptimizer, RowStep};
use crate::core::table::{OptimizerKind, OptimizerParameter, OptimizerSpec};
use crate::sys::plain::Plain;
use half::{bf16, f16};
use std::{
    ops::{Add, Div, Mul, Sub},
    sync::Arc,
};

/// A type in which optimizers calculate.
pub(super) trait Real:
    Copy
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Send
    + Sync
{
    fn from_f64(number: f64) -> Self;
    fn to_f64(self) -> f64;
    fn sqrt(self) -> Self;
    fn is_nan(self) -> bool;
    fn step_own(own: &dyn OwnOptimizer, step: RowStep<'_, Self>);
}

macro_rules! real {
    ($($real:ty, $step:ident;)*) => { $(
        impl Real for $real {
            #[inline]
            fn from_f64(number: f64) -> Self {
                number as $real
            }

            #[inline]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[inline]
            fn sqrt(self) -> Self {
                self.sqrt()
            }

            #[inline]
            fn is_nan(self) -> bool {
                self.is_nan()
            }

            fn step_own(own: &dyn OwnOptimizer, step: RowStep<'_, Self>) {
                own.$step(step);
            }
        }
    )* };
}

real! {
    f32, step_f32;
    f64, step_f64;
}

/// A type of rows' elements.
pub(super) trait Scalar: Copy + Default + Send + Plain + Sync + 'static {
    /// What optimizers calculate in.
    type Real: Real + Scalar;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, into: &mut Vec<u8>);
    fn real(self) -> Self::Real;
    fn of(real: Self::Real) -> Self;
    /// Adds elements that lie in `bytes`.
    fn add_all(sums: &mut [Self], bytes: &[u8]);
}

macro_rules! scalar {
    ($($scalar:ty, $real:ty, $to:expr, $from:expr;)*) => { $(
        impl Scalar for $scalar {
            type Real = $real;

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or_else(Self::default, |bytes| Self::from_le_bytes(*bytes))
            }

            #[inline]
            fn write(self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn real(self) -> $real {
                $to(self)
            }

            #[inline]
            fn of(real: $real) -> Self {
                $from(real)
            }

            // Apart from the other optimizers, so that it is done with many elements at once.
            fn add_all(sums: &mut [Self], bytes: &[u8]) {
                for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
                    *sum = $from($to(*sum) + $to(Self::from_le_bytes(*bytes)));
                }
            }
        }
    )* };
}

scalar! {
    f32, f32, std::convert::identity, std::convert::identity;
    f64, f64, std::convert::identity, std::convert::identity;
    bf16, f32, bf16::to_f32, bf16::from_f32;
    f16, f32, f16::to_f32, f16::from_f32;
}

/// An optimizer, its numbers rounded.
#[derive(Clone, Debug)]
pub(super) struct Rule<R> {
    spec: OptimizerSpec,
    /// Of a kind that is the server's own.
    own: Option<OwnRule<R>>,
    rate: R,
    decay: R,
    scaling: Scaling<R>,
    momentum: R,
    beta: [R; 2],
    /// What is left of 1.
    rest: [R; 2],
    rho: R,
    rest_of_rho: R,
    epsilon: R,
    assigns: bool,
}

/// An optimizer of the server's own.
#[derive(Clone, Debug)]
struct OwnRule<R> {
    optimizer: Arc<dyn OwnOptimizer>,
    /// Where a row lies for it.
    row: Vec<R>,
    /// And what was pushed to it.
    gradient: Vec<R>,
}

/// What becomes of what was pushed first.
#[derive(Clone, Copy, Debug)]
struct Scaling<R> {
    rescale: R,
    /// Infinite if nothing is cut.
    clip: R,
    /// Whether it is taken as it is: rescaled by 1, and not cut.
    is_plain: bool,
}

/// A row: its elements, and what the optimizer keeps for it.
pub(super) struct StoredRow<'a, S: Scalar> {
    pub(super) values: &'a mut [S],
    /// As many stretches of the row's width as [`OptimizerSpec::planes`] says.
    pub(super) state: &'a mut [S::Real],
    /// How many steps it has taken, if its optimizer keeps anything: else nobody asks.
    pub(super) steps: Option<&'a mut u32>,
}

impl<R: Real> Rule<R> {
    pub(super) fn new(spec: OptimizerSpec) -> Self {
        Self::with_own(spec, None)
    }

    pub(super) fn with_own(spec: OptimizerSpec, own: Option<Arc<dyn OwnOptimizer>>) -> Self {
        let number = |parameter| R::from_f64(spec.number(parameter));
        let rest = |parameter| R::from_f64(1.0 - spec.number(parameter));
        Self {
            spec,
            own: own.map(|optimizer| OwnRule { optimizer, row: Vec::new(), gradient: Vec::new() }),
            rate: number(OptimizerParameter::LearningRate),
            decay: number(OptimizerParameter::WeightDecay),
            scaling: Scaling {
                rescale: number(OptimizerParameter::RescaleGrad),
                clip: number(OptimizerParameter::ClipGradient),
                is_plain: spec.number(OptimizerParameter::RescaleGrad) == 1.0
                    && spec.number(OptimizerParameter::ClipGradient) == f64::INFINITY,
            },
            momentum: number(OptimizerParameter::Momentum),
            beta: [number(OptimizerParameter::Beta1), number(OptimizerParameter::Beta2)],
            rest: [rest(OptimizerParameter::Beta1), rest(OptimizerParameter::Beta2)],
            rho: number(OptimizerParameter::Rho),
            rest_of_rho: rest(OptimizerParameter::Rho),
            epsilon: number(OptimizerParameter::Epsilon),
            assigns: spec.number(OptimizerParameter::Assigns) != 0.0,
        }
    }

    /// Changes a row by what was pushed to it: elements as they lie in `bytes`.
    pub(super) fn step<S: Scalar<Real = R>>(&mut self, row: StoredRow<'_, S>, bytes: &[u8]) {
        let StoredRow { values, state, steps } = row;
        let pushed = bytes.chunks_exact(size_of::<S>()).map(S::read);
        if self.assigns {
            return values.iter_mut().zip(pushed).for_each(|(value, pushed)| *value = pushed);
        }
        let steps = steps.map_or(0, one_more);
        if let OptimizerKind::Own(_) = self.spec.kind {
            return self.step_own(values, state, steps, pushed);
        }
        let (first, second) = state.split_at_mut(values.len().min(state.len()));
        if self.spec.kind == OptimizerKind::Add && self.scaling.is_plain {
            // The same bits as below.
            return S::add_all(values, bytes);
        }
        let each = values.iter_mut().zip(pushed);
        match self.spec.kind {
            OptimizerKind::Add => {
                each.for_each(|(value, pushed)| *value = S::of(value.real() + self.limited(pushed)));
            }
            OptimizerKind::Assign => each.for_each(|(value, pushed)| *value = S::of(self.limited(pushed))),
            OptimizerKind::Sgd if first.is_empty() => {
                for (value, pushed) in each {
                    let gradient = self.gradient(pushed, value.real());
                    *value = S::of(value.real() - self.rate * gradient);
                }
            }
            OptimizerKind::Sgd | OptimizerKind::Nag => {
                let looks_ahead = self.spec.kind == OptimizerKind::Nag;
                for ((value, pushed), velocity) in each.zip(first) {
                    let step = self.rate * self.gradient(pushed, value.real());
                    *velocity = *velocity * self.momentum - step;
                    let moved = if looks_ahead { self.momentum * *velocity - step } else { *velocity };
                    *value = S::of(value.real() + moved);
                }
            }
            OptimizerKind::Adagrad => {
                for ((value, pushed), history) in each.zip(first) {
                    let gradient = self.gradient(pushed, value.real());
                    *history = *history + gradient * gradient;
                    let step = self.rate * gradient / (history.sqrt() + self.epsilon);
                    *value = S::of(value.real() - step);
                }
            }
            OptimizerKind::Rmsprop => {
                for ((value, pushed), square) in each.zip(first) {
                    let gradient = self.gradient(pushed, value.real());
                    *square = *square * self.rho + self.rest_of_rho * gradient * gradient;
                    let step = self.rate * gradient / (square.sqrt() + self.epsilon);
                    *value = S::of(value.real() - step);
                }
            }
            OptimizerKind::AdamWMxnet => self.step_adamw(each, first, second, steps),
            OptimizerKind::Lamb => self.step_lamb(values, bytes, first, second, steps),
            OptimizerKind::Ftrl => self.step_ftrl(each, first, second),
            OptimizerKind::Signum => self.step_signum(each, first),
            OptimizerKind::Own(_) => {}
            OptimizerKind::Adam | OptimizerKind::AdamW => self.step_adam(each, first, second, steps),
        }
    }

    fn step_adam<'a, S: Scalar<Real = R>>(
        &self,
        each: impl Iterator<Item = (&'a mut S, S)>,
        means: &mut [R],
        squares: &mut [R],
        steps: u32,
    ) {
        let rate = self.corrected_rate(steps);
        let decays_apart = self.spec.kind == OptimizerKind::AdamW;
        for (((value, pushed), mean), square) in each.zip(means).zip(squares) {
            let before = value.real();
            let gradient = if decays_apart { self.limited(pushed) } else { self.gradient(pushed, before) };
            self.move_means(mean, square, gradient);
            let step = rate * *mean / (square.sqrt() + self.epsilon);
            let kept = if decays_apart { before - self.rate * self.decay * before } else { before };
            *value = S::of(kept - step);
        }
    }

    /// Adam's means of gradients and of their squares.
    fn move_means(&self, mean: &mut R, square: &mut R, gradient: R) {
        *mean = *mean * self.beta[0] + self.rest[0] * gradient;
        *square = *square * self.beta[1] + self.rest[1] * gradient * gradient;
    }

    fn step_own<S: Scalar<Real = R>>(
        &mut self,
        values: &mut [S],
        state: &mut [R],
        steps: u32,
        pushed: impl Iterator<Item = S>,
    ) {
        let Some(OwnRule { optimizer, mut row, mut gradient }) = self.own.take() else { return };
        row.clear();
        row.extend(values.iter().map(|value| value.real()));
        gradient.clear();
        gradient.extend(pushed.map(|pushed| self.limited(pushed)));
        let step = RowStep { row: &mut row, state, gradient: &gradient, optimizer: &self.spec, steps };
        R::step_own(&*optimizer, step);
        values.iter_mut().zip(&row).for_each(|(value, real)| *value = S::of(*real));
        self.own = Some(OwnRule { optimizer, row, gradient });
    }

    /// The same optimizer with other numbers.
    pub(super) fn tuned(&self, spec: OptimizerSpec) -> Self {
        Self::with_own(spec, self.own.as_ref().map(|own| own.optimizer.clone()))
    }

    /// What was pushed, rescaled and cut.
    fn limited<S: Scalar<Real = R>>(&self, pushed: S) -> R {
        let scaled = pushed.real() * self.scaling.rescale;
        let lowest = R::default() - self.scaling.clip;
        // A NaN is neither, and stays.
        if scaled > self.scaling.clip {
            self.scaling.clip
        } else if scaled < lowest {
            lowest
        } else {
            scaled
        }
    }

    /// The gradient at a weight, with its decay.
    fn gradient<S: Scalar<Real = R>>(&self, pushed: S, weight: R) -> R {
        self.limited(pushed) + self.decay * weight
    }

    /// Adam's rate after so many steps of a row, as both means begin at 0.
    fn corrected_rate(&self, steps: u32) -> R {
        let number = |parameter| self.spec.number(parameter);
        let left = |parameter: OptimizerParameter| 1.0 - power(number(parameter), steps);
        let rate = number(OptimizerParameter::LearningRate) * left(OptimizerParameter::Beta2).sqrt()
            / left(OptimizerParameter::Beta1);
        R::from_f64(rate)
    }
}

fn one_more(steps: &mut u32) -> u32 {
    *steps = steps.saturating_add(1);
    *steps
}

/// By repeated squaring, the same on all machines.
fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}
