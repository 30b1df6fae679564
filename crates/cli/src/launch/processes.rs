//! Starts, watches and ends the processes of a job.

use super::carried::ReducerTotals;
use super::ends::Ends;
use super::lines::Copies;
use super::restarter::Restarter;
use super::restarts::RankDecision;
use crate::failure::{Failure, RankFailure};
use crate::outcome::Outcome;
use crate::parent::{OwnCommand, Reducer, spawn};
use herringbone::AdminSettings;
use herringbone::log::LogFormat;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group, waitid,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::signal_name;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// How long ranks have to report a failed one.
const GRACE_PERIOD: Duration = Duration::from_secs(2);
/// How long ranks that were asked to end can take.
const GRACE: Duration = Duration::from_secs(30);

/// How long reducers can take to end once the ranks have.
const DRAIN: Duration = Duration::from_secs(3);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(5);

/// The signals that reach this process from now on.
pub(super) struct Signals(Receiver<i32>);

impl Signals {
    /// SIGHUP stays ignored where it is, as under nohup.
    pub(super) fn listen() -> Result<Self, Failure> {
        let mut wanted = vec![SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2];
        if !is_ignored(SIGHUP) {
            wanted.push(SIGHUP);
        }
        let mut source = signal_hook::iterator::Signals::new(wanted)
            .map_err(Failure::system("cannot listen to signals"))?;
        let (sender, receiver) = channel();
        let pass_on = move || {
            for signal in source.forever() {
                if sender.send(signal).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("hb-signals".to_owned()).spawn(pass_on);
        thread.map_err(Failure::system("cannot start a thread"))?;
        Ok(Self(receiver))
    }

    /// The next signal, or `None` at `deadline`.
    fn next(&self, deadline: Option<Instant>) -> Option<i32> {
        let left = deadline.map_or(GRACE, |deadline| deadline.saturating_duration_since(Instant::now()));
        self.0.recv_timeout(left).ok()
    }
}

/// Returns in a rank's process once the launcher watches it and has closed its input. So no rank fails unwatched, and the first
/// one is known.
pub(super) fn await_watch() -> io::Result<u64> {
    io::copy(&mut io::stdin(), &mut io::sink())
}

/// Whether this process was started with `signal` ignored.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// How far the end of a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// A rank has failed, and the others can report it.
    GracePeriod,
    /// The ranks were asked to end.
    Asked,
    Killed,
}

/// How a rank stands to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankState {
    Running,
    /// The process has failed, and another one starts at this time.
    StartsAgain {
        attempt: u32,
        at: Instant,
    },
    Ended,
}

struct Rank {
    /// Starts the program, the same each time but for the number of the start.
    command: Command,
    process: Child,
    state: RankState,
}

impl Rank {
    /// The process, and the process group that it leads. It is reaped last, so that the number stays its own.
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }
}

/// Ranks and reducers; none outlives it.
pub(super) struct Processes {
    ranks: Vec<Rank>,
    reducers: Vec<Child>,
    /// The traffic of ended reducers.
    carried: ReducerTotals,
    /// Table servers.
    servers: Vec<Child>,
    ends: Ends,
    copies: Copies,
    log_format: LogFormat,
    restarter: Restarter,
    /// Host and port of the next reducer's page, if pages are on: after the ranks' ports.
    next_page: Option<(String, u16)>,
}

impl Processes {
    /// None yet; ranks of them start again as `restarter` decides.
    /// Their log lines have this form.
    pub(super) fn new(restarter: Restarter, log_format: LogFormat) -> Self {
        let (ends, copies) = (Ends::default(), Copies::new(log_format));
        let (ranks, reducers, servers, next_page) = (Vec::new(), Vec::new(), Vec::new(), None);
        let carried = ReducerTotals::default();
        Self { ranks, reducers, carried, servers, ends, copies, log_format, restarter, next_page }
    }

    /// Lets the reducers, which are started first, listen for HTTP at the ports after the ports of this many ranks.
    pub(super) fn leave_pages(&mut self, settings: AdminSettings, ranks: u32) {
        self.next_page = settings.listen.map(|(host, port)| match port {
            0 => (host, 0),
            port => (host, u16::try_from(u32::from(port) + ranks).unwrap_or(0)),
        });
    }

    /// Starts this many reducers, with `more` options, and returns their addresses, as settings hold them.
    pub(super) fn start_reducers(
        &mut self,
        count: u32,
        own: &OwnCommand,
        token: Option<&str>,
        more: &[&str],
    ) -> Result<String, Failure> {
        let start = |_| self.start_reducer(own, token, "127.0.0.1:0", more);
        let addresses: Result<Vec<String>, Failure> = (0..count).map(start).collect();
        Ok(addresses?.join(","))
    }

