//! What operations run with: the groups that they belong to, the links that carry them, where they wait, and where what is left
//! to do is put.

use super::{backlog::Backlog, groups::Groups, links::Links, ops::Ops, outbox::Outbox};

/// What operations of all kinds run with. Its methods lie where their subject does: in [`ops`](super::ops) how operations run and
/// end, in [`begin`](super::begin) how they start, in [`fences`](super::fences) why they fail.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) links: Links,
    pub(crate) groups: Groups,
    pub(crate) ops: Ops,
    pub(super) backlog: Backlog,
    pub(crate) out: Outbox,
}
