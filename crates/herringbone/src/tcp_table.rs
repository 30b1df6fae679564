//! The owners of this host's TCP sockets, by the kernel's table and not by their own claim.

use std::{
    ffi::OsString,
    fs, io,
    net::{IpAddr, SocketAddr, TcpStream},
    os::unix::ffi::OsStringExt,
    path::Path,
};

/// What the kernel says about the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpOwner {
    /// A process of this user has opened it, as seen from here.
    User(u32),
    /// No process has it: it was closed, or not accepted yet.
    Nobody,
    /// It is of another host, the table lacks it, or its user has no number in this container.
    Unknown,
}

/// Where the kernel lists the TCP sockets of this network namespace.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The number that stands for users without one in this container.
const OVERFLOW: &str = "/proc/sys/kernel/overflowuid";
/// Which users have a number in this container.
const USERS: &str = "/proc/self/uid_map";
/// A socket that listens.
const LISTENS: &str = "0A";

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    local: SocketAddr,
    other: SocketAddr,
    listens: bool,
    user: u32,
    /// 0 if no process has the socket.
    inode: u64,
}

/// Whose process is at the other end of a connection within this host.
///
/// # Errors
/// If the connection has no ends any more, or the table cannot be read.
pub(crate) fn tcp_owner(stream: &TcpStream) -> io::Result<TcpOwner> {
    let (here, there) = (canonical(stream.local_addr()?), canonical(stream.peer_addr()?));
    let found = table()?.into_iter().find(|line| (line.local, line.other) == (there, here));
    // What the kernel uses unless it says another number.
    let unnamed =
        fs::read_to_string(OVERFLOW).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65534);
    // Outside of containers it is the number of a user, such as "nobody".
    let all_are_named = fs::read_to_string(USERS).is_ok_and(|map| all_users_have_numbers(&map));
    Ok(match found {
        Some(Line { inode: 0, .. }) => TcpOwner::Nobody,
        Some(Line { user, .. }) if all_are_named || user != unnamed => TcpOwner::User(user),
        _ => TcpOwner::Unknown,
    })
}

/// A variable of the environment with which the process was started that listens at an address of this host. The kernel shows
/// it to processes of the same user and to root.
pub(crate) fn variable_of_listener(address: SocketAddr, name: &str) -> Option<OsString> {
    let address = canonical(address);
    let is_at =
        |at: SocketAddr| at.port() == address.port() && (at.ip() == address.ip() || at.ip().is_unspecified());
    let listeners = table().ok()?.into_iter().filter(|line| line.listens && is_at(line.local));
    let links: Vec<String> = listeners.map(|line| format!("socket:[{}]", line.inode)).collect();
    let has_it = |process: &Path| {
        // Processes of other users show nothing, and some end meanwhile.
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|target| links.iter().any(|link| target.as_os_str() == link.as_str()))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let mut processes = processes.filter(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
    });
    let environment = fs::read(processes.find(|process| has_it(process))?.join("environ")).ok()?;
    let mut values = environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    values.next().map(|value| OsString::from_vec(value.to_vec()))
}

fn table() -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for table in TABLES {
        match fs::read_to_string(table) {
            Ok(table) => lines.extend(table.lines().filter_map(line)),
            // A kernel without IPv6 lacks the second one.
            Err(error) if error.kind() == io::ErrorKind::NotFound && table != TABLES[0] => {}
            Err(error) => return Err(error),
        }
    }
    Ok(lines)
}

/// Whether a map of users, as the kernel writes it, leaves none out.
fn all_users_have_numbers(map: &str) -> bool {
    let every: [Result<u32, _>; 3] = [Ok(0), Ok(0), Ok(u32::MAX)];
    map.lines().any(|line| line.split_ascii_whitespace().map(str::parse).eq(every.clone()))
}

fn line(text: &str) -> Option<Line> {
    let mut fields = text.split_ascii_whitespace().skip(1);
    let (local, other) = (listed(fields.next()?)?, listed(fields.next()?)?);
    let listens = fields.next()? == LISTENS;
    let (user, inode) = (fields.nth(3)?.parse().ok()?, fields.nth(1)?.parse().ok()?);
    Some(Line { local, other, listens, user, inode })
}

/// An address as the table has it: words of memory in hexadecimal digits, then the port.
fn listed(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |digits| Some(u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?.to_ne_bytes());
    let ip: Vec<u8> = ip.as_bytes().chunks(8).map(word).collect::<Option<Vec<_>>>()?.concat();
    let short = <[u8; 4]>::try_from(&ip[..]).map(IpAddr::from);
    let ip = short.or_else(|_| <[u8; 16]>::try_from(&ip[..]).map(IpAddr::from)).ok()?;
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

/// Sockets for IPv6 may speak IPv4, too.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_owner_of_a_connection_is_the_user_whose_process_has_it() {
        let own = TcpOwner::User(rustix::process::geteuid().as_raw());
        for loopback in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let Ok(listener) = TcpListener::bind(loopback) else {
                assert!(loopback.starts_with('['), "only IPv6 may be missing");
                continue;
            };
            let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert_eq!(tcp_owner(&here).unwrap(), TcpOwner::Nobody, "{loopback}: not accepted yet");
            let (there, _) = listener.accept().unwrap();
            assert_eq!([&here, &there].map(|end| tcp_owner(end).unwrap()), [own; 2], "{loopback}");
            drop(here);
            assert_eq!(tcp_owner(&there).unwrap(), TcpOwner::Nobody, "{loopback}: closed");
        }
    }

    #[test]
    fn the_environment_of_the_process_that_listens_is_found() {
        let path = std::env::var_os("PATH");
        assert!(path.is_some());
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let there = SocketAddr::new([127, 0, 0, 1].into(), listener.local_addr().unwrap().port());
            assert_eq!(variable_of_listener(there, "PATH"), path, "{address}");
            assert_eq!(variable_of_listener(there, "PAT"), None);
            drop(listener);
            assert_eq!(variable_of_listener(there, "PATH"), None);
        }
    }

    #[test]
    fn users_are_without_numbers_only_in_containers() {
        assert!(all_users_have_numbers("         0          0 4294967295\n"));
        for container in
            ["", "0 0\n", "0 1000 1\n", "0 0 65536\n", "0 100000 4294967295\n", "0 0 4294967295 0\n"]
        {
            assert!(!all_users_have_numbers(container), "{container}");
        }
    }

    #[test]
    fn lines_are_read_or_left_out() {
        let ip = u32::from_ne_bytes([127, 0, 0, 1]);
        let text = |state: &str, user: &str| {
            format!(
                " 9: {ip:08X}:A1F9 {ip:08X}:CFD6 {state} 00000000:00000000 00:00000000 00000000 {user} 0 39771 1 0 20"
            )
        };
        let [local, other] = ["127.0.0.1:41465", "127.0.0.1:53206"].map(|address| address.parse().unwrap());
        for (state, listens) in [("01", false), ("0A", true)] {
            let expected = Line { local, other, listens, user: 1000, inode: 39771 };
            assert_eq!(line(&text(state, "1000")), Some(expected));
        }
        for damaged in ["", " sl  local_address rem_address   st", " 9: 0100007F:A1F9", &text("01", "x")] {
            assert_eq!(line(damaged), None, "{damaged}");
        }
    }
}
