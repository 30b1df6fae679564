//! The last operations of a process, in memory that is taken once.

use super::event::OperationId;
use crate::{
    clock::Moment,
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
        session::flight::{FlightCall, FlightOperation, FlightState, KEPT},
        wire::Fingerprint,
    },
    execute::issue::Identity,
    transport::stats::Moved,
};
use std::{fmt, time::Duration};

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationState {
    /// It waits for links, memory, or an older operation.
    Queued,
    /// Its program runs.
    Running,
    /// It ended well.
    Done,
    /// It failed, with an error of the [kind](crate::ErrorKind) of this name.
    Failed(&'static str),
}

/// How long before the query an operation reached each phase. The times are from the kernel's last tick, up to 10 ms
/// off. So the time between two phases of a small operation is mostly 0, and right on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationTimes {
    /// It was called; on a reducer, a worker reported it.
    pub issued: Duration,
    /// Its program began to run.
    pub began: Option<Duration>,
    /// Its caller got the result or the error.
    pub ended: Option<Duration>,
}

/// One of the last operations of a process; see [`Communicator::recent`](crate::Communicator::recent). As text it is a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recent {
    /// Which it is, in its group.
    pub id: OperationId,
    /// The name of its group: `world`, or the subgroup's.
    pub group: String,
    /// The collective.
    pub collective: Collective,
    /// The type of its elements.
    pub dtype: DType,
    /// How they are folded, if they are.
    pub op: Option<ReduceOp>,
    /// The number of elements of the call; `None` if parts can differ.
    pub count: Option<u64>,
    /// The algorithm that the plan chose.
    pub algorithm: String,
    /// The call's priority.
    pub priority: i32,
    /// How far it has come.
    pub state: OperationState,
    /// When it was issued, began and ended.
    pub times: OperationTimes,
    /// Payload bytes that this process has sent and received for it.
    pub moved: Moved,
}

impl fmt::Display for OperationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OperationState::Queued => f.pad("queued"),
            OperationState::Running => f.pad("running"),
            OperationState::Done => f.pad("done"),
            OperationState::Failed(kind) => f.pad(&format!("failed: {kind}")),
        }
    }
}

impl fmt::Display for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, group, collective, dtype, op, count, algorithm, priority, state, times, moved } = self;
        write!(f, "{group} #{} {collective}", id.sequence)?;
        op.map_or(Ok(()), |op| write!(f, " {op}"))?;
        match count {
            Some(count) => write!(f, " of {count}")?,
            None => f.write_str(" of uneven parts of")?,
        }
        write!(f, " {dtype} by {algorithm}, priority {priority}: {state}")?;
        write!(f, "; issued {:.2} s ago", times.issued.as_secs_f64())?;
        times.began.map_or(Ok(()), |began| write!(f, ", began {:.2} s ago", began.as_secs_f64()))?;
        times.ended.map_or(Ok(()), |ended| write!(f, ", ended {:.2} s ago", ended.as_secs_f64()))?;
        write!(f, "; {} B sent, {} B received", moved.sent, moved.received)
    }
}

/// What is kept of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) group: u32,
    pub(super) generation: u32,
    pub(super) fingerprint: Fingerprint,
    /// The number of its algorithm's name.
    pub(super) algorithm: u32,
    pub(super) state: OperationState,
    pub(super) issued: Moment,
    pub(super) began: Option<Moment>,
    /// If its state is that of an end.
    pub(super) ended: Moment,
    pub(super) moved: Moved,
}

impl Entry {
    /// Before the first operation.
    fn none() -> Self {
        Self {
            group: 0,
            generation: 0,
            fingerprint: Fingerprint::default(),
            algorithm: 0,
            state: OperationState::Queued,
            issued: Moment::default(),
            began: None,
            ended: Moment::default(),
            moved: Moved::default(),
        }
    }

    /// As people read it, with the names of its group and its algorithm. Everything that was issued has a name.
    pub(super) fn shown(&self, now: Moment, group: String, algorithm: &str) -> Option<Recent> {
        let Self { generation, fingerprint, state, issued, began, ended, moved, .. } = *self;
        let fingerprint = fingerprint.runs();
        let Fingerprint { sequence, root, count, priority, .. } = fingerprint;
        let collective = Collective::from_code(fingerprint.collective, root)?;
        let is_over = matches!(state, OperationState::Done | OperationState::Failed(_));
        Some(Recent {
            id: OperationId { group: self.group, generation, sequence },
            group,
            collective,
            dtype: DType::from_code(fingerprint.dtype)?,
            op: ReduceOp::from_code(fingerprint.op).filter(|_| collective.folds()),
            count: Some(count).filter(|count| *count != Fingerprint::UNEVEN),
            algorithm: algorithm.to_owned(),
            priority,
            state,
            times: OperationTimes {
                issued: now.since(issued),
                began: began.map(|began| now.since(began)),
                ended: is_over.then(|| now.since(ended)),
            },
            moved,
        })
    }
}

impl Entry {
    /// As others are told of it.
    pub(super) fn flight(&self, number: u64, algorithm: &str) -> FlightOperation {
        let is_over = matches!(self.state, OperationState::Done | OperationState::Failed(_));
        let at = Moment::since_boot;
        FlightOperation {
            number,
            group: self.group,
            generation: self.generation,
            call: FlightCall::Collective { call: self.fingerprint, algorithm: algorithm.to_owned() },
            state: match self.state {
                OperationState::Queued => FlightState::Queued,
                OperationState::Running => FlightState::Running,
                OperationState::Done => FlightState::Done,
                OperationState::Failed(kind) => FlightState::Failed { kind: kind.to_owned() },
            },
            issued: at(self.issued),
            began: self.began.map(at),
            ended: is_over.then(|| at(self.ended)),
            sent: self.moved.sent,
            received: self.moved.received,
        }
    }
}

/// The last operations, by the order in which they were issued.
#[derive(Debug)]
pub(super) struct Ring {
    entries: Box<[Entry; KEPT]>,
    /// How many operations were issued.
    issued: u64,
}

impl Default for Ring {
    fn default() -> Self {
        Self { entries: Box::new([Entry::none(); KEPT]), issued: 0 }
    }
}

impl Ring {
    /// How many operations were issued.
    #[inline]
    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// Keeps one that was issued now, instead of the oldest.
    #[inline]
    pub(super) fn add(&mut self, id: &Identity, algorithm: u32, now: Moment) {
        let entry = &mut self.entries[id.number as usize % KEPT];
        (entry.group, entry.generation) = (id.group, id.generation);
        (entry.fingerprint, entry.algorithm) = (id.fingerprint, algorithm);
        (entry.state, entry.issued, entry.began) = (OperationState::Queued, now, None);
        entry.moved = Moved::default();
        self.issued = id.number + 1;
    }

    /// An operation, if it is still kept.
    pub(super) fn get(&self, number: u64) -> Option<&Entry> {
        let is_kept = number < self.issued && self.issued - number <= KEPT as u64;
        is_kept.then(|| &self.entries[number as usize % KEPT])
    }

    /// As [`get`](Self::get), of one that was issued.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Entry> {
        (self.issued - number <= KEPT as u64).then(|| &mut self.entries[number as usize % KEPT])
    }

    /// The number of the oldest that is kept.
    pub(super) fn first(&self) -> u64 {
        self.issued.saturating_sub(KEPT as u64)
    }

    /// All that are kept, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        (self.first()..self.issued).map(|number| &self.entries[number as usize % KEPT])
    }
}
