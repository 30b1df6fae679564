//! Snapshots of a server's ranges, written and read by threads of their own.

use super::state::{FoundRecord, RestoreJob, Serving};
use crate::{
    core::table::{ImageRecord, TableAnswer, TableError, TableOperation},
    table::{
        shared::{FoundAnswer, ServiceShared, lock},
        snapshot::{SnapshotError, SnapshotSet, SnapshotWriter},
        tables::{ReadySave, Reply, ReplyContent, WantedRestore, first_number},
    },
};
use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{SyncSender, TryRecvError, sync_channel},
    },
    thread,
};

/// How many records are read ahead.
const AHEAD: usize = 16;
/// How many are taken in one turn.
const TURN: usize = 64;

impl Serving {
    /// Writes a range to disk.
    pub(super) fn save(&mut self, range: u32, save: ReadySave) {
        let ReadySave { connection, number, id, step, frozen } = save;
        let Some(dir) = self.disk.data.clone() else {
            return self.answer(range, connection, number, refused(NO_DATA));
        };
        let (shared, process, before) = (self.shared.clone(), self.shared.incarnation, self.disk.begun);
        self.disk.begun += 1;
        let write = move || {
            let name = frozen.head.name.clone();
            let written = SnapshotWriter { dir: dir.clone(), id, step, process, before }.write(frozen);
            let answer = match written.and_then(|_| SnapshotSet::delete_old(&dir, &name)) {
                Ok(()) => TableAnswer::Done,
                Err(error) => refused(&error.to_string()),
            };
            let reply = Reply { connection, number, content: ReplyContent::Answer(answer) };
            lock(&shared.found).push(FoundAnswer { range, reply });
            // The server looks by itself, too.
            let _rung = shared.bell.ring();
        };
        if let Err(error) = thread::Builder::new().name("hb-tables-save".to_owned()).spawn(write) {
            self.answer(range, connection, number, refused(&format!("cannot start a thread: {error}")));
        }
    }

    /// Reads a range from disk.
    pub(super) fn restore(&mut self, range: u32, wanted: WantedRestore) {
        let (connection, number) = (wanted.connection, wanted.number);
        let Some(dir) = self.disk.data.clone() else {
            return self.answer(range, connection, number, refused(NO_DATA));
        };
        if self.disk.restores.iter().any(|job| job.range == range) {
            return self.answer(range, connection, number, TableAnswer::Refused(TableError::Restoring));
        }
        let (to, found) = sync_channel(AHEAD);
        let shared = self.shared.clone();
        let read = move || {
            let read = read(&dir, range, &wanted, &to, &shared);
            let last = read.map_or_else(
                |error| Some(FoundRecord::Failed(error.to_string())),
                |found| (!found).then_some(FoundRecord::Nothing),
            );
            // Nobody waits for it any more if it cannot be sent.
            last.into_iter().for_each(|last| send(last, &to, &shared));
        };
        match thread::Builder::new().name("hb-tables-restore".to_owned()).spawn(read) {
            Ok(_) => self.disk.restores.push(RestoreJob {
                range,
                connection,
                number,
                id: None,
                has_begun: false,
                found,
            }),
            Err(error) => {
                self.answer(range, connection, number, refused(&format!("cannot start a thread: {error}")));
            }
        }
    }

    fn answer(&mut self, range: u32, connection: u64, number: u64, answer: TableAnswer) {
        let mut served = self.served();
        served.replies.push(Reply { connection, number, content: ReplyContent::Answer(answer) });
        self.carry_on(range, served);
    }

    /// Takes what threads have found.
    pub(super) fn look_after_disk(&mut self) {
        let found = std::mem::take(&mut *lock(&self.shared.found));
        for FoundAnswer { range, reply } in found {
            let mut served = self.served();
            served.replies.push(reply);
            self.carry_on(range, served);
        }
        let jobs = std::mem::take(&mut self.disk.restores);
        for mut job in jobs {
            let answer = (0..TURN).find_map(|_| match job.found.try_recv() {
                Ok(found) => self.take_found(&mut job, found),
                Err(TryRecvError::Empty) => Some(None),
                Err(TryRecvError::Disconnected) => {
                    Some(Some(refused("the thread that read the snapshot has ended")))
                }
            });
            match answer {
                Some(Some(answer)) => {
                    if matches!(answer, TableAnswer::Refused(_)) {
                        self.unload(job.range);
                    }
                    self.answer(job.range, job.connection, job.number, answer);
                }
                Some(None) | None => self.disk.restores.push(job),
            }
        }
    }

