//! Snapshots come back on any number of servers, and what is not whole does not.

use super::{SnapshotError, SnapshotSet, SnapshotWriter, put_in_place};
use crate::{
    core::table::{
        Consistency, ImageRecord, Initializer, KnownKeys, OptimizerKind, OptimizerSpec, Ranges,
        RequestAddress, RowKeys, TableAnswer, TableError, TableRequest, TableSpec, ValueCodec,
    },
    table::{
        kept_push::KeptPayload,
        memory::TableMemory,
        optimizers::OwnOptimizers,
        tables::{ReplyContent, ServedRequest, TableCaller, Tables, first_number},
    },
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

const NAME: &str = "../my table/é";
const ROWS: u64 = 1000;

/// A directory that is gone in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("herringbone-snapshots-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn spec(sparse: bool, kind: OptimizerKind) -> TableSpec {
    let optimizer = OptimizerSpec::of(kind);
    let optimizer = optimizer.with("momentum", 0.9).unwrap_or(optimizer);
    let initializer = Initializer::Normal { seed: 4, deviation: 1.0 };
    let consistency = Consistency::Sync;
    TableSpec { sparse, optimizer, initializer, consistency, ..TableSpec::new(ROWS, 24) }
}

/// Restores a range as a server does. What fails leaves nothing behind.
fn load(
    set: &SnapshotSet,
    tables: &mut Tables,
    spec: &TableSpec,
    range: u32,
    ranges: u32,
) -> Result<(), SnapshotError> {
    for record in set.restore(spec, tables.next_number(7), range, ranges)? {
        let record = record.inspect_err(|_| tables.unload())?;
        tables.load(&record).unwrap();
    }
    assert!(!tables.is_restoring(None));
    Ok(())
}

/// The servers of a table, and its worker.
struct Cluster {
    servers: Vec<Tables>,
    spec: TableSpec,
    requests: u64,
    step: u64,
    /// The table's number on each server.
    numbers: BTreeMap<u32, u32>,
}

impl Cluster {
    fn new(spec: &TableSpec, servers: u32) -> Self {
        let servers = (0..servers)
            .map(|range| Tables::new(range, TableMemory::new(1 << 30), OwnOptimizers::default(), false))
            .collect();
        Self { servers, spec: spec.clone(), requests: 0, step: 0, numbers: BTreeMap::new() }
    }

    /// The worker takes part. Returns where it begins.
    fn open(&mut self) -> u64 {
        let ranges = self.servers.len() as u32;
        for range in 0..ranges {
            let (name, spec) = (NAME.to_owned(), self.spec.clone());
            let answer = self.serve(
                range,
                &TableRequest::Open { name, spec, ranges, birth: None, is_whole: false },
                &[],
            );
            let TableAnswer::Opened { table, step, .. } = answer else { panic!("{answer:?}") };
            self.numbers.insert(range, table);
            self.step = step;
        }
        self.step
    }

    fn restored(set: &SnapshotSet, spec: &TableSpec, servers: u32) -> Result<Self, SnapshotError> {
        let mut cluster = Self::new(spec, servers);
        for (range, tables) in (0..).zip(&mut cluster.servers) {
            let loaded = load(set, tables, spec, range, servers);
            assert!(
                loaded.is_ok() || tables.status(|_, _| true).is_empty(),
                "what is refused leaves nothing"
            );
            loaded?;
        }
        assert_eq!(cluster.open(), set.step);
        Ok(cluster)
    }

