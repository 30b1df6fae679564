//! A forked child must neither hide the death of its parent nor touch what is its parent's. With real processes: this
//! test runs itself again as a *rank*, which connects, forks a *child* that outlives it, and is killed.

use herringbone_sys::doorbell::Bell;
use herringbone_sys::fork::{self, Guarded};
use herringbone_sys::peer::peer_pidfd;
use herringbone_sys::pidfd::Pidfd;
use herringbone_sys::segment::Segment;
use herringbone_sys::socket::{accept, connect_abstract, listen_abstract};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{self, AssertUnwindSafe};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Where the rank finds the test.
const MEETING: &str = "TEST_FORK_MEETING";
/// How long anybody waits for anything before the test has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// What the child reports, one letter per thing that is as it should be.
const ALL_WELL: &[u8; 5] = b"gsbmp";

#[test]
fn a_child_neither_hides_its_parents_death_nor_has_its_mappings() {
    if let Ok(meeting) = std::env::var(MEETING) {
        be_the_rank(meeting.as_bytes());
    }
    let meeting = format!("herringbone-test-fork-{}", std::process::id());
    let listener = listen_abstract(meeting.as_bytes()).unwrap();
    let mut rank = Command::new(std::env::current_exe().unwrap())
        .args(["a_child_neither_hides_its_parents_death_nor_has_its_mappings", "--exact", "--nocapture"])
        .env(MEETING, &meeting)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until_readable(&listener);
    let mut connection = accept(&listener).unwrap();
    connection.set_nonblocking(false).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut report = [0; 9];
    connection.read_exact(&mut report).unwrap();
    let (letters, pid) = report.split_at(ALL_WELL.len());
    let child = Pidfd::open(u32::from_ne_bytes(pid.try_into().unwrap())).unwrap();
    let process = peer_pidfd(&connection).unwrap();

    rank.kill().unwrap();
    let end = connection.read(&mut [0]);
    let (rank_ended, child_ended) = (wait_until_readable(&process), child.has_ended().unwrap());
    rustix::process::pidfd_send_signal(&child, rustix::process::Signal::KILL).unwrap();
    rank.wait().unwrap();

    assert_eq!(String::from_utf8_lossy(letters), String::from_utf8_lossy(ALL_WELL));
    assert!(rank_ended && !child_ended);
    assert_eq!(end.unwrap(), 0, "the end of the stream, although the child lives");
}

/// Whether it became readable while we had patience.
fn wait_until_readable(what: impl AsFd) -> bool {
    let patience = PATIENCE.try_into().unwrap();
    poll(&mut [PollFd::new(&what, PollFlags::IN)], Some(&patience)).unwrap() == 1
}

fn be_the_rank(meeting: &[u8]) -> ! {
    let connection = Guarded::new(connect_abstract(meeting).unwrap()).unwrap();
    let segment = Segment::create("herringbone-fork", 4_096).unwrap();
    let bell = Bell::new().unwrap();
    let (mut from_child, to_rank) = std::io::pipe().unwrap();
    let (mapping, generation) = (address_of("herringbone-fork"), fork::generation());
    panic::set_hook(Box::new(|_| {}));
    // SAFETY: the child calls what is allowed after a fork, and one panic, for which the C library's allocator keeps
    // itself usable.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let well = [
            fork::generation() != generation,
            is_harmless(connection.as_raw_fd()),
            is_harmless(bell.fd().as_raw_fd()),
            is_unmapped(mapping),
            panic::catch_unwind(AssertUnwindSafe(|| segment.span(0..1).to_vec())).is_err(),
        ];
        let letters: [u8; 5] = std::array::from_fn(|n| if well[n] { ALL_WELL[n] } else { b'-' });
        (&to_rank).write_all(&letters).unwrap();
        // SAFETY: two plain system calls; the alarm ends the child if the test cannot.
        unsafe {
            libc::alarm(PATIENCE.as_secs() as u32 * 3);
            loop {
                libc::pause();
            }
        }
    }
    let mut report = [0; 9];
    from_child.read_exact(&mut report[..5]).unwrap();
    report[5..].copy_from_slice(&pid.to_ne_bytes());
    assert!(!is_harmless(connection.as_raw_fd()) && !is_unmapped(mapping));
    assert_eq!(fork::generation(), generation);
    segment.span(0..4_096).zero();
    (&*connection).write_all(&report).unwrap();
    thread::sleep(PATIENCE * 3);
    panic!("nobody killed the rank");
}

/// The address at which this process maps the memfd called `name`.
fn address_of(name: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains(name)).unwrap();
    usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
}

/// Whether the descriptor can be neither read nor written, although the number is in use.
fn is_harmless(descriptor: RawFd) -> bool {
    let mut byte = 0u8;
    // SAFETY: at most one byte is read or written.
    let outcomes = unsafe {
        let read = libc::read(descriptor, (&raw mut byte).cast(), 1);
        let readable = read >= 0 || *libc::__errno_location() != libc::EBADF;
        let written = libc::write(descriptor, (&raw const byte).cast(), 0);
        let writable = written >= 0 || *libc::__errno_location() != libc::EBADF;
        (readable, writable, libc::fcntl(descriptor, libc::F_GETFD))
    };
    outcomes == (false, false, libc::FD_CLOEXEC)
}

/// Whether nothing is mapped at the page at `address`.
fn is_unmapped(address: usize) -> bool {
    let mut resident = 0u8;
    // SAFETY: mincore only tells about the page, and writes one byte for it.
    let code = unsafe { libc::mincore(address as *mut libc::c_void, 1, &mut resident) };
    // SAFETY: errno is this thread's.
    code == -1 && unsafe { *libc::__errno_location() } == libc::ENOMEM
}
