//! A store for the processes of one user on one machine: unix sockets without a path, which end with their process and
//! leave nothing behind.

use super::{Store, StoreError};
use crate::sys::{doorbell::Bell, peer, socket};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::geteuid,
};
use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const PAUSE: Duration = Duration::from_millis(20);
/// A socket's name has 107 bytes. What distinguishes names of jobs is at their ends.
const NAME_BYTES: usize = 100;
/// Programs that start the ranks of a machine, by the beginnings of their names in the system.
const STARTERS: [&str; 7] =
    ["hydra_pmi_proxy", "pmi_proxy", "mpiexec", "mpirun", "mpispawn", "prted", "slurmstepd"];

/// The store of one job. Rank 0 sets keys and holds them until it drops the store; the others get them.
pub(crate) struct MachineStore {
    job: String,
    served: Mutex<Vec<Served>>,
}

/// A thread that answers whoever asks for a key.
struct Served {
    stop: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl MachineStore {
    /// The store of a job that no other one of this user and machine is called like.
    pub(crate) fn of_job(job: impl Into<String>) -> Self {
        Self { job: job.into(), served: Mutex::new(Vec::new()) }
    }

    /// The store of the ranks that one process has started, directly or through shells.
    pub(crate) fn of_starter() -> Self {
        Self::of_job(starter())
    }

    fn name(&self, key: &str) -> Vec<u8> {
        let name = format!("herringbone {} {} {key}", geteuid().as_raw(), self.job);
        name.as_bytes()[name.len().saturating_sub(NAME_BYTES)..].to_vec()
    }
}

impl Store for MachineStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let failed = |error: io::Error| {
            StoreError::of(
                format_args!(
                    "{} already has a rank 0 on this machine, or the system refuses a socket",
                    self.job
                ),
                error,
            )
        };
        let listener = socket::listen_abstract(&self.name(key)).map_err(failed)?;
        let served = Served::begin(listener, value.to_vec()).map_err(failed)?;
        self.served.lock().unwrap_or_else(PoisonError::into_inner).push(served);
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let (name, deadline) = (self.name(key), Instant::now() + timeout);
        loop {
            match socket::connect_abstract(&name).and_then(|stream| read_value(stream, deadline)) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(StoreError::of(
                        format_args!("meeting on this machine by {}", self.job),
                        error,
                    ));
                }
                Err(_) => {}
            }
            if Instant::now() + PAUSE >= deadline {
                return Err(StoreError::Timeout);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// The value that the other end tells; nothing if it ends before.
fn read_value(mut stream: UnixStream, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let owner = peer::peer_owner(&stream)?;
    if owner.user != geteuid().as_raw() {
        let text = format!("a process of user {} has taken the name of this job", owner.user);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(deadline.saturating_duration_since(Instant::now()).max(PAUSE)))?;
    let mut value = Vec::new();
    stream.read_to_end(&mut value)?;
    Ok(Some(value).filter(|value| !value.is_empty()))
}

impl Served {
    fn begin(listener: UnixListener, value: Vec<u8>) -> io::Result<Self> {
        let stop = Arc::new(Bell::new()?);
        let stopped = Arc::clone(&stop);
        let serve = move || while answer(&listener, &stopped, &value).is_ok() {};
        let thread = thread::Builder::new().name("hb-meeting".to_owned()).spawn(serve)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Tells the next one that asks; an error when this is over.
fn answer(listener: &UnixListener, stop: &Bell, value: &[u8]) -> io::Result<()> {
    let mut waiting =
        [listener.as_fd(), stop.fd()].map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    // An interrupted wait is a short one.
    let _woken = poll(&mut waiting, None);
    if waiting[1].revents().contains(PollFlags::IN) {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let mut stream = match socket::accept(listener) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) => {
            // For instance no descriptor is left; who asks comes again.
            thread::sleep(PAUSE);
            return if error.kind() == io::ErrorKind::InvalidInput { Err(error) } else { Ok(()) };
        }
    };
    if peer::peer_owner(&stream)?.user == geteuid().as_raw() {
        // The value is short, so it fits; who does not hear it asks again.
        let _unheard = stream.write_all(value);
    }
    Ok(())
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.stop.ring().is_ok()
            && let Some(thread) = self.thread.take()
        {
            // It has no result.
            let _ended = thread.join();
        }
    }
}

/// The process that started this one's job on this machine: its number and when it began, which no other has.
fn starter() -> String {
    let mut process = std::process::id();
    let mut parent = None;
    while let Some((name, above, began)) = status(process) {
        let found = format!("{name} {process} {began}");
        if STARTERS.iter().any(|starter| name.starts_with(starter)) {
            return found;
        }
        // Where none of these is known, the direct parent is.
        if parent.is_none() && process != std::process::id() {
            parent = Some(found);
        }
        if above == 0 {
            break;
        }
        process = above;
    }
    parent.unwrap_or_else(|| format!("process {process}"))
}

/// A process's name, its parent and when it began, from the system.
fn status(process: u32) -> Option<(String, u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may have brackets and spaces in it.
    let (before, after) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    Some((name, fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> String {
        format!("test {name} {}", std::process::id())
    }

    #[test]
    fn who_asks_before_and_after_is_told() {
        let (first, other) = (MachineStore::of_job(job("told")), MachineStore::of_job(job("told")));
        thread::scope(|scope| {
            let early = scope.spawn(|| other.get("hub", Duration::from_secs(20)));
            first.set("hub", b"here").unwrap();
            assert_eq!(early.join().unwrap().unwrap(), b"here");
        });
        assert_eq!(other.get("hub", Duration::from_secs(20)).unwrap(), b"here");
        let taken = other.set("hub", b"there").unwrap_err().to_string();
        assert!(taken.contains("already has a rank 0"), "{taken}");
    }

    #[test]
    fn a_store_that_is_gone_leaves_nothing() {
        let store = MachineStore::of_job(job("gone"));
        store.set("hub", b"here").unwrap();
        drop(store);
        let again = MachineStore::of_job(job("gone"));
        assert_eq!(again.get("hub", Duration::from_millis(1)), Err(StoreError::Timeout));
        again.set("hub", b"again").unwrap();
    }

    #[test]
    fn long_names_keep_their_ends_apart() {
        let long = "x".repeat(300);
        let [a, b] = ["1", "2"].map(|end| MachineStore::of_job(format!("{long}{end}")).name("hub"));
        assert!(a.len() == NAME_BYTES && a != b);
    }

    #[test]
    fn the_starter_is_a_process_above_this_one() {
        assert_eq!(starter(), starter());
        let (_, parent, _) = status(std::process::id()).unwrap();
        assert!(parent != 0 && !starter().contains(&format!(" {} ", std::process::id())), "{}", starter());
    }
}
