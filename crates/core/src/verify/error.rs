//! Errors in a schedule, in words.

use crate::{
    collective::Collective,
    group::Rank,
    schedule::{Chunk, Cut, Form, Place},
};
use alloc::{format, string::String, vec::Vec};
use core::fmt;

/// Why a schedule is not a given collective over a given group.
///
/// Steps are numbered from 0 within their rank's program, and places are named as in [`Schedule::parse`]'s text.
///
/// [`Schedule::parse`]: crate::schedule::Schedule::parse
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The schedule is for another number of workers than the group has.
    #[error("the schedule is for {schedule} workers, the group has {group} members")]
    Members {
        /// The schedule's workers.
        schedule: u32,
        /// The group's members.
        group: u32,
    },
    /// The collective's root is no worker.
    #[error("{collective}: the root is not one of {workers} workers")]
    Root {
        /// The collective.
        collective: Collective,
        /// How many workers there are.
        workers: u32,
    },
    /// The collective takes one input of each member.
    #[error("{collective} folds one input of each member, and some members of the group have several")]
    OneInputEach {
        /// The collective.
        collective: Collective,
    },
    /// The collective needs another cut; see [`Collective::accepts`].
    #[error("{collective} over {workers} workers cannot have its buffer cut as {cut}")]
    Cut {
        /// The collective.
        collective: Collective,
        /// The schedule's cut.
        cut: Cut,
        /// How many workers there are.
        workers: u32,
    },
    /// Chunks lie side by side in each segment, although they must not. The collective gives them their places, they
    /// are coded, or sums are folded in an order of the chunks, so that their bits would depend on the number of
    /// segments.
    #[error("chunks cannot lie side by side in the segments of {collective}: {why}")]
    SideBySide {
        /// The collective.
        collective: Collective,
        /// Why not.
        why: &'static str,
    },
    /// More places or steps than the proof can number, or more messages than a compiled program can.
    #[error(
        "the schedule is too large to prove: too many {what}. Take fewer ranks, or an algorithm and hosts that give all ranks the \
         same work, such as radix(128,128): then one rank is proven for all"
    )]
    TooLarge {
        /// The kind of things that are too many.
        what: String,
    },
    /// A step is invalid, or meets an invalid state.
    #[error("rank {rank} step {step}: {fault}")]
    Step {
        /// The rank.
        rank: Rank,
        /// Its step.
        step: u32,
        /// The fault.
        fault: StepFault,
    },
    /// A message that no rank receives.
    #[error("rank {rank} step {step}: sends to rank {to}, which never receives it")]
    Unreceived {
        /// The sender.
        rank: Rank,
        /// Its step.
        step: u32,
        /// The receiver.
        to: Rank,
    },
    /// A reducer that sends to a reducer: it would wait forever for the report that the other one is done.
    #[error(
        "rank {reducer} sends to rank {to}, and both are reducers. A reducer ends when its receivers report that they hold the \
         result, which only workers do: send it through a worker"
    )]
    BetweenReducers {
        /// The sender.
        reducer: Rank,
        /// The receiver.
        to: Rank,
    },
    /// A worker that sends to a reducer and receives nothing from it: the reducer would wait forever for the report
    /// that it is done.
    #[error(
        "rank {worker} sends to rank {reducer}, a reducer that sends it nothing. A reducer ends when its workers report that they \
         hold the result, and they report to reducers that send to them: let it answer"
    )]
    Unanswered {
        /// The worker.
        worker: Rank,
        /// The reducer.
        reducer: Rank,
    },
    /// These ranks wait for each other forever, if lanes hold nothing. With lanes that hold something, they still
    /// might: it then depends on the length of the message.
    #[error("deadlock: {}", StuckRanks(stuck))]
    Deadlock {
        /// The first step that each rank cannot finish, by rank; ranks that finish are left out.
        stuck: Vec<Stuck>,
    },
    /// A worker ends with something else than the collective promises.
    #[error("rank {rank} ends with a wrong chunk {chunk}: {fault}")]
    Result {
        /// The worker.
        rank: Rank,
        /// The chunk of its output.
        chunk: Chunk,
        /// The fault.
        fault: ResultFault,
    },
}

