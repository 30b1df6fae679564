//! Faults that tests and the simulator plant, to see that they find them: each breaks one of the [rules](EngineRules) that engines
//! follow.

use crate::{
    core::{execution::Rules, session::GroupRules},
    engine::rules::EngineRules,
};
use std::cell::Cell;

/// A fault: the rules that the engines of a world follow in place of the right ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plant {
    pub(crate) name: &'static str,
    rules: EngineRules,
}

const OPERATIONS: Rules = Rules::DEFAULT;
const GROUPS: GroupRules = GroupRules::DEFAULT;

impl Plant {
    pub(crate) const ALL: [Self; 14] = [
        // An operation with reducers ends before all workers hold its result.
        Self::of_operations("complete-early", Rules { waits_for_stable: false, ..OPERATIONS }),
        // A result is read from a socket straight into the only copy of an input.
        Self::of_operations("read-into-input", Rules { keeps_input: false, ..OPERATIONS }),
        // A rank begins more segments at once than its window holds.
        Self::of_operations("wide-lots", Rules { lot: Some(1000), ..OPERATIONS }),
        // A rank begins segments before its receivers are done with those whose slots they take.
        Self::of_operations("wide-windows", Rules { window: Some(1000), ..OPERATIONS }),
        Self::of_groups("no-fence", GroupRules { stands_still: false, ..GROUPS }),
        Self::of_groups("drop-newer", GroupRules { keeps_early: false, ..GROUPS }),
        Self::of_groups("forget-holders", GroupRules { uses_holders: false, ..GROUPS }),
        Self::of_groups("resume-twice", GroupRules { times_redone: 2, ..GROUPS }),
        Self::of_groups("lost-completion", GroupRules { ends_redone: false, ..GROUPS }),
        Self::of_groups("running-first", GroupRules { redoes_in_order: false, ..GROUPS }),
        Self::of_groups("confirm-blindly", GroupRules { compares_calls: false, ..GROUPS }),
        Self::of_groups("silent-abort", GroupRules { says_aborts: false, ..GROUPS }),
        Self::of_groups("resume-blindly", GroupRules { says_calls: false, ..GROUPS }),
        Self::of_groups("leave-uncounted", GroupRules { counts_calls: false, ..GROUPS }),
    ];

    const fn of_operations(name: &'static str, operations: Rules) -> Self {
        Self { name, rules: EngineRules { operations, ..EngineRules::DEFAULT } }
    }

    const fn of_groups(name: &'static str, groups: GroupRules) -> Self {
        Self { name, rules: EngineRules { groups, ..EngineRules::DEFAULT } }
    }

    /// Plants the fault of a name in the worlds that this thread makes until the result is dropped.
    pub(crate) fn planted(name: &str) -> Option<Planted> {
        let plant = Self::ALL.iter().find(|plant| plant.name == name)?;
        RULES.set(plant.rules);
        Some(Planted)
    }
}

thread_local! {
    static RULES: Cell<EngineRules> = const { Cell::new(EngineRules::DEFAULT) };
}

/// A fault that is there until this is dropped.
pub(crate) struct Planted;

impl Drop for Planted {
    fn drop(&mut self) {
        RULES.set(EngineRules::DEFAULT);
    }
}

/// The rules that engines of worlds of this thread follow.
pub(super) fn rules() -> EngineRules {
    RULES.get()
}
