//! What programs hold: a parameter server, and its tables.

use super::{
    calls::{RangeAnswer, RowForm, TableCall},
    connections::{Connections, WorkerReach, refused},
    keys::{Distinct, add_up, first_nan},
    shared::lock,
};
use crate::{
    Config, Error, ErrorKind, Result,
    config::{
        Transport, check_addresses,
        settings::{Environment, TABLES},
    },
    core::{
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
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// One logical parameter server, of one or more processes (`herringbone serve --tables`).
///
/// Each worker of a job makes one, and opens the same tables. Its methods can be called from several threads. Dropping the last
/// handle says goodbye: the steps of other workers do without this one.
///
/// The design is that of ps-lite and of Li et al., "Scaling Distributed Machine Learning with the OptimizerParameter Server" (OSDI 2014).
#[derive(Clone, Debug)]
pub struct ParameterServer {
    connections: Arc<Connections>,
    /// Those that are open: each once, so that all who use it count its steps together.
    tables: Arc<Mutex<BTreeMap<String, Weak<RemoteTable>>>>,
}

/// For how long a rank is tried that seems to be there.
const RETURN: Duration = Duration::from_secs(3);

/// By how many steps servers may differ in where a worker is, before one of them counts as started anew.
const APART: u64 = 1024;

/// What was answered for a range of a table that a worker opens.
#[derive(Clone, Copy, Debug)]
struct Opened {
    range: u32,
    table: u32,
    step: u64,
    has_half: bool,
    is_new: bool,
}

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
    connections: Arc<Connections>,
    name: String,
    spec: TableSpec,
    ranges: Ranges,
    /// The table's number on each server.
    numbers: Vec<u32>,
    /// How many steps this worker has ended. Who has the lock sends: so the requests of all threads say it in the order in which
    /// they are sent.
    step: Mutex<u64>,
    has_left: AtomicBool,
    codecs: Mutex<TableCodecs>,
}

/// How values travel between this worker and the servers of a table. Keys are never coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCodecs {
    /// What is pushed.
    pub push: ValueCodec,
    /// What is pulled.
    pub pull: ValueCodec,
}

