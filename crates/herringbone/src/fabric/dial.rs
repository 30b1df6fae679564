//! Calling an address.

use super::greet::GreetError;
use crate::Error;
use std::{
    io,
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs},
    time::Duration,
};

const ATTEMPT: Duration = Duration::from_secs(5);

/// Connects to the first address of `host:port` that answers, from the address `from` if that is of its kind (IPv4 or
/// IPv6) and if all may be called.
pub(crate) fn dial(
    address: &str,
    from: Option<IpAddr>,
    may_call: impl Fn(SocketAddr) -> Result<(), Error>,
) -> Result<TcpStream, GreetError> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for there in address.to_socket_addrs()? {
        may_call(there).map_err(|error| GreetError::Unprotected(error.kind().clone()))?;
        let from = from.filter(|from| from.is_ipv4() == there.is_ipv4());
        match dial_one(there, from) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let source = from.map(|from| format!(" (called from {from}, see HERRINGBONE_IFNAME)"));
                last = io::Error::new(error.kind(), format!("{error}{}", source.unwrap_or_default()));
            }
        }
    }
    Err(GreetError::Io(last))
}

fn dial_one(there: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(there), socket2::Type::STREAM, None)?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    socket.connect_timeout(&there.into(), ATTEMPT)?;
    socket.set_tcp_nodelay(true)?;
    let stream = TcpStream::from(socket);
    if stream.local_addr()? == there {
        return Err(refused_itself(&stream));
    }
    Ok(stream)
}

/// Where nobody listens, TCP may give a call the port that it calls, and connect it with itself. This one ends without a trace: else
/// nobody could listen there for a minute.
fn refused_itself(stream: &TcpStream) -> io::Error {
    let ended = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
    ended.err().unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check_exposure;

    #[test]
    fn without_a_token_nobody_is_called_but_at_loopback() {
        let call = |address: &str| dial(address, None, |there| check_exposure(there, None)).unwrap_err();
        let refused = call("192.0.2.1:7070");
        assert!(!refused.may_pass() && refused.to_string().starts_with("no job token is set, and 192.0.2.1"));
        assert!(matches!(call("127.0.0.1:1"), GreetError::Io(_)), "it was called");
    }

    #[test]
    fn a_call_that_reaches_itself_is_refused_and_leaves_the_port_free() {
        // It calls from where it calls to.
        let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let bound = socket();
        bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let there = bound.local_addr().unwrap();
        bound.connect(&there).unwrap();
        let stream = TcpStream::from(bound);
        assert_eq!(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        assert_eq!(refused_itself(&stream).kind(), io::ErrorKind::ConnectionRefused);
        drop(stream);
        let again = socket();
        again.bind(&there).unwrap();
        again.listen(1).unwrap();
    }
}
