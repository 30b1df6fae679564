//! A table on servers, as a worker holds it.

use super::{
    calls::{RangeAnswer, RowForm, TableCall},
    catch_up::{end_steps, furthest},
    connections::{Connections, WorkerReach, refused},
    keys::{Distinct, SCALED_MOST, add_up, first_beyond, first_nan},
    shared::lock,
    worker_step::{BetweenSteps, StepTurn, WorkerStep},
};
use crate::{
    Error, ErrorKind, Result,
    core::{
        codec::Codec,
        element::{DType, Element},
        table::{
            BODY_BYTES, NotANumber, RangePiece, Ranges, RowKeys, TableAnswer, TableError, TableRequest,
            TableSpec, Unusable, ValueCodec,
        },
    },
    sys::{
        plain::{self, Plain},
        region::{Access, Region},
        span::Span,
    },
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Instant, SystemTime},
};

/// A table on a parameter server: rows of one width, by their keys.
#[derive(Debug)]
pub struct RemoteTable {
    pub(super) connections: Arc<Connections>,
    pub(super) name: String,
    pub(super) spec: TableSpec,
    pub(super) ranges: Ranges,
    /// The table's number on each server.
    pub(super) numbers: Vec<u32>,
    pub(super) step: WorkerStep,
    pub(super) has_left: AtomicBool,
    pub(super) codecs: Mutex<TableCodecs>,
}

/// How values travel between this worker and the servers of a table. Keys are never coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCodecs {
    /// The codec of pushes.
    pub push: ValueCodec,
    /// The codec of pulls.
    pub pull: ValueCodec,
}

impl RemoteTable {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its specification.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// How many steps this worker has ended.
    pub fn step(&self) -> u64 {
        self.step.ended()
    }

    /// Codes all later values of this worker's pushes and pulls, which are rows of f32. A server decodes a push before
    /// it changes rows. Errors of the codec are not fed back.
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

