//! Which failures make a process write its flight record.

use crate::{Error, ErrorKind};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// More groups than this are not told apart.
const GROUPS: usize = 1024;

/// Notes failures after which the record is worth to be written: one per generation of a group.
#[derive(Debug, Default)]
pub(crate) struct FailureAlarm {
    /// Whether somebody writes.
    is_armed: bool,
    known: BTreeSet<(u32, u32)>,
    /// Whether there was a failure since this was last asked.
    rings: bool,
    /// Whether there was one whose record is not written yet.
    unwritten: Arc<AtomicBool>,
}

impl FailureAlarm {
    /// Failures are noted from now on.
    pub(crate) fn arm(&mut self) {
        self.is_armed = true;
    }

    /// Whether there is a failure whose record is to be written.
    pub(crate) fn unwritten(&self) -> Arc<AtomicBool> {
        self.unwritten.clone()
    }

    /// An operation or a message has failed.
    #[cold]
    pub(super) fn failed(&mut self, group: u32, generation: u32, error: &Error) {
        if !self.is_armed || !is_worth_a_record(error.kind()) || self.known.len() >= GROUPS {
            return;
        }
        if self.known.insert((group, generation)) {
            self.rings = true;
            self.unwritten.store(true, Ordering::SeqCst);
        }
    }

    /// Whether there was a failure since this was last asked.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        std::mem::take(&mut self.rings)
    }
}

/// A wrong argument tells its caller all that there is to know; of these the other ranks know more.
fn is_worth_a_record(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PeerLost { .. }
            | ErrorKind::ReducerLost { .. }
            | ErrorKind::Mismatch { .. }
            | ErrorKind::Timeout { .. }
            | ErrorKind::Memory { .. }
    )
}
