//! Values with a variable.

use super::engine::Variable;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A vector and the variable that operations on it declare. Clones are the same buffer.
#[derive(Clone, Debug)]
pub struct EngineBuffer<T> {
    values: Arc<Mutex<Vec<T>>>,
    variable: Variable,
}

impl<T> EngineBuffer<T> {
    /// `values`, which operations that read or mutate `variable` use.
    pub fn new(values: Vec<T>, variable: Variable) -> Self {
        Self { values: Arc::new(Mutex::new(values)), variable }
    }

    /// The variable that operations on the values declare.
    pub fn variable(&self) -> &Variable {
        &self.variable
    }

    /// The values, for a function that has declared it, or after a wait. While a collective is under way they are not here.
    pub fn values(&self) -> MutexGuard<'_, Vec<T>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
