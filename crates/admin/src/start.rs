//! Starts the pages of a process with its first communicator or its server.

use crate::files;
use crate::http::gate::{Gate, is_same};
use crate::http::listener;
use crate::outlook::Outlook;
use crate::pages::AdminPages;
use herringbone::log::{note, warn};
use herringbone::server::Server;
use herringbone::settings::Environment;
use herringbone::{AdminSettings, Communicator, JobView};
use herringbone_sys::fork;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::Duration;

/// The shortest token with which other hosts get answers.
const TOKEN_CHARACTERS: usize = 16;
/// How often the lock is tried: another thread might have held it when this process was forked.
const TRIES: u32 = 100;

/// Why no request gets an answer over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminError(String);

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AdminError {}

/// The state that this process shows, and the generation of processes in which it began.
struct Shown {
    generation: u64,
    outlook: Arc<Outlook>,
    listens: bool,
}

static SHOWN: Mutex<Option<Shown>> = Mutex::new(None);

/// Shows the state of this process in a job at the address in `HERRINGBONE_ADMIN` until the process ends. Later jobs that it attaches
/// are shown at the same address. The communicator is not kept. If the address cannot be used, a warning gives the reason, and the
/// job continues.
pub fn attach(communicator: &Communicator) {
    // A value that makes no sense has failed the call that formed the job.
    let Ok(settings) = AdminSettings::of(&Environment::of_process()) else { return };
    if settings.listen.is_none() && settings.files.is_none() {
        return;
    }
    let view = JobView::of(communicator);

    let (rank, local_rank) = (view.place().rank, view.place().local_rank);
    let who = format!("rank {rank}");
    let token = view.token().map(str::to_owned);
    let begun = with_shown(|shown| {
        let place = view.place();
        let peers =
            place.roster.members().iter().map(|member| (member.id, place.roster.name(member.id))).collect();
        if shown.outlook.add(view) {
            // It listens until the job is over.
            let _listener = communicator.listen(shown.outlook.events().listener(peers));
        }
        if rank == 0 {
            // Without a thread there is no history.
            let _started = shown.outlook.watch().start();
        }
        shown.outlook.watch().job_begins();
        if std::mem::replace(&mut shown.listens, true) {
            return Ok(());
        }
        write_files(&shown.outlook, &settings, &who)?;
        listen(&shown.outlook, &settings, local_rank, token.as_deref(), &who)
    });
    if let Err(error) = begun {
        warn(&who, error);
    }
}

/// Shows the state of a server at the address in the settings, until the process ends.
///
/// # Errors
/// If this process cannot listen there, or the token is missing or too short.
pub fn show(server: &Server, settings: &AdminSettings) -> Result<(), AdminError> {
    if settings.listen.is_none() && settings.files.is_none() {
        return Ok(());
    }
    let view = server.view();
    let token = view.token().map(str::to_owned);
    let who = format!("reducer {}", server.address());
    with_shown(|shown| {
        let counts = shown.outlook.events().clone();
        view.listen(move |_| counts.reducer_listener());
        shown.outlook.set_server(view);
        if std::mem::replace(&mut shown.listens, true) {
            return Ok(());
        }
        write_files(&shown.outlook, settings, &who)?;
        listen(&shown.outlook, settings, 0, token.as_deref(), &who)?;
        let _started = shown.outlook.watch().start();
        Ok(())
    })
}

