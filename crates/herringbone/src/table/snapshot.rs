//! Snapshots of tables on disk: `DIR/TABLE/step-STEP-id-ID/range-R-of-N.table`, one file for each range.
//!
//! Each server writes its ranges' files, into a directory that all servers see. A snapshot exists once all its files
//! do. Ids tell which one is newer, so each snapshot needs a larger id than the one before, such as the time. Several
//! servers can write the same file, if its range gets another owner meanwhile: each writes one of its own, and renames
//! it once it is whole. A table can be restored onto another number of servers: each reads the files in which its keys
//! are.

mod error;
mod file;
mod folder;
#[cfg(test)]
mod tests;

use super::tables::walk::FrozenTable;
use crate::core::{
    session::TooLong,
    table::{IMAGE_CLOCKS, ImageHead, ImageRecord, Ranges, TableSpec, WorkerClock},
};
pub(super) use error::SnapshotError;
use file::{SnapshotFile, write_file};
use folder::{TEMPORARY, file_name, files, folder_of, list, snapshots, temporary_extension};
use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    path::{Path, PathBuf},
};

/// How many whole snapshots of a table are kept.
const KEPT: usize = 2;

/// Which snapshot files are part of.
#[derive(Clone, Debug)]
pub(super) struct SnapshotWriter {
    /// The directory of all snapshots.
    pub(super) dir: PathBuf,
    /// Above those of all snapshots before it.
    pub(super) id: u64,
    /// How many steps the workers have ended.
    pub(super) step: u64,
    /// The process that writes.
    pub(super) process: u64,
    /// How many files it has begun before.
    pub(super) before: u64,
}

/// A snapshot of which all files are there, and begin and end as they should.
#[derive(Debug)]
pub(super) struct SnapshotSet {
    pub(super) id: u64,
    pub(super) step: u64,
    /// By their ranges.
    files: Vec<PathBuf>,
}

/// The newest snapshot of a table that is whole.
#[derive(Debug)]
pub(super) struct FoundSnapshot {
    /// `None` if there is none.
    pub(super) set: Option<SnapshotSet>,
    /// Why newer ones were left out, of which all files are there: somebody should be told.
    pub(super) refused: Vec<SnapshotError>,
}

/// The records of a table's image, made of a snapshot's files.
pub(super) struct SnapshotRecords {
    head: VecDeque<ImageRecord>,
    /// Those with rows of the range; the first of them is being read.
    files: VecDeque<SnapshotFile>,
    path: PathBuf,
    records: u64,
    rows: u64,
    is_over: bool,
}

impl SnapshotWriter {
    /// Writes the file of one range, and waits until it is on the disk.
    ///
    /// # Errors
    /// [`SnapshotError::Write`]: earlier snapshots are as they were.
    pub(super) fn write(&self, frozen: FrozenTable) -> Result<PathBuf, SnapshotError> {
        let table = folder_of(&self.dir, &frozen.head.name);
        let folder = table.join(format!("step-{}-id-{}", self.step, self.id));
        let path = folder.join(file_name(frozen.head.range, frozen.head.ranges));
        let failed = |source| SnapshotError::Write { path: path.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        let temporary = path.with_extension(temporary_extension(self.process, self.before));
        let written = write_file(&temporary, self.id, self.step, frozen).and_then(|()| {
            put_in_place(&temporary, &path)?;
            // What a directory names is there after a power cut, too.
            [&folder, &table, &self.dir].into_iter().try_for_each(|folder| fs::File::open(folder)?.sync_all())
        });
        written.map_err(|source| {
            // What cannot be removed was not made, or is in the way of nothing; a directory with other files stays.
            let _removed = fs::remove_file(&temporary);
            let _removed = fs::remove_dir(&folder);
            failed(source)
        })?;
        Ok(path)
    }
}

impl SnapshotSet {
    /// Finds the newest snapshot of a table that is whole.
    ///
    /// # Errors
    /// [`SnapshotError::Read`] if directories cannot be listed.
    pub(super) fn find(dir: &Path, name: &str) -> Result<FoundSnapshot, SnapshotError> {
        let mut refused = Vec::new();
        for (id, step, folder) in snapshots(&folder_of(dir, name))? {
            let opened = Self::open(&folder, id, step, name).and_then(|set| {
                // All servers have to take the same one, so each looks through all of it.
                set.iter()
                    .flat_map(|set| &set.files)
                    .try_for_each(|path| SnapshotFile::open(path)?.check_all())?;
                Ok(set)
            });
            match opened {
                Ok(None) => {}
                Ok(set) => return Ok(FoundSnapshot { set, refused }),
                Err(error) => refused.push(error),
            }
        }
        Ok(FoundSnapshot { set: None, refused })
    }

