//! `herringbone serve`: a reducer, until SIGTERM or SIGINT.

mod notify;

use crate::failure::{Failure, RUN};
use crate::numbers::whole;
use crate::{outcome::Outcome, parent::end_with_parent, token::token_at};
use clap::builder::UnknownArgumentValueParser;
use herringbone::log::{LogFormat, set_format};
use herringbone::server::{Server, ServerOptions, ServerStats, Stop};
use herringbone::settings::{Bytes, Environment, check};
use herringbone::table::{TableGroup, TableOptions};
use herringbone::{AdminSettings, ErrorKind};
use notify::Notifier;
use rustix::process::Signal;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::convert::Infallible;
use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Run a reducer, or a server of tables
///
/// Serves all jobs that know the token, several at once, until SIGTERM or SIGINT: then its workers finish what is under way,
/// go on without it, and no operation fails. A second signal ends it at once. Workers are told by
/// HERRINGBONE_REDUCERS=ADDR:PORT,..., or this reducer goes to them with --join. It may start before or after them, and come
/// back: jobs use it from their next operation on. The token is read from --token-file, HERRINGBONE_TOKEN_FILE or
/// HERRINGBONE_TOKEN; without these it is that of the job that --join names, if that runs on this host already, as this user.
/// Without a token only loopback addresses are served.
///
/// With --tables it keeps tables, too: one process, or several, are a parameter server. All workers name them in
/// HERRINGBONE_TABLES, in the same order. A table is there until a worker drops it or its servers end. With --servers they have
/// copies of each other's ranges: if one is killed, the others go on with all that workers were told was done.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Where to listen, as ADDR:PORT; port 0 takes a free one, and the line printed says which
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDR:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Take part in the job of rank 0 at this address, or in the jobs of the reducer there; may be repeated. It is asked every
    /// two seconds, so the next job at the address gets this reducer, too
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    join: Vec<String>,
    #[command(flatten)]
    tables: TableArguments,
    /// Where to answer over HTTP how this process and its jobs stand: a live page, metrics for Prometheus, health [default:
    /// HERRINGBONE_ADMIN]
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<String>,
    /// A file with the job token
    #[arg(long, value_name = "PATH")]
    token_file: Option<String>,
    /// JSON instead of words: {"listening": "ADDR:PORT"} at the start, {"jobs", "received", "sent"} at the end
    #[arg(long)]
    json: bool,
    /// The form of log lines on standard error: text, or json, an object on each line [default: HERRINGBONE_LOG_FORMAT, else text]
    #[arg(long, value_name = "FORM")]
    log_format: Option<LogFormat>,
    /// Started by bench: ends with its parent
    #[arg(long, hide = true)]
    child: bool,
    /// What others call it
    #[arg(long, hide = true, aliases = ["host", "address", "bind"], value_parser = UnknownArgumentValueParser::suggest_arg("--listen").and_suggest("write the port behind the address: --listen 0.0.0.0:7070"))]
    port: Option<Infallible>,
    /// On a command line everybody on the machine could read it
    #[arg(long, hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("--token-file").and_suggest("everybody on this machine can read a command line: put the token into a file, or into HERRINGBONE_TOKEN"))]
    token: Option<Infallible>,
}

/// What is said of tables.
#[derive(Clone, Debug, clap::Args)]
struct TableArguments {
    /// Keep tables, too: be a part of a parameter server, which workers find by HERRINGBONE_TABLES=ADDR:PORT,...
    #[arg(long)]
    tables: bool,
    /// How much memory the tables may take up, like 8G; half of this machine's if nothing is said
    #[arg(long, value_name = "BYTES", requires = "tables")]
    memory: Option<Bytes>,
    /// After how many seconds the other workers of a table go on without one whose connection has ended; 0: never
    #[arg(long, value_name = "SECONDS", requires = "tables", default_value = "10", value_parser = seconds)]
    patience: f64,
    /// Where snapshots of tables are written, and read: a directory that all servers see
    #[arg(long, value_name = "DIR", requires = "tables")]
    data: Option<PathBuf>,
    /// All servers of tables, as workers name them in HERRINGBONE_TABLES: each keeps copies of others' ranges, and takes them over if
    /// a server is lost. The same list for all of them, in the same order
    #[arg(long, value_name = "ADDR:PORT,...", requires = "tables", value_delimiter = ',', value_parser = parse_address)]
    servers: Vec<String>,
    /// Which of --servers this one is, counted from 0; found by --listen if nothing is said
    #[arg(long, value_name = "I", requires = "servers", value_parser = whole(0..=u32::MAX))]
    place: Option<u32>,
    /// How many copies each range has beside its owner's: so many servers may be lost at once
    #[arg(long, value_name = "K", requires = "servers", default_value_t = 1, value_parser = whole(0..=u32::MAX))]
    replicas: u32,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        return Err(format!(
            "the address is missing: write 127.0.0.1:{port}, or 0.0.0.0:{port} for other hosts"
        ));
    }
    let host = text.strip_suffix(':').unwrap_or(text);
    match text.parse::<Ipv6Addr>().or_else(|_| host.parse()) {
        Ok(address) => return Err(format!("the port is missing: write [{address}]:7070")),
        Err(_) if !host.contains(':') || host.ends_with(']') => {
            return Err(format!("the port is missing: write {host}:7070"));
        }
        Err(_) => {}
    }
    let mut found =
        text.to_socket_addrs().map_err(|error| format!("{error}; write ADDR:PORT, like 0.0.0.0:7070"))?;
    found.next().ok_or_else(|| "the name has no address".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds, like 10; 0: never".to_owned()),
    }
}

