//! `herringbone status`: the state of a job, from all its processes.

mod dump;
mod tables;
mod text;
mod words;

use crate::failure::{Failure, RUN};
use crate::{outcome::Outcome, token::token_at};
use dump::DumpFormat;
use herringbone::settings::{ALL, Environment};
use herringbone_admin::ask::{Asker, Round, Unanswered};
use herringbone_admin::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// The default pause of `--watch`, in seconds.
const USUAL_PAUSE: &str = "2";

/// Show a running job: members, calls, waits, reducers
///
/// Asks one member for the others, then all of them at once, and shows which are stopped or cut off. For table
/// servers it shows tables, memory, owners of ranges, slow workers and hot keys; without copies, pass all of them.
///
/// The token comes from --token-file, HERRINGBONE_TOKEN_FILE or HERRINGBONE_TOKEN, else from a member that this user
/// runs on this host. Rank 0 logs its address with HERRINGBONE_LOG=info; each rank has its own in
/// `communicator.address`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// A member of the job (the first to answer is asked), or table servers [default: HERRINGBONE_STORE, else
    /// HERRINGBONE_TABLES]
    #[arg(value_name = "ADDR:PORT", value_parser = address)]
    addresses: Vec<String>,
    /// Print one JSON object; with --watch one per line
    #[arg(long)]
    json: bool,
    /// Repeat until Ctrl-C, every 2 seconds or SECONDS, even if no process answers; a process that refuses ends it
    #[arg(
        long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = USUAL_PAUSE,
        value_parser = seconds
    )]
    watch: Option<Duration>,
    /// Write the last calls of each member into files in this folder, and show nothing else
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "watch"])]
    dump: Option<PathBuf>,
    /// Form of the files of --dump
    #[arg(long, value_enum, default_value_t, requires = "dump")]
    format: DumpFormat,
    /// File with the job token
    #[arg(long, value_name = "PATH")]
    token_file: Option<String>,
}

fn address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let is_bare = host.contains(':') && !host.starts_with('[');
    match port.parse::<u16>() {
        Ok(1..) if !host.is_empty() && !is_bare => Ok(text.to_owned()),
        _ => Err("write a host and a port, like 10.0.0.1:29400 or [fe80::1]:29400".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds @ 0.1..=86_400.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("write seconds from 0.1 to 86400".to_owned()),
    }
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let addresses =
        if options.addresses.is_empty() { environment_addresses()? } else { options.addresses.clone() };
    let token = || token_at(options.token_file.as_deref(), &addresses);
    let mut asker = Asker::new(addresses.clone(), token()?);
    if let Some(folder) = &options.dump {
        let round = asked(asker.ask_all(false))?;
        if let Some(unanswered) = round.unanswered() {
            return Err(unanswered.into());
        }
        dump::run(&round, token()?.as_deref(), folder, options.format, out)?;
        return Ok(Outcome::Passed);
    }
    let Some(pause) = options.watch else {
        let round = asked(asker.ask_all(true))?;
        if let Some(unanswered) = round.unanswered() {
            return Err(unanswered.into());
        }
        show(&round, options.json, false, out)?;
        return Ok(Outcome::Passed);
    };
    end_well_on_signals()?;
    let redraws = !options.json && stdout().is_terminal();
    loop {
        let began = Instant::now();
        let round = asked(asker.ask_all(false))?;
        if let Some(unanswered) = round.unanswered() {
            // A new process at this address might have another token.
            let has_new_token = asker.set_token(token()?);
            if round.is_refused() && !has_new_token {
                return Err(unanswered.into());
            }
        }
        show(&round, options.json, redraws, out)?;
        if !redraws && !options.json {
            writeln!(out)?;
        }
        out.flush()?;
        thread::sleep(pause.saturating_sub(began.elapsed()));
    }
}

fn asked(round: io::Result<Round>) -> Result<Round, Failure> {
    round.map_err(Failure::system("cannot start a thread"))
}

impl From<Unanswered> for Failure {
    fn from(Unanswered { problem, hint }: Unanswered) -> Self {
        Self::Unanswered { problem, hint }
    }
}

/// The address of rank 0 from the environment, or else the addresses of table servers.
fn environment_addresses() -> Result<Vec<String>, Failure> {
    let store = ALL.iter().find(|setting| setting.name == "HERRINGBONE_STORE");
    let found = store.map(|setting| setting.find(&Environment::of_process())).transpose()?.flatten();
    let found = found.filter(|found| address(&found.text).is_ok());
    if let Some(found) = found {
        return Ok(vec![found.text]);
    }
    let servers = herringbone::table::servers_from_env()?;
    if servers.is_empty() {
        return Err(Failure::Usage {
            problem: "no address given".to_owned(),
            hint: "pass a member's ADDR:PORT, or set HERRINGBONE_STORE; rank 0 logs its own with HERRINGBONE_LOG=info. For tables pass the \
                   address that `herringbone serve --tables` printed, or set HERRINGBONE_TABLES as for the workers",
        });
    }
    Ok(servers)
}

fn show(round: &Round, json: bool, redraws: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let shown = if json { format!("{}\n", json::object(round)) } else { text::page(round) };
    // The cursor goes home, and what was there before goes.
    let before = if redraws { "\x1b[H\x1b[2J" } else { "" };
    write!(out, "{before}{shown}")?;
    Ok(out.flush()?)
}

/// Ends the process at the first signal, which is the normal end of `--watch`.
fn end_well_on_signals() -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::system("cannot listen to signals"))?;
    let wait = move || {
        let code = if signals.forever().next().is_some() { 0 } else { RUN };
        std::process::exit(code);
    };
    let thread = thread::Builder::new().name("hb-signals".to_owned()).spawn(wait);
    thread.map(drop).map_err(Failure::system("cannot start a thread"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for right in ["10.0.0.5:7070", "worker-1.example:1", "[::1]:7070"] {
            assert_eq!(address(right).as_deref(), Ok(right));
        }
        for wrong in ["", "7070", ":7070", "localhost", "localhost:", "host:0", "host:70700", "::1:7070"] {
            assert!(address(wrong).unwrap_err().contains("10.0.0.1:29400"), "{wrong}");
        }
    }

    #[test]
    fn a_pause_is_not_without_end() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "inf", "NaN", "1e9", "soon"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
