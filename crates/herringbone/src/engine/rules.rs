//! Rules that an engine is made with.

use crate::core::{execution::Rules, session::GroupRules};

/// The rules that an engine follows in groups, and those of each operation. Users' engines follow [`EngineRules::DEFAULT`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineRules {
    pub(crate) groups: GroupRules,
    pub(crate) operations: Rules,
}

impl EngineRules {
    pub(crate) const DEFAULT: Self = Self { groups: GroupRules::DEFAULT, operations: Rules::DEFAULT };
}
