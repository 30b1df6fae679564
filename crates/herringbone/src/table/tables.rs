//! The tables of a range: the treatment of each request. No connections, no clock.

use super::{
    fold::fold_step,
    kept_push::{KeptPayload, KeptPush},
    memory::TableMemory,
    optimizers::OwnOptimizers,
    rows::{row_cost, rows_of},
    spare,
};
use crate::core::{
    session::status::TableStatus,
    table::{
        Asking, BODY_BYTES, Entered, HotKeys, KnownKeys, NotANumber, RangeState, Ranges, TableAnswer,
        TableError, TableOperation, TableRequest, TableSpec, TakenPush, Unusable, WithdrawnPushes,
    },
    wire::digest,
};
use std::collections::{BTreeMap, BTreeSet};

mod image;
mod opening;
mod served;
mod snapshots;
mod status;
mod table_range;
pub(super) mod walk;

use opening::WantedTable;
pub(super) use served::{ReadySave, Reply, ReplyContent, ServedRequest, WantedRestore};
use table_range::{TableRange, WaitingPull, WantedSave, coded};
use walk::TableLoader;

/// How many pulls of a table may wait at once.
const WAITING_MOST: usize = 1 << 20;
/// How many tables a server has at most.
const TABLES_MOST: usize = 4096;

/// A server's range of all tables: they change by [operations](TableOperation) only, so copies on other servers that execute the
/// same in the same order have the same rows.
pub(super) struct Tables {
    range: u32,
    memory: TableMemory,
    optimizers: OwnOptimizers,
    /// A copy has room for what its owner has taken.
    is_copy: bool,
    numbers: BTreeMap<String, u32>,
    tables: BTreeMap<u32, TableRange>,
    next: u32,
    /// Of each worker, the last request that changed a table otherwise than by a push.
    changes: BTreeMap<u32, Change>,
    /// The table that is restored, whose records are operations.
    restored: Option<TableLoader>,
    /// Images of its tables come: what is not here yet comes with what was done to it.
    is_loading: bool,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    life: u64,
    number: u64,
}

/// Who asks: a process, on one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableCaller {
    pub(super) connection: u64,
    /// Its rank.
    pub(super) worker: u32,
    /// The life of its process.
    pub(super) life: u64,
}

impl Tables {
    /// None, of a range.
    pub(super) fn new(range: u32, memory: TableMemory, optimizers: OwnOptimizers, is_copy: bool) -> Self {
        Self {
            range,
            memory,
            optimizers,
            is_copy,
            numbers: BTreeMap::new(),
            tables: BTreeMap::new(),
            next: 0,
            changes: BTreeMap::new(),
            restored: None,
            is_loading: false,
        }
    }

    /// Whether this is a copy of another server's range.
    pub(super) fn set_copy(&mut self, is_copy: bool) {
        self.is_copy = is_copy;
    }

    /// Does what is asked by a request, which came with a payload. `is_present` says of a worker's life whether it has a connection
    /// with this server.
    pub(super) fn serve(
        &mut self,
        caller: &TableCaller,
        number: u64,
        request: TableRequest,
        payload: KeptPayload,
        is_present: impl Fn(u32, u64) -> bool,
        served: &mut ServedRequest,
    ) {
        let table = request.table();
        let result = match request {
            TableRequest::Pull { table, step, codec, keys } => {
                let keys = self.memory.count(keys);
                let pull = WaitingPull { connection: caller.connection, number, codec, keys };
                self.pull(table, caller.asking(step), pull).map(|()| None)
            }
            TableRequest::Save { table, id, step } => {
                let save = WantedSave { connection: caller.connection, number, id, step };
                self.want_save(table, caller, save).map(|()| None)
            }
            TableRequest::Restore { name, spec, ranges } => {
                let connection = caller.connection;
                let wanted = WantedRestore { connection, number, name, spec, ranges };
                self.want_restore(wanted, served)
            }
            request => {
                let replaces = |table: &TableRange| {
                    table
                        .state
                        .life(caller.worker)
                        .filter(|life| *life != caller.life && is_present(caller.worker, *life))
                };
                let named = self.named(&request).and_then(|number| self.tables.get(&number));
                if matches!(request, TableRequest::Open { .. }) && named.and_then(replaces).is_some() {
                    Err(TableError::Twice { worker: caller.worker })
                } else {
                    self.change(caller, number, request, payload, served).map(Some)
                }
            }
        };
        match result {
            Ok(None) => {}
            Ok(Some(answer)) => served.answer(caller, number, answer),
            Err(error) => served.answer(caller, number, TableAnswer::Refused(error)),
        }
        if let Some(table) = table {
            self.advance(table, served);
        }
    }

