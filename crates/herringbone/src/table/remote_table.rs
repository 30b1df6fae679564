//! A table on servers, as a worker holds it.

use super::{
    calls::{RowForm, TableCall},
    connections::{Connections, refused},
    keys::{Distinct, SCALED_MOST, add_up, first_beyond, first_nan},
    shared::lock,
};
use crate::{
    Error, ErrorKind, Result,
    core::{
        codec::Codec,
        element::{DType, Element},
        table::{
            BODY_BYTES, NotANumber, RangePiece, Ranges, RowKeys, TableError, TableRequest, TableSpec,
            Unusable, ValueCodec,
        },
    },
    sys::{
        plain::{self, Plain},
        region::{Access, Region},
        span::Span,
    },
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Instant, SystemTime},
};

/// A push that was sent, and not answered yet.
struct SentPush {
    call: Arc<TableCall>,
    /// Whether it ends its step.
    ends: bool,
    /// Whether more pushes of its step follow.
    more: bool,
}

/// A table on a parameter server: rows of one width, by their keys.
#[derive(Debug)]
pub struct RemoteTable {
    pub(super) connections: Arc<Connections>,
    pub(super) name: String,
    pub(super) spec: TableSpec,
    pub(super) ranges: Ranges,
    /// The table's number on each server.
    pub(super) numbers: Vec<u32>,
    /// How many steps this worker has ended. Who has the lock sends: so the requests of all threads say it in the order in which
    /// they are sent.
    pub(super) step: Mutex<u64>,
    pub(super) has_left: AtomicBool,
    pub(super) codecs: Mutex<TableCodecs>,
}

/// How values travel between this worker and the servers of a table. Keys are never coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCodecs {
    /// What is pushed.
    pub push: ValueCodec,
    /// What is pulled.
    pub pull: ValueCodec,
}

impl RemoteTable {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// How many steps this worker has ended.
    pub fn step(&self) -> u64 {
        *self.lock_step()
    }

    /// Has values travel coded from now on, in pushes and pulls of this worker: rows of f32. A server decodes what comes before it
    /// changes rows. What a codec loses is lost: nothing is fed back.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] for a table of other elements.
    pub fn set_codecs(&self, codecs: TableCodecs) -> Result<()> {
        let is_plain = codecs == TableCodecs::default();
        if !is_plain && self.spec.dtype != DType::F32 {
            let what = format!("coded values of {}: only f32 can be", self.spec.dtype);
            return Err(refused(&self.name, "", TableError::Unusable(what)));
        }
        *lock(&self.codecs) = codecs;
        Ok(())
    }

