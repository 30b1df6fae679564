//! Schedules of files that rules name: proved before anything takes them.

use crate::{
    algorithm::{FileTextError, ScheduleFile},
    collective::Collective,
    group::{FoldOrder, Group},
    schedule::{Schedule, Step},
    session::FILES_BYTES,
    verify::{Order, Verified, VerifyError, verify},
    wire::digest,
};
use alloc::{format, string::String};

/// How many chunks a schedule of a file has at most.
pub const FILE_CHUNKS: u32 = 4096;

/// The most steps, messages and sources of folds that it has, one for each chunk. They determine the time and memory of
/// a proof.
pub const FILE_STEPS: u64 = 1 << 20;

/// Why the text of a file is no schedule of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileProblem {
    /// It is longer than the texts that are sent to all ranks.
    #[error(
        "it has {bytes} bytes, and the schedules of a plan have at most {FILES_BYTES}, all together; take one of fewer chunks"
    )]
    TooLong {
        /// How long it is.
        bytes: u64,
    },
    /// It is no schedule that a plan takes.
    #[error("{0}")]
    Text(#[from] FileTextError),
    /// It is too large to be proved by every rank.
    #[error("it has {what}, and at most {most} are proved by every rank; take one of fewer chunks")]
    TooLarge {
        /// How much of it there is.
        what: String,
        /// The limit.
        most: u64,
    },
    /// Its ranks are too few to be a group.
    #[error("it is of no ranks; search for a schedule of as many ranks as the job has")]
    NoRanks,
    /// It is no all-reduce.
    #[error("it is no all_reduce: {0}; herringbone simulate --schedule shows the same")]
    Wrong(#[from] VerifyError),
}

/// The file with the schedule of `text`, once that is proved to be an all-reduce. The digest covers the schedule and
/// its proof, so ranks with the same digest run the same schedule.
///
/// Memory is bounded by the length of the text and by [`FILE_STEPS`], whatever the text contains.
///
/// # Errors
/// [`FileProblem`].
pub fn proved(file: &ScheduleFile, text: &str) -> Result<ScheduleFile, FileProblem> {
    let is_long = |bytes: usize| match bytes > FILES_BYTES {
        true => Err(FileProblem::TooLong { bytes: bytes as u64 }),
        false => Ok(()),
    };
    is_long(text.len())?;
    let schedule = ScheduleFile::parse(text)?;
    check_size(&schedule)?;
    if schedule.workers() == 0 {
        return Err(FileProblem::NoRanks);
    }
    let canonical = format!("{schedule}");
    is_long(canonical.len())?;
    let group = Group::of_size(schedule.workers());
    let proof = verify(apart(schedule), Collective::AllReduce, &group)?;
    let cost = proof.cost();
    let proof = format!("{canonical}serial {} restartable {} {cost:?}", proof.serial(), proof.restartable());
    Ok(file.with(ScheduleFile::parse(&canonical)?, digest(proof.as_bytes())))
}

/// The same schedule with one step for each chunk. Chunks that lie side by side are proved in the order of their group alone, which is
/// not known before a job forms: [`follows`] proves them as they are.
fn apart(schedule: Schedule) -> Schedule {
    if !schedule.side_by_side() {
        return schedule;
    }
    let programs = (0..schedule.ranks()).map(|rank| schedule.program(rank).chunk_by_chunk().into_owned());
    Schedule::listed(schedule.workers(), schedule.cut().clone(), programs.collect())
}

/// Whether the sums of a file's schedule follow the canonical tree of a group, as the sums of other algorithms do.
///
/// # Errors
/// The proof's, for a group of other members.
pub fn follows(file: &ScheduleFile, group: &Group) -> Result<bool, VerifyError> {
    let Some(Ok(schedule)) = file.text().map(Schedule::parse) else { return Ok(false) };
    verify(schedule, Collective::AllReduce, group).map(|proof: Verified| proof.order() == Order::Fixed)
}

/// The orders whose sums a file's schedule gives, for workers on these hosts and in these sites.
pub fn orders_of<'a>(
    file: &'a ScheduleFile,
    hosts: &'a [u32],
    sites: &'a [u32],
) -> impl Iterator<Item = FoldOrder> + use<'a> {
    FoldOrder::ALL.into_iter().filter(|order| {
        order.obstacle(hosts, sites).is_none() && follows(file, &order.group(hosts, sites)) == Ok(true)
    })
}

