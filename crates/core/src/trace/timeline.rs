//! The vocabulary of a job's timeline, for the processes that write its files and for the readers.
//!
//! A file begins with the metadata [`PROCESS`]. An operation is a span of the category [`OPERATION`]. The work for it
//! is spans of the category [`PHASE`] in the same row, and arrows of the category [`MESSAGE`] lead from one process's
//! spans to another's. Times are from the process's own monotonic clock; [`CLOCK`] has the offsets between clocks.

/// Metadata: the process and job that wrote a file. Its arguments are `version` ([`VERSION`]), `job`, `role`, `number`,
/// `member`, `world`, `process`, `host`, `began` and `clock`. `number` is the process's number in its role, `member`
/// its identity in the job, and `process` its number in the operating system. `world` is the number of ranks. `began`
/// is when the file was begun, in nanoseconds. `clock` is a text that only processes with the same monotonic clock
/// share; it is empty if that is unknown.
pub const PROCESS: &str = "herringbone timeline";
/// The form of the files.
pub const VERSION: u64 = 1;
/// Metadata of a merged file. Its arguments are `version`, `job`, `processes`, and `error_ns`, by how much clocks can
/// still differ.
pub const JOB: &str = "herringbone job";
/// Metadata: the clock of a member. Its arguments are `member`, `here`, `there` and `round_trip`. `here` is in
/// nanoseconds of this process's clock. `there` is the member's clock in the middle of a round trip around that moment,
/// and `round_trip` the time of that round trip.
pub const CLOCK: &str = "clock";
/// Metadata: the number of events, the argument `events`, that were left out since the last such record, because the
/// writer could not keep up.
pub const LEFT_OUT: &str = "events left out";

/// The roles of processes, in the order in which a merged file shows them.
pub const ROLES: [&str; 3] = ["rank", "reducer", "table server"];

/// The category of operations. A span lasts from the call to the result. Arguments: `group` (its name), `group_number`,
/// `generation` and `sequence`, which are the same on all ranks; `algorithm`, `bytes`, `priority`, `dtype`; `sent` and
/// `received` (payload bytes); `failed` (a kind of error), if it has failed.
pub const OPERATION: &str = "operation";
/// The category of the phases of an operation: [`QUEUE`], [`WAIT`], [`MOVE`], [`FOLD`], [`COPY`].
pub const PHASE: &str = "phase";
/// The category of arrows.
pub const MESSAGE: &str = "message";
/// The category of moments at which something was lost, suspected or fenced.
pub const FAULT: &str = "fault";
/// The category of moments at which a step of the program begins. The argument `step` counts them.
pub const STEP: &str = "step";

/// From the call until the program runs.
pub const QUEUE: &str = "queue";
/// The operation waits. The name continues with the ranks for which it waits, as in `wait for rank 2`.
pub const WAIT: &str = "wait";
/// Messages are given to links, and taken from them.
pub const MOVE: &str = "move";
/// Sources are folded.
pub const FOLD: &str = "fold";
/// Elements are copied, or coded.
pub const COPY: &str = "copy";

/// The common number of both ends of a message's arrow: of an operation's first message from a member to another one.
/// Both compute it without communication.
#[must_use]
pub const fn arrow(group: u32, generation: u32, sequence: u64, from: u32, to: u32) -> u64 {
    let mut mixed = 0;
    let words = [(group as u64) << 32 | generation as u64, sequence, (from as u64) << 32 | to as u64];
    let mut index = 0;
    while index < words.len() {
        // Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): the finalizer of SplitMix64.
        let word = words[index].wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(mixed);
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed = word ^ (word >> 31);
        index += 1;
    }
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn arrows_differ() {
        let mut found = BTreeSet::new();
        for (group, generation) in [(0, 0), (1, 0), (0, 1), (u32::MAX, u32::MAX)] {
            for sequence in 0..100 {
                for (from, to) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
                    assert!(found.insert(arrow(group, generation, sequence, from, to)));
                }
            }
        }
    }
}
