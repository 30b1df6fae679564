//! Optimizers by name: the effect of a push on its rows. The holder of the rows does the arithmetic.

use super::error::Unusable;
use crate::session::{Malformed, Reader, Writer};
use alloc::{format, string::String, vec::Vec};
use core::fmt;

/// The longest name of an [own](OptimizerKind::Own) optimizer, in bytes.
const OWN_BYTES: usize = 24;
/// What comes before the name of an own optimizer.
const OWN: &str = "own:";
/// In messages, where the others have their places in [`OptimizerKind::ALL`].
const OWN_CODE: u8 = u8::MAX;

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptimizerKind {
    /// The push is added: `w += g`.
    Add,
    /// The push replaces the value: `w = g`.
    Assign,
    /// Stochastic gradient descent, with momentum as in MXNet: `v = momentum·v - rate·g; w += v`.
    Sgd,
    /// Nesterov's accelerated gradient, as in MXNet.
    Nag,
    /// `h += g²; w -= rate·g / (√h + epsilon)` (Duchi et al., JMLR 2011).
    Adagrad,
    /// `s = rho·s + (1-rho)·g²; w -= rate·g / (√s + epsilon)` (Tieleman and Hinton, 2012).
    Rmsprop,
    /// Adam (Kingma and Ba, ICLR 2015), with a count of steps for each row.
    Adam,
    /// Adam with weight decay apart from the gradient (Loshchilov and Hutter, ICLR 2019).
    AdamW,
    /// MXNet's AdamW (`optimizer/adamW.py`): the corrected rate multiplies the decay, too.
    AdamWMxnet,
    /// Adam's step, as long as the row times the rate (You et al., ICLR 2020), with the bounds of MXNet's `lamb_update_phase2`. The
    /// norms are of a whole row.
    Lamb,
    /// FTRL-Proximal (McMahan et al., KDD 2013), as MXNet's `ftrl_update`: the weight follows from the state.
    Ftrl,
    /// The sign of the gradient's mean (Bernstein et al., ICML 2018), as MXNet's `signum_update`; without momentum `signsgd_update`.
    Signum,
    /// An optimizer that servers have in addition to these.
    Own(OwnOptimizerName),
}

/// The name of an optimizer that is not of this library: 1 to 24 small letters, digits, `-` and `_`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnOptimizerName {
    length: u8,
    bytes: [u8; OWN_BYTES],
}

/// A number that an optimizer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OptimizerParameter {
    /// How far a step goes.
    LearningRate = 0,
    /// Weight decay: this times the weight is added to the gradient, or with [`OptimizerKind::AdamW`] taken from the weight.
    WeightDecay = 1,
    /// The first factor of gradients.
    RescaleGrad = 2,
    /// Gradients are cut to at most this, up and down, after that. Infinite: they are not.
    ClipGradient = 3,
    /// The fraction of the last steps' velocity that is kept.
    Momentum = 4,
    /// The fraction of the mean of gradients that is kept.
    Beta1 = 5,
    /// The fraction of the mean of their squares that is kept.
    Beta2 = 6,
    /// The number that keeps a divisor from being 0.
    Epsilon = 7,
    /// The fraction of the mean of squares that is kept.
    Rho = 8,
    /// While it is 1, a push replaces the value, and the optimizer's state stays as it is: a table is given values in
    /// this way. It is 0 or 1.
    Assigns = 9,
    /// The strength of L1 regularisation, MXNet's `lamda1`.
    Lamda1 = 10,
    /// The smoothing of an element's rate at first.
    Beta = 11,
    /// Weight decay apart from the gradient, MXNet's `wd_lh`.
    DecoupledDecay = 12,
    /// The lower bound of a row's norm.
    LowerBound = 13,
    /// The upper bound of a row's norm. Infinite: no bound.
    UpperBound = 14,
    /// Whether means are corrected, as they begin at 0: 0 or 1.
    CorrectBias = 15,
}

/// How many [`OptimizerParameter`]s there are.
pub const PARAMETERS: usize = 16;

/// The first so many of them are in every message and image of an optimizer; of the others those that it takes.
const ALWAYS_SENT: usize = 10;

/// An optimizer with its numbers, by [`OptimizerParameter`]. Numbers that it does not take are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerSpec {
    /// Which one.
    pub kind: OptimizerKind,
    /// Its numbers.
    pub numbers: [f64; PARAMETERS],
}

