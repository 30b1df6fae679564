//! Ranks on this machine: threads of this process, or processes of their own with reducers.

use crate::{failure::Failure, outcome::Outcome};
use herringbone::{Communicator, Config, Rendezvous};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// The job that the environment describes.
pub(super) fn job() -> Result<Config, Failure> {
    if ["WORLD_SIZE", "HERRINGBONE_WORLD_SIZE"].iter().all(|name| std::env::var_os(name).is_none()) {
        return Err(Failure::Usage {
            problem: "no job: WORLD_SIZE is not set".to_owned(),
            hint: "start it with torchrun, or add --processes 4 or --local 4 to run on this machine alone",
        });
    }
    Ok(Config::from_env()?)
}

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
    let mut family = Family { children: Vec::new() };
    let launcher = launcher(args);
    let reducers =
        (0..reducers).map(|_| family.reducer(&launcher)).collect::<Result<Vec<String>, Failure>>()?;
    let port = free_port()?;
    for rank in 0..ranks {
        let mut command = command(&launcher);
        command.args(child_arguments(args));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
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
        family.start(format!("rank {rank}"), &mut command, true)?;
    }
    family.wait()
}

/// What to start this command again by: whatever stands before `args` in this process's own command line, which is
/// the binary, or Python with the script that called.
fn launcher(args: &[OsString]) -> Vec<OsString> {
    let own: Vec<OsString> = std::env::args_os().collect();
    let words = own.len().saturating_sub(args.len().saturating_sub(1));
    match (words, std::env::current_exe()) {
        (1, Ok(binary)) => vec![binary.into()],
        _ => own[..words].to_vec(),
    }
}

fn command(launcher: &[OsString]) -> Command {
    let (program, first) =
        launcher.split_first().map_or((OsStr::new("herringbone"), &[][..]), |(p, f)| (p, f));
    let mut command = Command::new(program);
    command.args(first).stdin(Stdio::null());
    command
}

/// The arguments without those that ask for processes, and with the mark of a child.
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

/// A port that was free a moment ago; rank 0 listens there.
fn free_port() -> Result<u16, Failure> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(Failure::system("cannot find a free port on 127.0.0.1"))
}

struct Member {
    name: String,
    process: Child,
    is_rank: bool,
}

/// The processes that were started; none outlives it.
struct Family {
    children: Vec<Member>,
}

impl Family {
    fn start(&mut self, name: String, command: &mut Command, is_rank: bool) -> Result<&mut Child, Failure> {
        let process = command.spawn().map_err(Failure::system(format!(
            "cannot start {name} as `{}`",
            command.get_program().to_string_lossy()
        )))?;
        self.children.push(Member { name, process, is_rank });
        let last = self.children.len() - 1;
        Ok(&mut self.children[last].process)
    }

    /// Starts a reducer and returns its address.
    fn reducer(&mut self, launcher: &[OsString]) -> Result<String, Failure> {
        let name = format!("reducer {}", self.children.len());
        let mut command = command(launcher);
        command.args(["serve", "--listen", "127.0.0.1:0", "--json", "--child"]).stdout(Stdio::piped());
        let process = self.start(name.clone(), &mut command, false)?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(Failure::system(format!("cannot read {name}'s address")))?;
        }
        match serde_json::from_str::<serde_json::Value>(&line)
            .map(|value| value["listening"].as_str().map(str::to_owned))
        {
            Ok(Some(address)) => Ok(address),
            _ => {
                let status = process.wait().map_err(Failure::system(format!("cannot wait for {name}")))?;
                Err(Failure::Child { who: name, status })
            }
        }
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

impl Drop for Family {
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
