//! The places of snapshots: the names of directories and files.

use super::error::SnapshotError;
use crate::core::wire::digest;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The longest name of a table's directory, in bytes: file systems take 255.
const FOLDER_BYTES: usize = 200;

/// The directory of a table's snapshots: letters and digits of its name as they are, other bytes as `%20`.
pub(super) fn folder_of(dir: &Path, name: &str) -> PathBuf {
    let mut escaped = String::new();
    for byte in name.bytes() {
        match char::from(byte) {
            char if char.is_ascii_alphanumeric() || matches!(char, '-' | '_') => escaped.push(char),
            '.' if !escaped.is_empty() => escaped.push('.'),
            _ => escaped.push_str(&format!("%{byte:02x}")),
        }
    }
    if escaped.len() > FOLDER_BYTES {
        escaped.truncate(FOLDER_BYTES - 20);
        escaped.push_str(&format!("~{:016x}", digest(name.as_bytes())));
    }
    dir.join(escaped)
}

pub(super) fn file_name(range: u32, ranges: u32) -> String {
    format!("range-{range}-of-{ranges}.table")
}

/// How the names of files end that are not whole.
pub(super) const TEMPORARY: &str = ".temporary";

/// The extension of a file as long as a process writes it: no other one writes there, nor does this one twice.
pub(super) fn temporary_extension(process: u64, before: u64) -> String {
    format!("{process:016x}-{before}{TEMPORARY}")
}

/// The ids, steps and directories of a table's snapshots, the newest first.
pub(super) fn snapshots(folder: &Path) -> Result<Vec<(u64, u64, PathBuf)>, SnapshotError> {
    let parse = |name: &str| {
        let (step, id) = name.strip_prefix("step-")?.split_once("-id-")?;
        Some((id.parse().ok()?, step.parse().ok()?))
    };
    let mut found: Vec<(u64, u64, PathBuf)> =
        list(folder, parse)?.into_iter().map(|((id, step), path)| (id, step, path)).collect();
    found.reverse();
    Ok(found)
}

/// The files of a snapshot, by range and number of ranges.
pub(super) fn files(folder: &Path) -> Result<BTreeMap<(u32, u32), PathBuf>, SnapshotError> {
    list(folder, |name| {
        let (range, ranges) = name.strip_prefix("range-")?.strip_suffix(".table")?.split_once("-of-")?;
        let parsed = (range.parse().ok()?, ranges.parse().ok()?);
        (file_name(parsed.0, parsed.1) == name).then_some(parsed)
    })
}

/// What of a directory has a name that can be parsed; nothing if it is not there.
pub(super) fn list<K: Ord>(
    folder: &Path,
    parse: impl Fn(&str) -> Option<K>,
) -> Result<BTreeMap<K, PathBuf>, SnapshotError> {
    let failed = |source| SnapshotError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let Some(key) = entry.file_name().to_str().and_then(&parse) {
            found.insert(key, entry.path());
        }
    }
    Ok(found)
}