    fn serve(&mut self, range: u32, request: &TableRequest, values: &[u8]) -> TableAnswer {
        let caller = TableCaller { connection: 0, worker: 0, life: 7 + u64::from(range) };
        let mut payload = RequestAddress { range, is_first: false }.encode().to_vec();
        payload.extend(request.encode().unwrap());
        payload.extend_from_slice(values);
        self.requests += 1;
        let mut served = ServedRequest::default();
        let (request, payload) = KeptPayload::decode(payload, &mut KnownKeys::default()).unwrap();
        self.servers[range as usize].serve(
            &caller,
            self.requests,
            request,
            payload,
            |_, _| false,
            &mut served,
        );
        match served.replies.pop().map(|reply| reply.content) {
            Some(ReplyContent::Answer(answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// Pushes some rows, and perhaps ends the step.
    fn push(&mut self, seed: u64, ends: bool) {
        let mut keys: Vec<u64> = (0..150).map(|at| (at * 7 + seed * 131) % ROWS).collect();
        keys.sort_unstable();
        keys.dedup();
        let ranges = Ranges::new(ROWS, self.servers.len() as u32);
        let mut pieces = ranges.cut(&RowKeys::Listed(keys.into()), 1000);
        let missing = (0..ranges.count()).filter(|range| pieces.iter().all(|piece| piece.range != *range));
        let missing: Vec<u32> = missing.collect();
        pieces.retain(|piece| !piece.keys.is_empty());
        for piece in pieces {
            let number = |key: u64, at: u64| ((key * 5 + at * 3 + seed) % 37) as f32 - 18.0;
            let values = piece.keys.iter().flat_map(|key| (0..24).map(move |at| number(key, at)));
            let values: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            let push = TableRequest::Push {
                table: self.numbers[&piece.range],
                step: self.step,
                ends,
                codec: ValueCodec::PLAIN,
                keys: piece.keys,
            };
            assert_eq!(self.serve(piece.range, &push, &values), TableAnswer::Done);
        }
        for range in missing {
            let keys = RowKeys::Listed([].into());
            let push = TableRequest::Push {
                table: self.numbers[&range],
                step: self.step,
                ends,
                codec: ValueCodec::PLAIN,
                keys,
            };
            assert_eq!(self.serve(range, &push, &[]), TableAnswer::Done);
        }
        self.step += u64::from(ends);
    }

    fn save(&self, dir: &Path, id: u64) -> Vec<PathBuf> {
        let writer = SnapshotWriter { dir: dir.to_owned(), id, step: self.step, process: 7, before: 0 };
        let frozen = (0..).zip(&self.servers);
        let frozen = frozen.map(|(range, tables)| tables.freeze(self.numbers[&range]).unwrap());
        // As a server writes it: not in the thread that serves.
        std::thread::scope(|scope| {
            let write = |frozen| scope.spawn(|| writer.write(frozen).unwrap());
            let writing: Vec<_> = frozen.map(write).collect();
            writing.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// All rows of all servers with what the optimizer keeps for them.
    fn rows(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut rows = BTreeMap::new();
        for (range, tables) in (0..).zip(&self.servers) {
            let mut frozen = tables.freeze(self.numbers[&range]).unwrap();
            while let Some(record) = frozen.next().unwrap() {
                if let (ImageRecord::Rows { keys }, bytes) = ImageRecord::decode(&record).unwrap() {
                    let each = keys.iter().zip(bytes.chunks_exact(bytes.len() / keys.len()));
                    each.for_each(|(key, row)| assert_eq!(rows.insert(key, row.to_vec()), None));
                }
            }
        }
        rows
    }
}

fn saved(dir: &Path, spec: &TableSpec) -> Cluster {
    let mut cluster = Cluster::new(spec, 2);
    cluster.open();
    (0..6).for_each(|seed| cluster.push(seed, true));
    cluster.save(dir, 1);
    cluster
}

fn find(dir: &Path) -> Option<SnapshotSet> {
    let found = SnapshotSet::find(dir, NAME).unwrap();
    assert!(found.refused.is_empty(), "{:?}", found.refused);
    found.set
}

#[test]
fn a_range_whose_step_is_over_is_in_no_snapshot_of_that_step() {
    let spec = spec(false, OptimizerKind::Sgd);
    let mut cluster = Cluster::new(&spec, 2);
    cluster.open();
    (0..2).for_each(|seed| cluster.push(seed, true));
    let answer = cluster.serve(1, &TableRequest::Save { table: cluster.numbers[&1], id: 1, step: 1 }, &[]);
    assert_eq!(answer, TableAnswer::Refused(TableError::Passed));
}

#[test]
fn a_snapshot_comes_back_on_any_number_of_servers_and_training_goes_on() {
    for (sparse, kind) in [
        (false, OptimizerKind::Sgd),
        (false, OptimizerKind::Adam),
        (true, OptimizerKind::Sgd),
        (true, OptimizerKind::Adam),
    ] {
        let (scratch, spec) = (Scratch::new(), spec(sparse, kind));
        assert!(find(&scratch.0).is_none());
        let mut cluster = Cluster::new(&spec, 2);
        cluster.open();
        (0..6).for_each(|seed| cluster.push(seed, true));
        let rows = cluster.rows();
        // Of a step that has begun nothing is in a snapshot.
        cluster.push(6, false);
        let paths = cluster.save(&scratch.0, 40);
        assert!(
            paths[1].ends_with("%2e.%2fmy%20table%2f%c3%a9/step-6-id-40/range-1-of-2.table"),
            "{paths:?}"
        );
        cluster.push(7, true);
        let set = find(&scratch.0).unwrap();
        assert_eq!((set.id, set.step), (40, 6));
        for servers in [1, 2, 3, 5] {
            let mut restored = Cluster::restored(&set, &spec, servers).unwrap();
            assert!(restored.rows() == rows);
            restored.push(6, false);
            restored.push(7, true);
            assert!(restored.rows() == cluster.rows(), "{servers} servers go on with other bits");
        }
    }
}

#[test]
fn damaged_files_are_refused_whole_and_named() {
    let (scratch, spec) = (Scratch::new(), spec(true, OptimizerKind::Adam));
    let cluster = saved(&scratch.0, &spec);
    let path = find(&scratch.0).unwrap().files[1].clone();
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        let found = SnapshotSet::find(&scratch.0, NAME).unwrap();
        assert!(found.set.is_none(), "{what} was taken");
        let error = found.refused.into_iter().next().unwrap();
        assert!(matches!(error, SnapshotError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("range-1-of-2.table is damaged: "), "{error}");
    };
    let lengths = (0..80).chain((80..whole.len()).step_by(997)).chain(whole.len() - 80..whole.len());
    lengths.for_each(|length| refused(&whole[..length], &format!("a file of {length} bytes")));
    let places = (0..400).chain((400..whole.len()).step_by(499)).chain(whole.len() - 80..whole.len());
    for place in places {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        refused(&bytes, &format!("a flipped bit of byte {place}"));
    }
    refused(&[&whole[..], &[0]].concat(), "a byte more");
    refused(&[&whole[..], &whole[whole.len() - 20..]].concat(), "another end");
    let other = fs::read(path.with_file_name("range-0-of-2.table")).unwrap();
    refused(&other, "another range");
    fs::write(&path, &whole).unwrap();
    assert!(Cluster::restored(&find(&scratch.0).unwrap(), &spec, 3).unwrap().rows() == cluster.rows());
}

#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let (scratch, spec) = (Scratch::new(), spec(true, OptimizerKind::Adam));
    saved(&scratch.0, &spec);
    let path = find(&scratch.0).unwrap().files[1].clone();
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let found = SnapshotSet::find(&scratch.0, NAME).unwrap();
    assert!(found.set.is_none());
    let error = found.refused.into_iter().next().unwrap();
    assert!(matches!(error, SnapshotError::Read { .. }), "{error}");
    assert!(error.to_string().contains("it is a pipe, and only regular files are read"), "{error}");
}

#[test]
fn a_snapshot_of_another_table_is_refused() {
    let (scratch, spec) = (Scratch::new(), spec(false, OptimizerKind::Adam));
    saved(&scratch.0, &spec);
    let set = find(&scratch.0).unwrap();
    let wider = TableSpec { width: 25, ..spec.clone() };
    let error = Cluster::restored(&set, &wider, 2).err().unwrap().to_string();
    assert!(error.contains("range-0-of-2.table is of a table that differs in width; make"), "{error}");
    let folder = set.files[0].parent().unwrap().parent().unwrap().to_owned();
    fs::rename(&folder, scratch.0.join("other")).unwrap();
    let found = SnapshotSet::find(&scratch.0, "other").unwrap();
    assert!(found.set.is_none() && found.refused[0].to_string().contains("differs in name"));
}

#[test]
fn the_newest_whole_snapshot_is_found_and_two_are_kept() {
    let (scratch, spec) = (Scratch::new(), spec(true, OptimizerKind::Sgd));
    let mut cluster = saved(&scratch.0, &spec);
    for id in [9, 10, 11, 12] {
        cluster.push(id, true);
        cluster.save(&scratch.0, id);
    }
    let newest = find(&scratch.0).unwrap();
    assert_eq!((newest.id, newest.step), (12, 10), "10 is above 9, whatever their texts are");
    // A server has died before it wrote its file.
    fs::remove_file(&newest.files[0]).unwrap();
    let before = find(&scratch.0).unwrap();
    assert_eq!(before.id, 11);
    // The one before that is damaged.
    fs::write(&before.files[1], "no snapshot of any table, but something else").unwrap();
    let found = SnapshotSet::find(&scratch.0, NAME).unwrap();
    assert_eq!((found.set.unwrap().id, found.refused.len()), (10, 1));
    SnapshotSet::delete_old(&scratch.0, NAME).unwrap();
    let table = before.files[1].parent().unwrap().parent().unwrap();
    let left = || {
        let names =
            fs::read_dir(table).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<std::collections::BTreeSet<String>>()
    };
    assert_eq!(Vec::from_iter(left()), ["step-10-id-12", "step-7-id-9", "step-8-id-10", "step-9-id-11"]);
    cluster.save(&scratch.0, 13);
    fs::write(table.join("step-7-id-9/range-0-of-2.0-1.temporary"), "of a server that died").unwrap();
    SnapshotSet::delete_old(&scratch.0, NAME).unwrap();
    assert_eq!(Vec::from_iter(left()), ["step-10-id-12", "step-10-id-13", "step-8-id-10", "step-9-id-11"]);
}

/// A range may get another owner while a server writes it.
#[test]
fn two_servers_that_write_the_same_range_do_not_write_the_same_file() {
    let (scratch, spec) = (Scratch::new(), spec(true, OptimizerKind::Sgd));
    let mut cluster = Cluster::new(&spec, 2);
    cluster.open();
    cluster.push(1, true);
    let folder = cluster.save(&scratch.0, 1)[0].parent().unwrap().to_owned();
    // A server that has stopped while it wrote.
    let stale = folder.join("range-1-of-2.00000000000000ff-0.temporary");
    fs::write(&stale, "half a file").unwrap();
    let frozen = || cluster.servers[1].freeze(cluster.numbers[&1]).unwrap();
    let writer = SnapshotWriter { dir: scratch.0.clone(), id: 1, step: 1, process: 8, before: 0 };
    let path = writer.write(frozen()).unwrap();
    assert_eq!(fs::read(&stale).unwrap(), b"half a file");
    assert_eq!(find(&scratch.0).map(|set| set.id), Some(1));
    // All is there, so what is left goes; the server that had stopped goes on, and finds that.
    SnapshotSet::delete_old(&scratch.0, NAME).unwrap();
    assert!(!stale.exists() && path.exists());
    put_in_place(&stale, &path).unwrap();
    assert!(put_in_place(&stale, &folder.join("range-2-of-2.table")).is_err());
    assert_eq!(find(&scratch.0).map(|set| set.id), Some(1));
}

#[test]
fn a_full_disk_leaves_the_snapshot_before_it() {
    let (scratch, spec) = (Scratch::new(), spec(true, OptimizerKind::Adam));
    let mut cluster = saved(&scratch.0, &spec);
    let rows = cluster.rows();
    cluster.push(9, true);
    let before = find(&scratch.0).unwrap();
    let folder = before.files[0].parent().unwrap().with_file_name("step-7-id-2");
    fs::create_dir(&folder).unwrap();
    let temporary = folder.join("range-0-of-2.0000000000000007-3.temporary");
    std::os::unix::fs::symlink("/dev/full", &temporary).unwrap();
    let writer = SnapshotWriter { dir: scratch.0.clone(), id: 2, step: cluster.step, process: 7, before: 3 };
    let error = writer.write(cluster.servers[0].freeze(cluster.numbers[&0]).unwrap()).unwrap_err();
    let SnapshotError::Write { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    assert!(error.to_string().contains("step-7-id-2/range-0-of-2.table: "), "{error}");
    assert!(!folder.exists(), "nothing is left of it");
    assert!(Cluster::restored(&find(&scratch.0).unwrap(), &spec, 2).unwrap().rows() == rows);
    // A directory that cannot be made.
    let writer = SnapshotWriter { dir: before.files[0].clone(), ..writer };
    assert!(writer.write(cluster.servers[0].freeze(cluster.numbers[&0]).unwrap()).is_err());
}

#[test]
fn workers_that_were_ahead_go_back_and_a_long_name_has_a_directory() {
    let scratch = Scratch::new();
    let spec = TableSpec { workers: 2, ..spec(true, OptimizerKind::Adam) };
    let mut tables = Tables::new(0, TableMemory::new(1 << 30), OwnOptimizers::default(), false);
    let name = "ü/".repeat(66);
    let mut serve = |worker: u32, number, request: TableRequest, values: &[u8]| {
        let caller = TableCaller { connection: u64::from(worker), worker, life: 70 };
        let address = RequestAddress { range: 0, is_first: false }.encode();
        let (name, spec) = (name.clone(), spec.clone());
        let open = TableRequest::Open { name, spec, ranges: 1, birth: None, is_whole: false };
        let mut serve = |number, request: &TableRequest, values: &[u8]| {
            let payload = [&address, &request.encode().unwrap()[..], values].concat();
            let (request, payload) = KeptPayload::decode(payload, &mut KnownKeys::default()).unwrap();
            tables.serve(&caller, number, request, payload, |_, _| true, &mut ServedRequest::default());
        };
        serve(0, &open, &[]);
        serve(number, &request, values);
    };
    let push = |step| TableRequest::Push {
        table: first_number(70, 0),
        step,
        ends: true,
        codec: ValueCodec::PLAIN,
        keys: RowKeys::Listed([3].into()),
    };
    serve(0, 1, push(0), &[1; 96]);
    serve(1, 1, push(0), &[2; 96]);
    serve(0, 2, push(1), &[3; 96]);
    let writer = SnapshotWriter { dir: scratch.0.clone(), id: 3, step: 1, process: 7, before: 0 };
    writer.write(tables.freeze(first_number(70, 0)).unwrap()).unwrap();
    let set = SnapshotSet::find(&scratch.0, &name).unwrap().set.unwrap();
    let records =
        set.restore(&spec, 5, 0, 1).unwrap().map(|record| ImageRecord::decode(&record.unwrap()).unwrap().0);
    let clocks: Vec<_> = records
        .filter_map(|record| match record {
            ImageRecord::Clocks(clocks) => Some(clocks),
            _ => None,
        })
        .flatten()
        .map(|clock| (clock.worker, clock.step, clock.number))
        .collect();
    assert_eq!(clocks, [(0, 1, 0), (1, 1, 0)]);
}
