//! Ports, names and the interface: how other processes find one that runs here.

use super::finding::Finding;
use herringbone::settings::{ALL, Environment, Setting};
use herringbone::{Config, Route, is_own_address, route_to};
use rustix::system::uname;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long another host may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// An address that no host has, to which the way is that of all hosts elsewhere (RFC 5737).
const ELSEWHERE: &str = "203.0.113.1";

/// Checks the network with the settings of `config`. Rank 0 is at `rank0`, or else where `HERRINGBONE_STORE` says.
pub(super) fn check(config: &Config, rank0: Option<&str>) -> Vec<Finding> {
    let environment = Environment::of_process();
    let store = value(&environment, "HERRINGBONE_STORE");
    let host = rank0.map(str::to_owned).or_else(|| store.as_deref().map(|store| host_of(store).to_owned()));
    let route = route_to(config, host.as_deref().unwrap_or(ELSEWHERE));
    let own = uname().nodename().to_string_lossy().into_owned();
    let mut findings = vec![own_name(&own, addresses(&own), route.as_ref().ok())];
    let others = value(&environment, "HERRINGBONE_REDUCERS").unwrap_or_default();
    let named = store.iter().map(String::as_str).chain(others.split(',')).map(host_of);
    let mut names: Vec<&str> = named.chain(rank0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    findings.extend(names.into_iter().map(|name| other_name(name, addresses(name))));
    findings.push(interface(host.as_deref(), &route));
    findings.push(port(route.map_or(IpAddr::from([127, 0, 0, 1]), |route| route.address)));
    // Under torchrun the port is its own store's, which listens already.
    let is_torchruns = std::env::var_os("TORCHELASTIC_RUN_ID").is_some_and(|value| !value.is_empty());
    if let Some(store) = store.filter(|_| !is_torchruns) {
        findings.push(store_port(&store));
    }
    findings
}

fn value(environment: &Environment, name: &str) -> Option<String> {
    let setting: &Setting = ALL.into_iter().find(|setting| setting.name == name)?;
    setting.find(environment).ok().flatten().map(|found| found.text)
}

/// The host of a `host:port`.
fn host_of(address: &str) -> &str {
    let host = address.trim().rsplit_once(':').map_or(address.trim(), |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn addresses(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

fn list(addresses: &[IpAddr]) -> String {
    let mut texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.dedup();
    texts.join(", ")
}

/// This host's own name, which scripts give to the other hosts.
fn own_name(name: &str, found: io::Result<Vec<IpAddr>>, route: Option<&Route>) -> Finding {
    const CHECK: &str = "own name";
    let address =
        route.map_or("$(hostname -I | cut -d' ' -f1)".to_owned(), |route| route.address.to_string());
    let mend = format!("echo \"{address} {name}\" >> /etc/hosts");
    match found {
        Ok(found) if found.is_empty() => {
            Finding::warning(CHECK, format!("this host's name, {name}, has no address"), mend)
        }
        Ok(found) if found.iter().all(IpAddr::is_loopback) => Finding::warning(
            CHECK,
            format!(
                "this host's name, {name}, is {} here; as MASTER_ADDR or in HERRINGBONE_STORE it would make rank 0 listen \
                 where no other host reaches it",
                list(&found)
            ),
            format!("export MASTER_ADDR={address}, on every rank"),
        ),
        Ok(found) => Finding::ok(CHECK, format!("this host's name, {name}, is {}", list(&found))),
        Err(error) => {
            Finding::warning(CHECK, format!("this host's name, {name}, cannot be resolved: {error}"), mend)
        }
    }
}

/// The name of rank 0's host or a reducer's.
fn other_name(name: &str, found: io::Result<Vec<IpAddr>>) -> Finding {
    const CHECK: &str = "name";
    let is_meant = name == "localhost" || name.parse::<IpAddr>().is_ok();
    match found {
        Ok(found) if !is_meant && !found.is_empty() && found.iter().all(IpAddr::is_loopback) => {
            let says = format!("{name} is {} here, so a job with it stays on this host", list(&found));
            Finding::warning(CHECK, says, format!("getent hosts {name}; then put its address in its place"))
        }
        Ok(found) if found.is_empty() => Finding::wrong(
            CHECK,
            format!("{name} has no address"),
            format!("getent hosts {name}; then put its address in its place"),
        ),
        Ok(found) => Finding::ok(CHECK, format!("{name} is {}", list(&found))),
        Err(error) => Finding::wrong(
            CHECK,
            format!("{name} cannot be resolved: {error}"),
            format!("getent hosts {name}; then put its address in its place"),
        ),
    }
}

/// Which address a worker here would tell the others.
fn interface(host: Option<&str>, route: &herringbone::Result<Route>) -> Finding {
    const CHECK: &str = "interface";
    let whither = host.map_or("other hosts".to_owned(), |host| format!("rank 0 at {host}"));
    match route {
        Ok(Route { address, interface, is_chosen, .. }) => {
            let name = interface.as_deref().unwrap_or("an interface without a name");
            let why = if *is_chosen { "which HERRINGBONE_IFNAME chose" } else { "which has the way" };
            let says =
                format!("a worker here would tell the others {address}, of {name}, {why} to {whither}");
            Finding::ok(CHECK, says)
        }
        Err(error) if host.is_none() && matches!(error.kind(), herringbone::ErrorKind::Io { .. }) => {
            let says =
                format!("this host has no way to other hosts: {error}; jobs on this host alone can run");
            Finding::warning(CHECK, says, "ip route")
        }
        Err(error) => Finding::wrong(CHECK, error.to_string(), "ip -brief address"),
    }
}

/// Whether workers can listen at the address that they tell the others.
fn port(address: IpAddr) -> Finding {
    const CHECK: &str = "port";
    match TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr()) {
        Ok(_) => Finding::ok(CHECK, format!("processes can listen at {address}, at a free port")),
        Err(error) => Finding::wrong(
            CHECK,
            format!("no process can listen at {address}: {error}"),
            "sysctl net.ipv4.ip_local_port_range; ss -s",
        ),
    }
}

/// Whether rank 0 could listen where it has to, if that is here, or whether that host answers.
fn store_port(store: &str) -> Finding {
    const CHECK: &str = "store's port";
    let found = store.to_socket_addrs().map(|mut found| found.next());
    let Ok(Some(there)) = found else {
        return Finding::wrong(
            CHECK,
            format!("{store} is no host:port that can be resolved"),
            "export HERRINGBONE_STORE=10.0.0.1:29400",
        );
    };
    match is_own_address(there.ip()) {
        Ok(false) => far_store(there),
        // What cannot be told is found out by trying.
        Ok(true) | Err(_) => match TcpListener::bind(there) {
            Ok(_) => Finding::ok(CHECK, format!("rank 0 can listen at {there}")),
            Err(error) => Finding::wrong(
                CHECK,
                format!("rank 0 could not listen at {there}: {error}"),
                format!("ss -ltnp 'sport = :{}'; then end that process, or take another port", there.port()),
            ),
        },
    }
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
            format!("nothing answers at {there}: {error}; a firewall may be between, or the host is down"),
            format!("ping -c 3 {}; then open the port in its firewall", there.ip()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok as Fine, Warning, Wrong};
    use super::*;
    use herringbone::Rendezvous;

    fn resolved(texts: &[&str]) -> io::Result<Vec<IpAddr>> {
        Ok(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn a_name_that_is_loopback_is_warned_about() {
        let own = own_name("node7", resolved(&["127.0.1.1"]), None);
        assert!(own.level == Warning && own.says.contains("127.0.1.1"), "{own:?}");
        assert_eq!(own_name("node7", resolved(&["10.0.0.7", "127.0.1.1"]), None).level, Fine);
        assert_eq!(own_name("node7", Err(io::Error::other("no such name")), None).level, Warning);
        assert_eq!(other_name("node8", resolved(&["127.0.1.1"])).level, Warning);
        assert_eq!(other_name("localhost", resolved(&["127.0.0.1"])).level, Fine);
        assert_eq!(other_name("node9", Err(io::Error::other("no such name"))).level, Wrong);
    }

    #[test]
    fn a_stores_port_that_is_taken_is_wrong() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().to_string();
        let finding = store_port(&taken);
        assert!(finding.level == Wrong && finding.says.contains(&taken), "{finding:?}");
        assert!(finding.command.unwrap().starts_with("ss -ltnp 'sport = :"));
        drop(listener);
        assert_eq!(store_port(&taken).level, Fine);
        assert_eq!(store_port("nowhere").level, Wrong);
    }

    #[test]
    fn the_interface_is_the_one_that_the_engine_takes() {
        let config = Config::new(0, 1, Rendezvous::Tcp(String::new()));
        let found = |config: &Config| interface(Some("127.0.0.1"), &route_to(config, "127.0.0.1"));
        let usual = found(&config);
        assert!(
            usual.level == Fine && usual.says.contains("127.0.0.1, of lo, which has the way"),
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
        assert_eq!(["a:1", "[::1]:2", "b"].map(host_of), ["a", "::1", "b"]);
    }
}