    /// Executes what the owner of the range has executed.
    ///
    /// # Errors
    /// If it cannot be done here: then this is no copy of the owner's range any more.
    pub(super) fn execute(&mut self, operation: TableOperation) -> Result<(), TableError> {
        match operation {
            TableOperation::Request { worker, life, number, payload } => {
                let (request, payload) = KeptPayload::decode(payload, &mut KnownKeys::default())?;
                let caller = TableCaller { connection: 0, worker, life };
                if self.is_loading && !self.has(&request) {
                    return Ok(());
                }
                self.change(&caller, number, request, payload, &mut ServedRequest::default()).map(drop)
            }
            // The image comes once the table has been restored.
            TableOperation::Load { .. } | TableOperation::Unload if self.is_loading => Ok(()),
            TableOperation::Load { record } => self.load(&record).map(drop),
            TableOperation::Unload => {
                self.unload();
                Ok(())
            }
            TableOperation::EndStep { table } => {
                self.end_step(table);
                Ok(())
            }
            TableOperation::GiveUp { table, worker, life } => {
                self.leave(table, worker, life, &mut ServedRequest::default());
                Ok(())
            }
        }
    }

    /// Changes a table. What changed it is noted.
    fn change(
        &mut self,
        caller: &TableCaller,
        number: u64,
        request: TableRequest,
        payload: KeptPayload,
        served: &mut ServedRequest,
    ) -> Result<TableAnswer, TableError> {
        let TableCaller { worker, life, .. } = *caller;
        let before = self.changes.get(&worker).copied();
        let is_repeated = before.is_some_and(|before| before.life == life && number <= before.number);
        let noted = served.operations.is_some().then(|| payload.whole(&request)).transpose()?;
        let answer = match request {
            TableRequest::Open { name, spec, ranges, birth, is_whole } => {
                let wanted = WantedTable { name, spec, ranges, birth, is_whole };
                self.open(caller, number, &wanted)?
            }
            TableRequest::Push { table, step, ends, codec, keys } => {
                let payload = self.table(table)?.plain(codec, &keys, payload)?;
                let push = KeptPush { keys, payload, reserved: 0 };
                if !self.push(table, caller.asking(step), number, ends, push)? {
                    return Ok(TableAnswer::Done);
                }
                TableAnswer::Done
            }
            TableRequest::Pull { .. }
            | TableRequest::Save { .. }
            | TableRequest::Restore { .. }
            | TableRequest::Locate => {
                return Err(TableError::Malformed("it changes nothing".into()));
            }
            TableRequest::Drop { .. } if is_repeated => return Ok(TableAnswer::Dropped { was_there: true }),
            // What came after it stays.
            TableRequest::Withdraw { table, step, .. } if is_repeated => {
                let table = self.tables.get_mut(&table).ok_or(TableError::Unknown)?;
                let WithdrawnPushes { step, .. } = table.state.withdraw(caller.asking(step), u64::MAX)?;
                return Ok(TableAnswer::Withdrawn { step });
            }
            _ if is_repeated => return Ok(TableAnswer::Done),
            TableRequest::Tune { table, parameter, number } => {
                self.tune(table, worker, &parameter, number)?;
                TableAnswer::Done
            }
            TableRequest::Leave { table } => {
                self.leave(table, worker, life, served);
                TableAnswer::Done
            }
            TableRequest::Withdraw { table, step, least } => {
                let table = self.tables.get_mut(&table).ok_or(TableError::Unknown)?;
                let WithdrawnPushes { step, dropped } = table.state.withdraw(caller.asking(step), least)?;
                let freed = table.free(&dropped);
                self.memory.give_back(freed);
                TableAnswer::Withdrawn { step }
            }
            TableRequest::Drop { name } => TableAnswer::Dropped { was_there: self.drop_table(&name, served) },
        };
        if !matches!(answer, TableAnswer::Opened { .. }) {
            self.changes.insert(worker, Change { life, number });
        }
        if let Some(payload) = noted {
            served.note(|| TableOperation::Request { worker, life, number, payload });
        }
        Ok(answer)
    }

    fn table(&self, number: u32) -> Result<&TableRange, TableError> {
        self.tables.get(&number).ok_or(TableError::Unknown)
    }

    fn named(&self, request: &TableRequest) -> Option<u32> {
        match request {
            TableRequest::Open { name, .. } | TableRequest::Drop { name } => self.numbers.get(name).copied(),
            _ => None,
        }
    }

