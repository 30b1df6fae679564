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
use indicatif::HumanBytes;
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

/// Run a reducer, or a table server
///
/// Serves all jobs that know the token until SIGTERM or SIGINT. Then its workers finish the operations in flight and
/// continue without it; no operation fails. A second signal ends it at once. Workers find it by
/// HERRINGBONE_REDUCERS=ADDR:PORT,..., or it goes to them with --join. It can start before or after them, and come
/// back: jobs use it from their next operation on.
///
/// The token comes from --token-file, HERRINGBONE_TOKEN_FILE or HERRINGBONE_TOKEN, else from the job of --join if
/// that already runs on this host as this user. Without a token only loopback addresses are served.
///
/// With --tables it is also a table server. All workers name all servers in HERRINGBONE_TABLES, in the same order. A
/// table exists until a worker drops it or its servers end. With --servers, if one is killed, the others continue
/// with everything that workers were told was done.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Where to listen; port 0 takes a free port, which the first line shows
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDR:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Join the job of rank 0 at this address, or the jobs of the reducer there; can be repeated. Asks every two
    /// seconds, so that it also joins later jobs there
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    join: Vec<String>,
    #[command(flatten)]
    tables: TableArguments,
    /// Where to serve a live page, metrics for Prometheus and health over HTTP [default: HERRINGBONE_ADMIN]
    #[arg(long, value_name = "ADDR:PORT")]
    admin: Option<String>,
    /// File with the job token
    #[arg(long, value_name = "PATH")]
    token_file: Option<String>,
    /// Print JSON: {"listening": "ADDR:PORT"} at the start, {"jobs", "received", "sent"} at the end
    #[arg(long)]
    json: bool,
    /// Form of log lines on standard error: text, or json, one object per line [default: HERRINGBONE_LOG_FORMAT, else
    /// text]
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

/// Options of tables.
#[derive(Clone, Debug, clap::Args)]
struct TableArguments {
    /// Keep tables, too, for workers that name this server in HERRINGBONE_TABLES=ADDR:PORT,...
    #[arg(long)]
    tables: bool,
    /// Most memory for tables, like 8G [default: half of this machine's]
    #[arg(long, value_name = "BYTES", requires = "tables")]
    memory: Option<Bytes>,
    /// Seconds until the other workers of a table continue without one whose connection has ended; 0: never
    #[arg(long, value_name = "SECONDS", requires = "tables", default_value = "10", value_parser = seconds)]
    patience: f64,
    /// Folder for snapshots of tables, which all servers see
    #[arg(long, value_name = "DIR", requires = "tables")]
    data: Option<PathBuf>,
    /// All table servers, in the order of HERRINGBONE_TABLES: they keep copies of each other's ranges, and take over
    /// if one is lost
    #[arg(long, value_name = "ADDR:PORT,...", requires = "tables", value_delimiter = ',', value_parser = parse_address)]
    servers: Vec<String>,
    /// Position of this server in --servers, from 0 [default: found by --listen]
    #[arg(long, value_name = "I", requires = "servers", value_parser = whole(0..=u32::MAX))]
    place: Option<u32>,
    /// Copies of each range besides its owner's: this many servers can be lost at once
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
    found.next().ok_or_else(|| "the host name has no address".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds, like 10; 0: never".to_owned()),
    }
}

/// An address that is looked up later.
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
        let role = if options.tables.tables { "reducer and table server" } else { "reducer" };
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
            "herringbone: reducer stopped; {served} {}, {} received, {} sent",
            if served == 1 { "job" } else { "jobs" },
            HumanBytes(received),
            HumanBytes(sent)
        )?;
    }
    Ok(Outcome::Passed)
}

/// Answers over HTTP at the address of an option or the environment. If the environment's address fails, a warning follows.
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
        settings.at(text).ok_or_else(|| usage(format!("--admin {text} is not an address with a port")))?;
    herringbone_admin::show(server, &settings).map_err(|error| usage(error.to_string()))
}

/// The memory limit of this server's tables, and how long it waits for a worker.
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
