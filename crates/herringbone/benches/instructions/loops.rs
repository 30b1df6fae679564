//! Loops that a process runs at full speed, and whose instructions are counted all the same.
//!
//! Stepping stops the process at every instruction, which takes microseconds each. A loop that has gone round the same
//! way a few times is run up to its exits instead, with the CPU's breakpoints there; how often it went round then
//! follows from a register that changed by the same amount each time.

use nix::{
    libc::{self, user_regs_struct},
    sys::{
        ptrace,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{collections::VecDeque, mem::offset_of};

/// How many rounds alike make a loop that is worth it.
const ROUNDS: usize = 5;
/// The longest round, in instructions.
const LONGEST: usize = 256;
/// How many breakpoints the CPU has.
const BREAKPOINTS: usize = 4;
/// The longest instruction, in bytes.
const INSTRUCTION: u64 = 15;

/// The way that a process went, as far as it may be a loop: the registers before each instruction.
#[derive(Default)]
pub(crate) struct Loops {
    way: VecDeque<user_regs_struct>,
}

/// A way out of a loop: behind which instruction of a round, and where to.
type Exit = (usize, u64);

impl Loops {
    /// Takes note of a step. If it ends a round of a loop, runs the loop to its end; returns where the process is then,
    /// and how many instructions that took, if that can be said: a loop that waits for another thread may go on in another
    /// way within a round, and its counter with it.
    pub(crate) fn step(
        &mut self,
        process: Pid,
        before: user_regs_struct,
        after: user_regs_struct,
    ) -> nix::Result<Option<(user_regs_struct, Option<u64>)>> {
        if self.way.len() == ROUNDS * LONGEST {
            self.way.pop_front();
        }
        self.way.push_back(before);
        if after.rip > before.rip {
            return Ok(None);
        }
        let Some([previous, last]) = self.rounds(after.rip) else { return Ok(None) };
        self.way.clear();
        let Some(register) = counter(&previous[0], &last[0], &after) else { return Ok(None) };
        let Some(exits) = exits(process, &last)? else { return Ok(None) };
        let left = run_to(process, &exits)?;
        Ok(Some((left, instructions(&last, register, &exits, &after, &left))))
    }

    /// The last two rounds from this address back to it, if enough went the same way. A round may have loops in it, which are
    /// taken to go round as often every time.
    fn rounds(&self, head: u64) -> Option<[Vec<user_regs_struct>; 2]> {
        let length = 1 + self.way.iter().rev().take(LONGEST).position(|at| at.rip == head)?;
        let start = self.way.len().checked_sub(ROUNDS * length)?;
        let way = || self.way.range(start..).map(|at| at.rip);
        let is_alike = way().zip(way().skip(length)).all(|(at, later)| at == later);
        let round = |before| {
            let end = self.way.len() - before * length;
            self.way.range(end - length..end).copied().collect()
        };
        is_alike.then(|| [round(1), round(0)])
    }
}

/// How many instructions ran between the start of a round and an exit.
fn instructions(
    round: &[user_regs_struct],
    register: usize,
    exits: &[Exit],
    from: &user_regs_struct,
    to: &user_regs_struct,
) -> Option<u64> {
    let value = |registers: &user_regs_struct| general(registers)[register] as i64;
    let start = value(&round[0]);
    let change = value(from).wrapping_sub(start);
    exits.iter().filter(|(_, address)| *address == to.rip).find_map(|(position, _)| {
        let part = value(round.get(position + 1).unwrap_or(from)).wrapping_sub(start);
        let whole = value(to).wrapping_sub(value(from)).wrapping_sub(part);
        let is_whole = whole % change == 0 && whole / change >= 0;
        is_whole.then(|| (whole / change) as u64 * round.len() as u64 + *position as u64 + 1)
    })
}

fn general(of: &user_regs_struct) -> [u64; 15] {
    [
        of.rax, of.rbx, of.rcx, of.rdx, of.rsi, of.rdi, of.rbp, of.r8, of.r9, of.r10, of.r11, of.r12, of.r13,
        of.r14, of.r15,
    ]
}

/// A register that changed by the same amount twice.
fn counter(first: &user_regs_struct, second: &user_regs_struct, third: &user_regs_struct) -> Option<usize> {
    let [first, second, third] = [first, second, third].map(general);
    let change = |from: u64, to: u64| to.wrapping_sub(from);
    (0..first.len()).find(|at| {
        let changed = change(first[*at], second[*at]);
        changed != 0 && changed == change(second[*at], third[*at])
    })
}

/// The ways out of a round, as many as there are breakpoints; none if more lead out of the loop, or it is no plain one.
fn exits(process: Pid, round: &[user_regs_struct]) -> nix::Result<Option<Vec<Exit>>> {
    let mut found = Vec::new();
    for (position, registers) in round.iter().enumerate() {
        let at = registers.rip;
        let next = round[(position + 1) % round.len()].rip;
        match ptrace::read(process, at as ptrace::AddressType)?.to_le_bytes() {
            [0x70..=0x7f, by, ..] => found.push((position, other(at + 2, i64::from(by as i8), next))),
            [0x0f, 0x80..=0x8f, a, b, c, d, ..] => {
                let by = i64::from(i32::from_le_bytes([a, b, c, d]));
                found.push((position, other(at + 6, by, next)));
            }
            [0xeb | 0xe9, ..] => {}
            _ if next > at && next <= at + INSTRUCTION => {}
            _ => return Ok(None),
        }
    }
    let addresses = || round.iter().map(|registers| registers.rip);
    let (first, last) = (addresses().min(), addresses().max());
    let stays = |(_, address): &Exit| Some(*address) >= first && Some(*address) <= last;
    let leaving = found.iter().filter(|exit| !stays(exit)).count();
    found.retain(|(_, address)| addresses().all(|at| at != *address));
    // Detours go without a breakpoint first: the data, which is the same each time, decides whether they are taken.
    found.sort_by_key(stays);
    found.truncate(BREAKPOINTS);
    Ok((1..=BREAKPOINTS).contains(&leaving).then_some(found))
}

/// Where a conditional jump does not go to.
fn other(behind: u64, by: i64, next: u64) -> u64 {
    if next == behind { behind.wrapping_add_signed(by) } else { behind }
}

/// Runs a process until it is at an exit.
fn run_to(process: Pid, exits: &[Exit]) -> nix::Result<user_regs_struct> {
    let write = |register: usize, value: u64| {
        let offset = offset_of!(libc::user, u_debugreg) + register * size_of::<u64>();
        ptrace::write_user(process, offset as ptrace::AddressType, value as libc::c_long)
    };
    let mut enabled = 0;
    for (number, (_, address)) in exits.iter().enumerate() {
        write(number, *address)?;
        enabled |= 1 << (2 * number);
    }
    write(7, enabled)?;
    ptrace::cont(process, None)?;
    match waitpid(process, None)? {
        WaitStatus::Stopped(_, nix::sys::signal::Signal::SIGTRAP) => {}
        ended => panic!("a loop ended with {ended:?}"),
    }
    write(7, 0)?;
    ptrace::getregs(process)
}
