//! Ranks on this machine: threads of this process, or processes of their own with reducers.

use crate::parent::{HeldPorts, OwnCommand, Reducer, spawn};
use crate::{failure::Failure, outcome::Outcome};
use herringbone::{Communicator, Config, Rendezvous};
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

/// Runs `each` on every rank of a group of threads; failed if any rank's is. Rank 0 writes to `out`.
pub(super) fn threads(
    ranks: u32,
    out: &mut (dyn Write + Send),
    each: impl Fn(&Communicator, &mut dyn Write) -> Result<Outcome, Failure> + Sync,
) -> Result<Outcome, Failure> {
    let config = Config::new(0, ranks, Rendezvous::Tcp(String::new())).with_env()?;
    let mut communicators = herringbone::local_with(config)?.into_iter();
    let first = communicators.next();
    let each = &each;
    let outcomes: Vec<Result<Outcome, Failure>> = thread::scope(|scope| {
        let first = first.map(|communicator| scope.spawn(move || each(&communicator, out)));
        let others =
            communicators.map(|communicator| scope.spawn(move || each(&communicator, &mut io::sink())));
        let running: Vec<_> = first.into_iter().chain(others).collect();
        running
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<Outcome>, Failure>>()?;
    Ok(Outcome::passed_if(outcomes.iter().all(|outcome| *outcome == Outcome::Passed)))
}

/// Runs this command line again in `ranks` processes, each one rank of a job, with reducers if asked for.
pub(super) fn processes(ranks: u32, reducers: u32, args: &[OsString]) -> Result<Outcome, Failure> {
    let mut processes = ChildProcesses { children: Vec::new() };
    let own = OwnCommand::before(args);
    let reducers =
        (0..reducers).map(|_| processes.reducer(&own)).collect::<Result<Vec<String>, Failure>>()?;
    let port = HeldPorts::draw(1)?;
    for rank in 0..ranks {
        let mut command = own.command();
        command.args(child_arguments(args));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.numbers[0].to_string());
        for other_job in
            ["HERRINGBONE_RANK", "HERRINGBONE_WORLD_SIZE", "HERRINGBONE_STORE", "TORCHELASTIC_RUN_ID"]
        {
            command.env_remove(other_job);
        }
        if !reducers.is_empty() {
            command.env("HERRINGBONE_REDUCERS", reducers.join(","));
            // On one host nothing else would make them worth using.
            if std::env::var_os("HERRINGBONE_ALGORITHM").is_none() {
                command.env("HERRINGBONE_ALGORITHM", "reduction_server");
            }
        }
        processes.rank(format!("rank {rank}"), &mut command)?;
    }
    processes.wait()
}

/// The arguments without the options for processes, and with the mark of a child.
fn child_arguments(args: &[OsString]) -> Vec<OsString> {
    let mut kept: Vec<OsString> = Vec::new();
    let mut rest = args.iter().skip(1);
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy();
        let (name, value) = text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value)));
        if !matches!(name, "--processes" | "--reducers") {
            kept.push(arg.clone());
        } else if value.is_none() {
            rest.next();
        }
    }
    kept.push("--child".into());
    kept
}

struct Member {
    name: String,
    process: Child,
    is_rank: bool,
}

/// The processes that were started; none outlives it.
struct ChildProcesses {
    children: Vec<Member>,
}

impl ChildProcesses {
    fn rank(&mut self, name: String, command: &mut Command) -> Result<(), Failure> {
        let process = spawn(command, &name)?;
        self.children.push(Member { name, process, is_rank: true });
        Ok(())
    }

    /// Starts a reducer and returns its address.
    fn reducer(&mut self, own: &OwnCommand) -> Result<String, Failure> {
        let name = format!("reducer {}", self.children.len());
        let process = spawn(&mut Reducer::command(own, None, "127.0.0.1:0", &[]), &name)?;
        let Reducer { process, address } = Reducer::listening(process, &name)?;
        self.children.push(Member { name, process, is_rank: false });
        Ok(address)
    }

    /// Waits for all ranks. If one fails, the others have a moment to say what they saw of it.
    fn wait(&mut self) -> Result<Outcome, Failure> {
        const POLL: Duration = Duration::from_millis(20);
        let mut outcome = Outcome::Passed;
        let mut patience: Option<u32> = None;
        let mut failure = None;
        loop {
            let mut running = 0;
            for member in self.children.iter_mut().filter(|member| member.is_rank) {
                let status = member.process.try_wait();
                match status.map_err(Failure::system(format!("cannot wait for {}", member.name)))? {
                    None => running += 1,
                    Some(status) if status.success() => {}
                    Some(status) if status.code() == Some(crate::failure::CHECK) => outcome = Outcome::Failed,
                    Some(status) => {
                        failure.get_or_insert_with(|| Failure::Child { who: member.name.clone(), status });
                        patience = patience.or(Some(100));
                    }
                }
            }
            if running == 0 || patience == Some(0) {
                return failure.map_or(Ok(outcome), Err);
            }
            patience = patience.map(|left| left - 1);
            thread::sleep(POLL);
        }
    }
}

impl Drop for ChildProcesses {
    /// A process that has ended already is no error here.
    fn drop(&mut self) {
        for member in &mut self.children {
            let _ = member.process.kill();
        }
        for member in &mut self.children {
            let _ = member.process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_run_the_same_command_without_starting_more() {
        let args = ["herringbone", "bench", "--processes", "4", "--sizes", "4,1K", "--reducers=2", "--json"];
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        assert_eq!(child_arguments(&args), ["bench", "--sizes", "4,1K", "--json", "--child"]);
    }
}