impl OptimizerKind {
    /// All optimizers of this library; servers can add their own.
    pub const ALL: [Self; 12] = [
        Self::Add,
        Self::Assign,
        Self::Sgd,
        Self::Nag,
        Self::Adagrad,
        Self::Rmsprop,
        Self::Adam,
        Self::AdamW,
        Self::AdamWMxnet,
        Self::Lamb,
        Self::Ftrl,
        Self::Signum,
    ];

    /// Its name for people; an own one's name alone.
    pub fn name(&self) -> &str {
        match self {
            Self::Add => "add",
            Self::Assign => "assign",
            Self::Sgd => "sgd",
            Self::Nag => "nag",
            Self::Adagrad => "adagrad",
            Self::Rmsprop => "rmsprop",
            Self::Adam => "adam",
            Self::AdamW => "adamw",
            Self::AdamWMxnet => "adamw-mxnet",
            Self::Lamb => "lamb",
            Self::Ftrl => "ftrl",
            Self::Signum => "signum",
            Self::Own(name) => name.as_str(),
        }
    }

    /// The optimizer of this name, without `own:`, that servers have in addition to the others.
    ///
    /// # Errors
    /// If nothing can have this name.
    pub fn own(name: &str) -> Result<Self, Unusable> {
        let is_right = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        if name.is_empty() || name.len() > OWN_BYTES || !name.bytes().all(is_right) {
            let what = format!(
                "{name:?} as the name of an optimizer: 1 to {OWN_BYTES} small letters, digits, - and _"
            );
            return Err(Unusable(what));
        }
        let mut bytes = [0; OWN_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self::Own(OwnOptimizerName { length: name.len() as u8, bytes }))
    }

    /// The optimizer of this name, in small or large letters; after `own:` one that servers have in addition to the
    /// others.
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some(own) = name.strip_prefix(OWN) {
            return Self::own(own).ok();
        }
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// The numbers that it takes, each with its default.
    pub fn parameters(self) -> Vec<(OptimizerParameter, f64)> {
        use OptimizerParameter::{
            Assigns, Beta, Beta1, Beta2, ClipGradient, CorrectBias, DecoupledDecay, Epsilon, Lamda1,
            LearningRate, LowerBound, Momentum, RescaleGrad, Rho, UpperBound, WeightDecay,
        };
        let (rate, own): (f64, &[(OptimizerParameter, f64)]) = match self {
            Self::Add | Self::Assign => {
                return Vec::from([(RescaleGrad, 1.0), (ClipGradient, f64::INFINITY), (Assigns, 0.0)]);
            }
            Self::Sgd => (0.01, &[(Momentum, 0.0)]),
            Self::Nag => (0.01, &[(Momentum, 0.9)]),
            Self::Adagrad => (0.01, &[(Epsilon, 1e-7)]),
            Self::Rmsprop => (0.001, &[(Rho, 0.9), (Epsilon, 1e-8)]),
            Self::Adam | Self::AdamW => (0.001, &[(Beta1, 0.9), (Beta2, 0.999), (Epsilon, 1e-8)]),
            Self::AdamWMxnet => (0.001, &[(Beta1, 0.9), (Beta2, 0.999), (Epsilon, 1e-6), (CorrectBias, 1.0)]),
            Self::Lamb => {
                let bounds = &[
                    (Beta1, 0.9),
                    (Beta2, 0.999),
                    (Epsilon, 1e-6),
                    (LowerBound, 0.0),
                    (UpperBound, f64::INFINITY),
                    (CorrectBias, 1.0),
                ];
                (0.001, bounds)
            }
            Self::Ftrl => (0.1, &[(Lamda1, 0.01), (Beta, 1.0)]),
            Self::Signum => (0.01, &[(Momentum, 0.9), (DecoupledDecay, 0.0)]),
            // It may want any that all optimizers send.
            Self::Own(_) => {
                (0.01, &[(Momentum, 0.0), (Beta1, 0.0), (Beta2, 0.0), (Epsilon, 0.0), (Rho, 0.0)])
            }
        };
        let decay = if self == Self::AdamW { 0.01 } else { 0.0 };
        let common =
            [(LearningRate, rate), (WeightDecay, decay), (RescaleGrad, 1.0), (ClipGradient, f64::INFINITY)];
        common.into_iter().chain(own.iter().copied()).chain([(Assigns, 0.0)]).collect()
    }
}