fn check_size(schedule: &Schedule) -> Result<(), FileProblem> {
    let chunks = schedule.cut().chunks();
    if chunks > FILE_CHUNKS {
        return Err(FileProblem::TooLarge { what: format!("{chunks} chunks"), most: FILE_CHUNKS.into() });
    }
    let mut steps = 0u64;
    for rank in 0..schedule.ranks() {
        let program = schedule.program(rank);
        for (at, step) in program.steps().iter().enumerate() {
            let parts = match *step {
                Step::Send { to, .. } => program.lanes(to).len(),
                Step::Fold { from, .. } => program.sources(from).len(),
                _ => 0,
            };
            steps += u64::from(program.span(at)) * (1 + parts as u64);
        }
    }
    match steps > FILE_STEPS {
        true => Err(FileProblem::TooLarge { what: format!("{steps} steps and messages"), most: FILE_STEPS }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Layout};
    use alloc::string::ToString;

    fn text(algorithm: &str, hosts: &[u32]) -> String {
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let layout = Layout { hosts, ..Layout::default() };
        let group = FoldOrder::Hosts.group(hosts, &[]);
        algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap().to_string()
    }

    fn problem(text: &str) -> String {
        proved(&ScheduleFile::unread("f"), text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_proved_has_one_digest_however_it_is_written() {
        let (text, file) = (text("radix(2,2)", &[0, 1, 2, 3]), ScheduleFile::unread("f"));
        let found = proved(&file, &text).unwrap();
        let commented = text.replace("rank 1\n", "# by hand\nrank   1  # here\n\n");
        assert_ne!(text, commented);
        assert_eq!(proved(&file, &commented).unwrap(), found);
        assert_eq!(found.text(), Some(&*text));
        assert_eq!(proved(&file, found.text().unwrap()).unwrap(), found, "as another rank reads it");
        let other = proved(&file, &self::text("radix", &[0, 1, 2, 3])).unwrap();
        assert_ne!(other.digest(), found.digest());
    }

    #[test]
    fn the_order_of_its_sums_is_found() {
        let hosts = [0, 0, 0, 1, 1, 1];
        let file = |name| proved(&ScheduleFile::unread("f"), &text(name, &hosts)).unwrap();
        let orders = |name| orders_of(&file(name), &hosts, &[]).collect::<alloc::vec::Vec<_>>();
        assert_eq!(orders("ring"), []);
        assert_eq!(orders("hierarchical"), [FoldOrder::Hosts]);
        assert_eq!(follows(&file("ring"), &Group::of_size(6)), Ok(false));
        assert!(follows(&file("ring"), &Group::of_size(5)).is_err());
    }

    #[test]
    fn texts_that_are_wrong_or_too_large_are_refused() {
        let right = text("radix", &[0, 1, 2, 3]);
        assert!(problem(&right.replacen("finish", "fold", 1)).contains("it is no all_reduce: "));
        assert!(problem(&right[..right.len() / 2]).contains("line"));
        assert!(problem("schedule workers=0 reducers=0 cut=even:1").contains("of no ranks"));
        assert!(problem(&"#".repeat(FILES_BYTES + 1)).contains("at most 524288"));
        let chunks = "schedule workers=1 reducers=0 cut=even:65536\nrank 0\n";
        assert!(problem(chunks).contains("65536 chunks, and at most 4096"));
        let spans = "  copy s0 = u0 x65535\n".repeat(17);
        let spans = format!(
            "schedule workers=1 reducers=0 cut=even:4096 side_by_side\nrank 0\n  slots plain\n{spans}"
        );
        assert!(problem(&spans).contains("steps and messages, and at most 1048576"));
    }
}
