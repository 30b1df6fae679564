//! The files of records. They are written whole or not at all, and never cause an error for the program.

use super::{FlightRecord, json, torch_pickle};
use crate::core::session::{Role, handshake::Identity};
use rustix::{process::geteuid, system::uname};
use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

/// The variable of the environment that says where records go.
pub(crate) const VARIABLE: &str = "HERRINGBONE_FLIGHT";
/// The variable of the environment that has SIGUSR1 write records, too.
pub(crate) const SIGNAL_VARIABLE: &str = "HERRINGBONE_FLIGHT_SIGNAL";
/// What says so for torch's own recorder; it counts for ranks of torch.
const OF_TORCH: &str = "TORCH_FR_DUMP_TEMP_FILE";
/// How many records a process writes because something failed.
const MOST: u32 = 8;

/// The form of a record's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlightFormat {
    /// [JSON](super::json), in files whose names end in `.json`.
    Json,
    /// [The pickle](super::torch_pickle) of PyTorch's flight recorder.
    Torch,
}

impl FlightFormat {
    /// How names of files end.
    pub fn suffix(self) -> &'static str {
        match self {
            FlightFormat::Json => ".json",
            FlightFormat::Torch => "",
        }
    }

    fn bytes(self, record: &FlightRecord) -> Vec<u8> {
        match self {
            FlightFormat::Json => json(record).into_bytes(),
            FlightFormat::Torch => torch_pickle(record),
        }
    }
}

static IS_OF_TORCH: AtomicBool = AtomicBool::new(false);

/// Makes this process write its records in this form; the default is JSON.
pub fn write_as(format: FlightFormat) {
    IS_OF_TORCH.store(format == FlightFormat::Torch, Ordering::Relaxed);
}

fn format() -> FlightFormat {
    if IS_OF_TORCH.load(Ordering::Relaxed) { FlightFormat::Torch } else { FlightFormat::Json }
}

/// Where this process's records go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FlightDestination {
    /// Nowhere.
    Off,
    /// To files with this beginning of their names.
    Prefix(PathBuf),
    /// To a folder of this user below the one for temporary files.
    Temporary,
}

impl FlightDestination {
    /// As the environment says.
    pub(crate) fn from_env() -> Self {
        Self::of(env::var_os(VARIABLE), env::var_os(OF_TORCH).filter(|_| format() == FlightFormat::Torch))
    }

    /// As these variables say, the first that is set and not empty.
    fn of(own: Option<OsString>, of_torch: Option<OsString>) -> Self {
        let found = own.into_iter().chain(of_torch).find(|value| !value.is_empty());
        match found {
            Some(value) if value.eq_ignore_ascii_case("off") => FlightDestination::Off,
            Some(value) => FlightDestination::Prefix(value.into()),
            None => FlightDestination::Temporary,
        }
    }
}

/// The files of a process's records in one job.
#[derive(Debug)]
pub(crate) struct FlightFiles {
    destination: FlightDestination,
    owner: Identity,
    has_warned: AtomicBool,
    /// How many a reducer has written because of failures of this job.
    written: AtomicU32,
}

/// How many ranks of this process have written because of failures, in all their jobs.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

impl FlightFiles {
    /// Where the environment says. A reducer serves many jobs for a long time, so it writes only if it is asked to.
    pub(crate) fn of(owner: Identity) -> Self {
        let destination = match FlightDestination::from_env() {
            FlightDestination::Temporary if owner.role == Role::Reducer => FlightDestination::Off,
            said => said,
        };
        Self { destination, owner, has_warned: AtomicBool::new(false), written: AtomicU32::new(0) }
    }

    /// Whether records go anywhere.
    pub(crate) fn are_wanted(&self) -> bool {
        self.destination != FlightDestination::Off
    }

    /// Takes one of the files that this process writes because of failures: of ranks, or of a reducer for this job. Returns whether
    /// there is one left.
    pub(crate) fn take_one(&self) -> bool {
        let written = if self.owner.role == Role::Reducer { &self.written } else { &WRITTEN };
        let more = |written| (written < MOST).then_some(written + 1);
        written.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Writes a record, and says where. That it cannot be written is one warning.
    pub(crate) fn write(&self, record: &FlightRecord) {
        let Identity { role, job, rank, .. } = self.owner;
        let is_reducer = role == Role::Reducer;
        let (who, format) = match is_reducer {
            true => (format!("reducer, job {job:016x}"), FlightFormat::Json),
            false => (format!("rank {rank}"), format()),
        };
        let [are_in, are_lost] = match is_reducer {
            true => [
                "the last calls of this reducer are in",
                "the last calls of this reducer could not be written",
            ],
            false => {
                ["the last calls of this rank are in", "the last calls of this rank could not be written"]
            }
        };
        let written = self.path(format).and_then(|path| write_record(&path, record, format).map(|()| path));
        match written {
            Ok(path) => {
                let reading = reading(&path, format);
                let what = format_args!("{are_in} {}: {reading}", path.display());
                crate::log::warn(&who, what);
            }
            Err(error) if !self.has_warned.swap(true, Ordering::Relaxed) => {
                crate::log::warn(&who, format_args!("{are_lost} ({VARIABLE}): {error}"));
            }
            Err(_) => {}
        }
    }

    fn path(&self, format: FlightFormat) -> io::Result<PathBuf> {
        if let (FlightDestination::Prefix(prefix), Role::Reducer) = (&self.destination, self.owner.role) {
            return Ok(of_reducer(prefix, self.owner.job, &uname().nodename().to_string_lossy()));
        }
        let mut name = match &self.destination {
            FlightDestination::Prefix(prefix) => prefix.clone().into_os_string(),
            FlightDestination::Temporary | FlightDestination::Off => {
                let own = env::temp_dir().join(format!("herringbone-flight-{}", geteuid().as_raw()));
                let of_job = own.join(format!("{:016x}", self.owner.job));
                [&own, &of_job].into_iter().try_for_each(|folder| make_own(folder))?;
                of_job.join("rank_").into_os_string()
            }
        };
        name.push(format!("{}{}", self.owner.rank, format.suffix()));
        Ok(name.into())
    }
}

/// The file of a reducer's job. Its name does not begin as those of ranks: torch's program takes whatever follows their beginning for a
/// rank. It has the host and the process, because the reducers of a job do not know their numbers.
fn of_reducer(prefix: &Path, job: u64, host: &str) -> PathBuf {
    let text = prefix.as_os_str().as_bytes();
    let (folder, name) = text.split_at(text.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1));
    let end = format!("{job:016x}_{host}_{}{}", std::process::id(), FlightFormat::Json.suffix());
    PathBuf::from(OsString::from_vec([folder, b"reducer_", name, end.as_bytes()].concat()))
}

