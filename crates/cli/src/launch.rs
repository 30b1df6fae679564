//! `herringbone launch`: a program as several ranks of this machine.

mod carried;
mod draws;
mod ends;
mod lines;
mod processes;
mod program;
mod progress_files;
mod restarter;
mod restarts;

pub use restarter::Restarter;
pub use restarts::RankDecision;

use crate::numbers::whole;
use crate::parent::{HeldPorts, OwnCommand, end_with_parent};
use crate::{failure::Failure, outcome::Outcome};
use herringbone::AdminSettings;
use herringbone::log::LogFormat;
use herringbone::settings::Environment;
use processes::Processes;
use progress_files::PROGRESS_FILE;
use rustix::process::{Pid, Signal, getppid};
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Start a program as several ranks of this machine
///
/// Ranks get RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, for programs without
/// torch, HERRINGBONE_STORE. PYTHONUNBUFFERED and, with several ranks, OMP_NUM_THREADS default to 1.
/// HERRINGBONE_TOKEN defaults to a token drawn for this job, unless HERRINGBONE_TOKEN_FILE, HERRINGBONE_REDUCERS or
/// HERRINGBONE_TABLES is set. Each line of output begins with the rank.
///
/// With --max-attempts K a failed rank restarts alone, with the same environment and DMLC_NUM_ATTEMPT, the number of
/// the start from 0. The others get an error and take the new process in with `replace()`. A rank that fails K times
/// without progress ends the job. Progress is a new number in the file HERRINGBONE_PROGRESS_FILE, such as the last
/// checkpoint; programs with RABIT's interface write it themselves.
///
/// If a rank ends the job, the others have 2 seconds to report it, then get SIGTERM, and SIGKILL 30 seconds later.
/// SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on; a second one of the first four kills
/// the ranks. Reducers and table servers end after the ranks.
///
/// The exit code is that of the first rank to fail, or 128 plus the number of the signal that ended it.
#[derive(Clone, Debug, clap::Args)]
#[command(override_usage = "herringbone launch -n N [OPTIONS] -- COMMAND...")]
pub(crate) struct Options {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = ranks, required_unless_present = "child")]
    ranks: Option<u32>,
    /// Also start M reducers, and send all-reduces through them unless HERRINGBONE_ALGORITHM is set
    #[arg(long, value_name = "M", value_parser = whole(1..=256))]
    reducers: Option<u32>,
    /// Also start M table servers, for programs with a ParameterServer
    #[arg(long, value_name = "M", value_parser = whole(1..=256))]
    tables: Option<u32>,
    /// Copies of each range of a table on other servers; 0: a server that dies loses its data
    #[arg(long, value_name = "K", requires = "tables", default_value_t = 0, value_parser = whole(0..=255))]
    replicas: u32,
    /// Folder where servers write tables, as serve's --data; a later job whose program calls `restore` continues with
    /// them
    #[arg(long, value_name = "DIR", requires = "tables")]
    tables_data: Option<String>,
    /// How many starts of a rank without success or progress end the job; 1: the first failure ends it
    #[arg(long, value_name = "K", value_parser = whole(1..=u32::MAX), default_value_t = 1)]
    max_attempts: u32,
    /// Run a program that asks torch.distributed for this backend on Herringbone, without edits
    #[arg(long, value_name = "BACKEND", value_parser = ["gloo"])]
    replace: Option<String>,
    /// Form of log lines on standard error: text, or json, one object per line without the rank [default:
    /// HERRINGBONE_LOG_FORMAT, else text]
    #[arg(long, value_name = "FORM")]
    log_format: Option<LogFormat>,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
    /// Started by launch, which has this process number: becomes the program, and ends with its parent
    #[arg(long, hide = true, value_name = "PID")]
    child: Option<i32>,
}

fn ranks(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(ranks @ 1..=1024) => Ok(ranks),
        _ => Err("write how many ranks to start, from 1 to 1024, like 4".to_owned()),
    }
}

