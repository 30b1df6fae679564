//! The schedule of a file: a text from a person or from a search.

use super::Unsupported;
use crate::group::Group;
use crate::schedule::{Schedule, TextError};
use alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
};
use core::{
    fmt,
    hash::{Hash, Hasher},
};

/// The schedule of a file, which has been read or not: rank 0 reads it for all ranks of a job.
///
/// Two of them are equal if their paths and digests are.
#[derive(Clone, Debug)]
pub struct ScheduleFile {
    path: Arc<str>,
    read: Option<Arc<Known>>,
}

/// What a file has.
#[derive(Debug)]
struct Known {
    schedule: Schedule,
    text: String,
    digest: u64,
}

impl ScheduleFile {
    /// The file at a path, which has not been read yet.
    pub fn unread(path: &str) -> Self {
        Self { path: path.into(), read: None }
    }

    /// The same with the schedule that it has, and the digest by which ranks compare it.
    #[must_use]
    pub fn with(&self, schedule: Schedule, digest: u64) -> Self {
        let text = schedule.to_string();
        Self { path: self.path.clone(), read: Some(Arc::new(Known { schedule, text, digest })) }
    }

    /// Its path, on rank 0's machine.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its schedule, if it was read.
    pub fn known(&self) -> Option<&Schedule> {
        self.read.as_ref().map(|known| &known.schedule)
    }

    /// Its schedule in the text form, without comments, if it was read.
    pub fn text(&self) -> Option<&str> {
        self.read.as_ref().map(|known| &*known.text)
    }

    /// The digest of its schedule and of its proof, if it was read.
    pub fn digest(&self) -> Option<u64> {
        self.read.as_ref().map(|known| known.digest)
    }

    /// Reads a schedule that a job's plan can use: without reducers and coded messages.
    ///
    /// # Errors
    /// [`FileTextError`] for any other text.
    pub fn parse(text: &str) -> Result<Schedule, FileTextError> {
        let schedule = Schedule::parse(text)?;
        match (schedule.reducers(), schedule.cut().is_coded()) {
            (0, false) => Ok(schedule),
            (0, true) => Err(FileTextError::Coded),
            (reducers, _) => Err(FileTextError::Reducers { reducers }),
        }
    }

    /// Its schedule, for a group of as many ranks that have an input each.
    pub(super) fn schedule(&self, group: &Group) -> Result<Schedule, Unsupported> {
        let other = |reason| Unsupported::OfFile { file: self.path.to_string(), reason };
        let Some(known) = self.read.clone() else {
            return Err(other("rank 0 has not read it".to_string()));
        };
        let (own, workers) = (known.schedule.workers(), group.size());
        if own != workers {
            let reason = format!("its schedule is of {own} ranks, and the group has {workers}");
            return Err(other(reason));
        }
        if group.has_several() {
            return Err(other(
                "its schedule folds one input of each rank, and some have several".to_string(),
            ));
        }
        let (cut, side_by_side) = (known.schedule.cut().clone(), known.schedule.side_by_side());
        let schedule =
            Schedule::generated(own, 0, cut, move |rank| known.schedule.program(rank).into_owned());
        Ok(if side_by_side { schedule.with_chunks_side_by_side() } else { schedule })
    }
}

impl PartialEq for ScheduleFile {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, self.digest()) == (&other.path, other.digest())
    }
}

impl Eq for ScheduleFile {}

impl Hash for ScheduleFile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.path, self.digest()).hash(state);
    }
}

impl fmt::Display for ScheduleFile {
    /// Its path, and its digest once it has one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        self.digest().map_or(Ok(()), |digest| write!(f, " (digest {digest:016x})"))
    }
}

/// A text that is no schedule of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileTextError {
    /// It is no schedule.
    #[error("{0}; herringbone show prints schedules in this form")]
    Text(#[from] TextError),
    /// It needs reducers.
    #[error(
        "it has {reducers} reducers, and a plan takes schedules of workers alone; search for one without reducers"
    )]
    Reducers {
        /// How many.
        reducers: u32,
    },
    /// It codes messages.
    #[error(
        "its chunks are coded blocks, and a plan takes schedules of plain messages; use cut=even or cut=weighted"
    )]
    Coded,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Layout};
    use crate::collective::Collective;

    fn of(algorithm: &str, workers: u32) -> Schedule {
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let layout = Layout { reducers: 2, ..Layout::default() };
        algorithm.schedule(Collective::AllReduce, &Group::of_size(workers), &layout).unwrap()
    }

    #[test]
    fn a_file_is_the_schedule_that_it_has_for_groups_of_as_many() {
        for name in ["ring", "radix(2,2)", "doubling"] {
            let (schedule, path) = (of(name, 4), ScheduleFile::unread("a/path"));
            let text = schedule.to_string();
            let file = Algorithm::File(path.with(ScheduleFile::parse(&text).unwrap(), 7));
            assert_eq!(file.to_string(), "file=a/path (digest 0000000000000007)");
            let taken = |group: &Group| file.schedule(Collective::AllReduce, group, &Layout::default());
            assert_eq!(taken(&Group::of_size(4)).unwrap(), schedule);
            let refused = taken(&Group::of_size(5)).unwrap_err();
            assert!(refused.is_layout() && refused.to_string().contains("of 4 ranks, and the group has 5"));
            let unread = Algorithm::File(path.clone());
            assert!(unread.schedule(Collective::AllReduce, &Group::of_size(4), &Layout::default()).is_err());
            assert_ne!(file, unread);
            assert_ne!(file, Algorithm::File(path.with(of(name, 4), 8)));
        }
    }

    #[test]
    fn schedules_that_no_plan_takes_are_refused() {
        let refusal = |name: &str| ScheduleFile::parse(&of(name, 4).to_string()).unwrap_err().to_string();
        assert!(refusal("reduction_server").contains("it has 2 reducers"));
        assert!(refusal("coded(radix)").contains("coded blocks"));
        assert!(ScheduleFile::parse("").unwrap_err().to_string().contains("line 1"));
    }
}
