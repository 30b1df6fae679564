//! The transitions of the session's state machines that runs have seen, for tests and the simulator: pairs of a state
//! and an input.
//!
//! Nothing of this is compiled for programs. The world has the list of machines, and of impossible pairs.

use std::{cell::RefCell, collections::BTreeMap};

/// A machine, the state that it is in, and what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Transition {
    pub(crate) machine: &'static str,
    pub(crate) state: &'static str,
    pub(crate) input: &'static str,
}

/// How often each transition was seen.
pub(crate) type Transitions = BTreeMap<Transition, u64>;

thread_local! {
    static SEEN: RefCell<Transitions> = const { RefCell::new(BTreeMap::new()) };
}

/// A machine in a state meets something.
pub(crate) fn note(machine: &'static str, state: &'static str, input: &'static str) {
    SEEN.with_borrow_mut(|seen| *seen.entry(Transition { machine, state, input }).or_default() += 1);
}

/// What this thread has seen since this was last asked.
pub(crate) fn take() -> Transitions {
    SEEN.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_is_counted_until_it_is_taken() {
        note("member", "runs", "call");
        note("member", "runs", "call");
        let seen = take();
        assert_eq!(seen.into_values().collect::<Vec<_>>(), [2]);
        assert!(take().is_empty());
    }
}