    /// The snapshot of a directory, if all its files are there.
    fn open(folder: &Path, id: u64, step: u64, name: &str) -> Result<Option<Self>, SnapshotError> {
        let files = files(folder)?;
        let mut first: Option<ImageHead> = None;
        for (at, ((range, ranges), path)) in (0..).zip(&files) {
            if *range != at || *ranges as usize != files.len() {
                return Ok(None);
            }
            let damaged = |why: &str| SnapshotError::Damaged { path: path.clone(), why: why.into() };
            let file = SnapshotFile::open(path)?;
            file.check_end()?;
            if file.head.name != name {
                return Err(SnapshotError::Differs { path: path.clone(), what: "name".into() });
            }
            if (file.id, file.step, file.head.range, file.head.ranges) != (id, step, *range, *ranges) {
                return Err(damaged("it is another snapshot's or range's"));
            }
            let first = first.get_or_insert_with(|| file.head.clone());
            let is_sync = first.spec.consistency.is_sync();
            if file.head.spec != first.spec || is_sync && file.head.version != first.version {
                return Err(damaged("its table is not that of the other ranges, or in another step"));
            }
        }
        let files: Vec<PathBuf> = files.into_values().collect();
        Ok((!files.is_empty()).then_some(Self { id, step, files }))
    }

    /// The image of one of so many ranges of the table, which was made as `spec`. It gets a number on its server.
    ///
    /// Workers go on with the steps that they had ended, and all are waited for, those too that had left: they begin where the others
    /// are. What workers had pushed since, of a sync table, they push again. All of them are in a new life.
    ///
    /// # Errors
    /// All but [`SnapshotError::Write`].
    pub(super) fn restore(
        &self,
        spec: &TableSpec,
        number: u32,
        range: u32,
        ranges: u32,
    ) -> Result<SnapshotRecords, SnapshotError> {
        let (mut clocks, mut head, mut files) = (BTreeMap::new(), None, VecDeque::new());
        let keys = Ranges::new(spec.rows, ranges).keys(range);
        for path in &self.files {
            let mut file = SnapshotFile::open(path)?;
            let differs = file.head.spec.difference(spec);
            if !differs.is_empty() {
                return Err(SnapshotError::Differs { path: path.clone(), what: differs.join(", ") });
            }
            file.clocks()?.into_iter().for_each(|clock| merge(&mut clocks, clock));
            let head: &mut ImageHead = head.get_or_insert_with(|| ImageHead {
                number,
                range,
                ranges,
                not_numbers: 0,
                birth: None,
                ..file.head.clone()
            });
            // Each count is taken over by one range.
            if file.head.range % ranges == range {
                head.not_numbers = head.not_numbers.saturating_add(file.head.not_numbers);
            }
            let own = Ranges::new(spec.rows, file.head.ranges).keys(file.head.range);
            if own.start < keys.end && keys.start < own.end {
                files.push_back(file);
            }
        }
        let path = self.files.first().cloned().unwrap_or_default();
        let Some(mut head) = head else {
            return Err(SnapshotError::Damaged { path, why: "it has no files".into() });
        };
        if spec.consistency.bound().is_some() {
            head.began_at = wait_for_all(&mut clocks, &head, spec);
        }
        let clocks: Vec<WorkerClock> = clocks.into_values().collect();
        let clocks = clocks.chunks(IMAGE_CLOCKS).map(|part| ImageRecord::Clocks(part.to_vec()));
        let head = [ImageRecord::Head(Box::new(head))].into_iter().chain(clocks).collect();
        Ok(SnapshotRecords { head, files, path, records: 0, rows: 0, is_over: false })
    }