impl OwnOptimizerName {
    /// As text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl fmt::Debug for OwnOptimizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl OptimizerParameter {
    /// All of them, by their numbers.
    pub const ALL: [Self; PARAMETERS] = [
        Self::LearningRate,
        Self::WeightDecay,
        Self::RescaleGrad,
        Self::ClipGradient,
        Self::Momentum,
        Self::Beta1,
        Self::Beta2,
        Self::Epsilon,
        Self::Rho,
        Self::Assigns,
        Self::Lamda1,
        Self::Beta,
        Self::DecoupledDecay,
        Self::LowerBound,
        Self::UpperBound,
        Self::CorrectBias,
    ];

    /// MXNet's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::LearningRate => "learning_rate",
            Self::WeightDecay => "wd",
            Self::RescaleGrad => "rescale_grad",
            Self::ClipGradient => "clip_gradient",
            Self::Momentum => "momentum",
            Self::Beta1 => "beta1",
            Self::Beta2 => "beta2",
            Self::Epsilon => "epsilon",
            Self::Rho => "rho",
            Self::Assigns => "assigns",
            Self::Lamda1 => "lamda1",
            Self::Beta => "beta",
            Self::DecoupledDecay => "wd_lh",
            Self::LowerBound => "lower_bound",
            Self::UpperBound => "upper_bound",
            Self::CorrectBias => "correct_bias",
        }
    }

    /// Whether the number can be of an optimizer of a kind.
    fn takes(self, kind: OptimizerKind, number: f64) -> bool {
        match self {
            // Its weights are divided by the rate.
            Self::LearningRate if kind == OptimizerKind::Ftrl => number.is_finite() && number > 0.0,
            Self::ClipGradient | Self::UpperBound => number > 0.0,
            Self::Beta1 | Self::Beta2 | Self::Rho => (0.0..1.0).contains(&number),
            Self::Epsilon | Self::Lamda1 | Self::Beta | Self::LowerBound => {
                number.is_finite() && number >= 0.0
            }
            Self::Assigns | Self::CorrectBias => number == 0.0 || number == 1.0,
            _ => number.is_finite(),
        }
    }
}

impl OptimizerSpec {
    /// Adds each push.
    pub const ADD: Self = {
        let mut numbers = [0.0; PARAMETERS];
        numbers[OptimizerParameter::RescaleGrad as usize] = 1.0;
        numbers[OptimizerParameter::ClipGradient as usize] = f64::INFINITY;
        Self { kind: OptimizerKind::Add, numbers }
    };

    /// An optimizer with the default numbers.
    pub fn of(kind: OptimizerKind) -> Self {
        let mut numbers = [0.0; PARAMETERS];
        for (parameter, number) in kind.parameters() {
            numbers[parameter as usize] = number;
        }
        Self { kind, numbers }
    }

    /// The same with another number, by its name.
    ///
    /// # Errors
    /// If it takes no such number.
    pub fn with(mut self, name: &str, number: f64) -> Result<Self, Unusable> {
        let takes = self.kind.parameters();
        let found = takes.iter().map(|(parameter, _)| *parameter).find(|parameter| parameter.name() == name);
        let Some(parameter) = found else {
            let names: Vec<&str> = takes.iter().map(|(parameter, _)| parameter.name()).collect();
            let (kind, names) = (self.kind, names.join(", "));
            return Err(Unusable(format!("{kind} takes no {name}; it takes {names}")));
        };
        self.numbers[parameter as usize] = number;
        self.check().map(|()| self)
    }

    /// Whether the other keeps the same numbers for each row: only its changes of rows can differ.
    pub fn is_same_but_for_numbers(&self, other: &Self) -> bool {
        self.kind == other.kind && self.has_velocity() == other.has_velocity()
    }

    /// Whether it is an optimizer that keeps something only because it has a momentum.
    fn has_velocity(&self) -> bool {
        matches!(self.kind, OptimizerKind::Sgd | OptimizerKind::Signum)
            && self.number(OptimizerParameter::Momentum) != 0.0
    }