/// Checks something that compiled programs and frames count in 16 bits.
pub(super) fn check_count(count: usize, what: impl FnOnce() -> String) -> Result<(), VerifyError> {
    let most = usize::from(u16::MAX);
    if count <= most {
        return Ok(());
    }
    Err(VerifyError::TooLarge { what: format!("{}: {count}, and at most {most} are counted", what()) })
}

/// The state of a rank in a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The rank.
    pub rank: Rank,
    /// The first step that it cannot finish.
    pub step: u32,
}

struct StuckRanks<'a>(&'a [Stuck]);

impl fmt::Display for StuckRanks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (at, Stuck { rank, step }) in self.0.iter().take(SHOWN).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}rank {rank} cannot finish step {step}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, ", and {more} more ranks"),
        }
    }
}

/// A fault of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepFault {
    /// A slot that the program does not list.
    #[error("there is no slot {slot}")]
    NoSuchSlot {
        /// Its number.
        slot: u32,
    },
    /// A chunk beyond the cut.
    #[error("there is no chunk {chunk}, only {chunks}")]
    NoSuchChunk {
        /// Its number.
        chunk: Chunk,
        /// How many there are.
        chunks: u32,
    },
    /// A lane to or from a rank that does not exist.
    #[error("there is no rank {lane}")]
    NoSuchRank {
        /// Its number.
        lane: Rank,
    },
    /// A lane from a rank to itself.
    #[error("a rank has no lane to itself")]
    OwnLane,
    /// A send without a receiver.
    #[error("sends to nobody")]
    SendToNobody,
    /// A receiver named twice in one send.
    #[error("sends twice to rank {to}")]
    SendTwice {
        /// The receiver.
        to: Rank,
    },
    /// A fold of nothing.
    #[error("folds nothing")]
    FoldOfNothing,
    /// A place that is a source of one fold twice.
    #[error("folds {place} twice")]
    FoldTwice {
        /// The place.
        place: Place,
    },
    /// A fold in a collective that only moves data.
    #[error("{collective} does not fold")]
    FoldUnasked {
        /// The collective.
        collective: Collective,
    },
    /// Merges that have nothing to merge.
    #[error("source {source_index} is followed by more merges than there are partial sums")]
    MergeOfNothing {
        /// The source, counted from 0.
        source_index: u32,
    },
    /// Sources that the merges leave apart.
    #[error("the merges leave {left} partial sums apart")]
    Unmerged {
        /// How many.
        left: u32,
    },
    /// A reducer that touches the user's buffer.
    #[error("a reducer has no user buffer")]
    UserOfReducer,
    /// A write to a part of the user's buffer at which this worker has no output.
    #[error("this worker has no output at chunk {chunk}")]
    NotAnOutput {
        /// The chunk.
        chunk: Chunk,
    },
    /// A copy of a place to itself.
    #[error("copies {place} to itself")]
    CopyToItself {
        /// The place.
        place: Place,
    },
    /// A copy between forms, or a fold whose result does not fit its place.
    #[error("{place} is {actual}, not {expected}")]
    WrongForm {
        /// The place.
        place: Place,
        /// Its form.
        actual: Form,
        /// The form that the step needs.
        expected: Form,
    },
    /// A message of another form than the step takes.
    #[error("the message from rank {lane} is {actual}, not {expected}")]
    WrongMessageForm {
        /// The sender.
        lane: Rank,
        /// The form that it sends.
        actual: Form,
        /// The form that the step takes.
        expected: Form,
    },
    /// A place that holds another chunk than the step needs.
    #[error("{place} holds chunk {actual}, not chunk {expected}")]
    WrongChunk {
        /// The place.
        place: Place,
        /// The chunk that it holds.
        actual: Chunk,
        /// The chunk that the step names.
        expected: Chunk,
    },
    /// A value for another chunk of the user's buffer.
    #[error("chunk {actual} cannot go to {place}")]
    Misplaced {
        /// The place.
        place: Place,
        /// The chunk that the step writes to it.
        actual: Chunk,
    },
    /// A message about another chunk than the step takes.
    #[error("the message from rank {lane} is of chunk {actual}, not chunk {expected}")]
    WrongMessageChunk {
        /// The sender.
        lane: Rank,
        /// The chunk that it sends.
        actual: Chunk,
        /// The chunk that the step names.
        expected: Chunk,
    },
    /// A place that nothing has been written to.
    #[error("{place} holds nothing yet")]
    Uninitialised {
        /// The place.
        place: Place,
    },
    /// A finished result as a source of a fold.
    #[error("source {source_index} of the fold is finished already")]
    FoldOfFinished {
        /// The source, counted from 0.
        source_index: u32,
    },
    /// A place that is encoded although its data is, or was before it was folded.
    #[error("encodes {place}, which holds what was encoded before")]
    EncodedTwice {
        /// The place.
        place: Place,
    },
    /// A chunk that this rank has encoded before: its error would be fed back twice.
    #[error("encodes chunk {chunk} again, so that its error is added twice")]
    ChunkEncodedTwice {
        /// The chunk.
        chunk: Chunk,
    },
    /// A reducer that encodes an input: it keeps nothing that could be left.
    #[error("a reducer encodes data that is to be folded, and keeps no error for feedback")]
    EncodedByReducer,
    /// A sum that is coded as a result is before it is finished, or the other way round.
    #[error("encodes {place} as {into}, which is for what is {}", if *finished { "not finished" } else { "finished" })]
    WrongCode {
        /// The place.
        place: Place,
        /// The form.
        into: Form,
        /// Whether it holds something finished.
        finished: bool,
    },
    /// A step for several chunks in a schedule whose chunks do not lie side by side.
    #[error("stands for {span} chunks, which do not lie side by side in this schedule")]
    SpanUnasked {
        /// For how many.
        span: u32,
    },
    /// A message of another number of chunks than the step takes.
    #[error("the message from rank {lane} is of {actual} chunks, not {expected}")]
    WrongMessageSpan {
        /// The sender.
        lane: Rank,
        /// How many chunks it has.
        actual: u32,
        /// How many the step takes.
        expected: u32,
    },
    /// A step for several chunks, at slots of different forms.
    #[error("{place} is {actual}, and the slot of the step's first chunk is {expected}")]
    UnlikeSlots {
        /// The place.
        place: Place,
        /// Its form.
        actual: Form,
        /// The form of the first slot.
        expected: Form,
    },
    /// A step for several chunks of the user's buffer, where some are still input and some already output.
    #[error(
        "some of the {span} chunks from {place} on are written already, and some are not: they lie in two buffers"
    )]
    HalfWritten {
        /// The first.
        place: Place,
        /// How many they are.
        span: u32,
    },
    /// A slot that holds one chunk and then another in a schedule whose chunks lie side by side: its bytes have one
    /// place in the staging memory.
    #[error("{place} gets chunk {chunk} after chunk {before}, and chunks lie side by side in this schedule")]
    SlotOfTwoChunks {
        /// The place.
        place: Place,
        /// The chunk that the step writes to it.
        chunk: Chunk,
        /// The chunk that was in it before.
        before: Chunk,
    },
    /// In a proof by symmetry, a shift turns a fold into another one, or a message has no counterpart on other ranks.
    /// Such a schedule is proven rank by rank.
    #[error("its result is not the shifted result on other ranks")]
    Unlike,
    /// A receive without a message.
    #[error("receives from rank {lane}, which never sends it")]
    NeverSent {
        /// The sender.
        lane: Rank,
    },
}

/// A fault of a worker's result. Inputs are called by the ranks that have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResultFault {
    /// An input is not in the fold.
    #[error("the input of rank {input} is not in it")]
    Missing {
        /// Whose input.
        input: Rank,
    },
    /// An input is in the fold more than once.
    #[error("the input of rank {input} is in it twice")]
    Twice {
        /// Whose input.
        input: Rank,
    },
    /// An input is in the fold as it is, and others are coded. The choice must not depend on the schedule.
    #[error("the input of rank {input} was not coded, and others were")]
    Uncoded {
        /// Whose input.
        input: Rank,
    },
    /// The fold was never finished.
    #[error("it is not finished")]
    Unfinished,
    /// Another worker folds the same inputs in another order.
    #[error("it is folded in another order than rank {other}'s")]
    Disagreement {
        /// The other worker.
        other: Rank,
    },
    /// Not the input that was to be moved here.
    #[error("it is not the input of rank {input}")]
    NotTheInput {
        /// Whose input was to be there.
        input: Rank,
    },
}
