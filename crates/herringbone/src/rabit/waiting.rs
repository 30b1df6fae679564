//! PatientWaits that a program can end: for calls, and for processes that are started again.

use crate::{Communicator, Error, ErrorKind, Request, Result, core::group::Rank};
use std::{
    fmt, thread,
    time::{Duration, Instant},
};

/// How long a rank waits before it tries again to form the group.
const AGAIN: Duration = Duration::from_millis(20);

/// How long a call is waited for before the program is asked.
const CALL_SLICE: Duration = Duration::from_millis(100);

/// How long the first try to form the group again takes at most, and each one after which the program is asked. Others take longer.
const FORMING_SLICE: Duration = Duration::from_secs(3);
const LONGEST_SLICE: Duration = Duration::from_secs(60);

/// How long a rank waits for a lost one before it says so.
const SILENCE: Duration = Duration::from_secs(5);

/// Says whether to go on waiting.
type GoesOn = Box<dyn Fn() -> Result<()> + Send>;

/// How a program is asked while it waits, if it wants to be.
#[derive(Default)]
pub(super) struct PatientWaits(Option<GoesOn>);

impl fmt::Debug for PatientWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PatientWaits({})", self.0.is_some())
    }
}

impl PatientWaits {
    pub(super) fn asking(goes_on: impl Fn() -> Result<()> + Send + 'static) -> Self {
        Self(Some(Box::new(goes_on)))
    }

    /// Runs an operation.
    pub(super) fn execute(&self, comm: &Communicator, request: Request) -> Result<()> {
        let Some(goes_on) = &self.0 else { return comm.execute(request) };
        let pending = comm.begin(request)?;
        loop {
            if let Some(result) = pending.wait_for(CALL_SLICE) {
                return result;
            }
            goes_on()?;
        }
    }

    /// Forms the first group, which may take several tries: processes may end meanwhile.
    pub(super) fn form_first(
        &self,
        patience: Duration,
        form: impl Fn(Duration) -> Result<Communicator>,
    ) -> Result<Communicator> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match form(left) {
                Err(error) if left > AGAIN && may_pass(&error) => thread::sleep(AGAIN),
                formed => return formed,
            }
            self.ask()?;
        }
    }

    /// Forms a group once lost processes were started again, for which ranks wait so long. This one warns if it takes a while.
    pub(super) fn form_again(
        &self,
        rank: Rank,
        patience: Duration,
        form: impl Fn(Duration) -> Result<Communicator>,
    ) -> Result<Communicator> {
        let (began, mut slice) = (Instant::now(), FORMING_SLICE);
        let (mut has_warned, mut reason) = (false, String::new());
        loop {
            let waited = Duration::from_millis(began.elapsed().as_millis() as u64);
            let left = patience.saturating_sub(waited);
            let error = match form(left.min(slice)) {
                Err(error) if may_pass(&error) || is_of_another_job(&error) => error,
                formed => return formed,
            };
            // The last try may be too short to say who is missing.
            if left >= slice || reason.is_empty() {
                reason = problem_of(&error);
            }
            if began.elapsed() + AGAIN >= patience {
                return Err(Error::rendezvous(format_args!(
                    "a lost rank was not started again within {} s, the limit of rabit_timeout_sec: {reason}",
                    patience.as_secs()
                ))
                .at(rank));
            }
            if !has_warned && waited >= SILENCE {
                has_warned = true;
                crate::log::warn(
                    &format!("rank {rank}"),
                    format_args!(
                        "a rank is lost, and this one has waited {} s for it to be started again; it waits for up to {} s: {reason}",
                        waited.as_secs(),
                        patience.as_secs()
                    ),
                );
            }
            self.ask()?;
            if self.0.is_none() {
                slice = (slice * 2).min(LONGEST_SLICE);
            }
            thread::sleep(AGAIN);
        }
    }

    fn ask(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |goes_on| goes_on())
    }
}

/// What was in the way of a group.
fn problem_of(error: &Error) -> String {
    match error.kind() {
        ErrorKind::Rendezvous { problem } => problem.clone(),
        kind => kind.seen(),
    }
}

/// Whether an error of forming the group may be gone the next time: a process has ended meanwhile, or is not there yet.
fn may_pass(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PeerLost { .. }
            | ErrorKind::LinkLost { .. }
            | ErrorKind::Rendezvous { .. }
            | ErrorKind::Timeout { .. }
            | ErrorKind::Io { .. }
            | ErrorKind::Closed
    )
}

/// Whether what answers has another token. Rank 0 had this one's, so a process of another job has taken its port, and leaves it again.
fn is_of_another_job(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Auth { .. })
}
