//! The file that one process of a job has written.

use super::clocks::{ClockPair, ProcessClock};
use crate::chrome::{self, EventReader, ReadEvent};
use herringbone::core::trace::timeline;
use std::{
    collections::BTreeMap,
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

/// The process and the job of a file.
#[derive(Clone, Debug)]
pub(crate) struct TimelineProcess {
    pub(crate) job: String,
    /// The number of its role among the [`ROLES`](timeline::ROLES).
    pub(crate) role: usize,
    pub(crate) number: u64,
    pub(crate) host: String,
    /// The operating system's number.
    pub(crate) process: u64,
    /// When its file began, by its own clock.
    pub(crate) began: i64,
    pub(crate) member: u64,
    /// How many ranks its job has, as far as it knows.
    pub(crate) world: u64,
}

impl TimelineProcess {
    /// Takes it from the metadata of a file.
    ///
    /// # Errors
    /// What is wrong with that.
    pub(crate) fn of(event: &ReadEvent) -> Result<Self, String> {
        let whole =
            |name: &str| event.whole(name).ok_or_else(|| format!("its first event lacks a number `{name}`"));
        let text =
            |name: &str| event.text(name).ok_or_else(|| format!("its first event lacks a text `{name}`"));
        if whole("version")? != timeline::VERSION {
            return Err(format!(
                "its version is {}, but this program reads {}",
                whole("version")?,
                timeline::VERSION
            ));
        }
        let role = text("role")?;
        let place = timeline::ROLES.iter().position(|known| *known == role);
        Ok(Self {
            job: text("job")?.to_owned(),
            role: place.ok_or_else(|| format!("no process is a {role:?}"))?,
            number: whole("number")?,
            host: text("host")?.to_owned(),
            process: whole("process")?,
            began: i64::try_from(whole("began")?).map_err(|_| "`began` is not a time")?,
            member: whole("member")?,
            world: event.whole("world").unwrap_or(0),
        })
    }

    /// Whether both are of one process, which has written two files.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.role, self.number, self.member, self.process, &self.host)
            == (other.role, other.number, other.member, other.process, &other.host)
    }

    /// As `rank 3`.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", timeline::ROLES[self.role], self.number)
    }
}

/// The content of a file without spans.
#[derive(Debug)]
pub(super) struct TimelinePart {
    pub(super) path: PathBuf,
    pub(super) process: TimelineProcess,
    pub(super) clock: ProcessClock,
    pub(super) threads: BTreeMap<u32, String>,
    /// The beginnings and the ends of arrows.
    pub(super) arrows: [Vec<u64>; 2],
    /// How many events the process has left out.
    pub(super) left_out: u64,
    /// Why it ends before its end, if it does.
    pub(super) problem: Option<String>,
}

/// What a file in the folder is.
#[derive(Debug)]
pub(super) enum Scanned {
    Part(Box<TimelinePart>),
    /// A file that `merge` has written.
    Merged,
}

pub(super) fn open(path: &Path) -> Result<EventReader<BufReader<File>>, String> {
    let file = chrome::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    Ok(EventReader::new(BufReader::with_capacity(1 << 20, file)))
}

/// Reads all of a file but its spans.
///
/// # Errors
/// If it does not begin as a file of a process.
pub(super) fn scan(path: &Path) -> Result<Scanned, String> {
    let mut reader = open(path)?;
    let first = reader.next()?.ok_or("it has no events")?;
    let first = ReadEvent::parse(first)?;
    if first.name == timeline::JOB {
        return Ok(Scanned::Merged);
    }
    if first.name != timeline::PROCESS {
        return Err(format!(
            "is not a process's timeline, because it does not begin with {:?}",
            timeline::PROCESS
        ));
    }
    let process = TimelineProcess::of(&first)?;
    let name = first.text("clock").unwrap_or("").to_owned();
    let mut part = TimelinePart {
        path: path.to_owned(),
        clock: ProcessClock { name, member: process.member, readings: BTreeMap::new() },
        process,
        threads: BTreeMap::new(),
        arrows: [Vec::new(), Vec::new()],
        left_out: 0,
        problem: None,
    };
    part.problem = part.rest(&mut reader).err();
    if part.problem.is_none() && reader.is_cut() {
        part.problem = Some("its end is missing, because its process died or still runs".into());
    }
    part.arrows.iter_mut().for_each(|ends| ends.sort_unstable());
    Ok(Scanned::Part(Box::new(part)))
}

impl TimelinePart {
    fn rest(&mut self, reader: &mut EventReader<BufReader<File>>) -> Result<(), String> {
        while let Some(text) = reader.next()? {
            // The writer writes the kind of an event first. Spans are most of a file, and are not looked at here.
            if text.starts_with(br#"{"ph":"X""#) {
                continue;
            }
            let event = ReadEvent::parse(text)?;
            match event.name.as_str() {
                "thread_name" => {
                    let name = event.text("name").unwrap_or("").to_owned();
                    self.threads.insert(event.row.thread, name);
                }
                timeline::CLOCK => {
                    let time = |name: &str| i64::try_from(event.whole(name)?).ok();
                    let reading = (|| {
                        let (here, there) = (time("here")?, time("there")?);
                        Some(ClockPair { here, there, round_trip: time("round_trip")? })
                    })();
                    let member = event.whole("member").zip(reading);
                    let (member, reading) = member.ok_or("a measurement of a clock lacks numbers")?;
                    self.clock.readings.entry(member).or_default().push(reading);
                }
                timeline::LEFT_OUT => {
                    self.left_out = self.left_out.saturating_add(event.whole("events").unwrap_or(0));
                }
                _ => {}
            }
            if let Some(id) = event.id {
                let is_end = event.phase == herringbone::core::trace::TracePhase::FlowEnd;
                self.arrows[usize::from(is_end)].push(id);
            }
        }
        Ok(())
    }
}