/// How to read a file.
fn reading(path: &Path, format: FlightFormat) -> String {
    let folder = path.parent().unwrap_or(Path::new(".")).display();
    match format {
        FlightFormat::Torch => {
            format!("with the files of all ranks, torchfrtrace {folder} shows where they differ")
        }
        FlightFormat::Json => "docs/flight.md explains how to read it".to_owned(),
    }
}

/// A folder that is this user's and nobody else's. In a folder where all may write, somebody else may have made it first.
fn make_own(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let problem = format!("{} is not a folder of this user alone: remove it", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

/// Writes a record to a file, which is complete or does not exist. Only this user can read it.
///
/// # Errors
/// Errors of the file system, with the name of the file.
pub fn write_record(path: &Path, record: &FlightRecord, format: FlightFormat) -> io::Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // Not the file's own name in it: who reads a folder takes files by how their names begin.
    // Ranks in containers may have the same process number, and one folder.
    let FlightRecord { job, role, rank, .. } = record;
    let owner = format!("{job:016x}-{role}-{rank}-{}-{number}", std::process::id());
    let temporary = path.with_file_name(format!(".hb-{owner}.tmp"));
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    let mut file = made.map_err(named)?;
    let written = file.write_all(&format.bytes(record)).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        // The error is told; half a file is in nobody's way.
        let _removed = fs::remove_file(&temporary);
        named(error)
    })
}

#[cfg(test)]
mod tests {
    use super::super::made_up::record;
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn folder(name: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("herringbone-flight-test-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_record_replaces_the_one_before_and_is_its_users() {
        let folder = folder("replaced");
        let path = folder.join("rank_1.json");
        fs::write(&path, "old").unwrap();
        write_record(&path, &record(), FlightFormat::Json).unwrap();
        assert!(
            fs::read_to_string(&path)
                .unwrap()
                .starts_with(r#"{"format":"herringbone-flight-1","version":"1","#)
        );
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        write_record(&folder.join("rank_1"), &record(), FlightFormat::Torch).unwrap();
        let mut found = names(&folder);
        found.sort();
        assert_eq!(found, ["rank_1", "rank_1.json"], "nothing else is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_record_that_cannot_be_written_names_its_file_and_leaves_nothing() {
        let folder = folder("missing");
        let error = write_record(&folder.join("no/rank_1"), &record(), FlightFormat::Json).unwrap_err();
        assert!(error.to_string().contains("no/rank_1: No such file"), "{error}");
        // The last step fails: a folder is in the way.
        fs::create_dir(folder.join("rank_1")).unwrap();
        fs::write(folder.join("rank_1/within"), "").unwrap();
        assert!(write_record(&folder.join("rank_1"), &record(), FlightFormat::Json).is_err());
        assert_eq!(names(&folder), ["rank_1"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_enter_or_have_placed_is_refused() {
        let folder = folder("own");
        make_own(&folder.join("new")).unwrap();
        make_own(&folder.join("new")).unwrap();
        assert_eq!(fs::metadata(folder.join("new")).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(folder.join("new"), fs::Permissions::from_mode(0o711)).unwrap();
        symlink(&folder, folder.join("link")).unwrap();
        fs::write(folder.join("file"), "").unwrap();
        for name in ["new", "link", "file"] {
            let error = make_own(&folder.join(name)).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("remove it"), "{error}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_reducers_file_lies_beside_those_of_ranks_and_has_another_beginning() {
        let of = |prefix: &str| of_reducer(Path::new(prefix), 255, "h").to_str().unwrap().to_owned();
        let end = format!("00000000000000ff_h_{}.json", std::process::id());
        assert_eq!(of("/a/b/own_"), format!("/a/b/reducer_own_{end}"));
        assert_eq!(of("/a/b/"), format!("/a/b/reducer_{end}"));
        assert_eq!(of("own_"), format!("reducer_own_{end}"));
    }

    #[test]
    fn the_environment_says_where_records_go() {
        let of = |own: Option<&str>, torch: Option<&str>| {
            FlightDestination::of(own.map(OsString::from), torch.map(OsString::from))
        };
        let prefix = |path: &str| FlightDestination::Prefix(path.into());
        assert_eq!(of(None, None), FlightDestination::Temporary);
        assert_eq!(of(Some("OFF"), Some("/t/t_")), FlightDestination::Off);
        assert_eq!(of(Some("/a/b_"), Some("/t/t_")), prefix("/a/b_"));
        assert_eq!(of(Some(""), Some("/t/t_")), prefix("/t/t_"));
        assert_eq!(of(Some(""), Some("")), FlightDestination::Temporary);
    }
}
