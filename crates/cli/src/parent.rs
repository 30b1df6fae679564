//! Processes of this command that it starts itself: reducers and ranks, which end with their parent.

use crate::failure::Failure;
use rustix::net;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Has the kernel send `signal` to this process when the one that started it ends, however that ends.
pub(crate) fn end_with_parent(signal: Signal) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(signal))
        .map_err(|errno| Failure::system("cannot follow the parent process")(errno.into()))
}

/// The words that start this command again: the binary, or Python with the script that called.
pub(crate) struct OwnCommand(Vec<OsString>);

impl OwnCommand {
    /// Takes whatever stands before `args` in this process's own command line.
    pub(crate) fn before(args: &[OsString]) -> Self {
        let own: Vec<OsString> = std::env::args_os().collect();
        let words = own.len().saturating_sub(args.len().saturating_sub(1));
        match (words, std::env::current_exe()) {
            (1, Ok(binary)) => Self(vec![binary.into()]),
            _ => Self(own[..words].to_vec()),
        }
    }

    /// To start it without input.
    pub(crate) fn command(&self) -> Command {
        let (program, first) =
            self.0.split_first().map_or((OsStr::new("herringbone"), &[][..]), |(p, f)| (p, f));
        let mut command = Command::new(program);
        command.args(first).stdin(Stdio::null());
        command
    }
}

/// A reducer on loopback that ends with this process.
pub(crate) struct Reducer {
    pub(crate) process: Child,
    pub(crate) address: String,
}

impl Reducer {
    /// What starts a reducer at an address, with `token` or else that of the environment, and `more` options. It is in a
    /// process group of its own, so that Ctrl-C does not end it before the ranks that need it.
    pub(crate) fn command(own: &OwnCommand, token: Option<&str>, listen: &str, more: &[&str]) -> Command {
        let mut command = own.command();
        command.args(["serve", "--listen", listen, "--json", "--child"]).args(more);
        command.stdout(Stdio::piped()).process_group(0);
        command.envs(token.map(|token| ("HERRINGBONE_TOKEN", token)));
        command
    }

    /// The reducer `name` that such a command has started, once it listens.
    pub(crate) fn listening(mut process: Child, name: &str) -> Result<Self, Failure> {
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            let mut stdout = BufReader::new(stdout);
            stdout.read_line(&mut line).map_err(Failure::system(format!("cannot read {name}'s address")))?;
            // It can still say its last line when it ends.
            process.stdout = Some(stdout.into_inner());
        }
        match serde_json::from_str::<serde_json::Value>(&line)
            .map(|value| value["listening"].as_str().map(str::to_owned))
        {
            Ok(Some(address)) => Ok(Self { process, address }),
            _ => {
                let status = process.wait().map_err(Failure::system(format!("cannot wait for {name}")))?;
                Err(Failure::Child { who: name.to_owned(), status })
            }
        }
    }
}

/// Starts the process `name`.
pub(crate) fn spawn(command: &mut Command, name: &str) -> Result<Child, Failure> {
    command.spawn().map_err(Failure::system(format!(
        "cannot start {name} as `{}`",
        command.get_program().to_string_lossy()
    )))
}

/// Ports of 127.0.0.1, each another one, that no other process draws or connects from while this lives. The ranks and servers that are
/// told them listen there, because they allow addresses to be reused and nobody listens here.
pub(crate) struct HeldPorts {
    pub(crate) numbers: Vec<u16>,
    _sockets: Vec<OwnedFd>,
}

impl HeldPorts {
    pub(crate) fn draw(count: u32) -> Result<Self, Failure> {
        let held: io::Result<Vec<(u16, OwnedFd)>> = (0..count).map(|_| held_port()).collect();
        let held = held.map_err(Failure::system("cannot find a free port on 127.0.0.1"))?;
        let (numbers, sockets) = held.into_iter().unzip();
        Ok(Self { numbers, _sockets: sockets })
    }
}

fn held_port() -> io::Result<(u16, OwnedFd)> {
    let socket =
        net::socket_with(net::AddressFamily::INET, net::SocketType::STREAM, net::SocketFlags::CLOEXEC, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    let address = SocketAddrV4::try_from(net::getsockname(&socket)?)?;
    Ok((address.port(), socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn who_is_told_a_held_port_listens_there_again_and_again_and_nobody_else_gets_it() {
        let held = HeldPorts::draw(3).unwrap();
        let places =
            held.numbers.clone().into_iter().map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        for place in places {
            for _ in 0..2 {
                let listener = TcpListener::bind(place).unwrap();
                let (client, _server) = (TcpStream::connect(place).unwrap(), listener.accept().unwrap());
                drop(listener);
                // A connection that is left over is in nobody's way.
                drop(client);
            }
            let taken = TcpListener::bind(place).unwrap();
            assert!(TcpListener::bind(place).is_err(), "{taken:?} listens there");
        }
        let drawn = HeldPorts::draw(200).unwrap();
        assert!(drawn.numbers.iter().all(|port| !held.numbers.contains(port)));
    }
}