    /// Changes rows by `values`, row after row in the order of `keys`: [`width`](TableSpec::width) elements each.
    /// Values of a key that occurs several times are added up first. It returns when all servers have taken the push.
    /// It ends this worker's step, unless `more` pushes of the step follow.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] for keys and values that the table cannot have: then nothing is pushed. The table stays usable.
    /// [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn push<T: Element + Plain>(&self, keys: &[u64], values: &[T], more: bool) -> Result<()> {
        self.check_type::<T>()?;
        self.push_listed(keys, Span::of_shared(plain::bytes(values)), more)
    }

    /// As [`push`](Self::push), for rows whose keys follow each other, from `first`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_range<T: Element + Plain>(&self, first: u64, values: &[T], more: bool) -> Result<()> {
        self.check_type::<T>()?;
        self.push_run(first, Span::of_shared(plain::bytes(values)), more)
    }

    /// As [`push`](Self::push), of values in a region, which are elements of the table's type.
    ///
    /// # Errors
    /// As [`push`](Self::push); [`ErrorKind::Closed`] if the region was revoked.
    pub fn push_region(&self, keys: &[u64], values: &Region, more: bool) -> Result<()> {
        self.push_listed(keys, access(values)?.span(), more)
    }

    /// As [`push_range`](Self::push_range), of values in a region, which are elements of the table's type.
    ///
    /// # Errors
    /// As [`push_region`](Self::push_region).
    pub fn push_range_region(&self, first: u64, values: &Region, more: bool) -> Result<()> {
        self.push_run(first, access(values)?.span(), more)
    }

    /// Ends this worker's step without a push.
    ///
    /// # Errors
    /// [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn end_step(&self) -> Result<()> {
        self.connections.check_process("push")?;
        self.end(&self.turn("push")?)
    }

    /// The rows of `keys`, row after row, into `values`. It waits until the table's [consistency](crate::core::table::Consistency)
    /// holds for this worker's step.
    ///
    /// # Errors
    /// As [`push`](Self::push). In a table without an initializer, [`ErrorKind::Table`] for rows that no worker has
    /// pushed. Then `values` can have the other rows.
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

    /// Changes a number of the optimizer, such as `learning_rate`, for all later changes. In a sync table this includes
    /// the pushes of the step that is under way. One worker calls it, or all with the same number.
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

    /// Makes all servers write the table to disk (`--data`), with optimizer and steps, while training continues. The
    /// snapshot is the table once all workers have ended as many steps as this one. An async table is written as it is,
    /// range by range. It returns once all is on disk. The two newest snapshots are kept. Returns the snapshot's
    /// number, which is the time in nanoseconds.
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

    fn push_listed(&self, keys: &[u64], rows: Span<'_>, more: bool) -> Result<()> {
        self.check_length(keys.len(), rows.len())?;
        if keys.is_sorted_by(|one, next| one < next) {
            return self.push_rows(&RowKeys::Listed(keys.into()), rows, more);
        }
        let Distinct { keys, rows } = add_up(self.spec.dtype, keys, &rows.to_vec(), self.spec.row_bytes());
        self.push_rows(&RowKeys::Listed(keys.into()), Span::of_shared(&rows), more)
    }

    fn push_run(&self, first: u64, rows: Span<'_>, more: bool) -> Result<()> {
        let keys = self.run_of(first, rows.len())?;
        self.push_rows(&keys, rows, more)
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

    /// Pushes rows of distinct keys, ascending, and ends the step unless more of it follows.
    fn push_rows(&self, keys: &RowKeys, values: Span<'_>, more: bool) -> Result<()> {
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
        let turn = self.turn("push")?;
        let (step, least, call) = (turn.ended(), self.connections.next_number(), TableCall::new());
        if ends {
            turn.begin_end();
        }
        for RangePiece { range, keys, at } in pieces {
            let table = self.numbers[range as usize];
            let values = values.slice(at.start * row..at.end * row);
            let request = TableRequest::Push { table, step, ends, codec, keys };
            if codec.is_plain() {
                self.connections.send(range, request, values, &call, 0..0);
            } else {
                let coded = self.coded(codec, values);
                self.connections.send(range, request, Span::of_shared(&coded), &call, 0..0);
            }
        }
        self.finish(&turn, least, ends, &call)?;
        // All of it is there: whoever dies now has ended the step on some ranges, and in its next life ends it on the others.
        if more || ends { Ok(()) } else { self.end(&turn) }
    }

    /// Ends the step on all servers.
    fn end(&self, turn: &StepTurn<'_>) -> Result<()> {
        let (step, least, call) = (turn.ended(), self.connections.next_number(), TableCall::new());
        turn.begin_end();
        for (range, table) in (0..).zip(&self.numbers) {
            end_steps(&self.connections, range, *table, step..step + 1, &call);
        }
        self.finish(turn, least, true, &call)
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

    /// Waits until requests from `least` on are done, which may have ended the step. If some are not, it is not over; of a sync table
    /// the others are withdrawn then.
    fn finish(&self, turn: &StepTurn<'_>, least: u64, ends: bool, call: &TableCall) -> Result<()> {
        let result = self.wait("push", call);
        match &result {
            Ok(()) => turn.settle(turn.ended() + u64::from(ends)),
            Err(error) if ends || self.spec.consistency.keeps() => {
                turn.unsettle(least);
                if matches!(error.kind(), ErrorKind::Table { .. }) {
                    // The error that is told is the push's; the next call tries again.
                    let _settled = self.settle("push", turn, least);
                }
            }
            // What was taken stays.
            Err(_) => {}
        }
        result
    }

    /// Waits until no other call of this worker pushes, and settles what became of one that has failed.
    fn turn(&self, operation: &'static str) -> Result<StepTurn<'_>> {
        let turn = self.step.turn(self.connections.reach.timeout).ok_or_else(|| self.is_late(operation))?;
        if let Some(least) = turn.unsettled() {
            self.settle(operation, &turn, least)?;
        }
        Ok(turn)
    }

    /// Withdraws requests from `least` on, and asks all servers where this worker is: each answers after all that it was asked
    /// before. If one has taken the end of the step, the others had all that was pushed in it, and take it, too.
    fn settle(&self, operation: &'static str, turn: &StepTurn<'_>, least: u64) -> Result<()> {
        let (step, call) = (turn.ended(), TableCall::new());
        for (range, table) in (0..).zip(&self.numbers) {
            self.connections.ask(range, TableRequest::Withdraw { table: *table, step, least }, &call);
        }
        self.wait(operation, &call)?;
        let steps = call.answers().into_iter().filter_map(|RangeAnswer { range, answer }| match answer {
            TableAnswer::Withdrawn { step } => Some((range, step)),
            _ => None,
        });
        let steps: BTreeMap<u32, u64> = steps.collect();
        let (most, call) = (furthest(&self.name, steps.values().copied())?, TableCall::new());
        for (range, step) in steps {
            end_steps(&self.connections, range, self.numbers[range as usize], step..most, &call);
        }
        self.wait(operation, &call)?;
        turn.settle(most);
        Ok(())
    }

    /// Time was up before another call of this worker had ended.
    fn is_late(&self, operation: &'static str) -> Error {
        let WorkerReach { rank, timeout, .. } = &self.connections.reach;
        let missing = vec!["another call of this table, which pushes".to_owned()];
        Error::new(ErrorKind::Timeout { rank: *rank, after: *timeout, missing }).about(*rank, operation)
    }

    /// Pulls rows of distinct keys, ascending.
    fn pull_rows(&self, keys: &RowKeys, into: &Region) -> Result<()> {
        self.connections.check_process("pull")?;
        self.check_keys(keys)?;
        let row = self.spec.row_bytes();
        drop(access(into)?);
        let codec = lock(&self.codecs).pull;
        let call = TableCall::filling(into.clone(), RowForm { codec, width: self.spec.width as usize });
        let is_sync = self.spec.consistency.is_sync();
        // Of a sync table each range answers as of the same step: no end of one is sent between the requests.
        let between = if is_sync { Some(self.between_steps("pull")?) } else { None };
        let step = between.as_ref().map_or_else(|| self.step.ended(), BetweenSteps::ended);
        for RangePiece { range, keys, at } in self.ranges.cut(keys, self.rows_at_once(keys)) {
            let table = self.numbers[range as usize];
            let request = TableRequest::Pull { table, step, codec, keys };
            let none = Span::of_shared(&[]);
            self.connections.send(range, request, none, &call, at.start * row..at.end * row);
        }
        drop(between);
        self.wait("pull", &call)?;
        access(into).map(drop)
    }

    /// Waits until all servers have the same step of this worker, which stays until this is dropped.
    fn between_steps(&self, operation: &'static str) -> Result<BetweenSteps<'_>> {
        loop {
            let between = self.step.between(self.connections.reach.timeout);
            let between = between.ok_or_else(|| self.is_late(operation))?;
            if between.is_settled() {
                return Ok(between);
            }
            drop(between);
            self.turn(operation)?;
        }
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