    /// How many numbers it keeps for each element, if it is no [own](OptimizerKind::Own) one.
    pub fn planes(&self) -> usize {
        match self.kind {
            OptimizerKind::Add | OptimizerKind::Assign | OptimizerKind::Own(_) => 0,
            OptimizerKind::Sgd | OptimizerKind::Signum => usize::from(self.has_velocity()),
            OptimizerKind::Nag | OptimizerKind::Adagrad | OptimizerKind::Rmsprop => 1,
            OptimizerKind::Adam
            | OptimizerKind::AdamW
            | OptimizerKind::AdamWMxnet
            | OptimizerKind::Lamb
            | OptimizerKind::Ftrl => 2,
        }
    }

    /// One of its numbers.
    pub fn number(&self, parameter: OptimizerParameter) -> f64 {
        self.numbers[parameter as usize]
    }

    /// # Errors
    /// If one of its numbers cannot be.
    pub fn check(&self) -> Result<(), Unusable> {
        let takes = self.kind.parameters();
        let wrong = OptimizerParameter::ALL.into_iter().find(|parameter| {
            let number = self.number(*parameter);
            match takes.iter().any(|(known, _)| known == parameter) {
                true => !parameter.takes(self.kind, number),
                false => number != 0.0,
            }
        });
        wrong.map_or(Ok(()), |parameter| {
            let (kind, name, number) = (self.kind, parameter.name(), self.number(parameter));
            Err(Unusable(format!("{kind} cannot have a {name} of {number}")))
        })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        match &self.kind {
            OptimizerKind::Own(name) => {
                to.u8(OWN_CODE);
                to.text("an optimizer's name", name.as_str());
            }
            kind => {
                to.u8(OptimizerKind::ALL.iter().position(|known| known == kind).unwrap_or_default() as u8)
            }
        }
        sent(self.kind).into_iter().for_each(|at| to.u64(self.numbers[at].to_bits()));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        const UNKNOWN: Malformed = Malformed("an optimizer that is unknown");
        let kind = match from.u8()? {
            OWN_CODE => OptimizerKind::own(&from.text()?).map_err(|_| UNKNOWN)?,
            code => OptimizerKind::ALL.get(usize::from(code)).copied().ok_or(UNKNOWN)?,
        };
        let mut numbers = [0.0; PARAMETERS];
        for at in sent(kind) {
            numbers[at] = f64::from_bits(from.u64()?);
        }
        Ok(Self { kind, numbers })
    }
}

/// Which numbers a message has, in their order.
fn sent(kind: OptimizerKind) -> Vec<usize> {
    let taken = kind.parameters().into_iter().map(|(parameter, _)| parameter as usize);
    let mut others: Vec<usize> = taken.filter(|at| *at >= ALWAYS_SENT).collect();
    others.sort_unstable();
    (0..ALWAYS_SENT).chain(others).collect()
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(name) => f.pad(&format!("{OWN}{}", name.as_str())),
            kind => f.pad(kind.name()),
        }
    }
}

impl fmt::Display for OptimizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let takes = self.kind.parameters();
        let differs = |(parameter, number): &(OptimizerParameter, f64)| self.number(*parameter) != *number;
        let numbers: Vec<String> = takes
            .iter()
            .filter(|entry| differs(entry))
            .map(|(parameter, _)| format!("{}={}", parameter.name(), self.number(*parameter)))
            .collect();
        write!(f, "{}", self.kind)?;
        if numbers.is_empty() { Ok(()) } else { write!(f, "({})", numbers.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_an_optimizer_cannot_have_are_refused() {
        for (name, parameter, number) in [
            ("ftrl", "learning_rate", 0.0),
            ("ftrl", "lamda1", -1.0),
            ("lamb", "upper_bound", 0.0),
            ("lamb", "lower_bound", f64::INFINITY),
            ("adamw-mxnet", "correct_bias", 0.5),
            ("signum", "beta", 1.0),
            ("adamw", "correct_bias", 0.0),
        ] {
            let spec = OptimizerSpec::of(OptimizerKind::from_name(name).unwrap());
            let problem = spec.with(parameter, number).unwrap_err().0;
            assert!(problem.contains(name) && problem.contains(parameter), "{problem}");
        }
        let signum = OptimizerSpec::of(OptimizerKind::Signum);
        let plain = signum.with("momentum", 0.0).unwrap();
        assert!(!signum.is_same_but_for_numbers(&plain) && (signum.planes(), plain.planes()) == (1, 0));
    }
}