    /// Whether there is a table of the name.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    /// Whether the table that a request is about is here.
    fn has(&self, request: &TableRequest) -> bool {
        let number = request.table().or_else(|| self.named(request));
        number.is_some_and(|number| self.tables.contains_key(&number))
    }

    fn open(
        &mut self,
        caller: &TableCaller,
        request: u64,
        wanted: &WantedTable,
    ) -> Result<TableAnswer, TableError> {
        let WantedTable { name, spec, ranges, .. } = wanted;
        let is_new = !self.numbers.contains_key(name);
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if caller.worker >= spec.workers => {
                return Err(TableError::Worker { worker: caller.worker, workers: spec.workers });
            }
            None => {
                let before = self.next;
                self.next = self.next_number(first_number(caller.life, request));
                let made = wanted.check_new().and_then(|()| self.make(name, spec, *ranges));
                if made.is_err() {
                    self.next = before;
                }
                made?
            }
        };
        if self.restored.as_ref().is_some_and(|loader| loader.number == number) {
            return Err(TableError::Restoring);
        }
        let table = self.tables.get_mut(&number).ok_or(TableError::Unknown)?;
        let mut differs = table.spec.difference(spec);
        if table.ranges != *ranges {
            differs.push("list of servers");
        }
        if !differs.is_empty() {
            return Err(TableError::Differs { what: differs.join(", ") });
        }
        wanted.check_birth(self.range, number, table.birth)?;
        let Entered { step, has_half } = table.state.enter(caller.worker, caller.life)?;
        table.birth = table.birth.or(wanted.birth);
        Ok(TableAnswer::Opened { table: number, step, has_half, is_new, is_whole: table.birth.is_some() })
    }

    /// # Errors
    /// [`TableError::Full`], unless this is a copy.
    fn check_room(&self, more: u64) -> Result<(), TableError> {
        if self.is_copy { Ok(()) } else { self.memory.check(more) }
    }

    fn make(&mut self, name: &str, spec: &TableSpec, ranges: u32) -> Result<u32, TableError> {
        spec.check(name).map_err(|wrong| TableError::Unusable(wrong.0))?;
        if self.range >= ranges {
            return Err(TableError::Malformed("a range that there is not".into()));
        }
        if self.tables.len() >= TABLES_MOST {
            return Err(TableError::TooMany { what: "tables".into(), limit: TABLES_MOST as u64 });
        }
        let keys = Ranges::new(spec.rows, ranges).keys(self.range);
        let dense = if spec.sparse { 0 } else { keys.end - keys.start };
        let optimizer = self.optimizers.find(spec.optimizer);
        let optimizer = optimizer.map_err(|Unusable(what)| TableError::Unusable(what))?;
        let used = dense.saturating_mul(row_cost(spec, optimizer.planes()));
        self.check_room(used)?;
        self.memory.take(used);
        let number = self.next;
        self.next += 1;
        self.numbers.insert(name.to_owned(), number);
        let table = TableRange {
            optimizer: spec.optimizer,
            ranges,
            birth: None,
            state: RangeState::new(spec.consistency, spec.workers),
            rows: rows_of(spec, &optimizer, keys.clone()),
            keys,
            used,
            owed: 0,
            not_numbers: 0,
            saves: Vec::new(),
            hot: HotKeys::default(),
            spec: spec.clone(),
        };
        self.tables.insert(number, table);
        Ok(number)
    }

    /// Takes a push. Returns whether it was not taken before.
    fn push(
        &mut self,
        number: u32,
        who: Asking,
        push_number: u64,
        ends: bool,
        mut push: KeptPush,
    ) -> Result<bool, TableError> {
        let table = self.table(number)?;
        if table.state.knows(who, push_number) {
            return Ok(false);
        }
        table.check_keys(&push.keys)?;
        let (expected, found) = (push.keys.len() * table.spec.row_bytes(), push.values().len());
        if expected != found {
            return Err(TableError::Length { expected: expected as u64, found: found as u64 });
        }
        let not_a_number = table.rows.not_a_number(&push.keys, push.values());
        if let Some(key) = not_a_number.filter(|_| table.spec.not_a_number == NotANumber::Refused) {
            return Err(TableError::NotANumber { key });
        }
        let new_rows = table.rows.needs(&push.keys);
        let kept = if table.spec.consistency.keeps() { push.bytes() } else { 0 };
        push.reserved = new_rows + kept;
        let reserved = push.reserved;
        self.check_room(reserved)?;
        let table = self.tables.get_mut(&number).ok_or(TableError::Unknown)?;
        table.hot.count(&push.keys);
        if push.keys.is_empty() {
            return table.state.push_no_rows(who, push_number, ends);
        }
        match table.state.push(who, push_number, ends, push)? {
            TakenPush::Now(push) => table.rows.push(&push.keys, push.values()),
            TakenPush::Kept => {}
            TakenPush::Again => return Ok(false),
        }
        table.not_numbers += u64::from(not_a_number.is_some());
        table.used += reserved;
        self.memory.take(reserved);
        Ok(true)
    }

    fn pull(&mut self, table: u32, who: Asking, pull: WaitingPull) -> Result<(), TableError> {
        let table = self.tables.get_mut(&table).ok_or(TableError::Unknown)?;
        table.check_keys(&pull.keys)?;
        table.check_codec(pull.codec)?;
        let bytes = pull.keys.len().saturating_mul(table.spec.row_bytes());
        if bytes > BODY_BYTES {
            let limit = (BODY_BYTES / table.spec.row_bytes()) as u64;
            return Err(TableError::TooMany { what: "rows in one pull of a message".into(), limit });
        }
        if table.state.waiting() + table.owed >= WAITING_MOST {
            return Err(TableError::TooMany { what: "pulls that wait".into(), limit: WAITING_MOST as u64 });
        }
        if table.state.waits(who.step) {
            self.memory.check_counted()?;
        }
        table.hot.count(&pull.keys);
        table.state.pull(who, pull)
    }

    fn tune(&mut self, table: u32, worker: u32, parameter: &str, number: f64) -> Result<(), TableError> {
        let table = self.tables.get_mut(&table).ok_or(TableError::Unknown)?;
        table.state.life(worker).ok_or(TableError::Unknown)?;
        let tuned = table.optimizer.with(parameter, number);
        let optimizer = tuned.map_err(|Unusable(what)| TableError::Unusable(what))?;
        if !table.optimizer.is_same_but_for_numbers(&optimizer) {
            // Nothing else comes and goes with a number.
            let what = match table.optimizer.planes() {
                0 => "keeps no velocity: make a table with a momentum",
                _ => "keeps a velocity, which a momentum of 0 does not: make a table without a momentum",
            };
            return Err(TableError::Unusable(format!("{} {what}", table.optimizer)));
        }
        table.optimizer = optimizer;
        table.rows.tune(optimizer);
        Ok(())
    }

    /// A worker of this life takes part no more.
    fn leave(&mut self, table: u32, worker: u32, life: u64, served: &mut ServedRequest) {
        if let Some(table) = self.tables.get_mut(&table)
            && table.state.life(worker) == Some(life)
        {
            served.replies.extend(table.state.take_waiting_of(worker).into_iter().map(refused));
            let dropped = table.state.leave(worker);
            let freed = table.free(&dropped);
            self.memory.give_back(freed);
        }
    }

    /// The others go on without a worker of this life.
    pub(super) fn give_up(&mut self, worker: u32, life: u64, served: &mut ServedRequest) {
        let entered: Vec<u32> = self.entered(worker, life).collect();
        for table in entered {
            self.leave(table, worker, life, served);
            served.note(|| TableOperation::GiveUp { table, worker, life });
            self.advance(table, served);
        }
    }

    /// The tables in which a worker of this life takes part.
    fn entered(&self, worker: u32, life: u64) -> impl Iterator<Item = u32> {
        let takes_part = move |(_, table): &(&u32, &TableRange)| table.state.life(worker) == Some(life);
        self.tables.iter().filter(takes_part).map(|(number, _)| *number)
    }

    /// All workers that take part in a table, and their lives.
    pub(super) fn workers(&self) -> BTreeSet<(u32, u64)> {
        let lives = |table: &TableRange| {
            let clocks: Vec<_> = table.state.worker_clocks().filter(|clock| !clock.has_left).collect();
            clocks.into_iter().map(|clock| (clock.worker, clock.life))
        };
        self.tables.values().flat_map(lives).collect()
    }

    /// Forgets a table. Returns whether there was one.
    fn drop_table(&mut self, name: &str, served: &mut ServedRequest) -> bool {
        let number = self.numbers.remove(name);
        let Some(mut table) = number.and_then(|number| self.tables.remove(&number)) else { return false };
        self.memory.give_back(table.used);
        served.replies.extend(table.state.take_waiting().into_iter().map(refused));
        true
    }

    /// A connection has ended: nobody waits there for rows any more.
    pub(super) fn disconnect(&mut self, caller: &TableCaller) {
        for table in self.tables.values_mut() {
            table.state.forget_pulls(caller.worker, |pull| pull.connection == caller.connection);
        }
    }

    /// What waits here, each with its connection and its number: this server answers none of it any more.
    pub(super) fn take_waiting(&mut self) -> Vec<(u64, u64)> {
        let mut waiting = Vec::new();
        for table in self.tables.values_mut() {
            table.owed = 0;
            waiting.extend(table.state.take_waiting().into_iter().map(|pull| (pull.connection, pull.number)));
            waiting.extend(
                std::mem::take(&mut table.saves).into_iter().map(|save| (save.connection, save.number)),
            );
        }
        waiting
    }

    /// Says what can be said now, and has steps take effect that have ended; none before all pulls of the step before are written.
    pub(super) fn advance(&mut self, number: u32, served: &mut ServedRequest) {
        loop {
            let Some(table) = self.tables.get_mut(&number) else { return };
            for WaitingPull { connection, number: pull, codec, keys } in table.state.ready() {
                table.owed += 1;
                let content = ReplyContent::Rows { table: number, codec, keys };
                served.replies.push(Reply { connection, number: pull, content });
            }
            self.save_ready(number, served);
            let Some(table) = self.tables.get_mut(&number) else { return };
            if table.owed > 0 || !self.end_step(number) {
                return;
            }
            served.note(|| TableOperation::EndStep { table: number });
        }
    }

    /// Has the next step take effect, if it has ended.
    fn end_step(&mut self, number: u32) -> bool {
        let Some(table) = self.tables.get_mut(&number) else { return false };
        let Some(step) = table.state.end_step() else { return false };
        let (dtype, row_bytes) = (table.spec.dtype, table.spec.row_bytes());
        let before: u64 = step.pushes.iter().flat_map(|(_, pushes)| pushes).map(|push| push.reserved).sum();
        let mut new_rows = 0;
        fold_step(dtype, row_bytes, &step, |keys, sums| {
            new_rows += table.rows.needs(keys);
            table.rows.push(keys, sums);
        });
        table.used = table.used - before + new_rows;
        self.memory.take(new_rows);
        self.memory.give_back(before);
        true
    }

    /// What goes to a connection as the payload of an answer. If these were rows, their table may have more to say afterwards.
    pub(super) fn payload(&mut self, content: &ReplyContent, served: &mut ServedRequest) -> Vec<u8> {
        let (number, (codec, keys)) = match content {
            ReplyContent::Answer(answer) => return answer.encode(),
            ReplyContent::Rows { table, codec, keys } => (*table, (*codec, keys)),
        };
        let Some(table) = self.tables.get_mut(&number) else {
            return TableAnswer::Refused(TableError::Unknown).encode();
        };
        table.owed = table.owed.saturating_sub(1);
        let width = table.spec.width as usize;
        let head = TableAnswer::Rows.encode();
        let mut payload = spare::buffer(head.len() + keys.len() * table.spec.row_bytes());
        payload[..head.len()].copy_from_slice(&head);
        let read = table.rows.read(keys, &mut payload[head.len()..]);
        self.advance(number, served);
        match read {
            Ok(()) if codec.is_plain() => payload,
            Ok(()) => coded(codec, width, &payload, head.len()),
            Err(error) => TableAnswer::Refused(error).encode(),
        }
    }

    /// The rows that a connection was to be told are not asked for any more.
    pub(super) fn forget(&mut self, content: &ReplyContent, served: &mut ServedRequest) {
        let ReplyContent::Rows { table: number, .. } = content else { return };
        if let Some(table) = self.tables.get_mut(number) {
            table.owed = table.owed.saturating_sub(1);
            self.advance(*number, served);
        }
    }

    /// All tables, for people. `is_present` as for [`serve`](Self::serve).
    pub(super) fn status(&self, is_present: impl Fn(u32, u64) -> bool) -> Vec<TableStatus> {
        let of = |(name, number): (&String, &u32)| {
            Some(self.tables.get(number)?.status(name, self.range, &is_present))
        };
        self.numbers.iter().filter_map(of).collect()
    }
}

/// The number of the first table of a range, which the others follow: after all servers were started anew, no table has the number
/// of one that a worker may still hold. Copies get the same from the same request.
pub(super) fn first_number(life: u64, request: u64) -> u32 {
    let mixed = digest(&[life.to_le_bytes(), request.to_le_bytes()].concat());
    (mixed >> 33) as u32 | 1
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.memory.give_back(self.tables.values().map(|table| table.used).sum());
    }
}

/// What a pull is told whose worker or table is gone.
fn refused(pull: WaitingPull) -> Reply {
    let content = ReplyContent::Answer(TableAnswer::Refused(TableError::Unknown));
    Reply { connection: pull.connection, number: pull.number, content }
}

impl TableCaller {
    fn asking(&self, step: u64) -> Asking {
        Asking { worker: self.worker, life: self.life, step }
    }
}
