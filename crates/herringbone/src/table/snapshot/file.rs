//! A file of a snapshot: one range of a table.
//!
//! | what | bytes |
//! |---|---|
//! | `hb-table`, format as `u32`, id and step as `u64`, CRC-32C of these | 32 |
//! | for each record of the range's image its length, its CRC-32C, and itself | 8 and its length |
//! | a length of 0, the count of records as `u64`, CRC-32C of all before this line, CRC-32C of this line | 20 |
//!
//! All numbers are little-endian.

use super::error::SnapshotError;
use crate::{
    core::table::{ImageHead, ImageRecord, PAYLOAD_BYTES, TableError, WorkerClock},
    table::tables::walk::FrozenTable,
    user_file::open_user_file,
};
use crc32c::{crc32c, crc32c_append};
use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

const MAGIC: [u8; 8] = *b"hb-table";
const FORMAT: u32 = 2;
const START_BYTES: usize = 32;
const END_BYTES: usize = 20;

/// Writes a file, and waits until it is on the disk.
pub(super) fn write_file(path: &Path, id: u64, step: u64, mut frozen: FrozenTable) -> io::Result<()> {
    let mut to = CheckedWriter { file: BufWriter::new(File::create(path)?), checksum: 0 };
    let mut start = [&MAGIC[..], &FORMAT.to_le_bytes(), &id.to_le_bytes(), &step.to_le_bytes()].concat();
    start.extend_from_slice(&crc32c(&start).to_le_bytes());
    to.write(&start)?;
    let mut records = 0_u64;
    while let Some(record) = frozen.next().map_err(io::Error::other)? {
        to.write(&(record.len() as u32).to_le_bytes())?;
        to.write(&crc32c(&record).to_le_bytes())?;
        to.write(&record)?;
        records += 1;
    }
    let mut end = [&0_u32.to_le_bytes()[..], &records.to_le_bytes(), &to.checksum.to_le_bytes()].concat();
    end.extend_from_slice(&crc32c(&end).to_le_bytes());
    to.write(&end)?;
    to.file.flush()?;
    to.file.get_ref().sync_all()
}

struct CheckedWriter {
    file: BufWriter<File>,
    /// Of all bytes so far.
    checksum: u32,
}

impl CheckedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum = crc32c_append(self.checksum, bytes);
        self.file.write_all(bytes)
    }
}

/// A file that is read record by record.
pub(super) struct SnapshotFile {
    pub(super) path: PathBuf,
    pub(super) id: u64,
    pub(super) step: u64,
    pub(super) head: ImageHead,
    file: BufReader<File>,
    /// Of all bytes so far.
    checksum: u32,
    records: u64,
    /// A record that was read too early.
    ahead: Option<Vec<u8>>,
}

impl SnapshotFile {
    /// Reads how it begins.
    ///
    /// # Errors
    /// [`SnapshotError::Read`], [`SnapshotError::Damaged`].
    pub(super) fn open(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |source| SnapshotError::Read { path: path.to_owned(), source };
        let damaged = |why: String| SnapshotError::Damaged { path: path.to_owned(), why };
        let mut file = BufReader::new(open(path).map_err(failed)?);
        let start: [u8; START_BYTES] = read(&mut file, path)?;
        if start[..8] != MAGIC {
            return Err(damaged("it is no snapshot of a table".into()));
        }
        let format = number_u32(&start, 8);
        if format != FORMAT {
            return Err(damaged(format!("it has format {format}, and this release reads format {FORMAT}")));
        }
        if number_u32(&start, START_BYTES - 4) != crc32c(&start[..START_BYTES - 4]) {
            return Err(damaged("its first bytes have changed".into()));
        }
        let (id, step) = (number_u64(&start, 12), number_u64(&start, 20));
        let checksum = crc32c(&start);
        let mut record = Vec::new();
        let (checksum, is_record) = read_record(&mut file, path, checksum, &mut record)?;
        let head = ImageRecord::decode(&record).map(|(record, _)| record);
        match head {
            Ok(ImageRecord::Head(head)) if is_record => {
                let (path, head) = (path.to_owned(), *head);
                Ok(Self { path, id, step, head, file, checksum, records: 1, ahead: None })
            }
            Ok(_) => Err(damaged("it does not begin with a table".into())),
            Err(error) => Err(damaged(error.to_string())),
        }
    }

