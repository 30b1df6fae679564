//! Forming a group while processes end and start.

use crate::{Communicator, Error, ErrorKind, Result};
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a rank waits before it tries again to form the group.
const AGAIN: Duration = Duration::from_millis(20);

/// Forms a group, which may take several tries: processes may end meanwhile.
pub(super) fn until(
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
