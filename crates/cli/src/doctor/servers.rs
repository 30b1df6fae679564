//! Calls to the reducers and table servers that the settings name.

use super::finding::{Finding, Remedy, Severity, shell_word};
use super::network::{host_of, port_of};
use super::within::{TimedQuestion, answers};
use herringbone::is_own_address;
use herringbone::status::{Activity, AskError, Clocks, Role, ask, ask_clock};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// How many times each is asked, for the median of its round trips.
const TIMES: usize = 5;
/// How long one server can take for all of them.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long all of them can take, the look-up of names included.
const WITHIN: Duration = Duration::from_secs(4);
/// How many are called: each needs a thread.
const MOST: usize = 256;

/// A kind of server, and the setting that lists a job's servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// `is_forced`: whether a job waits for all of them, since `HERRINGBONE_ALGORITHM` needs them.
    Reducer {
        is_forced: bool,
    },
    Tables,
}

impl ServerKind {
    fn check(self) -> &'static str {
        if self == ServerKind::Tables { "table server" } else { "reducer" }
    }

    fn setting(self) -> &'static str {
        if self == ServerKind::Tables { "HERRINGBONE_TABLES" } else { "HERRINGBONE_REDUCERS" }
    }

    /// The effect on a job if this server cannot be used.
    fn finding(self, says: String, remedy: Remedy) -> Finding {
        match self {
            ServerKind::Reducer { is_forced: false } => {
                Finding::warning(self.check(), format!("{says}; jobs start without it"), remedy)
            }
            ServerKind::Reducer { is_forced: true } => {
                let says = format!("{says}; HERRINGBONE_ALGORITHM needs it");
                Finding::wrong(self.check(), says, remedy)
            }
            ServerKind::Tables => Finding::wrong(self.check(), says, remedy),
        }
    }

    /// How such a server is started.
    fn serve(self, address: &str, is_here: bool) -> String {
        let listen = match port_of(address) {
            Some(port) if !is_here => format!("0.0.0.0:{port}"),
            _ => shell_word(address),
        };
        let tables = if self == ServerKind::Tables { " --tables" } else { "" };
        format!("herringbone serve --listen {listen}{tables}")
    }
}

/// What a server has said.
#[derive(Debug)]
struct Heard {
    clocks: Clocks,
    keeps_tables: bool,
    /// Whether other table servers have copies of its rows.
    has_copies: bool,
}

type Answer = Result<Heard, AskError>;

/// A finding for each address. All are called at once.
pub(super) fn check(kind: ServerKind, addresses: &[String], token: Option<&str>) -> Vec<Finding> {
    let called = &addresses[..addresses.len().min(MOST)];
    let questions = called.iter().map(|address| {
        let (address, token) = (address.clone(), token.map(str::to_owned));
        let question: TimedQuestion<Answer> = Box::new(move || call(kind, &address, token.as_deref()));
        question
    });
    let heard = answers(questions, WITHIN);
    let have_copies =
        heard.iter().flatten().any(|answer| answer.as_ref().is_ok_and(|heard| heard.has_copies));
    let mut lives = BTreeMap::new();
    let mut findings: Vec<Finding> = called
        .iter()
        .zip(heard)
        .map(|(address, answer)| {
            let life = match &answer {
                Some(Ok(heard)) => Some(heard.clocks.identity.incarnation),
                _ => None,
            };
            let first = life.and_then(|life| lives.insert(life, address.clone()));
            match first {
                Some(first) => twice(kind, address, &first),
                None => {
                    let is_spared = have_copies && is_away(answer.as_ref());
                    let finding = judge(kind, address, is_here(address), answer);
                    if is_spared { spared(finding) } else { finding }
                }
            }
        })
        .collect();
    if called.len() < addresses.len() {
        let says = format!(
            "{} lists {} servers; only the first {MOST} were called",
            kind.setting(),
            addresses.len()
        );
        findings.push(Finding::ok(kind.check(), says));
    }
    findings
}