    /// Whether it ends as it should, without a look at what is between.
    pub(super) fn check_end(&self) -> Result<(), SnapshotError> {
        let failed = |source| SnapshotError::Read { path: self.path.clone(), source };
        let mut file = open(&self.path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        if length < (START_BYTES + END_BYTES) as u64 {
            return Err(self.damaged("it ends too early"));
        }
        file.seek(SeekFrom::End(-(END_BYTES as i64))).map_err(failed)?;
        let end: [u8; END_BYTES] = read(&mut file, &self.path)?;
        match number_u32(&end, END_BYTES - 4) == crc32c(&end[..END_BYTES - 4]) && number_u32(&end, 0) == 0 {
            true => Ok(()),
            false => Err(self.damaged("it ends too early, or its last bytes have changed")),
        }
    }

    /// Whether all of it is as it was written.
    pub(super) fn check_all(mut self) -> Result<(), SnapshotError> {
        self.clocks()?;
        while self.next_rows()?.is_some() {}
        Ok(())
    }

    /// The clocks of the range. They come before all rows.
    pub(super) fn clocks(&mut self) -> Result<Vec<WorkerClock>, SnapshotError> {
        let mut clocks = Vec::new();
        loop {
            let Some(record) = self.record()? else { return Ok(clocks) };
            match self.decode(&record)? {
                ImageRecord::Clocks(more) => clocks.extend(more),
                _ => {
                    self.ahead = Some(record);
                    return Ok(clocks);
                }
            }
        }
    }

    /// The next block of rows, and how many they are. `None` once all have been there, and the file has proved whole.
    pub(super) fn next_rows(&mut self) -> Result<Option<(Vec<u8>, u64)>, SnapshotError> {
        while let Some(record) = self.record()? {
            if let ImageRecord::Rows { keys } = self.decode(&record)? {
                return Ok(Some((record, keys.len() as u64)));
            }
        }
        Ok(None)
    }

    fn record(&mut self) -> Result<Option<Vec<u8>>, SnapshotError> {
        if let Some(record) = self.ahead.take() {
            return Ok(Some(record));
        }
        let mut record = Vec::new();
        let before = self.checksum;
        let (checksum, is_record) = read_record(&mut self.file, &self.path, before, &mut record)?;
        if is_record {
            (self.checksum, self.records) = (checksum, self.records + 1);
            return Ok(Some(record));
        }
        let rest: [u8; END_BYTES - 4] = read(&mut self.file, &self.path)?;
        let end = [&0_u32.to_le_bytes()[..], &rest].concat();
        let is_end = number_u32(&end, END_BYTES - 4) == crc32c(&end[..END_BYTES - 4]);
        if !is_end || number_u64(&end, 4) != self.records || number_u32(&end, 12) != before {
            return Err(self.damaged("records are missing, or bytes have changed"));
        }
        let more = self.file.read(&mut [0]);
        match more.map_err(|source| SnapshotError::Read { path: self.path.clone(), source })? {
            0 => Ok(None),
            _ => Err(self.damaged("it is longer than it should be")),
        }
    }

    fn decode(&self, record: &[u8]) -> Result<ImageRecord, SnapshotError> {
        let decoded = ImageRecord::decode(record).map(|(record, _)| record);
        decoded.map_err(|error: TableError| self.damaged(&error.to_string()))
    }

    fn damaged(&self, why: &str) -> SnapshotError {
        SnapshotError::Damaged { path: self.path.clone(), why: why.to_owned() }
    }
}

/// Opens a file for reading. It may have any size, since it is read record by record, and no record is longer than records are.
///
/// # Errors
/// It is no regular file, such as a FIFO, which would be waited for without end; or the system refuses it.
fn open(path: &Path) -> io::Result<File> {
    Ok(open_user_file(path)?)
}

/// Reads a record, if there is one and not the end. Returns the checksum with it.
fn read_record(
    from: &mut impl Read,
    path: &Path,
    checksum: u32,
    record: &mut Vec<u8>,
) -> Result<(u32, bool), SnapshotError> {
    let damaged = |why: &str| Err(SnapshotError::Damaged { path: path.to_owned(), why: why.into() });
    let length: [u8; 4] = read(from, path)?;
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes == 0 {
        return Ok((checksum, false));
    }
    if bytes > PAYLOAD_BYTES {
        return damaged("a record is longer than records are");
    }
    let expected: [u8; 4] = read(from, path)?;
    record.resize(bytes, 0);
    from.read_exact(record).map_err(|error| cut_or_failed(error, path))?;
    if crc32c(record) != u32::from_le_bytes(expected) {
        return damaged("bytes of a record have changed");
    }
    let checksum = crc32c_append(crc32c_append(crc32c_append(checksum, &length), &expected), record);
    Ok((checksum, true))
}

fn read<const N: usize>(from: &mut impl Read, path: &Path) -> Result<[u8; N], SnapshotError> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map_err(|error| cut_or_failed(error, path))?;
    Ok(bytes)
}

fn cut_or_failed(source: io::Error, path: &Path) -> SnapshotError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::UnexpectedEof => SnapshotError::Damaged { path, why: "it ends too early".into() },
        _ => SnapshotError::Read { path, source },
    }
}

fn number_u32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn number_u64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