    fn lock_step(&self) -> MutexGuard<'_, u64> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes rows by `values`, row after row in the order of `keys`: [`width`](TableSpec::width) elements each. Values of a key
    /// that is there several times are added up first. It returns when all servers have taken the push. It ends this worker's step,
    /// unless `more` pushes of the step follow.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] for keys and values that the table cannot have: then nothing is pushed. The table stays usable.
    /// [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn push<T: Element + Plain>(&self, keys: &[u64], values: &[T], more: bool) -> Result<()> {
        self.check_type::<T>()?;
        let sent = self.send_rows(keys, Span::of_shared(plain::bytes(values)), more)?;
        self.finish_push(&sent)
    }

    /// As [`push`](Self::push), for rows whose keys follow each other, from `first`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_range<T: Element + Plain>(&self, first: u64, values: &[T], more: bool) -> Result<()> {
        self.check_type::<T>()?;
        let sent = self.send_run(first, Span::of_shared(plain::bytes(values)), more)?;
        self.finish_push(&sent)
    }

    /// As [`push`](Self::push), of values in a region, which are elements of the table's type.
    ///
    /// # Errors
    /// As [`push`](Self::push); [`ErrorKind::Closed`] if the region was revoked.
    pub fn push_region(&self, keys: &[u64], values: &Region, more: bool) -> Result<()> {
        let sent = self.send_rows(keys, access(values)?.span(), more)?;
        self.finish_push(&sent)
    }

    /// As [`push_range`](Self::push_range), of values in a region, which are elements of the table's type.
    ///
    /// # Errors
    /// As [`push_region`](Self::push_region).
    pub fn push_range_region(&self, first: u64, values: &Region, more: bool) -> Result<()> {
        let sent = self.send_run(first, access(values)?.span(), more)?;
        self.finish_push(&sent)
    }

    /// Ends this worker's step without a push.
    ///
    /// # Errors
    /// [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn end_step(&self) -> Result<()> {
        self.connections.check_process("push")?;
        let call = TableCall::new();
        let mut step = self.lock_step();
        for (range, table) in (0..).zip(&self.numbers) {
            let keys = RowKeys::Listed([].into());
            let request =
                TableRequest::Push { table: *table, step: *step, ends: true, codec: ValueCodec::PLAIN, keys };
            self.connections.ask(range, request, &call);
        }
        *step += 1;
        drop(step);
        self.wait("push", &call)
    }

    /// The rows of `keys`, row after row, into `values`. It waits until the table's [consistency](crate::core::table::Consistency)
    /// holds for this worker's step.
    ///
    /// # Errors
    /// As [`push`](Self::push); of a table without an initializer, [`ErrorKind::Table`] for rows that nobody has pushed. Other rows
    /// may be in `values` then.
    pub fn pull<T: Element + Plain>(&self, keys: &[u64], values: &mut [T]) -> Result<()> {
        self.check_type::<T>()?;
        Region::lend(values, |values| self.pull_region(keys, values))
    }

    /// As [`pull`](Self::pull), for rows whose keys follow each other, from `first`.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn pull_range<T: Element + Plain>(&self, first: u64, values: &mut [T]) -> Result<()> {
        self.check_type::<T>()?;
        Region::lend(values, |values| self.pull_range_region(first, values))
    }

    /// As [`pull`](Self::pull), into a region, for elements of the table's type.
    ///
    /// # Errors
    /// As [`pull`](Self::pull); [`ErrorKind::Closed`] if the region was revoked.
    pub fn pull_region(&self, keys: &[u64], values: &Region) -> Result<()> {
        self.check_length(keys.len(), values.len())?;
        if keys.is_sorted_by(|one, next| one < next) {
            return self.pull_rows(&RowKeys::Listed(keys.into()), values);
        }
        let mut distinct = keys.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let (row, rows) = (self.spec.row_bytes(), Region::zeroed(distinct.len() * self.spec.row_bytes()));
        let distinct = RowKeys::Listed(distinct.into());
        self.pull_rows(&distinct, &rows)?;
        let (rows, values) = (access(&rows)?, access(values)?);
        let RowKeys::Listed(distinct) = distinct else { return Ok(()) };
        for (place, key) in keys.iter().enumerate() {
            let at = distinct.partition_point(|other| other < key);
            let row_at = |at: usize| at * row..(at + 1) * row;
            values.span().slice(row_at(place)).copy_from(rows.span().slice(row_at(at)));
        }
        Ok(())
    }

    /// As [`pull_range`](Self::pull_range), into a region, for elements of the table's type.
    ///
    /// # Errors
    /// As [`pull_region`](Self::pull_region).
    pub fn pull_range_region(&self, first: u64, values: &Region) -> Result<()> {
        self.pull_rows(&self.run_of(first, values.len())?, values)
    }

    /// Changes a number of the optimizer, such as `learning_rate`, for what takes effect after it: in a sync table also the pushes of
    /// the step that is under way. One worker calls it, or all with the same number.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] if it takes no such number; [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn tune(&self, parameter: &str, number: f64) -> Result<()> {
        let tuned = self.spec.optimizer.with(parameter, number);
        tuned.map_err(|Unusable(what)| refused(&self.name, "", TableError::Unusable(what)))?;
        let call = TableCall::new();
        for (range, table) in (0..).zip(&self.numbers) {
            let request = TableRequest::Tune { table: *table, parameter: parameter.to_owned(), number };
            self.connections.ask(range, request, &call);
        }
        self.wait("tune", &call)
    }

    /// Has all servers write the table to disk (`--data`), with optimizer and steps, while training goes on: as it is once all
    /// workers have ended as many steps as this one; an async table as it is, range by range. It returns once all is on disk. The two
    /// newest snapshots are kept. Returns the snapshot's number, which is the time in nanoseconds.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] if it cannot be written: then earlier snapshots are as they were. [`ErrorKind::TableServerLost`],
    /// [`ErrorKind::Timeout`].
    pub fn snapshot(&self) -> Result<u64> {
        let began = Instant::now();
        loop {
            match self.try_snapshot() {
                // A server was lost, and the next owner has gone on meanwhile; or another thread has ended the step.
                Err(error) if is_passed(&error) && began.elapsed() < self.connections.reach.timeout => {}
                taken => return taken,
            }
        }
    }

    fn try_snapshot(&self) -> Result<u64> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (id, step, call) = (since.as_nanos() as u64, self.step(), TableCall::new());
        for (range, table) in (0..).zip(&self.numbers) {
            let request = TableRequest::Save { table: *table, id, step };
            self.connections.ask(range, request, &call);
        }
        self.wait("snapshot", &call)?;
        Ok(id)
    }

    /// Takes part no more: the steps of other workers do without this one, and calls of other threads that wait end with an error. To
    /// drop the last handle does the same.
    pub fn leave(&self) {
        if self.has_left.swap(true, Ordering::SeqCst) {
            return;
        }
        let call = TableCall::new();
        for (range, table) in (0..).zip(&self.numbers) {
            self.connections.ask(range, TableRequest::Leave { table: *table }, &call);
        }
    }

    /// Waits for all answers to a call. If servers do not know the table, to open its name again makes another one.
    fn wait(&self, operation: &'static str, call: &TableCall) -> Result<()> {
        self.connections.wait(operation, &self.name, call).inspect_err(|error| {
            if matches!(error.kind(), ErrorKind::Table { problem: TableError::Unknown, .. }) {
                self.forget();
            }
        })
    }

    /// Its servers do not have it any more: there is nothing to leave, and the next one to open its name gets another one.
    pub(super) fn forget(&self) {
        self.has_left.store(true, Ordering::SeqCst);
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.spec.dtype {
            return Ok(());
        }
        let what = format!("values of {} for a table of {}", T::DTYPE, self.spec.dtype);
        Err(refused(&self.name, "", TableError::Unusable(what)))
    }

    fn send_rows(&self, keys: &[u64], rows: Span<'_>, more: bool) -> Result<SentPush> {
        self.check_length(keys.len(), rows.len())?;
        if keys.is_sorted_by(|one, next| one < next) {
            return self.send_push(&RowKeys::Listed(keys.into()), rows, more);
        }
        let Distinct { keys, rows } = add_up(self.spec.dtype, keys, &rows.to_vec(), self.spec.row_bytes());
        self.send_push(&RowKeys::Listed(keys.into()), Span::of_shared(&rows), more)
    }

    fn send_run(&self, first: u64, rows: Span<'_>, more: bool) -> Result<SentPush> {
        let keys = self.run_of(first, rows.len())?;
        self.send_push(&keys, rows, more)
    }

    /// The keys from `first` of as many rows as have so many bytes.
    fn run_of(&self, first: u64, bytes: usize) -> Result<RowKeys> {
        let count = bytes / self.spec.row_bytes();
        self.check_length(count, bytes)?;
        Ok(RowKeys::Run { first, count: count as u64 })
    }

    fn check_length(&self, keys: usize, found: usize) -> Result<()> {
        let expected = (keys * self.spec.row_bytes()) as u64;
        if expected == found as u64 {
            return Ok(());
        }
        Err(refused(&self.name, "", TableError::Length { expected, found: found as u64 }))
    }

    fn check_keys(&self, keys: &RowKeys) -> Result<()> {
        if keys.are_right(&(0..self.spec.rows)) {
            return Ok(());
        }
        let (first, last) = (keys.get(0), keys.get(keys.len() - 1));
        let error = TableError::RowKeys { first, last, begin: 0, end: self.spec.rows - 1 };
        Err(refused(&self.name, "", error))
    }

    /// Sends a push, of which nobody waits for the answers yet.
    fn send_push(&self, keys: &RowKeys, values: Span<'_>, more: bool) -> Result<SentPush> {
        self.connections.check_process("push")?;
        self.check_keys(keys)?;
        let row = self.spec.row_bytes();
        if self.spec.not_a_number == NotANumber::Refused
            && let Some(at) = first_nan(self.spec.dtype, values)
        {
            return Err(refused(&self.name, "", TableError::NotANumber { key: keys.get(at / row) }));
        }
        let codec = lock(&self.codecs).push;
        self.check_scale(codec, keys, values)?;
        let pieces = self.ranges.cut(keys, self.rows_at_once(keys));
        // A push of one message ends its step, too.
        let ends = self.ranges.count() == 1 && !more && pieces.len() == 1;
        let call = TableCall::new();
        let mut step = self.lock_step();
        for RangePiece { range, keys, at } in pieces {
            let table = self.numbers[range as usize];
            let values = values.slice(at.start * row..at.end * row);
            let request = TableRequest::Push { table, step: *step, ends, codec, keys };
            if codec.is_plain() {
                self.connections.send(range, request, values, &call, 0..0);
            } else {
                let coded = self.coded(codec, values);
                self.connections.send(range, request, Span::of_shared(&coded), &call, 0..0);
            }
        }
        *step += u64::from(ends);
        Ok(SentPush { call, ends, more })
    }

    /// A value that int8 cannot scale would make NaNs of its row's other values.
    fn check_scale(&self, codec: ValueCodec, keys: &RowKeys, values: Span<'_>) -> Result<()> {
        let found = (codec.codec() == Codec::Int8).then(|| first_beyond(values)).flatten();
        found.map_or(Ok(()), |at| {
            let key = keys.get(at / self.spec.row_bytes());
            let what = format!(
                "row {key} has a value that int8 cannot code: a NaN, or one above {SCALED_MOST:e}; nothing was pushed"
            );
            Err(refused(&self.name, "", TableError::Unusable(what)))
        })
    }

    fn coded(&self, codec: ValueCodec, values: Span<'_>) -> Vec<u8> {
        let mut rows = vec![0.0_f32; values.len() / size_of::<f32>()];
        values.read(plain::bytes_mut(&mut rows));
        let mut coded = Vec::new();
        codec.encode(self.spec.width as usize, &rows, &mut coded);
        coded
    }

    /// Waits until a push is taken, and ends its step unless more of it follows.
    fn finish_push(&self, sent: &SentPush) -> Result<()> {
        let is_refused = |error: &Error| matches!(error.kind(), ErrorKind::Table { .. });
        match self.wait("push", &sent.call) {
            Ok(()) if sent.more || sent.ends => Ok(()),
            // All of it is there: whoever dies now has ended the step on some ranges, and in its next life ends it on the others.
            Ok(()) => self.end_step(),
            Err(error) => {
                match is_refused(&error) {
                    // It was refused, and the step goes on.
                    true if sent.ends => *self.lock_step() -= 1,
                    true => self.withdraw(),
                    false => {}
                }
                Err(error)
            }
        }
    }

    /// A push that was refused in part is no push: of a sync table, what was pushed in the step is dropped.
    fn withdraw(&self) {
        if !self.spec.consistency.is_sync() {
            return;
        }
        let call = TableCall::new();
        let step = self.lock_step();
        for (range, table) in (0..).zip(&self.numbers) {
            let request = TableRequest::Withdraw { table: *table, step: *step };
            self.connections.ask(range, request, &call);
        }
        drop(step);
        // The error that is told is the push's.
        let _withdrawn = self.wait("push", &call);
    }

    /// Pulls rows of distinct keys, ascending.
    fn pull_rows(&self, keys: &RowKeys, into: &Region) -> Result<()> {
        self.connections.check_process("pull")?;
        self.check_keys(keys)?;
        let row = self.spec.row_bytes();
        drop(access(into)?);
        let codec = lock(&self.codecs).pull;
        let call = TableCall::filling(into.clone(), RowForm { codec, width: self.spec.width as usize });
        let ended = self.lock_step();
        for RangePiece { range, keys, at } in self.ranges.cut(keys, self.rows_at_once(keys)) {
            let table = self.numbers[range as usize];
            let request = TableRequest::Pull { table, step: *ended, codec, keys };
            let none = Span::of_shared(&[]);
            self.connections.send(range, request, none, &call, at.start * row..at.end * row);
        }
        drop(ended);
        self.wait("pull", &call)?;
        access(into).map(drop)
    }

    /// How many rows go into a message with their keys.
    fn rows_at_once(&self, keys: &RowKeys) -> usize {
        BODY_BYTES / (self.spec.row_bytes() + keys.bytes_each())
    }
}

impl Drop for RemoteTable {
    fn drop(&mut self) {
        self.leave();
    }
}

fn is_passed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Table { problem: TableError::Passed, .. })
}

fn access(region: &Region) -> Result<Access<'_>> {
    region.access().ok_or_else(|| Error::new(ErrorKind::Closed))
}