fn call(kind: ServerKind, address: &str, token: Option<&str>) -> Answer {
    let clocks = ask_clock(address, token, None, TIMES, PATIENCE)?;
    let tables = match kind {
        ServerKind::Tables => match ask(address, token, None, PATIENCE)?.status.activity {
            Activity::Serves { tables, .. } => tables,
            _ => None,
        },
        ServerKind::Reducer { .. } => None,
    };
    let has_copies = tables.as_ref().is_some_and(|tables| tables.servers.len() > 1 && tables.replicas > 0);
    Ok(Heard { clocks, keeps_tables: tables.is_some(), has_copies })
}

/// Whether nothing has answered, so that a table server might be down. Any answer but its own is of something else.
fn is_away(answer: Option<&Answer>) -> bool {
    matches!(answer, None | Some(Err(AskError::Absent(_) | AskError::Silent(_))))
}

/// The finding for a table server that is away while one that has copies answers: workers begin with the remaining servers.
fn spared(finding: Finding) -> Finding {
    let says = format!("{}; jobs start without it if another server has copies of its rows", finding.says);
    Finding { level: Severity::Warning, says, ..finding }
}

/// Whether an address is written as one of this host's.
fn is_here(address: &str) -> bool {
    match host_of(address) {
        "localhost" => true,
        host => host.parse::<IpAddr>().is_ok_and(|host| is_own_address(host).unwrap_or(false)),
    }
}

fn twice(kind: ServerKind, address: &str, first: &str) -> Finding {
    let says = format!("{address} and {first} are the same process");
    kind.finding(says, Remedy::new("list it once", settings_of(kind)))
}

fn settings_of(kind: ServerKind) -> String {
    format!("herringbone settings {}", kind.setting().trim_start_matches("HERRINGBONE_"))
}

/// What to say of a server that has answered so, or not at all.
fn judge(kind: ServerKind, address: &str, is_here: bool, answer: Option<Answer>) -> Finding {
    let (what, port) = (kind.check(), port_of(address).unwrap_or(0));
    let listeners = format!("ss -ltnp 'sport = :{port}'");
    let shows = |prose: &str| match is_here {
        true => Remedy::new(prose, listeners.clone()),
        false => Remedy::new(format!("{prose}; run this on its host"), listeners.clone()),
    };
    match answer {
        Some(Ok(heard)) => answered(kind, address, is_here, &heard),
        None => kind.finding(
            format!("{address} was not reached within {} s: the look-up of its name or the network is slow", WITHIN.as_secs()),
            Remedy::new("try the look-up of the name", format!("getent hosts {}", shell_word(host_of(address)))),
        ),
        Some(Err(AskError::Silent(after))) => kind.finding(
            format!(
                "{address} does not answer within {} s: it is stopped, another program listens there, or a firewall drops packets",
                after.as_secs()
            ),
            shows("check which process listens there and whether it runs; end or continue it, or open the port"),
        ),
        Some(Err(AskError::Absent(error))) => absent(kind, address, is_here, &error),
        Some(Err(AskError::Closed)) => kind.finding(
            format!("{address} closes the connection without an answer: another program listens there, or it is ending"),
            shows("check which program listens there, then correct the address or restart the server"),
        ),
        Some(Err(AskError::Token(why))) => kind.finding(
            format!("{address} rejects this token: {why}"),
            Remedy::new(
                format!("set the token that the {what} was started with; this shows whether one is set here"),
                "herringbone settings TOKEN TOKEN_FILE",
            ),
        ),
        Some(Err(AskError::Release(why))) => kind.finding(
            format!("{address} runs another release: {why}"),
            Remedy::new("install the same release on both hosts; this one is", "herringbone --version"),
        ),
        Some(Err(error)) => kind.finding(
            format!("{address} is not a {what}: {error}"),
            shows(&format!("another program listens there: correct {}, or end it", kind.setting())),
        ),
    }
}

