//! Records the functions that have run, when and where, for a trace.

use std::{collections::VecDeque, sync::Arc, time::Instant};

/// How many operations are kept: the last ones.
const MOST: usize = 1 << 17;

/// An operation that has run.
pub(crate) struct RecordedOperation {
    pub(crate) number: u64,
    pub(crate) name: Option<Arc<str>>,
    /// The thread that it was on from begin to end; none if it ended elsewhere.
    pub(crate) thread: Option<u32>,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) is_well: bool,
}

/// Keeps what has run, once it is asked to.
#[derive(Default)]
pub(crate) struct Recorder {
    ran: Option<VecDeque<RecordedOperation>>,
}

impl Recorder {
    /// Keeps what ends from now on.
    pub(crate) fn begin(&mut self) {
        self.ran.get_or_insert_default();
    }

    pub(crate) fn ended(
        &mut self,
        number: u64,
        name: Option<&Arc<str>>,
        thread: Option<u32>,
        began: Instant,
        is_well: bool,
    ) {
        if let Some(ran) = &mut self.ran {
            if ran.len() == MOST {
                ran.pop_front();
            }
            ran.push_back(RecordedOperation {
                number,
                name: name.cloned(),
                thread,
                began,
                ended: Instant::now(),
                is_well,
            });
        }
    }

    /// What was kept, oldest end first.
    pub(crate) fn ran(&self) -> impl Iterator<Item = &RecordedOperation> {
        self.ran.iter().flatten()
    }
}
