//! Whose process is at the other end of a connection within this host: ranks of a job are one user's.

use crate::{core::session::Refusal, tcp_table::TcpOwner};
use rustix::process::geteuid;
use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

/// Whether it was said that this process does not know who takes part.
static SAID: AtomicBool = AtomicBool::new(false);

/// Whether a process of a user may take part in a job with one of another.
pub(super) fn may_call(caller: u32, called: u32) -> bool {
    caller == called || caller == 0
}

/// Where no token proves that the other end belongs to the job, the kernel has to: it belongs to this user or to root. If the
/// kernel does not know either, as with users of other containers, that is said once and the other end is believed.
///
/// # Errors
/// If it belongs to another user.
pub(super) fn check(owner: io::Result<TcpOwner>) -> Result<(), Refusal> {
    let ours = geteuid().as_raw();
    let why = match owner {
        Ok(TcpOwner::User(user)) if may_call(user, ours) => return Ok(()),
        Ok(TcpOwner::User(theirs)) => return Err(Refusal::User { ours, theirs }),
        // It has ended, which is seen soon.
        Ok(TcpOwner::Nobody) => return Ok(()),
        Ok(TcpOwner::Unknown) => "the kernel does not show the user of a process that connects".to_owned(),
        Err(error) => format!("the kernel's table of connections cannot be read ({error})"),
    };
    if !SAID.swap(true, Ordering::Relaxed) {
        let what = format_args!(
            "no token is set, and {why}: a process of any user of this host could take part in the job. Set \
             HERRINGBONE_TOKEN to the same secret text for every worker and reducer"
        );
        crate::log::warn(&format!("process {}", std::process::id()), what);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_take_part() {
        assert!(may_call(1000, 1000) && may_call(0, 1000) && may_call(0, 0));
        assert!(!may_call(1001, 1000) && !may_call(1000, 0));
    }

    #[test]
    fn another_user_is_refused_and_an_unknown_one_believed() {
        let own = geteuid().as_raw();
        let theirs = own + 1000;
        assert_eq!(check(Ok(TcpOwner::User(own))), Ok(()));
        assert_eq!(check(Ok(TcpOwner::User(theirs))), Err(Refusal::User { ours: own, theirs }));
        assert!(!SAID.load(Ordering::Relaxed), "nothing was to be said");
        for unknown in [Ok(TcpOwner::Unknown), Err(io::ErrorKind::PermissionDenied.into())] {
            assert_eq!(check(unknown), Ok(()));
            assert!(SAID.load(Ordering::Relaxed));
        }
    }
}
