//! Rules that an execution is made with.

/// The rules that a rank follows. All ranks follow [`Rules::DEFAULT`]. Except for [`is_mirrored`](Self::is_mirrored),
/// other values are faults to plant, which test the checks for such faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How many segments begin at once, instead of a part of the window. With more than the window holds, the operation
    /// never ends.
    pub lot: Option<u32>,
    /// How many segments a rank can be ahead of its receivers' grants, instead of as many as it has in flight. With
    /// more, messages arrive at places that are in use.
    pub window: Option<u32>,
    /// The least number of grants for as many segments as are in flight. Without any grant before the end, the
    /// operation never ends.
    pub grants_per_window: u32,
    /// Whether an operation with reducers lasts until all workers hold its result.
    pub waits_for_stable: bool,
    /// Whether a result stays out of the only copy of an input as long as that might be needed again.
    pub keeps_input: bool,
    /// Whether grants can come for segments that have not begun: if one simulated rank stands for all, its own grants
    /// come back to it in place of the others'.
    pub is_mirrored: bool,
}

impl Rules {
    /// The rules of executors.
    pub const DEFAULT: Self = Self {
        lot: None,
        window: None,
        grants_per_window: 4,
        waits_for_stable: true,
        keeps_input: true,
        is_mirrored: false,
    };
}

impl Default for Rules {
    fn default() -> Self {
        Self::DEFAULT
    }
}