    /// Starts a reducer that listens there, with more options. Returns its address.
    pub(super) fn start_reducer(
        &mut self,
        own: &OwnCommand,
        token: Option<&str>,
        listen: &str,
        more: &[&str],
    ) -> Result<String, Failure> {
        let keeps_tables = more.contains(&"--tables");
        let (kind, number) = match keeps_tables {
            true => ("server", self.servers.len()),
            false => ("reducer", self.reducers.len()),
        };
        let name = format!("{kind} {number}");
        let format = self.log_format.to_string();
        let more = [more, &["--log-format", &format]].concat();
        let mut command = Reducer::command(own, token, listen, &more);
        if let Some((host, port)) = &mut self.next_page {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            command.env("HERRINGBONE_ADMIN", format!("{host}:{port}"));
            *port += u16::from(*port > 0 && *port < u16::MAX);
        }
        let mut process = spawn(command.stderr(Stdio::piped()), &name)?;
        let stderr = process.stderr.take();
        let copied = stderr.map_or(Ok(()), |from| self.copies.start(&name, from, io::stderr()));
        copied.map_err(Failure::system("cannot start a thread"))?;
        let Reducer { process, address } = Reducer::listening(process, &name)?;
        if keeps_tables {
            self.servers.push(process)
        } else {
            self.reducers.push(process)
        }
        Ok(address)
    }

    /// Starts the next rank, whose program [awaits the watch](await_watch).
    pub(super) fn start_rank(&mut self, mut command: Command) -> Result<(), Failure> {
        let number = self.ranks.len();
        command.envs(self.restarter.variables(number, 0, true));
        let process = spawn(&mut command, &format!("rank {number}"))?;
        self.ranks.push(Rank { command, process, state: RankState::Running });
        self.attend(number)
    }

    /// Starts the ranks whose time has come again.
    fn start_again(&mut self, now: Instant) -> Result<(), Failure> {
        for number in 0..self.ranks.len() {
            let rank = &mut self.ranks[number];
            let RankState::StartsAgain { attempt, at } = rank.state else { continue };
            if at > now {
                continue;
            }
            rank.command.envs(self.restarter.variables(number, attempt, true));
            let process = spawn(&mut rank.command, &format!("rank {number}"))?;
            let mut failed = std::mem::replace(&mut rank.process, process);
            rank.state = RankState::Running;
            failed.wait().map_err(Failure::system(format!("cannot wait for rank {number}")))?;
            self.attend(number)?;
        }
        Ok(())
    }

    /// Watches a rank's new process, lets its program begin, and copies its output.
    fn attend(&mut self, number: usize) -> Result<(), Failure> {
        let name = format!("rank {number}");
        let process = &mut self.ranks[number].process;
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        self.ends.watch(number, Pid::from_child(process));
        drop(process.stdin.take());
        let copied = stdout
            .map_or(Ok(()), |from| self.copies.start(&name, from, io::stdout()))
            .and_then(|()| stderr.map_or(Ok(()), |from| self.copies.start(&name, from, io::stderr())));
        copied.map_err(Failure::system("cannot start a thread"))
    }

    /// Runs until no rank does, and none starts again.
    pub(super) fn run(mut self, signals: &Signals) -> Result<Outcome, Failure> {
        let mut stage = Stage::Running;
        let mut deadline = None;
        let mut first_failed = None;
        let mut asked_by = None;
        loop {
            let failed = self.note_ended()?;
            first_failed = first_failed.or(failed);
            self.start_again(Instant::now())?;
            if self.ranks.iter().all(|rank| rank.state == RankState::Ended) {
                break;
            }
            if first_failed.is_some() && stage == Stage::Running {
                (stage, deadline) = (Stage::GracePeriod, Some(Instant::now() + GRACE_PERIOD));
            }
            let end = match signals.next(deadline.or(self.next_start())) {
                Some(SIGCHLD) => continue,
                Some(signal @ (SIGUSR1 | SIGUSR2)) => {
                    self.signal_running(signal);
                    continue;
                }
                Some(signal) => {
                    if first_failed.is_none() {
                        asked_by = asked_by.or(signal_name(signal));
                    }
                    Signal::from_named_raw(signal).unwrap_or(Signal::TERM)
                }
                None if deadline.is_none_or(|deadline| Instant::now() < deadline) => continue,
                None => Signal::TERM,
            };
            first_failed = first_failed.or(self.cancel_starts());
            (stage, deadline) = self.ask_to_end(stage, end);
        }
        self.end().map_err(Failure::system("cannot wait for the ranks"))?;
        if let Some(report) = self.carried.report() {
            say(&report);
        }
        match (first_failed, asked_by) {
            (None, _) => Ok(Outcome::Passed),
            (Some(failure), Some(signal)) => Err(Failure::Stopped { signal, status: failure.status() }),
            (Some(failure), None) => Err(Failure::Rank(failure)),
        }
    }

    /// When the next rank starts again, if one does.
    fn next_start(&self) -> Option<Instant> {
        let starts = self.ranks.iter().filter_map(|rank| match rank.state {
            RankState::StartsAgain { at, .. } => Some(at),
            _ => None,
        });
        starts.min()
    }

