//! The file of a timeline.

use super::owner::{TimelineMember, TimelineOwner};
use crate::core::trace::{Argument, TraceRow, TraceWriter, timeline};
use std::{
    fmt,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The most files of one process for one job: each start makes another one.
const MOST: u32 = 10_000;

/// A file that gets whole events only, so that the part that a killed process leaves is still a trace.
#[derive(Debug)]
pub(super) struct TimelineFile {
    file: File,
    path: PathBuf,
    /// None after the end.
    trace: Option<TraceWriter<HeldText>>,
}

/// What is not yet in the file.
#[derive(Debug, Default)]
pub(super) struct HeldText(String);

impl fmt::Write for HeldText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(text);
        Ok(())
    }
}

/// How many bytes are held back at most.
const HELD_BACK: usize = 256 << 10;

impl TimelineFile {
    /// Begins a file in a folder, which is made if it is missing.
    ///
    /// # Errors
    /// If that is not possible. The text names the folder.
    pub(super) fn create(folder: &Path, job: u64, me: &TimelineMember) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        fs::create_dir_all(folder).map_err(named)?;
        let role = timeline::ROLES[me.role].replace(' ', "-");
        let name = format!("{job:016x}-{role}{}.{}", me.number, std::process::id());
        let (file, path) = fresh(folder, &name).map_err(named)?;
        let trace = TraceWriter::new(HeldText::default()).map_err(io::Error::other)?;
        Ok(Self { file, path, trace: Some(trace) })
    }

    /// Writes the events that say of which process the file is.
    pub(super) fn introduce(&mut self, owner: &TimelineOwner, began: u64) {
        let (host, clock) = (host(), clock());
        let job = format!("{:016x}", owner.job);
        let about = [
            ("version", Argument::Whole(timeline::VERSION)),
            ("job", Argument::Text(&job)),
            ("role", Argument::Text(timeline::ROLES[owner.me.role])),
            ("number", Argument::Whole(owner.me.number.into())),
            ("member", Argument::Whole(owner.me.identity.into())),
            ("world", Argument::Whole(owner.world.into())),
            ("process", Argument::Whole(std::process::id().into())),
            ("host", Argument::Text(&host)),
            ("began", Argument::Whole(began)),
            ("clock", Argument::Text(&clock)),
        ];
        let name = format!("{} ({host}, process {})", owner.me.name(), std::process::id());
        self.write(|trace| {
            trace.about(timeline::PROCESS, &about)?;
            trace.process(0, &name)
        });
    }

    /// Adds events.
    pub(super) fn write(&mut self, f: impl FnOnce(&mut TraceWriter<HeldText>) -> fmt::Result) {
        if let Some(trace) = &mut self.trace {
            // A text takes everything; the file's errors come with `flush`.
            let _written = f(trace);
        }
    }

    /// Whether so much is held back that it should go to the file.
    pub(super) fn is_full(&mut self) -> bool {
        self.trace.as_mut().is_some_and(|trace| trace.out().0.len() > HELD_BACK)
    }

    /// Brings all events to the file.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(trace) = &mut self.trace else { return Ok(()) };
        let held = &mut trace.out().0;
        self.file
            .write_all(held.as_bytes())
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))?;
        held.clear();
        Ok(())
    }

    /// Ends the list.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let Some(trace) = self.trace.take() else { return Ok(()) };
        let held = trace.finish().map_err(io::Error::other)?;
        self.file.write_all(held.0.as_bytes())
    }

    /// Names a row.
    pub(super) fn name_row(&mut self, row: TraceRow, name: &str) {
        self.write(|trace| trace.thread(row, name));
    }
}

/// A file that was not there: another start of the same process has another name.
fn fresh(folder: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    for number in 1..MOST {
        let more = if number == 1 { String::new() } else { format!(".{number}") };
        let path = folder.join(format!("{name}{more}.json"));
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A text that only processes with the same monotonic clock have in common: the kernel's start, and the time namespace.
/// Empty where the system does not say.
fn clock() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = fs::read_link("/proc/self/ns/time");
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{} {}", boot.trim(), namespace.display()),
        _ => String::new(),
    }
}