fn absent(kind: ServerKind, address: &str, is_here: bool, error: &io::Error) -> Finding {
    let what = kind.check();
    let start = if is_here { "start it, in another terminal" } else { "start it on its host" };
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => kind.finding(
            format!("nothing listens at {address}"),
            Remedy::new(format!("{start}, or correct {}", kind.setting()), kind.serve(address, is_here)),
        ),
        // The system's errors have numbers, errors of look-ups have none.
        _ if host_of(address).parse::<IpAddr>().is_err() && error.raw_os_error().is_none() => kind.finding(
            format!("{address} cannot be looked up: {error}"),
            Remedy::new(
                format!("correct {}, or give the address of the host", kind.setting()),
                settings_of(kind),
            ),
        ),
        _ => kind.finding(
            format!("the {what} at {address} cannot be reached: {error}"),
            Remedy::new(
                "show the route to its host",
                format!("ip route get {}", shell_word(host_of(address))),
            ),
        ),
    }
}

fn answered(kind: ServerKind, address: &str, is_here: bool, heard: &Heard) -> Finding {
    let Heard { clocks, keeps_tables, .. } = heard;
    let role = clocks.identity.role;
    if role == Role::Worker {
        return kind.finding(
            format!("{address} is a worker of a job, not a {}", kind.check()),
            Remedy::new(format!("correct {}", kind.setting()), settings_of(kind)),
        );
    }
    if kind == ServerKind::Tables && !keeps_tables {
        return kind.finding(
            format!("{address} is a reducer without tables"),
            Remedy::new("end it on its host, and start it there with --tables", kind.serve(address, is_here)),
        );
    }
    let mut trips: Vec<u64> = clocks.samples.iter().map(|sample| sample.round_trip()).collect();
    trips.sort_unstable();
    let median = trips.get(trips.len() / 2).copied().unwrap_or(0) as f64 / 1e3;
    let says = format!(
        "{address} answers and has this token; protocol version {}, round trip {median:.0} us (median of {})",
        clocks.version,
        trips.len()
    );
    Finding::ok(kind.check(), says)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Warning, Wrong};
    use super::*;

    const REDUCER: ServerKind = ServerKind::Reducer { is_forced: false };

    fn judged(kind: ServerKind, error: AskError) -> (Finding, String) {
        let finding = judge(kind, "127.0.0.1:7070", true, Some(Err(error)));
        let command = finding.remedy.clone().unwrap().command;
        (finding, command)
    }

    #[test]
    fn each_way_to_fail_has_its_own_words_and_command() {
        let refused = || io::ErrorKind::ConnectionRefused.into();
        let cases = [
            (AskError::Absent(refused()), "nothing listens", "herringbone serve --listen 127.0.0.1:7070"),
            (AskError::Silent(PATIENCE), "does not answer within 2 s", "ss -ltnp 'sport = :7070'"),
            (AskError::Closed, "closes the connection", "ss -ltnp 'sport = :7070'"),
            (AskError::Token("differ".into()), "this token", "herringbone settings TOKEN TOKEN_FILE"),
            (AskError::Release("version 3".into()), "another release: version 3", "herringbone --version"),
            (AskError::Stranger("HTTP".into()), "is not a reducer: HTTP", "ss -ltnp 'sport = :7070'"),
        ];
        for (error, says, expected) in cases {
            let (finding, command) = judged(REDUCER, error);
            assert!(finding.level == Warning && finding.says.contains(says), "{finding:?}");
            assert_eq!(command, expected, "{finding:?}");
        }
        assert!(judge(REDUCER, "a:1", false, None).says.contains("not reached within 4 s"));
    }

    #[test]
    fn a_job_that_needs_the_server_cannot_start_without_it() {
        let forced = ServerKind::Reducer { is_forced: true };
        for kind in [forced, ServerKind::Tables] {
            assert_eq!(judged(kind, AskError::Closed).0.level, Wrong);
        }
        let absent = AskError::Absent(io::ErrorKind::ConnectionRefused.into());
        assert!(judged(ServerKind::Tables, absent).1.ends_with("--tables"));
    }
}
