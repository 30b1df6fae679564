//! Rules that the members of groups follow.

/// The rules that a member of a group follows. All follow [`GroupRules::DEFAULT`]; others are faults to plant, which
/// test the checks for such faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is kept or broken by itself")]
pub struct GroupRules {
    /// Whether a frame of a group that is yet to be made is kept until then.
    pub keeps_early: bool,
    /// Whether nothing that was reported to the hub changes before it has decided.
    pub stands_still: bool,
    /// Whether a member reports its calls when a reducer is lost.
    pub says_calls: bool,
    /// Whether a lost reducer's operations are finished in the order of the calls; if not, running operations come
    /// before waiting ones.
    pub redoes_in_order: bool,
    /// How often the unfinished part of an operation is done.
    pub times_redone: usize,
    /// Whether a rank that holds a part of a result sends it; if not, all fold it again.
    pub uses_holders: bool,
    /// Whether an operation that was finished without its reducer ends for its caller.
    pub ends_redone: bool,
    /// Whether a member compares the calls of a rank that leaves with its own calls before it confirms them.
    pub compares_calls: bool,
    /// Whether a rank that leaves a group reports how many calls it has made.
    pub counts_calls: bool,
    /// Whether a rank that aborts a group reports it.
    pub says_aborts: bool,
}

impl GroupRules {
    /// The rules of engines.
    pub const DEFAULT: Self = Self {
        keeps_early: true,
        stands_still: true,
        says_calls: true,
        redoes_in_order: true,
        times_redone: 1,
        uses_holders: true,
        ends_redone: true,
        compares_calls: true,
        counts_calls: true,
        says_aborts: true,
    };
}

impl Default for GroupRules {
    fn default() -> Self {
        Self::DEFAULT
    }
}
