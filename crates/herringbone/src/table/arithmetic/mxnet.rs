//! The optimizers that keep MXNet's own arithmetic: `adamw-mxnet`, `lamb`, `ftrl` and `signum`.
//!
//! Formulas and order of operations follow `python/mxnet/optimizer` and `src/operator/optimizer_op-inl.h` of MXNet 2.

use super::{Real, Rule, Scalar, power};
use crate::core::table::OptimizerParameter;

/// What one step of LAMB divides its means by.
struct Correction<R> {
    mean: R,
    square: R,
}

impl<R: Real> Rule<R> {
    /// `m = beta1·m + (1-beta1)·g; s = beta2·s + (1-beta2)·g²; w -= c·rate·(m / (√s + epsilon) + wd·w)`: Loshchilov and Hutter's
    /// AdamW, as MXNet's `adamw_update` calculates it with `eta` as the corrected rate.
    pub(super) fn step_adamw<'a, S: Scalar<Real = R>>(
        &self,
        each: impl Iterator<Item = (&'a mut S, S)>,
        means: &mut [R],
        squares: &mut [R],
        steps: u32,
    ) {
        let rate = if self.corrects_bias() { self.corrected_rate(steps) } else { self.rate };
        for (((value, pushed), mean), square) in each.zip(means).zip(squares) {
            self.move_means(mean, square, self.limited(pushed));
            let weight = value.real();
            let direction = *mean / (square.sqrt() + self.epsilon) + self.decay * weight;
            *value = S::of(weight - rate * direction);
        }
    }

    /// You et al., "Large Batch Optimization for Deep Learning" (ICLR 2020), as MXNet's `lamb_update_phase1` and `_phase2`. The norms
    /// are of all `values`, summed from left to right in `f64`.
    pub(super) fn step_lamb<S: Scalar<Real = R>>(
        &self,
        values: &mut [S],
        bytes: &[u8],
        means: &mut [R],
        squares: &mut [R],
        steps: u32,
    ) {
        let correction = self.correction(steps);
        let (mut of_weights, mut of_direction) = (0.0, 0.0);
        let pushed = bytes.chunks_exact(size_of::<S>()).map(S::read);
        for (((value, pushed), mean), square) in
            values.iter().zip(pushed).zip(means.iter_mut()).zip(squares.iter_mut())
        {
            self.move_means(mean, square, self.limited(pushed));
            let weight = value.real();
            let direction = self.lamb_direction(&correction, *mean, *square, weight).to_f64();
            of_weights += weight.to_f64() * weight.to_f64();
            of_direction += direction * direction;
        }
        let rate = self.trusted_rate(of_weights.sqrt(), of_direction.sqrt());
        for ((value, mean), square) in values.iter_mut().zip(means).zip(squares) {
            let weight = value.real();
            *value = S::of(weight - rate * self.lamb_direction(&correction, *mean, *square, weight));
        }
    }

    /// McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013), as MXNet's `ftrl_update`.
    pub(super) fn step_ftrl<'a, S: Scalar<Real = R>>(
        &self,
        each: impl Iterator<Item = (&'a mut S, S)>,
        sums: &mut [R],
        squares: &mut [R],
    ) {
        let nothing = R::default();
        let number = |parameter| R::from_f64(self.spec.number(parameter));
        let (lamda1, beta) = (number(OptimizerParameter::Lamda1), number(OptimizerParameter::Beta));
        for (((value, pushed), sum), square) in each.zip(sums).zip(squares) {
            let gradient = self.limited(pushed);
            let root = square.sqrt();
            *square = *square + gradient * gradient;
            let root_after = square.sqrt();
            *sum = *sum + (gradient - (root_after - root) / self.rate * value.real());
            let denominator = (beta + root_after) / self.rate + self.decay;
            let shrunk = if *sum > lamda1 {
                nothing - (*sum - lamda1)
            } else if *sum < nothing - lamda1 {
                nothing - (*sum + lamda1)
            } else if sum.is_nan() {
                *sum
            } else {
                nothing
            };
            *value = S::of(shrunk / denominator);
        }
    }

    /// Bernstein et al., "signSGD" (ICML 2018), as MXNet's `signum_update`, and without a momentum `signsgd_update`, where neither
    /// scale nor bound of a gradient matters.
    pub(super) fn step_signum<'a, S: Scalar<Real = R>>(
        &self,
        each: impl Iterator<Item = (&'a mut S, S)>,
        velocities: &mut [R],
    ) {
        let number = |parameter| self.spec.number(parameter);
        let rate = number(OptimizerParameter::LearningRate);
        let apart = number(OptimizerParameter::DecoupledDecay);
        if velocities.is_empty() {
            let kept = R::from_f64(1.0 - rate * (number(OptimizerParameter::WeightDecay) + apart));
            for (value, pushed) in each {
                *value = S::of(kept * value.real() - self.rate * sign(pushed.real()));
            }
            return;
        }
        let kept = R::from_f64(1.0 - rate * apart);
        let rest = R::from_f64(1.0 - number(OptimizerParameter::Momentum));
        for ((value, pushed), velocity) in each.zip(velocities) {
            let weight = value.real();
            *velocity = *velocity * self.momentum - rest * self.gradient(pushed, weight);
            *value = S::of(kept * weight + self.rate * sign(*velocity));
        }
    }

    fn lamb_direction(&self, correction: &Correction<R>, mean: R, square: R, weight: R) -> R {
        let root = (square / correction.square).sqrt();
        mean / correction.mean / (root + self.epsilon) + self.decay * weight
    }

    /// How far a step of LAMB goes: the rate by the quotient of both norms, if neither is 0.
    fn trusted_rate(&self, of_weights: f64, of_direction: f64) -> R {
        let number = |parameter| self.spec.number(parameter);
        let lower = number(OptimizerParameter::LowerBound);
        let norm = if of_weights < lower { lower } else { of_weights };
        let upper = number(OptimizerParameter::UpperBound);
        let norm = if norm > upper { upper } else { norm };
        let trust = if norm == 0.0 || of_direction == 0.0 { 1.0 } else { norm / of_direction };
        R::from_f64(number(OptimizerParameter::LearningRate) * trust)
    }

    fn correction(&self, steps: u32) -> Correction<R> {
        let left = |beta| {
            let share = if self.corrects_bias() { power(self.spec.number(beta), steps) } else { 0.0 };
            R::from_f64(1.0 - share)
        };
        Correction { mean: left(OptimizerParameter::Beta1), square: left(OptimizerParameter::Beta2) }
    }

    fn corrects_bias(&self) -> bool {
        self.spec.number(OptimizerParameter::CorrectBias) != 0.0
    }
}

/// 1, -1, or 0 for what is neither above nor below 0.
fn sign<R: Real>(number: R) -> R {
    let nothing = R::default();
    R::from_f64(if number > nothing {
        1.0
    } else if number < nothing {
        -1.0
    } else {
        0.0
    })
}