pub(crate) fn run(options: &Options, args: &[OsString]) -> Result<Outcome, Failure> {
    let Some((program, arguments)) = options.command.split_first() else {
        return Err(Failure::Usage {
            problem: "the command to start is missing".to_owned(),
            hint: "write it at the end, as in `herringbone launch -n 4 -- python train.py`",
        });
    };
    if let Some(parent) = options.child {
        return Err(exec_program(parent, Command::new(program).args(arguments)));
    }
    program::check(program)?;
    let ranks = options.ranks.unwrap_or(1);
    let own = OwnCommand::before(args);
    // Each rank takes three, and inherits the limit.
    herringbone::raise_limit_of_descriptors();
    let signals = processes::Signals::listen()?;
    let restarter = Restarter::new(ranks as usize, options.max_attempts)
        .map_err(Failure::system("cannot prepare to start ranks again"))?;
    let mut processes = Processes::new(restarter, log_format(options));
    processes.leave_pages(AdminSettings::of(&Environment::of_process())?, ranks);
    // One for torch's store and one for ours, because a program can use both; the others are for a group of servers.
    let ports = HeldPorts::draw(2 + options.tables.filter(|_| options.replicas > 0).unwrap_or(0))?;
    let common = common(options, ranks, &ports.numbers, &own, &mut processes)?;
    for rank in 0..ranks {
        let mut command = own.command();
        command.args(["launch", "--child", &std::process::id().to_string(), "--"]).args(&options.command);
        for (name, _) in env::vars_os().filter(|(name, _)| is_of_another_job(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command.envs(common.iter().map(|(name, value)| (name, value)));
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        processes.start_rank(command)?;
    }
    processes.run(&signals)
}

/// Becomes the program, and returns only if that cannot be.
fn exec_program(parent: i32, command: &mut Command) -> Failure {
    if let Err(failure) = end_with_parent(Signal::KILL) {
        return failure;
    }
    if let Err(error) = processes::await_watch() {
        return Failure::system("cannot wait for the launcher")(error);
    }
    if getppid() != Pid::from_raw(parent) {
        // The parent has ended before the kernel was asked to tell.
        std::process::exit(crate::failure::RUN);
    }
    let program = command.get_program().to_string_lossy().into_owned();
    Failure::system(format!("cannot start `{program}`"))(command.stdin(Stdio::null()).exec())
}

/// The environment of all ranks; starts the reducers that it names.
fn common(
    options: &Options,
    ranks: u32,
    ports: &[u16],
    own: &OwnCommand,
    processes: &mut Processes,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let address = |port: &u16| format!("127.0.0.1:{port}");
    let mut set = Vec::new();
    let is_unset = |name: &str| env::var_os(name).is_none_or(|value| value.is_empty());
    // Reducers that run already could not know one that is drawn here.
    let meets_reducers = options.reducers.is_none() && !is_unset("HERRINGBONE_REDUCERS");
    let meets_others = meets_reducers || options.tables.is_none() && !is_unset("HERRINGBONE_TABLES");
    let token = match is_unset("HERRINGBONE_TOKEN") && is_unset("HERRINGBONE_TOKEN_FILE") && !meets_others {
        true => Some(drawn_token()?),
        false => None,
    };
    if let Some(tables) = options.tables {
        let mut more = vec!["--tables"];
        more.extend(options.tables_data.iter().flat_map(|folder| ["--data", folder]));
        let addresses = match options.replicas {
            0 => processes.start_reducers(tables, own, token.as_deref(), &more)?,
            replicas => {
                let addresses: Vec<String> = ports[2..].iter().map(address).collect();
                let (all, replicas) = (addresses.join(","), replicas.to_string());
                // They have to know all addresses, because they have copies of each other's ranges.
                more.extend(["--servers", &all, "--replicas", &replicas]);
                for address in &addresses {
                    processes.start_reducer(own, token.as_deref(), address, &more)?;
                }
                all
            }
        };
        set.push(("HERRINGBONE_TABLES", addresses));
    }
    if let Some(reducers) = options.reducers {
        let addresses = processes.start_reducers(reducers, own, token.as_deref(), &[])?;
        set.push(("HERRINGBONE_REDUCERS", addresses));
        // On one host nothing else would make them worth using.
        if is_unset("HERRINGBONE_ALGORITHM") {
            set.push(("HERRINGBONE_ALGORITHM", "reduction_server".to_owned()));
        }
    }
    set.extend(token.map(|token| ("HERRINGBONE_TOKEN", token)));
    set.extend(options.replace.clone().map(|backend| ("HERRINGBONE_REPLACE", backend)));
    set.extend(options.log_format.map(|format| (LOG_FORMAT, format.to_string())));
    set.push(("MASTER_ADDR", "127.0.0.1".to_owned()));
    set.push(("MASTER_PORT", ports[0].to_string()));
    set.push(("HERRINGBONE_STORE", address(&ports[1])));
    if is_unset("HERRINGBONE_JOB") {
        set.push(("HERRINGBONE_JOB", drawn_token()?[..16].to_owned()));
    }
    set.push(("WORLD_SIZE", ranks.to_string()));
    set.push(("LOCAL_WORLD_SIZE", ranks.to_string()));
    // A pipe is no terminal: without it Python keeps lines back, and loses them if it is killed.
    let unless_set = [("OMP_NUM_THREADS", ranks > 1), ("PYTHONUNBUFFERED", true)];
    let wanted = unless_set.into_iter().filter(|(name, wanted)| *wanted && env::var_os(name).is_none());
    set.extend(wanted.map(|(name, _)| (name, "1".to_owned())));
    Ok(set)
}

const LOG_FORMAT: &str = "HERRINGBONE_LOG_FORMAT";

/// The form of the lines of all processes.
fn log_format(options: &Options) -> LogFormat {
    // Ranks refuse a name that is none.
    let set = || env::var(LOG_FORMAT).ok()?.parse().ok();
    options.log_format.or_else(set).unwrap_or_default()
}

fn drawn_token() -> Result<String, Failure> {
    draws::random_token().map_err(Failure::system("cannot draw a random number"))
}

/// Whether a variable tells of a place in a job that this command might itself be a process of.
fn is_of_another_job(name: &str) -> bool {
    const PLACES: [&str; 8] = [
        "HERRINGBONE_RANK",
        "HERRINGBONE_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        PROGRESS_FILE,
    ];
    name.starts_with("TORCHELASTIC_") || PLACES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_ranks_are_checked() {
        assert_eq!(ranks("4"), Ok(4));
        for text in ["0", "-1", "1025", "four", ""] {
            assert!(ranks(text).unwrap_err().contains("from 1 to 1024, like 4"), "{text}");
        }
    }

    #[test]
    fn variables_of_an_outer_job_do_not_reach_the_ranks() {
        for name in ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "GROUP_RANK", "HERRINGBONE_RANK"]
        {
            assert!(is_of_another_job(name), "{name}");
        }
        for name in ["PATH", "RANKS", "HERRINGBONE_TOKEN"] {
            assert!(!is_of_another_job(name), "{name}");
        }
    }
}
