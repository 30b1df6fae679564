//! PatientWaits that a program can end: for calls, and for processes that are started again.

use crate::{Communicator, Error, ErrorKind, Request, Result};
use std::{
    fmt, thread,
    time::{Duration, Instant},
};

/// How long a rank waits before it tries again to form the group.
const AGAIN: Duration = Duration::from_millis(20);

/// How long a call is waited for before the program is asked.
const CALL_SLICE: Duration = Duration::from_millis(100);

/// How long one try to form the group takes at most before the program is asked.
const FORMING_SLICE: Duration = Duration::from_secs(3);

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

    /// Forms a group, which may take several tries: processes may end meanwhile.
    pub(super) fn form(
        &self,
        patience: Duration,
        form: impl Fn(Duration) -> Result<Communicator>,
    ) -> Result<Communicator> {
        let deadline = Instant::now() + patience;
        let slice = if self.0.is_some() { FORMING_SLICE } else { patience };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match form(left.min(slice)) {
                Err(error) if left > AGAIN && may_pass(&error) => thread::sleep(AGAIN),
                formed => return formed,
            }
            self.0.as_ref().map_or(Ok(()), |goes_on| goes_on())?;
        }
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
