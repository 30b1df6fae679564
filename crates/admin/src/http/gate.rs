//! Who gets an answer: clients that use a name of this host, and that know the token if there is one.
//!
//! The owner of a web page can point its name to this host (DNS rebinding). Then the browser takes this process for the page's server,
//! and lets the page read our answers. Such a request has the page's host name. An address in numbers is always allowed.

use super::request::PageRequest;
use std::hint::black_box;
use std::net::IpAddr;

/// The host names that clients can use, and the token that they need.
#[derive(Clone)]
pub(crate) struct Gate {
    /// The name of this host, in addition to numbers and `localhost`.
    names: Vec<String>,
    token: Option<String>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateRefusal {
    /// It names no host.
    NoHost,
    /// It names another host.
    Host,
    /// It has no token, or another one.
    Token,
}

impl Gate {
    /// For a host of this name, which listens at `listen`, and asks for the token if there is one.
    pub(crate) fn new(own: &str, listen: &str, token: Option<String>) -> Self {
        let short = own.split('.').next().unwrap_or_default();
        let names = ["localhost", own, short, listen].map(str::to_ascii_lowercase);
        let names = names.into_iter().filter(|name| !name.is_empty()).collect();
        Self { names, token }
    }

    /// Whether a request is answered.
    pub(crate) fn admit(&self, request: &PageRequest, is_open: bool) -> Result<(), GateRefusal> {
        match request.host.as_deref().filter(|host| !host.is_empty()) {
            Some(host) if self.is_own(host) => {}
            Some(_) => return Err(GateRefusal::Host),
            // A browser always names the host.
            None if request.host.is_none() && request.is_old && request.is_local => {}
            None => return Err(GateRefusal::NoHost),
        }
        match &self.token {
            Some(token) if !is_open => {
                let given = request.bearer.as_deref().ok_or(GateRefusal::Token)?;
                if is_same(token.as_bytes(), given.as_bytes()) { Ok(()) } else { Err(GateRefusal::Token) }
            }
            _ => Ok(()),
        }
    }

    /// Whether a `host` or `host:port` is this one. The port is not compared: a tunnel has another one.
    fn is_own(&self, host: &str) -> bool {
        let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
        if let Some(rest) = host.strip_prefix('[') {
            let Some((number, port)) = rest.split_once(']') else { return false };
            let port = if port.is_empty() { Some("") } else { port.strip_prefix(':') };
            return number.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) && port.is_some_and(is_port);
        }
        let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        is_port(port) && (name.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()) || self.names.contains(&name))
    }
}

/// Whether two secrets are the same, in a time that tells only how long they are.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |differs, (one, other)| black_box(differs | (one ^ other)));
    one.len() == other.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: Option<&str>, bearer: Option<&str>) -> PageRequest {
        PageRequest {
            host: host.map(str::to_owned),
            bearer: bearer.map(str::to_owned),
            ..PageRequest::default()
        }
    }

    #[test]
    fn a_host_is_a_number_or_what_this_one_is_called() {
        let gate = Gate::new("Node-1.example.org", "admin.local", None);
        for own in [
            "localhost",
            "LOCALHOST:80",
            "localhost.:80",
            "127.0.0.1",
            "10.0.0.7:9464",
            "[::1]",
            "[::1]:9464",
            "node-1",
            "node-1:9464",
            "node-1.example.org:1",
            "admin.local:7",
        ] {
            assert_eq!(gate.admit(&request(Some(own), None), false), Ok(()), "{own}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[evil.example]:80",
            "::1",
            "[::1",
            "[::1]x",
            "[127.0.0.1]:80",
            "localhost:80:80",
            "localhost:http",
            "user@localhost",
            "node-1.evil",
        ] {
            assert_eq!(gate.admit(&request(Some(other), None), true), Err(GateRefusal::Host), "{other}");
        }
        for none in [None, Some("")] {
            assert_eq!(gate.admit(&request(none, None), true), Err(GateRefusal::NoHost));
        }
    }

    #[test]
    fn clients_of_this_host_that_know_no_host_header_need_none() {
        let gate = Gate::new("node-1", "", Some("a secret of the tests".to_owned()));
        let admit = |host, is_old, is_local| {
            gate.admit(&PageRequest { is_old, is_local, ..request(host, None) }, true)
        };
        assert_eq!(admit(None, true, true), Ok(()));
        for (host, is_old, is_local) in
            [(None, false, true), (None, true, false), (None, false, false), (Some(""), true, true)]
        {
            assert_eq!(
                admit(host, is_old, is_local),
                Err(GateRefusal::NoHost),
                "{host:?} {is_old} {is_local}"
            );
        }
        assert_eq!(admit(Some("evil.example"), true, true), Err(GateRefusal::Host));
        let closed = PageRequest { is_old: true, is_local: true, ..request(None, None) };
        assert_eq!(gate.admit(&closed, false), Err(GateRefusal::Token));
    }

    #[test]
    fn the_token_is_asked_for_where_it_is_said() {
        let gate = Gate::new("node-1", "", Some("a secret of the tests".to_owned()));
        let admit = |bearer, is_open| gate.admit(&request(Some("node-1"), bearer), is_open);
        assert_eq!(admit(Some("a secret of the tests"), false), Ok(()));
        assert_eq!(admit(None, true), Ok(()));
        for wrong in [None, Some(""), Some("a secret of the test"), Some("a secret of the tests "), Some("b")]
        {
            assert_eq!(admit(wrong, false), Err(GateRefusal::Token), "{wrong:?}");
        }
    }
}