impl ParameterServer {
    /// Connects to the servers that the environment names in `HERRINGBONE_TABLES`; see [`Config`] for rank, number of workers, token
    /// and timeout.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn from_env() -> Result<Self> {
        Self::connect(&Config::worker_from_env()?, &servers_from_env()?)
    }

    /// Connects to servers, each `host:port`: the same list on all workers, in the same order. Of `config` rank, number of workers,
    /// token and timeout count, and whether it forces TCP on a host.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] without servers; [`ErrorKind::Rendezvous`] or [`ErrorKind::Auth`] if one of them is not there within
    /// the timeout, keeps no tables, or does not know the token.
    pub fn connect(config: &Config, servers: &[String]) -> Result<Self> {
        let Config { token, rank, world, waits, transport, .. } = config;
        if servers.is_empty() {
            let problem = "no server of tables is named; write HOST:PORT,... of herringbone serve --tables";
            return Err(Error::config(TABLES.name, problem));
        }
        check_addresses(TABLES.name, servers)?;
        if rank >= world {
            return Err(Error::config("rank", format!("rank {rank} of {world} workers: ranks count from 0")));
        }
        let (servers, token) = (servers.to_vec(), token.clone());
        let shares = *transport != Some(Transport::Tcp);
        let reach =
            WorkerReach { servers, token, rank: *rank, workers: *world, shares, timeout: waits.timeout };
        Ok(Self { connections: Connections::open(reach)?, tables: Arc::default() })
    }

    /// Servers that do not answer are lost after this time.
    #[cfg(test)]
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        self.connections.set_patience(patience);
        self
    }

    /// Takes part in a table, which is made if there is none of the name. All workers give the same name and the same
    /// specification; the number of workers is that of this parameter server.
    ///
    /// While it is open here, to open it again gives the same table. A table outlives its workers. It is there until somebody [drops](Self::drop_table) it, or its servers end.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] if there can be no such table, or there is another one of the name;
    /// [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn table(&self, name: &str, spec: TableSpec) -> Result<Arc<RemoteTable>> {
        let workers = self.connections.reach.workers;
        let spec = TableSpec { workers, ..spec };
        spec.check(name).map_err(|Unusable(what)| refused(name, "", TableError::Unusable(what)))?;
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let is_whole = !self.connections.have_lost_one();
        let is_open = |table: &Arc<RemoteTable>| is_whole && !table.has_left.load(Ordering::SeqCst);
        if let Some(table) = tables.get(name).and_then(Weak::upgrade).filter(is_open) {
            let differs = table.spec.difference(&spec);
            if differs.is_empty() {
                return Ok(table);
            }
            let error = TableError::Differs { what: differs.join(", ") };
            return Err(refused(name, "", error));
        }
        let table = Arc::new(self.open(name, spec)?);
        tables.insert(name.to_owned(), Arc::downgrade(&table));
        Ok(table)
    }

    /// Makes a table as it is in the newest snapshot that its servers have (`--data`), with optimizer and steps, also if they were
    /// of another number. If there is a table of the name it stays as it is. Returns the snapshot's number, or `None` if there is
    /// none, or was such a table. All workers may call it, before they open the table.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] if the snapshot is damaged, or of another table; [`ErrorKind::TableServerLost`],
    /// [`ErrorKind::Timeout`].
    pub fn restore(&self, name: &str, spec: &TableSpec) -> Result<Option<u64>> {
        let reach = &self.connections.reach;
        let (began, ranges) = (Instant::now(), reach.servers.len() as u32);
        let spec = TableSpec { workers: reach.workers, ..spec.clone() };
        loop {
            let call = TableCall::new();
            for range in 0..ranges {
                let (name, spec) = (name.to_owned(), spec.clone());
                self.connections.ask(range, &TableRequest::Restore { name, spec, ranges }, &call);
            }
            match self.connections.wait("restore", name, &call) {
                // Another worker has begun it.
                Err(error) if is_restoring(&error) && began.elapsed() < reach.timeout => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
                Ok(()) => return self.restored(name, &call.answers()),
            }
        }
    }

    /// The snapshot of which all ranges are, those aside that were there.
    fn restored(&self, name: &str, answers: &[RangeAnswer]) -> Result<Option<u64>> {
        let ids: BTreeSet<Option<u64>> = answers
            .iter()
            .filter_map(|answer| match answer.answer {
                TableAnswer::Restored { id } => Some(id),
                _ => None,
            })
            .collect();
        if ids.len() <= 1 {
            return Ok(ids.into_iter().next().flatten());
        }
        // What has come of different snapshots is of no use.
        self.drop_table(name).ok();
        let what = "its servers have different snapshots: give all of them the same directory with --data, or the same files";
        Err(refused(name, "", TableError::Unusable(what.to_owned())))
    }

    /// Opens a table on all servers. Who was killed and comes back at once may meet the connection that it had.
    fn open(&self, name: &str, spec: TableSpec) -> Result<RemoteTable> {
        let began = Instant::now();
        loop {
            match self.try_to_open(name, &spec) {
                Err(error) if is_there_twice(&error) && began.elapsed() < RETURN => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                opened => return opened,
            }
        }
    }

    fn try_to_open(&self, name: &str, spec: &TableSpec) -> Result<RemoteTable> {
        let reach = &self.connections.reach;
        let ranges = Ranges::new(spec.rows, reach.servers.len() as u32);
        let call = TableCall::new();
        for range in 0..ranges.count() {
            let (name, spec) = (name.to_owned(), spec.clone());
            let request = TableRequest::Open { name, spec, ranges: ranges.count() };
            self.connections.ask(range, &request, &call);
        }
        let result = self.connections.wait("open", name, &call);
        let opened = call.answers().into_iter().filter_map(|RangeAnswer { range, answer }| match answer {
            TableAnswer::Opened { table, step, has_half, is_new } => {
                Some(Opened { range, table, step, has_half, is_new })
            }
            _ => None,
        });
        let mut opened: Vec<Opened> = opened.collect();
        opened.sort_unstable_by_key(|opened| opened.range);
        if let Err(error) = result.and_then(|()| self.catch_up(name, &opened)) {
            self.undo(name, &opened);
            return Err(error);
        }
        Ok(RemoteTable {
            connections: self.connections.clone(),
            name: name.to_owned(),
            ranges,
            numbers: opened.iter().map(|opened| opened.table).collect(),
            step: Mutex::new(opened.iter().map(|opened| opened.step).max().unwrap_or_default()),
            has_left: AtomicBool::new(false),
            codecs: Mutex::default(),
            spec: spec.clone(),
        })
    }

    /// A table that could not be opened everywhere is left, and is no more where it was made for this.
    fn undo(&self, name: &str, opened: &[Opened]) {
        let call = TableCall::new();
        for Opened { range, table, is_new, .. } in opened {
            let request = match is_new {
                true => TableRequest::Drop { name: name.to_owned() },
                false => TableRequest::Leave { table: *table },
            };
            self.connections.ask(*range, &request, &call);
        }
    }

    /// Where the others have gone on without this worker, or an earlier life of it died while it ended a step, ranges differ in how many
    /// steps it has ended: it goes on where it is furthest. A step that ended on one range ends on all: all had what was pushed in it.
    /// What was pushed in a step that has ended on none is withdrawn.
    fn catch_up(&self, name: &str, opened: &[Opened]) -> Result<()> {
        let most = opened.iter().map(|opened| opened.step).max().unwrap_or_default();
        if opened.iter().any(|opened| most - opened.step > APART) {
            let what =
                "a server of it was started anew, and has lost its rows: drop the table, and make it again";
            return Err(refused(name, "", TableError::Unusable(what.to_owned())));
        }
        let call = TableCall::new();
        for Opened { range, table, step, has_half, .. } in opened.iter().copied() {
            for step in step..most {
                let keys = RowKeys::Listed(Vec::new());
                let codec = ValueCodec::PLAIN;
                let request = TableRequest::Push { table, step, ends: true, codec, keys };
                self.connections.ask(range, &request, &call);
            }
            if has_half && step == most {
                self.connections.ask(range, &TableRequest::Withdraw { table, step }, &call);
            }
        }
        self.connections.wait("open", name, &call)
    }

    /// Forgets a table on all servers. Who uses it gets an error.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] if there is none of the name; [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn drop_table(&self, name: &str) -> Result<()> {
        let call = TableCall::new();
        for range in 0..self.connections.reach.servers.len() as u32 {
            self.connections.ask(range, &TableRequest::Drop { name: name.to_owned() }, &call);
        }
        self.connections.wait("drop_table", name, &call)?;
        let was_there = |answer: &RangeAnswer| answer.answer == TableAnswer::Dropped { was_there: true };
        match call.answers().iter().any(was_there) {
            true => Ok(()),
            false => Err(refused(name, "", TableError::Unknown)),
        }
    }
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
        let call = TableCall::new();
        let mut step = self.lock_step();
        for (range, table) in (0..).zip(&self.numbers) {
            let keys = RowKeys::Listed(Vec::new());
            let request =
                TableRequest::Push { table: *table, step: *step, ends: true, codec: ValueCodec::PLAIN, keys };
            self.connections.ask(range, &request, &call);
        }
        *step += 1;
        drop(step);
        self.connections.wait("push", &self.name, &call)
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
            return self.pull_rows(&RowKeys::Listed(keys.to_vec()), values);
        }
        let mut distinct = keys.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let (row, rows) = (self.spec.row_bytes(), Region::zeroed(distinct.len() * self.spec.row_bytes()));
        let distinct = RowKeys::Listed(distinct);
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
            self.connections.ask(range, &request, &call);
        }
        self.connections.wait("tune", &self.name, &call)
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
            self.connections.ask(range, &request, &call);
        }
        self.connections.wait("snapshot", &self.name, &call)?;
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
            self.connections.ask(range, &TableRequest::Leave { table: *table }, &call);
        }
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
            return self.send_push(&RowKeys::Listed(keys.to_vec()), rows, more);
        }
        let Distinct { keys, rows } = add_up(self.spec.dtype, keys, &rows.to_vec(), self.spec.row_bytes());
        self.send_push(&RowKeys::Listed(keys), Span::of_shared(&rows), more)
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
        self.check_keys(keys)?;
        let row = self.spec.row_bytes();
        if self.spec.not_a_number == NotANumber::Refused
            && let Some(at) = first_nan(self.spec.dtype, values)
        {
            return Err(refused(&self.name, "", TableError::NotANumber { key: keys.get(at / row) }));
        }
        let pieces = self.ranges.cut(keys, self.rows_at_once(keys));
        // A push of one message ends its step, too.
        let ends = self.ranges.count() == 1 && !more && pieces.len() == 1;
        let (call, codec) = (TableCall::new(), lock(&self.codecs).push);
        let mut step = self.lock_step();
        for RangePiece { range, keys, at } in pieces {
            let table = self.numbers[range as usize];
            let values = values.slice(at.start * row..at.end * row);
            let request = TableRequest::Push { table, step: *step, ends, codec, keys };
            if codec.is_plain() {
                self.connections.send(range, &request, values, &call, 0..0);
            } else {
                let coded = self.coded(codec, values);
                self.connections.send(range, &request, Span::of_shared(&coded), &call, 0..0);
            }
        }
        *step += u64::from(ends);
        Ok(SentPush { call, ends, more })
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
        match self.connections.wait("push", &self.name, &sent.call) {
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
            self.connections.ask(range, &request, &call);
        }
        drop(step);
        // The error that is told is the push's.
        let _withdrawn = self.connections.wait("push", &self.name, &call);
    }

    /// Pulls rows of distinct keys, ascending.
    fn pull_rows(&self, keys: &RowKeys, into: &Region) -> Result<()> {
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
            self.connections.send(range, &request, none, &call, at.start * row..at.end * row);
        }
        drop(ended);
        self.connections.wait("pull", &self.name, &call)?;
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

fn is_there_twice(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Table { problem: TableError::Twice { .. }, .. })
}

fn is_passed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Table { problem: TableError::Passed, .. })
}

fn is_restoring(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Table { problem: TableError::Restoring, .. })
}

/// The servers of tables that `HERRINGBONE_TABLES` names.
///
/// # Errors
/// [`ErrorKind::Config`] if it cannot be read.
pub fn servers_from_env() -> Result<Vec<String>> {
    Ok(Environment::of_process().listed(&TABLES)?.unwrap_or_default())
}

fn access(region: &Region) -> Result<Access<'_>> {
    region.access().ok_or_else(|| Error::new(ErrorKind::Closed))
}