/// An address that may be known only later.
fn parse_address(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Ok(text.to_owned())
        }
        _ => Err("write ADDR:PORT, like 10.0.0.1:29500".to_owned()),
    }
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    if options.child {
        end_with_parent(Signal::TERM)?;
    }
    check(&Environment::of_process())?;
    options.log_format.into_iter().for_each(set_format);
    let signals = Signals::new([SIGTERM, SIGINT]).map_err(Failure::system("cannot listen to signals"))?;
    let join = options.join.clone();
    let token = token_at(options.token_file.as_deref(), &join)?;
    let tables = options.tables.tables.then(|| table_options(options)).transpose()?;
    let server = Server::bind(ServerOptions { token, join, tables, ..ServerOptions::new(options.listen) })
        .map_err(unusable)?;
    let notifier = Notifier::of_process();
    stop_on_signals(signals, server.stop(), notifier.as_ref().and_then(|manager| manager.try_clone().ok()))?;
    show_over_http(&server, options.admin.as_deref())?;
    if !options.child {
        server.inform();
    }
    if options.json {
        writeln!(out, "{}", json!({ "listening": server.address().to_string() }))?;
    } else {
        let role = if options.tables.tables { "reducer and server of tables" } else { "reducer" };
        writeln!(out, "herringbone: {role} listening on {}", server.address())?;
    }
    out.flush()?;
    if let Some(notifier) = notifier {
        notifier.send(&format!("READY=1\nSTATUS=listening on {}", server.address()));
        notifier.follow(server.pulse()).map_err(Failure::system("cannot start a thread"))?;
    }
    server.run();
    let ServerStats { served, received, sent, .. } = server.stats();
    if options.json {
        writeln!(out, "{}", json!({ "jobs": served, "received": received, "sent": sent }))?;
    } else {
        writeln!(
            out,
            "herringbone: reducer stopped; {served} {}, {received} bytes received, {sent} bytes sent",
            if served == 1 { "job" } else { "jobs" }
        )?;
    }
    Ok(Outcome::Passed)
}

/// Answers over HTTP where an option, or the environment, says. What the environment asks for in vain is a warning.
fn show_over_http(server: &Server, admin: Option<&str>) -> Result<(), Failure> {
    let settings = AdminSettings::of(&Environment::of_process())?;
    let Some(text) = admin else {
        if let Err(error) = herringbone_admin::show(server, &settings) {
            herringbone::log::warn(&format!("reducer {}", server.address()), error);
        }
        return Ok(());
    };
    let usage = |problem| Failure::Usage { problem, hint: "write --admin ADDR:PORT, like 127.0.0.1:9464" };
    let settings =
        settings.at(text).ok_or_else(|| usage(format!("--admin {text} is no address with a port")))?;
    herringbone_admin::show(server, &settings).map_err(|error| usage(error.to_string()))
}

/// What the tables of this server may take up, and how long a worker is waited for.
fn table_options(options: &Options) -> Result<TableOptions, Failure> {
    let said = &options.tables;
    let usual = TableOptions::default();
    let memory_bytes = said.memory.map_or(usual.memory_bytes, |Bytes(bytes)| bytes as u64);
    let patience = (said.patience > 0.0).then(|| Duration::from_secs_f64(said.patience));
    let group = match (said.servers.is_empty(), said.place) {
        (true, _) => None,
        (false, Some(place)) => {
            Some(TableGroup { servers: said.servers.clone(), place, replicas: said.replicas })
        }
        (false, None) => Some(TableGroup::at(options.listen, said.servers.clone(), said.replicas)?),
    };
    let (data, transport) = (said.data.clone(), herringbone::transport_from_env()?);
    Ok(TableOptions { memory_bytes, patience, data, group, transport, optimizers: Vec::new() })
}

/// A reducer that has no token to serve others with lacks a setting.
fn unusable(error: herringbone::Error) -> Failure {
    match error.kind() {
        ErrorKind::Auth { .. } => Failure::Settings(vec![error]),
        _ => error.into(),
    }
}

/// Stops the server at the first signal, and ends the process at the second.
fn stop_on_signals(mut signals: Signals, stop: Stop, notifier: Option<Notifier>) -> Result<(), Failure> {
    let wait = move || {
        let mut arrivals = signals.forever();
        if arrivals.next().is_some() {
            notifier.iter().for_each(|notifier| notifier.send("STOPPING=1\nSTATUS=draining"));
            stop.stop();
        }
        if arrivals.next().is_some() {
            std::process::exit(RUN);
        }
    };
    let thread = thread::Builder::new().name("hb-signals".to_owned()).spawn(wait);
    thread.map(drop).map_err(Failure::system("cannot start a thread"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_is_answered_with_one() {
        for (text, meant) in [
            ("localhost", "localhost:7070"),
            ("localhost:", "localhost:7070"),
            ("10.0.0.5", "10.0.0.5:7070"),
            ("::1", "[::1]:7070"),
            ("::", "[::]:7070"),
            ("[::1]", "[::1]:7070"),
        ] {
            assert_eq!(address(text), Err(format!("the port is missing: write {meant}")));
        }
        for text in ["7075", ":7075"] {
            assert!(address(text).unwrap_err().contains("write 127.0.0.1:7075, or 0.0.0.0:7075"), "{text}");
        }
        assert_eq!(address("127.0.0.1:7"), Ok(SocketAddr::from(([127, 0, 0, 1], 7))));
        assert_eq!(address("[::1]:7"), Ok("[::1]:7".parse().unwrap()));
        assert!(address("127.0.0.1:x").unwrap_err().contains("write ADDR:PORT"));
    }
}