    /// From now on no rank starts again. Returns the first rank that was about to.
    fn cancel_starts(&mut self) -> Option<RankFailure> {
        self.restarter.end_job();
        let mut first = None;
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            if matches!(rank.state, RankState::StartsAgain { .. }) {
                rank.state = RankState::Ended;
                first = first.or_else(|| Some(self.restarter.failure(number)));
            }
        }
        first
    }

    /// Sends `signal` to all ranks, or kills them if they were asked before.
    fn ask_to_end(&self, stage: Stage, signal: Signal) -> (Stage, Option<Instant>) {
        if matches!(stage, Stage::Running | Stage::GracePeriod) {
            self.signal_groups(signal);
            (Stage::Asked, Some(Instant::now() + GRACE))
        } else {
            self.signal_groups(Signal::KILL);
            (Stage::Killed, None)
        }
    }

    /// Notes which ranks have ended, and which of them start again. Returns the first by which the job ends.
    fn note_ended(&mut self) -> Result<Option<RankFailure>, Failure> {
        let mut failed = None;
        let mut looked_at = self.ends.next();
        // The order of the others is unknown.
        looked_at.extend((0..self.ranks.len()).filter(|number| !self.ends.watches(*number)));
        for number in looked_at {
            let rank = &mut self.ranks[number];
            if rank.state != RankState::Running {
                continue;
            }
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let ended = waitid(WaitId::Pid(rank.pid()), options)
                .map_err(|errno| Failure::system(format!("cannot wait for rank {number}"))(errno.into()))?;
            let Some(status) = ended.map(|status| exit_status(&status)) else { continue };
            rank.state = RankState::Ended;
            match self.restarter.decide(number, status) {
                RankDecision::Done => {
                    if let Some(waiting) = self.restarter.waits_in_vain() {
                        failed = failed.or(Some(waiting));
                        self.cancel_starts();
                    }
                }
                RankDecision::Restart { attempt, pause } => {
                    // A process that it has left behind can hold resources of its next process, such as a port.
                    let _ = kill_process_group(rank.pid(), Signal::KILL);
                    rank.state = RankState::StartsAgain { attempt, at: Instant::now() + pause };
                    say(&format!("rank {number} ended with {status} and starts again, as attempt {attempt}"));
                }
                RankDecision::EndJob(failure) => {
                    failed = failed.or(Some(failure));
                    self.cancel_starts();
                }
            }
        }
        Ok(failed)
    }

    /// Sends `signal` to the programs alone: processes that they started might not expect it.
    fn signal_running(&self, signal: i32) {
        for rank in self.ranks.iter().filter(|rank| rank.state == RankState::Running) {
            // One that has ended meanwhile is no error here.
            let _ = Signal::from_named_raw(signal).map(|signal| kill_process(rank.pid(), signal));
        }
    }

    /// An ended rank can have left processes behind, so ended ranks are no exception.
    fn signal_groups(&self, signal: Signal) {
        for rank in &self.ranks {
            // One that is not there any more is no error here.
            let _ = kill_process_group(rank.pid(), signal);
        }
    }

    /// Asks reducers to end, and waits for a while until they have: so their timelines and logs have ends.
    fn drain_reducers(&mut self) -> io::Result<()> {
        for reducer in &self.reducers {
            // One that has ended already is no error here.
            let _ = kill_process(Pid::from_child(reducer), Signal::TERM);
        }
        let until = Instant::now() + DRAIN;
        loop {
            let mut running = Vec::new();
            for mut reducer in self.reducers.drain(..) {
                match reducer.try_wait()? {
                    None => running.push(reducer),
                    Some(_) => self.carried.add(reducer.stdout.take()),
                }
            }
            self.reducers = running;
            if self.reducers.is_empty() || Instant::now() >= until {
                return Ok(());
            }
            thread::sleep(LOOK);
        }
    }

    /// Kills the ranks, lets the reducers end, and kills the ones that do not.
    fn end(&mut self) -> io::Result<()> {
        self.signal_groups(Signal::KILL);
        self.drain_reducers()?;
        // Table servers tell of others that they lose, so all stand still before the first one ends.
        for server in &self.servers {
            let _ = kill_process(Pid::from_child(server), Signal::STOP);
        }
        for server in &self.servers {
            let is_still = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(Pid::from_child(server)), is_still)?;
        }
        for mut process in self.servers.drain(..).chain(self.reducers.drain(..)) {
            process.kill()?;
            process.wait()?;
        }
        self.ranks.drain(..).try_for_each(|mut rank| rank.process.wait().map(drop))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let _ = self.end();
        std::mem::replace(&mut self.copies, Copies::new(self.log_format)).finish();
    }
}

/// As the standard library has it.
fn exit_status(status: &WaitIdStatus) -> ExitStatus {
    const DUMPED: i32 = 0x80;
    let by_signal = || status.terminating_signal().unwrap_or(0) | if status.dumped() { DUMPED } else { 0 };
    ExitStatus::from_raw(status.exit_status().map_or_else(by_signal, |code| code << 8))
}

/// A line on standard error, in one write; if nobody reads it, nobody can be told.
fn say(text: &str) {
    let _unheard = io::stderr().write_all(format!("herringbone: {text}\n").as_bytes());
}
