//! The status of a server of [tables](crate::table).

use crate::session::codec::{Malformed, Reader, Writer};
use alloc::{string::String, vec::Vec};

/// How many tables a server lists, of each range that it has.
pub const TABLES: usize = 128;
/// How many workers of a table it lists, beginning with the workers that are furthest behind.
pub const TABLE_WORKERS: usize = 64;

/// How a table server stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableServerStatus {
    /// Its number in the set of servers that copy each other's ranges, and 0 if it is alone.
    pub place: u32,
    /// All of these, each `host:port`; none if it is alone.
    pub servers: Vec<String>,
    /// How many copies each range should have in addition to its owner's.
    pub replicas: u32,
    /// How many bytes its tables take up, with pushes that wait for the end of a step, and pulls that are not answered.
    pub used: u64,
    /// The limit of these bytes.
    pub limit: u64,
    /// The owners and copies of ranges, as far as this server knows. Empty if it is alone.
    pub ranges: Vec<RangeStatus>,
    /// Its tables, a range each.
    pub tables: Vec<TableStatus>,
    /// How many more there are.
    pub unlisted: u32,
}

/// The owner and copies of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeStatus {
    /// Which.
    pub range: u32,
    /// Its owner's place; `None` if no server that is there has it.
    pub owner: Option<u32>,
    /// The places of the servers that have copies, or are being sent them.
    pub copies: Vec<u32>,
    /// How many changes its copies have not confirmed, as far as its owner knows; 0 elsewhere.
    pub unconfirmed: u64,
}

/// How a range of a table stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableStatus {
    /// The table's name.
    pub name: String,
    /// Which of its ranges.
    pub range: u32,
    /// Its type, width, consistency and optimizer, for people.
    pub kind: String,
    /// How many keys the range has.
    pub keys: u64,
    /// How many of its rows take up memory.
    pub rows: u64,
    /// How many bytes.
    pub bytes: u64,
    /// How many steps all its workers have ended.
    pub version: u64,
    /// How many pulls wait for other workers.
    pub waiting: u64,
    /// Pushes with a NaN that were taken.
    pub not_numbers: u64,
    /// How many of its workers have a connection with this server.
    pub present: u32,
    /// Its workers, beginning with the ones that are furthest behind.
    pub workers: Vec<TableWorker>,
    /// The keys that are asked for most, the hottest first.
    pub hot: Vec<HotKey>,
}

/// How a worker stands in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableWorker {
    /// Its rank.
    pub worker: u32,
    /// How many steps it has ended.
    pub step: u64,
    /// Whether it has a connection with this server.
    pub is_here: bool,
    /// Whether the others do without it.
    pub has_left: bool,
}

/// A key that is asked for often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// Which.
    pub key: u64,
    /// In which share of all pushes and pulls of the table's keys it was, in millionths; an estimate.
    pub share: u32,
}

impl TableServerStatus {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.place);
        to.list("the list of servers", &self.servers, |to, server| to.cut_text(server));
        to.u32(self.replicas);
        to.u64(self.used);
        to.u64(self.limit);
        to.list("the list of ranges", &self.ranges, |to, range| range.write(to));
        to.list("the list of tables", &self.tables, |to, table| table.write(to));
        to.u32(self.unlisted);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            place: from.u32()?,
            servers: from.list(Reader::text)?,
            replicas: from.u32()?,
            used: from.u64()?,
            limit: from.u64()?,
            ranges: from.list(RangeStatus::read)?,
            tables: from.list(TableStatus::read)?,
            unlisted: from.u32()?,
        })
    }
}

impl RangeStatus {
    fn write(&self, to: &mut Writer) {
        to.u32(self.range);
        to.option(self.owner.as_ref(), |to, owner| to.u32(*owner));
        to.ranks(&self.copies);
        to.u64(self.unconfirmed);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (range, owner) = (from.u32()?, from.option(Reader::u32)?);
        Ok(Self { range, owner, copies: from.ranks()?, unconfirmed: from.u64()? })
    }
}

impl TableStatus {
    fn write(&self, to: &mut Writer) {
        to.cut_text(&self.name);
        to.u32(self.range);
        to.cut_text(&self.kind);
        let numbers = [self.keys, self.rows, self.bytes, self.version, self.waiting, self.not_numbers];
        numbers.iter().for_each(|number| to.u64(*number));
        to.u32(self.present);
        to.list("the list of a table's workers", &self.workers, |to, worker| worker.write(to));
        to.list("the list of hot keys", &self.hot, |to, hot| {
            to.u64(hot.key);
            to.u32(hot.share);
        });
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            name: from.text()?,
            range: from.u32()?,
            kind: from.text()?,
            keys: from.u64()?,
            rows: from.u64()?,
            bytes: from.u64()?,
            version: from.u64()?,
            waiting: from.u64()?,
            not_numbers: from.u64()?,
            present: from.u32()?,
            workers: from.list(TableWorker::read)?,
            hot: from.list(|from| Ok(HotKey { key: from.u64()?, share: from.u32()? }))?,
        })
    }
}

impl TableWorker {
    fn write(&self, to: &mut Writer) {
        to.u32(self.worker);
        to.u64(self.step);
        to.bool(self.is_here);
        to.bool(self.has_left);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { worker: from.u32()?, step: from.u64()?, is_here: from.bool()?, has_left: from.bool()? })
    }
}
