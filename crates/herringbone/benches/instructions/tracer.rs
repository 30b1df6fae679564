//! Steps through a process, and counts.

#[cfg(target_arch = "x86_64")]
use crate::loops::Loops;
use crate::workload::{self, BETWEEN, CASES};
use nix::{
    errno::Errno,
    sys::{
        personality::{self, Persona},
        ptrace,
        signal::Signal,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    io::Read,
    ops::Range,
    process::{Child, Command, Stdio},
};

/// Has glibc copy in loops: an instruction that repeats itself stops for every byte.
const PLAIN_COPIES: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1000000000:glibc.cpu.x86_rep_stosb_threshold=1000000000";

/// What was found.
pub(crate) struct Counted {
    /// Between each two marks, of this program's code; unknown where a loop went on in no way that can be counted.
    pub(crate) instructions: Vec<Option<u64>>,
    pub(crate) allocations: u64,
}

/// A process that could not be stepped through.
pub(crate) struct Untraceable {
    pub(crate) problem: String,
    pub(crate) allocations: u64,
}

/// Runs a case in a process of its own.
pub(crate) fn count(case: usize) -> Result<Counted, Untraceable> {
    let mut child = start(case);
    let stepped = step_through(&child, CASES[case].operations);
    let mut said = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut said).expect("what it says");
    let allocations = said.trim().parse().unwrap_or_else(|_| panic!("case {case} ended with {said:?}"));
    // Who was not stepped through was waited for already.
    let _status = child.wait();
    match stepped {
        Ok(instructions) => Ok(Counted { instructions, allocations }),
        Err(problem) => Err(Untraceable { problem, allocations }),
    }
}

/// The same addresses each time, and nothing from the environment: both may change a path through the code.
fn start(case: usize) -> Child {
    if let Ok(persona) = personality::get() {
        // Where this is not allowed, addresses differ, which costs some exactness.
        let _refused = personality::set(persona | Persona::ADDR_NO_RANDOMIZE);
    }
    let program = std::env::current_exe().expect("this program's path");
    let mut command = Command::new(program);
    command.args([workload::MARK, &case.to_string()]).env_clear();
    command.env("GLIBC_TUNABLES", PLAIN_COPIES).stdout(Stdio::piped());
    command.spawn().expect("a process")
}

/// Counts what the process's first thread does between marks; its other threads run on.
#[cfg(target_arch = "x86_64")]
fn step_through(child: &Child, operations: usize) -> Result<Vec<Option<u64>>, String> {
    let process = Pid::from_raw(child.id() as i32);
    let stuck = |error: Errno| format!("stepping through a process failed: {error}");
    match waitpid(process, None).map_err(stuck)? {
        WaitStatus::Stopped(_, BETWEEN) => {}
        WaitStatus::Exited(..) => return Err("this process may not be stepped through".to_owned()),
        ended => return Err(format!("the process that was to be counted ended early: {ended:?}")),
    }
    ptrace::setoptions(process, ptrace::Options::PTRACE_O_EXITKILL).map_err(stuck)?;
    let own = code_of(process);
    // What two marks cost by themselves comes first.
    let counts = (0..=operations).map(|_| to_next_mark(process, &own)).collect::<nix::Result<_>>();
    let counts = counts.map_err(stuck)?;
    ptrace::detach(process, None).map_err(stuck)?;
    Ok(counts)
}

/// Steps to the next mark, and counts instructions in `own`, if all can be counted.
#[cfg(target_arch = "x86_64")]
fn to_next_mark(process: Pid, own: &Range<u64>) -> nix::Result<Option<u64>> {
    let (mut count, mut passed) = (Some(0), None);
    let mut loops = Loops::default();
    let mut at = ptrace::getregs(process)?;
    loop {
        ptrace::step(process, passed.take())?;
        match waitpid(process, None)? {
            WaitStatus::Stopped(_, BETWEEN) => return Ok(count),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            WaitStatus::Stopped(_, signal) => {
                passed = Some(signal);
                continue;
            }
            ended => panic!("the process that was counted ended early: {ended:?}"),
        }
        let next = ptrace::getregs(process)?;
        if next.rip == at.rip {
            // An instruction that repeats itself is one instruction.
            continue;
        }
        let is_own = own.contains(&at.rip);
        let (left, looped) = loops.step(process, at, next)?.unwrap_or((next, Some(0)));
        if is_own {
            count = count.zip(looped).map(|(count, looped): (u64, u64)| count + 1 + looped);
        }
        at = left;
    }
}

/// Where a process has its program's code: no library's, and not what the kernel lends it to read clocks.
#[cfg(target_arch = "x86_64")]
fn code_of(process: Pid) -> Range<u64> {
    let program = std::env::current_exe().expect("this program's path");
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("a process's memory map");
    let program = program.to_str().expect("a path in UTF-8");
    let code = maps.lines().find(|line| line.ends_with(program) && line.contains(" r-xp "));
    let range = code.and_then(|line| line.split(' ').next()?.split_once('-')).expect("a program has code");
    let address = |text| u64::from_str_radix(text, 16).expect("an address");
    address(range.0)..address(range.1)
}

#[cfg(not(target_arch = "x86_64"))]
fn step_through(_child: &Child, _operations: usize) -> Result<Vec<Option<u64>>, String> {
    Err("counts are only kept for x86-64".to_owned())
}
