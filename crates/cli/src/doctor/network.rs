//! Ports, names and the interface by which other processes reach this host.

use super::finding::{Finding, Remedy, Severity, by_root, shell_word};
use super::within::{TimedQuestion, answer, answers};
use herringbone::settings::{ALL, Environment, Found, Setting};
use herringbone::{Config, ErrorKind, Route, check_exposure, is_own_address, route_to};
use rustix::system::uname;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long another host can take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the look-up of a name can take.
const LOOK_UP: Duration = Duration::from_secs(5);
/// How many names are looked up: each needs a thread.
const MOST: usize = 256;
/// An address that no host has, so it shows the route to other hosts (RFC 5737).
const ELSEWHERE: &str = "203.0.113.1";

/// The result of a look-up.
type LookedUp = io::Result<Vec<IpAddr>>;

/// Checks the network with the settings of `config`. Rank 0 is at `rank0`, or else at `HERRINGBONE_STORE`. The token is
/// `None` if it cannot be read.
pub(super) fn check(config: &Config, rank0: Option<&str>, token: Option<&Option<String>>) -> Vec<Finding> {
    let environment = Environment::of_process();
    let store = found(&environment, "HERRINGBONE_STORE");
    let host = rank0.or_else(|| store.as_ref().map(|store| host_of(&store.text))).map(str::to_owned);
    let own = uname().nodename().to_string_lossy().into_owned();
    let servers =
        [listed(&environment, "HERRINGBONE_REDUCERS"), listed(&environment, "HERRINGBONE_TABLES")].concat();
    let mut names: Vec<&str> = servers.iter().map(|server| host_of(server)).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(MOST);
    let all = look_up(names.iter().copied().chain(host.as_deref()).chain([&*own]));
    // A name that cannot be looked up is a finding of its own.
    let is_found = |name: &str| matches!(all.get(name), Some(Ok(found)) if !found.is_empty());
    let route = match host.as_deref() {
        Some(host) if !is_found(host) => None,
        host => Some(way(config, host.unwrap_or(ELSEWHERE))),
    };
    let usable = route.as_ref().and_then(|route| route.as_ref()?.as_ref().ok());
    let master = std::env::var("MASTER_ADDR").ok();
    let place = host.as_deref().or(master.as_deref()).filter(|place| !place.is_empty() && *place != own);
    let mut findings = vec![own_name(&own, all.get(&own), usable, place)];
    if let Some(host) = host.as_deref().filter(|host| !host.is_empty()) {
        findings.push(other_name(host, all.get(host)));
    }
    // Whether a server can be reached is found out by calling it. One on another host cannot have a name that is loopback.
    let others = names.iter().filter(|name| is_found(name) && Some(**name) != host.as_deref());
    findings.extend(
        others.map(|name| other_name(name, all.get(*name))).filter(|found| found.level != Severity::Ok),
    );
    // A variable that is no text is a finding of the launcher.
    let has_torchruns_store = environment.has_torchruns_store().unwrap_or(false);
    if let (Some(Ok(addresses)), Some(token)) = (host.as_ref().and_then(|host| all.get(host)), token) {
        let has_reducers = !listed(&environment, "HERRINGBONE_REDUCERS").is_empty();
        let variable = store.as_ref().map(|store| &*store.variable);
        findings.extend(exposure(
            addresses,
            token.as_deref(),
            Exposed::of(variable, has_torchruns_store, has_reducers),
        ));
    }
    findings.extend(route.as_ref().map(|route| interface(host.as_deref(), route.as_ref())));
    findings.push(port(usable.map_or(IpAddr::from([127, 0, 0, 1]), |route| route.address)));
    // The port of torchrun's own store is taken: it listens already.
    if let Some(store) = store.filter(|_| !has_torchruns_store) {
        let is_rank0 = found(&environment, "HERRINGBONE_RANK").is_some_and(|rank| rank.text.trim() == "0");
        findings.extend(store_port(&store.text, &store.variable, is_rank0));
    }
    findings
}

fn found(environment: &Environment, name: &str) -> Option<Found> {
    let setting: &Setting = ALL.into_iter().find(|setting| setting.name == name)?;
    setting.find(environment).ok().flatten()
}

