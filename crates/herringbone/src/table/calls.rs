//! A call of a program: requests to several servers, whose answers are collected.

use crate::{
    core::table::{TableAnswer, TableError, ValueCodec},
    sys::{plain, region::Region},
};
use std::{
    borrow::Cow,
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A call that is under way, shared by who waits for it and who reads answers.
#[derive(Debug)]
pub(super) struct TableCall {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// How many requests have no answer yet.
    open: usize,
    /// Where rows go.
    rows: Region,
    form: RowForm,
    answers: Vec<RangeAnswer>,
    failure: Option<CallFailure>,
}

/// What was answered for a range.
#[derive(Clone, Debug)]
pub(super) struct RangeAnswer {
    pub(super) range: u32,
    pub(super) answer: TableAnswer,
}

/// Whose answer it is: a range's, and the server's that has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerSource {
    pub(super) range: u32,
    pub(super) server: u32,
}

/// Why a call fails.
#[derive(Clone, Debug)]
pub(super) enum CallFailure {
    Refused {
        server: u32,
        problem: TableError,
    },
    /// A server is gone, or not what it was.
    Lost {
        server: u32,
        reason: String,
    },
}

/// How rows come.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowForm {
    pub(super) codec: ValueCodec,
    /// Elements of a row.
    pub(super) width: usize,
}

impl RowForm {
    /// Rows as they are, of so many bytes.
    fn plain(self, rows: &[u8], bytes: usize) -> Result<Cow<'_, [u8]>, TableError> {
        if !self.codec.is_plain() {
            let count = bytes / (self.width * size_of::<f32>());
            let values = self.codec.decode(self.width, count, rows)?;
            return Ok(Cow::Owned(plain::bytes(&values).to_vec()));
        }
        match rows.len() == bytes {
            true => Ok(Cow::Borrowed(rows)),
            false => Err(TableError::Length { expected: bytes as u64, found: rows.len() as u64 }),
        }
    }
}

impl TableCall {
    /// One that is told no rows.
    pub(super) fn new() -> Arc<Self> {
        Self::filling(Region::zeroed(0), RowForm { codec: ValueCodec::PLAIN, width: 1 })
    }

    /// One whose rows go there. Of rows that come after the memory was revoked nothing is done.
    pub(super) fn filling(rows: Region, form: RowForm) -> Arc<Self> {
        let state = State { open: 0, rows, form, answers: Vec::new(), failure: None };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more request is sent.
    pub(super) fn opens(&self) {
        self.state().open += 1;
    }

    /// A request is answered, with these rows for a place in the call's.
    pub(super) fn answered(&self, from: AnswerSource, answer: TableAnswer, rows: &[u8], place: Range<usize>) {
        let AnswerSource { range, server } = from;
        let mut state = self.state();
        match answer {
            TableAnswer::Refused(problem) => state.fail(CallFailure::Refused { server, problem }),
            TableAnswer::Rows => match state.form.plain(rows, place.len()) {
                Ok(rows) => {
                    if let Some(access) = state.rows.access() {
                        access.span().slice(place).write(&rows);
                    }
                }
                Err(problem) => state.fail(CallFailure::Refused { server, problem }),
            },
            answer => state.answers.push(RangeAnswer { range, answer }),
        }
        state.open -= 1;
        if state.open == 0 {
            self.changed.notify_all();
        }
    }

    /// A request will not be answered.
    pub(super) fn lost(&self, server: u32, reason: &str) {
        let mut state = self.state();
        state.fail(CallFailure::Lost { server, reason: reason.to_owned() });
        state.open -= 1;
        if state.open == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for all answers. Returns whether they are there.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let is_open = |state: &mut State| state.open > 0;
        let waited = self.changed.wait_timeout_while(self.state(), timeout, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.open == 0
    }

    pub(super) fn failure(&self) -> Option<CallFailure> {
        self.state().failure.clone()
    }

    pub(super) fn answers(&self) -> Vec<RangeAnswer> {
        std::mem::take(&mut self.state().answers)
    }
}

impl State {
    /// The first failure is the one that is told.
    fn fail(&mut self, failure: CallFailure) {
        self.failure.get_or_insert(failure);
    }
}
