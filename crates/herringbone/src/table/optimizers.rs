//! The optimizers that a server has.

use super::{
    arithmetic::{Rule, Scalar},
    own::OwnOptimizer,
};
use crate::core::table::{OptimizerKind, OptimizerSpec, Unusable};
use std::sync::Arc;

/// The most numbers that an optimizer keeps for each element: a row has to fit a message with them.
const PLANES_MOST: usize = 2;

/// The optimizers of its own that a server has.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnOptimizers(Arc<[Arc<dyn OwnOptimizer>]>);

/// An optimizer that a server has.
#[derive(Clone, Debug)]
pub(super) struct FoundOptimizer {
    pub(super) spec: OptimizerSpec,
    pub(super) own: Option<Arc<dyn OwnOptimizer>>,
}

impl OwnOptimizers {
    /// # Errors
    /// If there cannot be such optimizers.
    pub(super) fn new(optimizers: &[Arc<dyn OwnOptimizer>]) -> Result<Self, Unusable> {
        for (at, optimizer) in optimizers.iter().enumerate() {
            let name = optimizer.name();
            OptimizerKind::own(name)?;
            if optimizer.planes() > PLANES_MOST {
                let planes = optimizer.planes();
                return Err(Unusable(format!(
                    "own:{name} keeps {planes} numbers for each element; {PLANES_MOST} have room"
                )));
            }
            if optimizers[..at].iter().any(|other| other.name() == name) {
                return Err(Unusable(format!("two optimizers have the name own:{name}")));
            }
        }
        Ok(Self(optimizers.into()))
    }

    /// # Errors
    /// If it is one of its own, and the server does not have it.
    pub(super) fn find(&self, spec: OptimizerSpec) -> Result<FoundOptimizer, Unusable> {
        let OptimizerKind::Own(name) = spec.kind else { return Ok(FoundOptimizer { spec, own: None }) };
        let found = self.0.iter().find(|own| own.name() == name.as_str());
        let own = found.cloned().ok_or_else(|| {
            Unusable(format!(
                "a server has no optimizer {}: start all servers from the binary that has it",
                spec.kind
            ))
        })?;
        Ok(FoundOptimizer { spec, own: Some(own) })
    }
}

impl FoundOptimizer {
    /// How many numbers it keeps for each element.
    pub(super) fn planes(&self) -> usize {
        self.own.as_ref().map_or_else(|| self.spec.planes(), |own| own.planes())
    }

    pub(super) fn rule<S: Scalar>(&self) -> Rule<S::Real> {
        Rule::with_own(self.spec, self.own.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::own::RowStep;

    #[derive(Debug)]
    struct Named(&'static str, usize);

    impl OwnOptimizer for Named {
        fn name(&self) -> &str {
            self.0
        }

        fn planes(&self) -> usize {
            self.1
        }

        fn step_f32(&self, _step: RowStep<'_, f32>) {}

        fn step_f64(&self, _step: RowStep<'_, f64>) {}
    }

    #[test]
    fn optimizers_that_cannot_be_are_refused_and_one_that_is_not_there_is_named() {
        let made = |optimizers: &[(&'static str, usize)]| {
            let all: Vec<Arc<dyn OwnOptimizer>> =
                optimizers.iter().map(|(name, planes)| Arc::new(Named(name, *planes)) as _).collect();
            OwnOptimizers::new(&all)
        };
        for (wrong, why) in [
            (&[("a", 3)][..], "3 numbers"),
            (&[("a", 1), ("b", 1), ("a", 0)], "own:a"),
            (&[("", 0)], "1 to 24"),
            (&[("a b", 0)], "letters"),
        ] {
            let problem = made(wrong).unwrap_err().0;
            assert!(problem.contains(why), "{problem}");
        }
        let some = made(&[("lamb", 2), ("ftrl", 1)]).unwrap();
        let spec = |name| OptimizerSpec::of(OptimizerKind::from_name(name).unwrap());
        assert_eq!(some.find(spec("own:lamb")).unwrap().planes(), 2);
        assert_eq!(some.find(spec("adam")).unwrap().planes(), 2);
        let problem = some.find(spec("own:lars")).unwrap_err().0;
        assert!(problem.contains("no optimizer own:lars"), "{problem}");
    }
}
