//! The handle of programs: a parameter server.

use super::{
    calls::{RangeAnswer, TableCall},
    catch_up::{end_steps, furthest},
    connections::{Connections, WorkerReach, refused},
    remote_table::RemoteTable,
    worker_step::WorkerStep,
};
use crate::{
    Config, Error, ErrorKind, Result,
    config::{
        Transport, check_addresses,
        settings::{Environment, TABLES},
    },
    core::table::{Ranges, TableAnswer, TableError, TableRequest, TableSpec, Unusable, check_name},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// One logical parameter server, of one or more processes (`herringbone serve --tables`).
///
/// Each worker of a job makes one, and opens the same tables. Its methods can be called from several threads. Dropping
/// the last handle says goodbye: other workers' steps continue without this one.
///
/// The design follows ps-lite and Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI
/// 2014).
#[derive(Clone, Debug)]
pub struct ParameterServer {
    connections: Arc<Connections>,
    /// Those that are open: each once, so that all who use it count its steps together.
    tables: Arc<Mutex<BTreeMap<String, Weak<RemoteTable>>>>,
}

/// For how long a rank is tried that seems to be there.
pub(crate) const RETURN: Duration = Duration::from_secs(3);

/// What was answered for a range of a table that a worker opens.
#[derive(Clone, Copy, Debug)]
struct Opened {
    range: u32,
    table: u32,
    step: u64,
    has_half: bool,
    is_new: bool,
    is_whole: bool,
}

/// Which ranges of a table a worker opens.
struct Opening<'a> {
    name: &'a str,
    spec: &'a TableSpec,
    /// All that it has.
    ranges: u32,
    /// What was opened.
    opened: Vec<Opened>,
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

    /// Connects to servers, each `host:port`: the same list on all workers, in the same order. It uses the rank, number
    /// of workers, token and timeout of `config`, and whether it forces TCP on a host.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] without servers; [`ErrorKind::Rendezvous`] or [`ErrorKind::Auth`] if one of them is not there within
    /// the timeout, keeps no tables, or does not know the token.
    pub fn connect(config: &Config, servers: &[String]) -> Result<Self> {
        let Config { token, rank, world, waits, transport, .. } = config;
        if servers.is_empty() {
            let problem = "no table server is named; write HOST:PORT,... of herringbone serve --tables";
            return Err(Error::config(TABLES.name, problem));
        }
        check_addresses(TABLES.name, servers)?;
        if rank >= world {
            return Err(Error::config("rank", format!("rank {rank} of {world} workers: ranks count from 0")));
        }
        let (servers, token) = (servers.to_vec(), token.clone());
        let shares = Transport::shares(*transport);
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

    /// Takes part in a table, which is made if no table has the name. All workers give the same name and the same
    /// specification; the number of workers is this parameter server's.
    ///
    /// While it is open here, to open it again gives the same table. A table outlives its workers. It exists until a
    /// worker [drops](Self::drop_table) it, or its servers end.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] if no such table can exist, or a different one has the name;
    /// [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn table(&self, name: &str, spec: TableSpec) -> Result<Arc<RemoteTable>> {
        self.table_within(name, spec, RETURN)
    }

    /// As [`table`](Self::table), where a rank that seems to be there is tried for so long.
    pub(crate) fn table_within(
        &self,
        name: &str,
        spec: TableSpec,
        patience: Duration,
    ) -> Result<Arc<RemoteTable>> {
        self.connections.check_process("open")?;
        let workers = self.connections.reach.workers;
        let spec = TableSpec { workers, ..spec };
        spec.check(name).map_err(|why| unusable(name, why))?;
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
        let table = Arc::new(self.open(name, spec, patience)?);
        tables.insert(name.to_owned(), Arc::downgrade(&table));
        Ok(table)
    }

    /// Restores a table from the newest snapshot of its servers (`--data`), with optimizer and steps, even if the
    /// number of servers was different. A table of the name that exists stays as it is. Returns the snapshot's number,
    /// or `None` if there is none, or if such a table existed. All workers can call it, before they open the table.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] if the snapshot is damaged, or of another table; [`ErrorKind::TableServerLost`],
    /// [`ErrorKind::Timeout`].
    pub fn restore(&self, name: &str, spec: &TableSpec) -> Result<Option<u64>> {
        let reach = &self.connections.reach;
        let (began, ranges) = (Instant::now(), reach.servers.len() as u32);
        check_name(name).map_err(|why| unusable(name, why))?;
        let spec = TableSpec { workers: reach.workers, ..spec.clone() };
        loop {
            let call = TableCall::new();
            for range in 0..ranges {
                let (name, spec) = (name.to_owned(), spec.clone());
                self.connections.ask(range, TableRequest::Restore { name, spec, ranges }, &call);
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
    fn open(&self, name: &str, spec: TableSpec, patience: Duration) -> Result<RemoteTable> {
        let began = Instant::now();
        loop {
            match self.try_to_open(name, &spec) {
                Err(error) if is_there_twice(&error) && began.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                opened => return opened,
            }
        }
    }

    fn try_to_open(&self, name: &str, spec: &TableSpec) -> Result<RemoteTable> {
        let reach = &self.connections.reach;
        let ranges = Ranges::new(spec.rows, reach.servers.len() as u32);
        let mut opening = Opening { name, spec, ranges: ranges.count(), opened: Vec::new() };
        let result = self.open_ranges(&mut opening);
        let opened = opening.opened;
        if let Err(error) = result.and_then(|()| self.catch_up(name, &opened)) {
            self.undo(name, &opened);
            return Err(error);
        }
        Ok(RemoteTable {
            connections: self.connections.clone(),
            name: name.to_owned(),
            ranges,
            numbers: opened.iter().map(|opened| opened.table).collect(),
            step: WorkerStep::new(opened.iter().map(|opened| opened.step).max().unwrap_or_default()),
            has_left: AtomicBool::new(false),
            codecs: Mutex::default(),
            spec: spec.clone(),
        })
    }

    /// Opens all ranges: the first one, whose number the others are told, and which is told once all are there. So a range that has
    /// lost its rows is not taken for one that is new.
    fn open_ranges(&self, opening: &mut Opening<'_>) -> Result<()> {
        self.open_some(opening, 0..1, None, false)?;
        let Some(Opened { table, is_whole, .. }) = opening.opened.first().copied() else { return Ok(()) };
        self.open_some(opening, 1..opening.ranges, Some(table), is_whole)?;
        if !is_whole {
            let first = opening.opened.clone();
            self.open_some(opening, 0..1, Some(table), true)?;
            opening.opened = first;
        }
        Ok(())
    }

    fn open_some(
        &self,
        opening: &mut Opening<'_>,
        ranges: Range<u32>,
        birth: Option<u32>,
        is_whole: bool,
    ) -> Result<()> {
        let call = TableCall::new();
        for range in ranges {
            let (name, spec) = (opening.name.to_owned(), opening.spec.clone());
            let request = TableRequest::Open { name, spec, ranges: opening.ranges, birth, is_whole };
            self.connections.ask(range, request, &call);
        }
        let result = self.connections.wait("open", opening.name, &call);
        let opened = call.answers().into_iter().filter_map(|RangeAnswer { range, answer }| match answer {
            TableAnswer::Opened { table, step, has_half, is_new, is_whole } => {
                Some(Opened { range, table, step, has_half, is_new, is_whole })
            }
            _ => None,
        });
        opening.opened.extend(opened);
        opening.opened.sort_unstable_by_key(|opened| opened.range);
        result
    }

    /// A table that could not be opened everywhere is left, and is no more where it was made for this.
    fn undo(&self, name: &str, opened: &[Opened]) {
        let call = TableCall::new();
        for Opened { range, table, is_new, .. } in opened {
            let request = match is_new {
                true => TableRequest::Drop { name: name.to_owned() },
                false => TableRequest::Leave { table: *table },
            };
            self.connections.ask(*range, request, &call);
        }
    }

    /// Where the others have gone on without this worker, or an earlier life of it died while it ended a step, ranges differ in how many
    /// steps it has ended: it goes on where it is [furthest]. What was pushed in a step that has ended on none is withdrawn.
    fn catch_up(&self, name: &str, opened: &[Opened]) -> Result<()> {
        let most = furthest(name, opened.iter().map(|opened| opened.step))?;
        let call = TableCall::new();
        for Opened { range, table, step, has_half, .. } in opened.iter().copied() {
            end_steps(&self.connections, range, table, step..most, &call);
            if has_half && step == most {
                self.connections.ask(range, TableRequest::Withdraw { table, step, least: 0 }, &call);
            }
        }
        self.connections.wait("open", name, &call)
    }

    /// Forgets a table on all servers. Its users get an error.
    ///
    /// # Errors
    /// [`ErrorKind::Table`] if no table has the name; [`ErrorKind::TableServerLost`], [`ErrorKind::Timeout`].
    pub fn drop_table(&self, name: &str) -> Result<()> {
        check_name(name).map_err(|why| unusable(name, why))?;
        let call = TableCall::new();
        for range in 0..self.connections.reach.servers.len() as u32 {
            self.connections.ask(range, TableRequest::Drop { name: name.to_owned() }, &call);
        }
        self.connections.wait("drop_table", name, &call)?;
        // Who opens the name again does not get what was dropped.
        let open = self.tables.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        open.and_then(|table| table.upgrade()).inspect(|table| table.forget());
        let was_there = |answer: &RangeAnswer| answer.answer == TableAnswer::Dropped { was_there: true };
        match call.answers().iter().any(was_there) {
            true => Ok(()),
            false => Err(refused(name, "", TableError::Unknown)),
        }
    }
}

fn unusable(name: &str, Unusable(what): Unusable) -> Error {
    refused(name, "", TableError::Unusable(what))
}

fn is_there_twice(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Table { problem: TableError::Twice { .. }, .. })
}

fn is_restoring(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Table { problem: TableError::Restoring, .. })
}

/// The table servers that `HERRINGBONE_TABLES` names.
///
/// # Errors
/// [`ErrorKind::Config`] if it cannot be read.
pub fn servers_from_env() -> Result<Vec<String>> {
    Ok(Environment::of_process().listed(&TABLES)?.unwrap_or_default())
}