    /// What a thread has found is done here, and in copies. `Some(Some(answer))` ends it.
    fn take_found(&mut self, job: &mut RestoreJob, found: FoundRecord) -> Option<Option<TableAnswer>> {
        let mut record = match found {
            FoundRecord::Snapshot(id) => {
                job.id = Some(id);
                return None;
            }
            FoundRecord::Nothing => return Some(Some(TableAnswer::Restored { id: None })),
            FoundRecord::Failed(problem) => return Some(Some(refused(&problem))),
            FoundRecord::Record(record) => record,
        };
        let shard = self.shards.get_mut(&job.range)?;
        if !job.has_begun {
            job.has_begun = true;
            let first = first_number(self.shared.incarnation, job.number);
            record = match numbered(&record, shard.tables.next_number(first)) {
                Ok(record) => record,
                Err(error) => return Some(Some(TableAnswer::Refused(error))),
            };
        }
        let loaded = shard.tables.load(&record);
        if loaded.is_ok() {
            self.tell_copies(job.range, vec![TableOperation::Load { record }]);
        }
        match loaded {
            Ok(false) => None,
            Ok(true) => Some(Some(TableAnswer::Restored { id: job.id })),
            Err(error) => Some(Some(TableAnswer::Refused(error))),
        }
    }

    /// What has come of a table that was being restored is dropped, here and in copies.
    pub(super) fn unload(&mut self, range: u32) {
        if let Some(shard) = self.shards.get_mut(&range).filter(|shard| shard.tables.is_restoring(None)) {
            shard.tables.unload();
            self.tell_copies(range, vec![TableOperation::Unload]);
        }
    }
}

const NO_DATA: &str = "this server has no directory for snapshots: start it with --data DIR";

fn refused(problem: &str) -> TableAnswer {
    TableAnswer::Refused(TableError::Unusable(problem.to_owned()))
}

/// The first record of an image, with the number that the table gets here.
fn numbered(record: &[u8], number: u32) -> Result<Vec<u8>, TableError> {
    let (ImageRecord::Head(mut head), _) = ImageRecord::decode(record)? else {
        return Err(TableError::Malformed("a snapshot that does not begin with a head".to_owned()));
    };
    head.number = number;
    ImageRecord::Head(head).encode().map_err(|error| TableError::Malformed(error.to_string()))
}

/// Reads a range of the newest snapshot. Returns whether there is one.
fn read(
    dir: &Path,
    range: u32,
    wanted: &WantedRestore,
    to: &SyncSender<FoundRecord>,
    shared: &Arc<ServiceShared>,
) -> Result<bool, SnapshotError> {
    let found = SnapshotSet::find(dir, &wanted.name)?;
    for refused in &found.refused {
        crate::log::warn("tables", format_args!("a newer snapshot is left out: {refused}"));
    }
    let Some(set) = found.set else {
        // A table that was trained is not to begin anew unnoticed.
        return found.refused.into_iter().next().map_or(Ok(false), Err);
    };
    let records = set.restore(&wanted.spec, 0, range, wanted.ranges)?;
    let what = format_args!("range {range} of {:?} is restored as after step {}", wanted.name, set.step);
    crate::log::info("tables", what);
    send(FoundRecord::Snapshot(set.id), to, shared);
    for record in records {
        send(FoundRecord::Record(record?), to, shared);
    }
    Ok(true)
}

fn send(found: FoundRecord, to: &SyncSender<FoundRecord>, shared: &ServiceShared) {
    // Nobody waits for it any more if it cannot be sent; the server looks by itself, too.
    let _unheard = to.send(found);
    let _rung = shared.bell.ring();
}
