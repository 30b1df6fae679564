//! The tables of a server: what becomes of each request. No connections, no clock.

use super::{
    fold::fold_step,
    kept_push::KeptPush,
    rows::{Rows, row_cost, rows_of},
};
use crate::core::table::{
    Asking, BODY_BYTES, Entered, NotANumber, OptimizerSpec, RangeState, Ranges, RowKeys, TableAnswer,
    TableError, TableRequest, TableSpec, TakenPush, Unusable,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

#[cfg_attr(not(test), expect(dead_code, reason = "copies on other servers and snapshots use it"))]
pub(super) mod image;

/// How many pulls of a table may wait at once.
const WAITING_MOST: usize = 1 << 20;
/// How many tables a server has at most.
const TABLES_MOST: usize = 4096;

/// The tables of a server.
pub(super) struct Tables {
    /// How many bytes their rows and what waits for the end of a step may take up.
    limit: u64,
    used: u64,
    numbers: BTreeMap<String, u32>,
    tables: BTreeMap<u32, Table>,
    next: u32,
}

/// This server's range of a table.
struct Table {
    spec: TableSpec,
    /// The optimizer as it was last tuned.
    optimizer: OptimizerSpec,
    /// Which of its ranges, and how many there are.
    range: u32,
    ranges: u32,
    keys: Range<u64>,
    state: RangeState<KeptPush, WaitingPull>,
    rows: Box<dyn Rows>,
    /// What it takes up of the server's memory.
    used: u64,
    /// How many pulls are to be answered before another step takes effect.
    owed: usize,
    /// Rows with a NaN that were pushed.
    not_numbers: u64,
    /// The connections of its workers.
    present: BTreeMap<u32, u64>,
}

#[derive(Debug)]
struct WaitingPull {
    connection: u64,
    number: u64,
    keys: RowKeys,
}

/// Who asks: a process, on one connection.
#[derive(Debug)]
pub(super) struct TableCaller {
    pub(super) connection: u64,
    /// The life of its process.
    pub(super) life: u64,
    /// The tables that it has opened, and as which worker.
    opened: BTreeMap<u32, u32>,
}

/// What a connection is to be told.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) connection: u64,
    /// Of the request.
    pub(super) number: u64,
    pub(super) content: ReplyContent,
}

#[derive(Debug)]
pub(super) enum ReplyContent {
    Answer(TableAnswer),
    /// These rows, as they are when they are [written](Tables::payload).
    Rows {
        table: u32,
        keys: RowKeys,
    },
}

impl TableCaller {
    pub(super) fn new(connection: u64, life: u64) -> Self {
        Self { connection, life, opened: BTreeMap::new() }
    }
}