    /// Deletes all snapshots of a table that are older than the newest two whole ones, and of these what servers have left that died
    /// while they wrote. Whether a file is damaged in the middle is not looked at: that would take as long as to read it.
    ///
    /// # Errors
    /// [`SnapshotError::Read`], and [`SnapshotError::Write`] if one cannot be deleted.
    pub(super) fn delete_old(dir: &Path, name: &str) -> Result<(), SnapshotError> {
        let mut whole = 0;
        for (id, step, folder) in snapshots(&folder_of(dir, name))? {
            if whole < KEPT {
                if matches!(Self::open(&folder, id, step, name), Ok(Some(_))) {
                    whole += 1;
                    remove_temporaries(&folder)?;
                }
                continue;
            }
            // Other servers delete it at the same time.
            let gone = |result: io::Result<()>| match result {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    Err(SnapshotError::Write { path: folder.clone(), source })
                }
                _ => Ok(()),
            };
            let is_file = |name: &str| name.ends_with(".table") || name.ends_with(TEMPORARY);
            for path in list(&folder, |name| is_file(name).then(|| name.to_owned()))?.into_values() {
                gone(fs::remove_file(path))?;
            }
            gone(fs::remove_dir(&folder))?;
        }
        Ok(())
    }
}

/// Gives a file that is whole its name. If another server, which has the range now, has put its own there and removed this one, that
/// is as good.
fn put_in_place(temporary: &Path, path: &Path) -> io::Result<()> {
    match fs::rename(temporary, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.exists() => Ok(()),
        renamed => renamed,
    }
}

/// Removes what is not needed any more as all files of a snapshot are there.
fn remove_temporaries(folder: &Path) -> Result<(), SnapshotError> {
    for path in list(folder, |name| name.ends_with(TEMPORARY).then(|| name.to_owned()))?.into_values() {
        // Its writer may have removed it, or renamed it.
        let _removed = fs::remove_file(path);
    }
    Ok(())
}

impl Iterator for SnapshotRecords {
    type Item = Result<Vec<u8>, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.read();
        self.is_over |= next.is_err();
        self.records += 1;
        Some(next)
    }
}

impl SnapshotRecords {
    fn read(&mut self) -> Result<Vec<u8>, SnapshotError> {
        if let Some(record) = self.head.pop_front() {
            return self.encode(&record);
        }
        while let Some(file) = self.files.front_mut() {
            self.path.clone_from(&file.path);
            if let Some((record, count)) = file.next_rows()? {
                self.rows = self.rows.saturating_add(count);
                return Ok(record);
            }
            self.files.pop_front();
        }
        self.is_over = true;
        self.encode(&ImageRecord::End { records: self.records, rows: self.rows })
    }

    fn encode(&self, record: &ImageRecord) -> Result<Vec<u8>, SnapshotError> {
        record.encode().map_err(|too_long: TooLong| SnapshotError::Damaged {
            path: self.path.clone(),
            why: too_long.to_string(),
        })
    }
}

/// Nobody has left a table that is restored. Returns where those begin that had left, or had not come.
fn wait_for_all(clocks: &mut BTreeMap<u32, WorkerClock>, head: &ImageHead, spec: &TableSpec) -> u64 {
    let steps =
        |clocks: &BTreeMap<u32, WorkerClock>| clocks.values().map(|clock| clock.step).collect::<Vec<_>>();
    let (before, lacks_one) = (steps(clocks), clocks.len() < spec.workers as usize);
    clocks.retain(|_, clock| !clock.has_left);
    if spec.consistency.is_sync() {
        // Steps that had not taken effect are pushed again.
        clocks.values_mut().for_each(|clock| clock.step = clock.step.min(head.version));
        return head.version;
    }
    if lacks_one {
        return head.began_at;
    }
    steps(clocks).into_iter().min().or(before.into_iter().max()).unwrap_or_default()
}

/// Adds a clock of a range to those of others, which may be a step behind in a table that is not sync.
fn merge(clocks: &mut BTreeMap<u32, WorkerClock>, clock: WorkerClock) {
    let merged = clocks.entry(clock.worker).or_insert(WorkerClock { life: 0, number: 0, ..clock });
    merged.step = merged.step.max(clock.step);
    merged.has_left &= clock.has_left;
}