/// The addresses of a list in a setting.
pub(super) fn listed(environment: &Environment, name: &str) -> Vec<String> {
    let text = found(environment, name).map(|found| found.text).unwrap_or_default();
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// The host of a `host:port`.
pub(super) fn host_of(address: &str) -> &str {
    let host = address.trim().rsplit_once(':').map_or(address.trim(), |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The port of a `host:port`.
pub(super) fn port_of(address: &str) -> Option<u16> {
    address.trim().rsplit_once(':')?.1.parse().ok()
}

/// Looks up all names at once, so that a slow one delays no other.
fn look_up<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, LookedUp> {
    let names: Vec<String> = names.map(str::to_owned).collect();
    let questions = names.iter().cloned().map(|name| -> TimedQuestion<LookedUp> {
        Box::new(move || Ok((&*name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    });
    let late =
        || Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {} s", LOOK_UP.as_secs())));
    let heard = answers(questions, LOOK_UP).into_iter().map(|answer| answer.unwrap_or_else(late));
    names.iter().cloned().zip(heard).collect()
}

/// The route to a host, whose name is looked up again; `None` if that takes too long.
fn way(config: &Config, host: &str) -> Option<herringbone::Result<Route>> {
    let (config, to) = (config.clone(), host.to_owned());
    answer(move || route_to(&config, &to), LOOK_UP)
}

fn list(addresses: &[IpAddr]) -> String {
    let mut texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.dedup();
    texts.join(", ")
}

/// This host's own name, which scripts give to the other hosts, unless rank 0's `place` is told in another way.
fn own_name(name: &str, found: Option<&LookedUp>, route: Option<&Route>, place: Option<&str>) -> Finding {
    const CHECK: &str = "own name";
    if let Some(place) = place {
        return Finding::ok(
            CHECK,
            format!("no rank needs this host's name {name}, because rank 0 is at {place}"),
        );
    }
    let address =
        route.map_or("$(hostname -I | cut -d' ' -f1)".to_owned(), |route| route.address.to_string());
    let hosts = by_root("tee -a /etc/hosts");
    let remedy = Remedy::new("give the name an address", format!("echo \"{address} {name}\" | {hosts}"));
    match found {
        Some(Ok(found)) if found.is_empty() => {
            Finding::warning(CHECK, format!("this host's name {name} has no address"), remedy)
        }
        Some(Ok(found)) if found.iter().all(IpAddr::is_loopback) => Finding::warning(
            CHECK,
            format!(
                "this host's name {name} is {} here; as MASTER_ADDR or in HERRINGBONE_STORE it would make rank 0 listen \
                 where no other host reaches it",
                list(found)
            ),
            Remedy::new(
                "if rank 0 runs here and other ranks elsewhere, give every rank the address instead of the name",
                format!("export MASTER_ADDR={address}"),
            ),
        ),
        Some(Ok(found)) => Finding::ok(CHECK, format!("this host's name {name} is {}", list(found))),
        Some(Err(error)) => {
            Finding::warning(CHECK, format!("this host's name {name} cannot be resolved: {error}"), remedy)
        }
        None => Finding::ok(CHECK, "this host has no name"),
    }
}

/// The name of rank 0's host or a server's.
fn other_name(name: &str, found: Option<&LookedUp>) -> Finding {
    const CHECK: &str = "name";
    let is_meant = name == "localhost" || name.parse::<IpAddr>().is_ok();
    let remedy = || {
        Remedy::new(
            "correct the name where it is set, or replace it with the host's address; this shows the address here",
            format!("getent ahosts {}", shell_word(name)),
        )
    };
    match found {
        Some(Ok(found)) if !is_meant && !found.is_empty() && found.iter().all(IpAddr::is_loopback) => {
            let says = format!("{name} is {} here, so a job that uses it stays on this host", list(found));
            Finding::warning(CHECK, says, remedy())
        }
        Some(Ok(found)) if !found.is_empty() => Finding::ok(CHECK, format!("{name} is {}", list(found))),
        Some(Err(error)) => Finding::wrong(CHECK, format!("{name} cannot be resolved: {error}"), remedy()),
        Some(Ok(_)) | None => Finding::wrong(CHECK, format!("{name} has no address"), remedy()),
    }
}

/// Which jobs fail without a token. Ranks that meet through torch's store have a key that rank 0 draws, unless there are reducers,
/// which could not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exposed {
    All,
    /// Those whose ranks do not meet through a store.
    WithoutTorch,
    None,
}

impl Exposed {
    /// `variable` has the address of rank 0, if one has it.
    fn of(variable: Option<&str>, has_torchruns_store: bool, has_reducers: bool) -> Self {
        match variable {
            _ if has_reducers => Exposed::All,
            Some("HERRINGBONE_STORE") => Exposed::All,
            _ if has_torchruns_store => Exposed::None,
            _ => Exposed::WithoutTorch,
        }
    }
}

/// Whether rank 0 can be called, and listen, at its address: elsewhere than at loopback a token is needed. A token that is too
/// short is refused in every job.
fn exposure(addresses: &[IpAddr], token: Option<&str>, exposed: Exposed) -> Option<Finding> {
    const CHECK: &str = "token";
    let error = check_exposure(SocketAddr::new(*addresses.first()?, 0), token).err()?;
    let remedy = Remedy::new(
        "draw one token and give it to every worker and reducer",
        "export HERRINGBONE_TOKEN=$(openssl rand -hex 32)\nunset HERRINGBONE_TOKEN_FILE",
    );
    match (token.filter(|token| !token.is_empty()), exposed) {
        (Some(_), _) | (None, Exposed::All) => Some(Finding::wrong(CHECK, error.kind().to_string(), remedy)),
        (None, Exposed::WithoutTorch) => {
            let says = "no job token is set: torch's ranks draw their own key, but programs without torch need a token, \
                        because other hosts reach rank 0";
            Some(Finding::warning(CHECK, says, remedy))
        }
        (None, Exposed::None) => None,
    }
}

/// The address that a worker here would give to the others.
fn interface(host: Option<&str>, route: Option<&herringbone::Result<Route>>) -> Finding {
    const CHECK: &str = "interface";
    let whither = host.map_or("other hosts".to_owned(), |host| format!("rank 0 at {host}"));
    match route {
        None => Finding::warning(
            CHECK,
            format!(
                "the route to {whither} is unknown, because its name was not looked up within {} s",
                LOOK_UP.as_secs()
            ),
            Remedy::new("show the name servers", "cat /etc/resolv.conf"),
        ),
        Some(Ok(Route { address, interface, is_chosen, .. })) => {
            let name = interface.as_deref().unwrap_or("an interface without a name");
            let why = if *is_chosen { "which HERRINGBONE_IFNAME chose" } else { "which has the route" };
            let says = format!("a worker here gives the others {address} of {name}, {why} to {whither}");
            Finding::ok(CHECK, says)
        }
        Some(Err(error)) if host.is_none() && matches!(error.kind(), ErrorKind::Io { .. }) => {
            let says =
                format!("this host has no route to other hosts: {error}; only jobs on this host can run");
            Finding::warning(CHECK, says, Remedy::new("show the routes", "ip route"))
        }
        Some(Err(error)) => Finding::wrong(
            CHECK,
            error.to_string(),
            Remedy::new(
                "choose an interface that is up, or unset HERRINGBONE_IFNAME; these exist",
                "ip -brief address",
            ),
        ),
    }
}

/// Whether workers can listen at the address that they tell the others.
fn port(address: IpAddr) -> Finding {
    const CHECK: &str = "port";
    match TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr()) {
        Ok(_) => Finding::ok(CHECK, format!("processes can listen at a free port of {address}")),
        Err(error) => Finding::wrong(
            CHECK,
            format!("no process can listen at {address}: {error}"),
            Remedy::new(
                "check whether all ports are taken or sockets are forbidden",
                "sysctl net.ipv4.ip_local_port_range; ss -s",
            ),
        ),
    }
}

/// Whether rank 0 could listen where it has to, if that is here, or whether that host answers. A name that cannot be looked up is
/// a finding of its own.
fn store_port(store: &str, variable: &str, is_rank0: bool) -> Option<Finding> {
    const CHECK: &str = "store's port";
    if port_of(store).is_none() || host_of(store).is_empty() {
        let remedy = Remedy::new(
            format!("set {variable} to HOST:PORT; this shows its value"),
            "herringbone settings STORE",
        );
        return Some(Finding::wrong(CHECK, format!("{store} is not HOST:PORT"), remedy));
    }
    let text = store.trim().to_owned();
    let there = answer(move || text.to_socket_addrs().ok()?.next(), LOOK_UP).flatten()?;
    match is_own_address(there.ip()) {
        Ok(false) if is_rank0 => Some(rank0_elsewhere(there, variable)),
        Ok(false) => Some(far_store(there)),
        // Otherwise, trying tells.
        Ok(true) | Err(_) => Some(match TcpListener::bind(there) {
            Ok(_) => Finding::ok(CHECK, format!("rank 0 can listen at {there}")),
            Err(error) => Finding::wrong(
                CHECK,
                format!("rank 0 cannot listen at {there}: {error}"),
                another_port(store, variable, there),
            ),
        }),
    }
}

/// At `HERRINGBONE_STORE` rank 0 itself listens. At `MASTER_ADDR` torch's store does, at all addresses of its host: that can be
/// the address of a service, which passes on what it gets.
fn rank0_elsewhere(there: SocketAddr, variable: &str) -> Finding {
    const CHECK: &str = "store's port";
    let says = format!("this process is rank 0, but {there} is an address of another host");
    let remedy = Remedy::new("give every rank an address of this host; these exist", "ip -brief address");
    if variable == "HERRINGBONE_STORE" {
        return Finding::wrong(CHECK, format!("{says}, so it cannot listen there"), remedy);
    }
    let says = format!(
        "{says}: programs without torch cannot listen there, and programs with torch need a service there that forwards to this host"
    );
    Finding::warning(CHECK, says, remedy)
}

/// Who has the port, and how all ranks take another one, which is free here.
fn another_port(store: &str, variable: &str, there: SocketAddr) -> Remedy {
    let free = TcpListener::bind((there.ip(), 0)).and_then(|listener| listener.local_addr());
    let free = free.map_or(there.port().wrapping_add(1).max(1024), |address| address.port());
    let export = match variable {
        "HERRINGBONE_STORE" => {
            let (host, _) = store.trim().rsplit_once(':').unwrap_or((store, ""));
            format!("HERRINGBONE_STORE={}", shell_word(&format!("{host}:{free}")))
        }
        _ => format!("MASTER_PORT={free}"),
    };
    Remedy::new(
        "the first line shows the process that listens there: end it, or set the same free port on every rank",
        format!("ss -ltnp 'sport = :{}'\nexport {export}", there.port()),
    )
}

fn far_store(there: SocketAddr) -> Finding {
    const CHECK: &str = "store's port";
    match TcpStream::connect_timeout(&there, PATIENCE) {
        Ok(_) => Finding::ok(CHECK, format!("a process listens at {there}, on another host")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Finding::ok(CHECK, format!("the host of {there} answers; rank 0 does not listen there yet"))
        }
        Err(error) => Finding::warning(
            CHECK,
            format!("nothing answers at {there}: {error}; a firewall blocks the port, or the host is down"),
            Remedy::new(
                "check whether the host answers at all; if it does, open the port in its firewall",
                format!("ping -c 3 {}", there.ip()),
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok as Fine, Warning, Wrong};
    use super::*;
    use herringbone::Rendezvous;

    fn resolved(texts: &[&str]) -> LookedUp {
        Ok(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn unresolved() -> LookedUp {
        Err(io::Error::other("no such name"))
    }

    #[test]
    fn a_name_that_is_loopback_is_warned_about() {
        let own = own_name("node7", Some(&resolved(&["127.0.1.1"])), None, None);
        assert!(own.level == Warning && own.says.contains("127.0.1.1"), "{own:?}");
        assert_eq!(own_name("node7", Some(&resolved(&["10.0.0.7", "127.0.1.1"])), None, None).level, Fine);
        assert_eq!(own_name("node7", Some(&unresolved()), None, None).level, Warning);
        let elsewhere = own_name("node7", Some(&unresolved()), None, Some("10.0.0.8"));
        assert!(elsewhere.level == Fine && elsewhere.says.contains("rank 0 is at 10.0.0.8"));
        assert_eq!(other_name("node8", Some(&resolved(&["127.0.1.1"]))).level, Warning);
        assert_eq!(other_name("localhost", Some(&resolved(&["127.0.0.1"]))).level, Fine);
        assert_eq!(other_name("node9", Some(&unresolved())).level, Wrong);
    }

    #[test]
    fn other_hosts_need_a_token() {
        let exposed = |address: &str, token, exposed| {
            exposure(&resolved(&[address]).unwrap(), token, exposed).map(|finding| finding.level)
        };
        let at = |address: &str, token| exposed(address, token, Exposed::All);
        assert_eq!(at("127.0.0.1", None), None);
        assert_eq!(at("::1", None), None);
        assert_eq!(at("192.0.2.1", None), Some(Wrong));
        assert_eq!(at("192.0.2.1", Some("too short")), Some(Wrong));
        assert_eq!(at("192.0.2.1", Some("0123456789abcdef")), None);
        assert_eq!(exposed("192.0.2.1", None, Exposed::WithoutTorch), Some(Warning));
        assert_eq!(exposed("192.0.2.1", Some(""), Exposed::None), None);
        assert_eq!(exposed("192.0.2.1", Some("too short"), Exposed::None), Some(Wrong), "torch has it, too");
    }

    #[test]
    fn ranks_that_meet_through_torch_need_no_token_without_reducers() {
        const MASTER: Option<&str> = Some("MASTER_ADDR:MASTER_PORT");
        assert_eq!(Exposed::of(MASTER, true, false), Exposed::None);
        assert_eq!(Exposed::of(MASTER, false, false), Exposed::WithoutTorch);
        assert_eq!(Exposed::of(None, false, false), Exposed::WithoutTorch);
        assert_eq!(Exposed::of(Some("HERRINGBONE_STORE"), true, false), Exposed::All);
        for is_torchruns in [false, true] {
            assert_eq!(Exposed::of(MASTER, is_torchruns, true), Exposed::All);
        }
    }

    #[test]
    fn a_stores_port_that_is_taken_is_wrong() {
        const STORE: &str = "HERRINGBONE_STORE";
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap();
        let finding = store_port(&taken.to_string(), STORE, true).unwrap();
        assert!(finding.level == Wrong && finding.says.contains(&taken.to_string()), "{finding:?}");
        let command = finding.remedy.unwrap().command;
        assert!(
            command.starts_with("ss -ltnp 'sport = :")
                && command.contains("\nexport HERRINGBONE_STORE=127.0.0.1:")
        );
        let command = another_port("", "MASTER_ADDR:MASTER_PORT", taken).command;
        assert!(command.contains("\nexport MASTER_PORT="), "{command}");
        drop(listener);
        assert_eq!(store_port(&taken.to_string(), STORE, true).unwrap().level, Fine);
        assert_eq!(store_port("nowhere", STORE, false).unwrap().level, Wrong);
        let elsewhere = store_port("203.0.113.9:7070", STORE, true).unwrap();
        assert!(elsewhere.level == Wrong && elsewhere.says.contains("another host"), "{elsewhere:?}");
        let service = store_port("203.0.113.9:7070", "MASTER_ADDR:MASTER_PORT", true).unwrap();
        assert!(service.level == Warning && service.says.contains("another host"), "{service:?}");
    }

    #[test]
    fn the_interface_is_the_one_that_the_engine_takes() {
        let config = Config::new(0, 1, Rendezvous::Tcp(String::new()));
        let found = |config: &Config| interface(Some("127.0.0.1"), Some(&route_to(config, "127.0.0.1")));
        let usual = found(&config);
        assert!(
            usual.level == Fine && usual.says.contains("127.0.0.1 of lo, which has the route"),
            "{usual:?}"
        );
        assert!(found(&config.clone().interfaces("lo")).says.contains("which HERRINGBONE_IFNAME chose"));
        let nothing = found(&config.interfaces("nope0"));
        assert!(nothing.level == Wrong && nothing.says.contains("\"nope0\""), "{nothing:?}");
    }

    #[test]
    fn an_address_that_is_not_here_cannot_be_listened_at() {
        assert_eq!(port("203.0.113.9".parse().unwrap()).level, Wrong);
        assert_eq!(port("127.0.0.1".parse().unwrap()).level, Fine);
        assert_eq!(["a:1", "[::1]:2", "::1:2", "b"].map(host_of), ["a", "::1", "::1", "b"]);
        assert_eq!(["a:1", "[::1]:2", "b", "b:x"].map(port_of), [Some(1), Some(2), None, None]);
    }
}