impl Tables {
    /// None, which may take up so many bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, used: 0, numbers: BTreeMap::new(), tables: BTreeMap::new(), next: 0 }
    }

    /// Does what is asked; appends what is to be said to `replies`.
    pub(super) fn serve(
        &mut self,
        caller: &mut TableCaller,
        number: u64,
        payload: Vec<u8>,
        replies: &mut Vec<Reply>,
    ) {
        let (table, result) = self.take_in(caller, number, payload, replies);
        let answer = match result {
            Ok(None) => None,
            Ok(Some(answer)) => Some(answer),
            Err(error) => Some(TableAnswer::Refused(error)),
        };
        let connection = caller.connection;
        replies.extend(answer.map(|answer| Reply {
            connection,
            number,
            content: ReplyContent::Answer(answer),
        }));
        if let Some(table) = table {
            self.advance(table, replies);
        }
    }

    /// The table that may have more to say now, and the answer, unless it comes later.
    fn take_in(
        &mut self,
        caller: &mut TableCaller,
        number: u64,
        payload: Vec<u8>,
        replies: &mut Vec<Reply>,
    ) -> (Option<u32>, Result<Option<TableAnswer>, TableError>) {
        let (request, values) = match TableRequest::decode(&payload) {
            Ok(read) => read,
            Err(error) => return (None, Err(error)),
        };
        let values_at = payload.len() - values.len();
        match request {
            TableRequest::Open { name, spec, range, ranges, worker } => {
                let place = Place { range, ranges };
                (None, self.open(caller, &name, spec, place, worker).map(Some))
            }
            TableRequest::Push { table, step, ends, keys } => {
                let who = caller.asking(table, step);
                let push = KeptPush { keys, payload: Arc::new(payload), values_at, reserved: 0 };
                let done = who.and_then(|who| self.push(table, who, number, ends, push));
                (Some(table), done.map(|()| Some(TableAnswer::Done)))
            }
            TableRequest::Pull { table, step, keys } => {
                let pull = WaitingPull { connection: caller.connection, number, keys };
                let who = caller.asking(table, step);
                (Some(table), who.and_then(|who| self.pull(table, who, pull)).map(|()| None))
            }
            TableRequest::Tune { table, parameter, number } => {
                let known = caller.asking(table, 0);
                let tuned = known.and_then(|_| self.tune(table, &parameter, number));
                (None, tuned.map(|()| Some(TableAnswer::Done)))
            }
            TableRequest::Leave { table } => {
                let worker = caller.opened.remove(&table);
                worker.into_iter().for_each(|worker| self.leave(table, worker, caller.life));
                (Some(table), Ok(Some(TableAnswer::Done)))
            }
            TableRequest::Drop { name } => {
                (None, self.drop_table(&name, replies).map(|()| Some(TableAnswer::Done)))
            }
        }
    }

    fn open(
        &mut self,
        caller: &mut TableCaller,
        name: &str,
        spec: TableSpec,
        place: Place,
        worker: u32,
    ) -> Result<TableAnswer, TableError> {
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => self.make(name, &spec, place)?,
        };
        let table = self.tables.get_mut(&number).ok_or(TableError::Unknown)?;
        let mut differs = table.spec.difference(&spec);
        if (table.range, table.ranges) != (place.range, place.ranges) {
            differs.push("list of servers");
        }
        if !differs.is_empty() {
            return Err(TableError::Differs { what: differs.join(", ") });
        }
        let others = table.present.get(&worker).filter(|connection| **connection != caller.connection);
        let is_other_life = table.state.life(worker).is_some_and(|life| life != caller.life);
        if others.is_some() && is_other_life {
            return Err(TableError::Twice { worker });
        }
        let Entered { step, dropped } = table.state.enter(worker, caller.life)?;
        let freed: u64 = dropped.iter().map(|push| push.reserved).sum();
        table.used -= freed;
        self.used -= freed;
        table.present.insert(worker, caller.connection);
        caller.opened.insert(number, worker);
        Ok(TableAnswer::Opened { table: number, step })
    }

    fn make(&mut self, name: &str, spec: &TableSpec, place: Place) -> Result<u32, TableError> {
        spec.check(name).map_err(|wrong| TableError::Unusable(wrong.0))?;
        if place.range >= place.ranges {
            return Err(TableError::Malformed("a range that there is not".into()));
        }
        if self.tables.len() >= TABLES_MOST {
            return Err(TableError::TooMany { what: "tables".into(), limit: TABLES_MOST as u64 });
        }
        let keys = Ranges::new(spec.rows, place.ranges).keys(place.range);
        let dense = if spec.sparse { 0 } else { keys.end - keys.start };
        let used =
            dense.checked_mul(row_cost(spec)).filter(|used| self.used.saturating_add(*used) <= self.limit);
        let used = used.ok_or(TableError::Full { limit: self.limit })?;
        let number = self.next;
        self.next += 1;
        self.used += used;
        self.numbers.insert(name.to_owned(), number);
        let table = Table {
            optimizer: spec.optimizer,
            range: place.range,
            ranges: place.ranges,
            state: RangeState::new(spec.consistency, spec.workers),
            rows: rows_of(spec, keys.clone()),
            keys,
            used,
            owed: 0,
            not_numbers: 0,
            present: BTreeMap::new(),
            spec: spec.clone(),
        };
        self.tables.insert(number, table);
        Ok(number)
    }

    fn push(
        &mut self,
        table: u32,
        who: Asking,
        number: u64,
        ends: bool,
        mut push: KeptPush,
    ) -> Result<(), TableError> {
        let (limit, used) = (self.limit, self.used);
        let table = self.tables.get_mut(&table).ok_or(TableError::Unknown)?;
        if table.state.knows(who, number) {
            return Ok(());
        }
        table.check_keys(&push.keys)?;
        let (expected, found) = (push.keys.len() * table.spec.row_bytes(), push.values().len());
        if expected != found {
            return Err(TableError::Length { expected: expected as u64, found: found as u64 });
        }
        if let Some(key) = table.rows.not_a_number(&push.keys, push.values()) {
            if table.spec.not_a_number == NotANumber::Refused {
                return Err(TableError::NotANumber { key });
            }
            table.not_numbers += 1;
        }
        let new_rows = table.rows.needs(&push.keys);
        let kept = if table.spec.consistency.is_sync() { push.payload.len() as u64 } else { 0 };
        push.reserved = new_rows + kept;
        if used.saturating_add(push.reserved) > limit {
            return Err(TableError::Full { limit });
        }
        let reserved = push.reserved;
        match table.state.push(who, number, ends, push)? {
            TakenPush::Now(push) => table.rows.push(&push.keys, push.values()),
            TakenPush::Kept => {}
            TakenPush::Again => return Ok(()),
        }
        table.used += reserved;
        self.used += reserved;
        Ok(())
    }

    fn pull(&mut self, table: u32, who: Asking, pull: WaitingPull) -> Result<(), TableError> {
        let table = self.tables.get_mut(&table).ok_or(TableError::Unknown)?;
        table.check_keys(&pull.keys)?;
        let bytes = pull.keys.len().saturating_mul(table.spec.row_bytes());
        if bytes > BODY_BYTES {
            let limit = (BODY_BYTES / table.spec.row_bytes()) as u64;
            return Err(TableError::TooMany { what: "rows in one pull of a message".into(), limit });
        }
        if table.state.waiting() + table.owed >= WAITING_MOST {
            return Err(TableError::TooMany { what: "pulls that wait".into(), limit: WAITING_MOST as u64 });
        }
        table.state.pull(who, pull)
    }

    fn tune(&mut self, table: u32, parameter: &str, number: f64) -> Result<(), TableError> {
        let table = self.tables.get_mut(&table).ok_or(TableError::Unknown)?;
        let tuned = table.optimizer.with(parameter, number);
        let optimizer = tuned.map_err(|Unusable(what)| TableError::Unusable(what))?;
        if !table.optimizer.is_same_but_for_numbers(&optimizer) {
            let what = format!("{} keeps no velocity: make a table with a momentum", table.optimizer);
            return Err(TableError::Unusable(what));
        }
        table.optimizer = optimizer;
        table.rows.tune(optimizer);
        Ok(())
    }

    /// A worker of this life takes part no more.
    pub(super) fn leave(&mut self, table: u32, worker: u32, life: u64) {
        if let Some(table) = self.tables.get_mut(&table)
            && table.state.life(worker) == Some(life)
        {
            table.present.remove(&worker);
            let dropped = table.state.leave(worker);
            let freed: u64 = dropped.iter().map(|push| push.reserved).sum();
            table.used -= freed;
            self.used -= freed;
        }
    }

    fn drop_table(&mut self, name: &str, replies: &mut Vec<Reply>) -> Result<(), TableError> {
        let number = self.numbers.remove(name).ok_or(TableError::Unknown)?;
        let mut table = self.tables.remove(&number).ok_or(TableError::Unknown)?;
        self.used -= table.used;
        let refused = |pull: WaitingPull| Reply {
            connection: pull.connection,
            number: pull.number,
            content: ReplyContent::Answer(TableAnswer::Refused(TableError::Unknown)),
        };
        replies.extend(table.state.take_waiting().into_iter().map(refused));
        Ok(())
    }

    /// A connection has ended. Returns the tables of which its workers may come back.
    pub(super) fn disconnect(&mut self, caller: &TableCaller) -> BTreeSet<(u32, u32)> {
        let mut may_return = BTreeSet::new();
        for (number, worker) in &caller.opened {
            let Some(table) = self.tables.get_mut(number) else { continue };
            table.state.forget_pulls(*worker, |pull| pull.connection == caller.connection);
            if table.present.get(worker) == Some(&caller.connection) {
                table.present.remove(worker);
                may_return.insert((*number, *worker));
            }
        }
        may_return
    }

    /// Whether a worker that went without a word has not come back in another connection.
    pub(super) fn is_away(&self, table: u32, worker: u32) -> bool {
        self.tables.get(&table).is_some_and(|table| !table.present.contains_key(&worker))
    }

    /// Says what can be said now, and has steps take effect that have ended; none before all pulls of the step before are written.
    pub(super) fn advance(&mut self, number: u32, replies: &mut Vec<Reply>) {
        let Some(table) = self.tables.get_mut(&number) else { return };
        loop {
            for WaitingPull { connection, number: pull, keys } in table.state.ready() {
                table.owed += 1;
                let content = ReplyContent::Rows { table: number, keys };
                replies.push(Reply { connection, number: pull, content });
            }
            if table.owed > 0 {
                return;
            }
            let Some(step) = table.state.end_step() else { return };
            let (dtype, row_bytes) = (table.spec.dtype, table.spec.row_bytes());
            let before: u64 =
                step.pushes.iter().flat_map(|(_, pushes)| pushes).map(|push| push.reserved).sum();
            let mut new_rows = 0;
            fold_step(dtype, row_bytes, &step, |keys, sums| {
                new_rows += table.rows.needs(keys);
                table.rows.push(keys, sums);
            });
            table.used = table.used - before + new_rows;
            self.used = self.used - before + new_rows;
        }
    }

    /// What goes to a connection as the payload of an answer. If these were rows, their table may have more to say
    /// [afterwards](Self::advance).
    pub(super) fn payload(&mut self, content: &ReplyContent) -> Vec<u8> {
        let (number, keys) = match content {
            ReplyContent::Answer(answer) => return answer.encode(),
            ReplyContent::Rows { table, keys } => (table, keys),
        };
        let Some(table) = self.tables.get_mut(number) else {
            return TableAnswer::Refused(TableError::Unknown).encode();
        };
        table.owed -= 1;
        let mut payload = TableAnswer::Rows.encode();
        payload.reserve_exact(keys.len() * table.spec.row_bytes());
        match table.rows.read(keys, &mut payload) {
            Ok(()) => payload,
            Err(error) => TableAnswer::Refused(error).encode(),
        }
    }

    /// The rows that a connection was to be told are not asked for any more.
    pub(super) fn forget(&mut self, content: &ReplyContent) -> Option<u32> {
        let ReplyContent::Rows { table: number, .. } = content else { return None };
        let table = self.tables.get_mut(number)?;
        table.owed -= 1;
        Some(*number)
    }

    /// All tables, for people.
    pub(super) fn summaries(&self) -> Vec<TableSummary> {
        let of = |(name, number): (&String, &u32)| {
            let table = self.tables.get(number)?;
            Some(TableSummary {
                name: name.clone(),
                rows: table.rows.held(),
                bytes: table.used,
                version: table.state.version(),
                workers: table.present.len(),
                not_numbers: table.not_numbers,
            })
        };
        self.numbers.iter().filter_map(of).collect()
    }
}

/// What there is to tell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSummary {
    /// Its name.
    pub name: String,
    /// How many of its rows take up memory on this server.
    pub rows: u64,
    /// How many bytes.
    pub bytes: u64,
    /// How many steps all its workers have ended.
    pub version: u64,
    /// How many of its workers are connected.
    pub workers: usize,
    /// Pushes with a NaN that were taken.
    pub not_numbers: u64,
}

/// Which range of a table a server has, as a worker sees it.
#[derive(Clone, Copy, Debug)]
struct Place {
    range: u32,
    ranges: u32,
}

impl Table {
    fn check_keys(&self, keys: &RowKeys) -> Result<(), TableError> {
        if keys.are_right(&self.keys) {
            return Ok(());
        }
        let (first, last) = (keys.get(0), keys.get(keys.len() - 1));
        let (begin, end) = (self.keys.start, self.keys.end.saturating_sub(1));
        Err(TableError::RowKeys { first, last, begin, end })
    }
}

impl TableCaller {
    fn asking(&self, table: u32, step: u64) -> Result<Asking, TableError> {
        let worker = *self.opened.get(&table).ok_or(TableError::Unknown)?;
        Ok(Asking { worker, life: self.life, step })
    }
}