/// Does something with what this process shows.
fn with_shown(does: impl FnOnce(&mut Shown) -> Result<(), AdminError>) -> Result<(), AdminError> {
    for _ in 0..TRIES {
        let mut shown = match SHOWN.try_lock() {
            Ok(shown) => shown,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        // A forked child has none of its parent's threads, nor its listener.
        let generation = fork::generation();
        if shown.as_ref().is_some_and(|shown| shown.generation != generation) {
            std::mem::forget(shown.take());
        }
        let shown =
            shown.get_or_insert_with(|| Shown { generation, outlook: Outlook::new(), listens: false });
        return does(shown);
    }
    Err(AdminError(
        "another thread of the parent was starting the pages when this process was forked".to_owned(),
    ))
}

/// Begins to write files, if a directory is named.
fn write_files(outlook: &Arc<Outlook>, settings: &AdminSettings, who: &str) -> Result<(), AdminError> {
    let Some(directory) = &settings.files else { return Ok(()) };
    files::write(outlook, directory, who.to_owned())
        .map_err(|error| AdminError(format!("HERRINGBONE_METRICS_FILE: cannot start a thread: {error}")))
}

/// Begins to listen, and logs the address.
fn listen(
    outlook: &Arc<Outlook>,
    settings: &AdminSettings,
    local_rank: u32,
    job_token: Option<&str>,
    who: &str,
) -> Result<(), AdminError> {
    let Some((host, port)) = &settings.listen else { return Ok(()) };
    let failed = |what: fmt::Arguments<'_>| {
        AdminError(format!("HERRINGBONE_ADMIN: {what}; metrics and the live page are not served"))
    };
    let port = match port {
        0 => 0,
        port => u16::try_from(u32::from(*port) + local_rank)
            .map_err(|_| failed(format_args!("port {port} + local rank {local_rank} is above 65535")))?,
    };
    let mut found =
        (host.as_str(), port).to_socket_addrs().map_err(|error| failed(format_args!("{host}: {error}")))?;
    let address = found.next().ok_or_else(|| failed(format_args!("{host} has no address")))?;
    check_token(address, settings.token.as_deref(), job_token)
        .map_err(|problem| failed(format_args!("{problem}")))?;
    let own = rustix::system::uname();
    let gate = Gate::new(&own.nodename().to_string_lossy(), host, settings.token.clone());
    let pages = Arc::new(AdminPages { outlook: outlook.clone() });
    let address =
        listener::serve(address, gate, pages).map_err(|error| failed(format_args!("{address}: {error}")))?;
    note(who, format_args!("live page and metrics at http://{address}/"));
    Ok(())
}

/// Checks that only authorized clients can see the pages at an address.
fn check_token(address: SocketAddr, token: Option<&str>, job_token: Option<&str>) -> Result<(), String> {
    if let (Some(token), Some(job)) = (token, job_token)
        && is_same(token.as_bytes(), job.as_bytes())
    {
        return Err("HERRINGBONE_ADMIN_TOKEN is the job's token, which must not travel over plain HTTP: set a different text".to_owned());
    }
    if address.ip().is_loopback() {
        return Ok(());
    }
    let example = "for instance HERRINGBONE_ADMIN_TOKEN=$(openssl rand -hex 32)";
    match token.map(|token| token.chars().count()) {
        None => Err(format!("{} is not loopback: set HERRINGBONE_ADMIN_TOKEN, {example}", address.ip())),
        Some(count) if count < TOKEN_CHARACTERS => Err(format!(
            "{} is not loopback, and HERRINGBONE_ADMIN_TOKEN has fewer than {TOKEN_CHARACTERS} characters, so others could guess it: set \
             a longer one, {example}",
            address.ip()
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_hosts_are_answered_with_a_token_of_its_own_alone() {
        let check = |address: &str, token, job| check_token(address.parse().unwrap(), token, job);
        let (long, job) = (Some("0123456789abcdef"), Some("the token of the job"));
        for loopback in ["127.0.0.1:1", "[::1]:1"] {
            assert_eq!(check(loopback, None, job), Ok(()));
            assert_eq!(check(loopback, Some("short"), job), Ok(()));
            assert!(check(loopback, job, job).unwrap_err().contains("plain HTTP"));
        }
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            assert_eq!(check(open, long, job), Ok(()));
            assert_eq!(check(open, long, None), Ok(()));
            assert!(check(open, None, job).unwrap_err().contains("openssl"));
            assert!(check(open, Some("0123456789abcde"), None).unwrap_err().contains("16 characters"));
        }
    }
}
