//! The accepted requests: GET and HEAD, with a header of bounded length.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long the header of a request can be, in bytes.
pub(crate) const HEADER_BYTES: usize = 8 << 10;
/// How many lines it can have.
const HEADER_LINES: usize = 64;
/// How long a client has to send it.
pub(crate) const SENDING: Duration = Duration::from_secs(5);

/// A client's request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRequest {
    /// Whether the client wants only the header of the answer.
    pub(crate) wants_header: bool,
    /// The path, without what follows a question mark.
    pub(crate) path: String,
    /// What follows the question mark.
    pub(crate) query: String,
    /// The host that the client believes it is talking to: the Host header, or the authority of a target that has one.
    pub(crate) host: Option<String>,
    /// Whether it is a request of HTTP/1.0, in which the Host header is optional.
    pub(crate) is_old: bool,
    /// Whether the client is on this host.
    pub(crate) is_local: bool,
    /// The secret that it sends.
    pub(crate) bearer: Option<String>,
    /// Which types of answers it takes.
    pub(crate) accept: String,
}

/// Why a request is not answered.
#[derive(Debug)]
pub(crate) enum BadRequest {
    /// The client has sent nothing, or is gone: there is nobody to tell.
    Gone,
    /// It has not sent all of its header in time.
    Late,
    /// The header is too long.
    TooLong,
    /// It is no HTTP.
    Malformed(String),
    /// It is neither GET nor HEAD.
    Method,
}

impl PageRequest {
    /// The first value of a field of the query, as it was sent.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.query.split('&').map(|field| field.split_once('=').unwrap_or((field, "")));
        fields.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// Reads a request.
    pub(crate) fn receive(mut stream: &TcpStream) -> Result<Self, BadRequest> {
        let deadline = Instant::now() + SENDING;
        let mut header = Vec::new();
        let mut part = [0; 1024];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(BadRequest::Late);
            }
            // A timeout of zero would be none.
            stream.set_read_timeout(Some(left)).map_err(|_| BadRequest::Gone)?;
            match stream.read(&mut part) {
                Ok(0) => return Err(BadRequest::Gone),
                Ok(count) => header.extend_from_slice(&part[..count]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(BadRequest::Late);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(BadRequest::Gone),
            }
            if let Some(request) = Self::parse(&header)? {
                let is_local = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
                return Ok(Self { is_local, ..request });
            }
            if header.len() > HEADER_BYTES {
                return Err(BadRequest::TooLong);
            }
        }
    }

    /// The request in these bytes; `None` if its header has not come to its end.
    fn parse(header: &[u8]) -> Result<Option<Self>, BadRequest> {
        let mut lines = [httparse::EMPTY_HEADER; HEADER_LINES];
        let mut parsed = httparse::Request::new(&mut lines);
        match parsed.parse(header) {
            Ok(httparse::Status::Partial) => return Ok(None),
            Ok(httparse::Status::Complete(bytes)) if bytes <= HEADER_BYTES => {}
            Ok(httparse::Status::Complete(_)) | Err(httparse::Error::TooManyHeaders) => {
                return Err(BadRequest::TooLong);
            }
            Err(error) => return Err(BadRequest::Malformed(error.to_string())),
        }
        let wants_header = match parsed.method {
            Some("GET") => false,
            Some("HEAD") => true,
            _ => return Err(BadRequest::Method),
        };
        let target = Target::of(parsed.path.unwrap_or_default())?;
        let (path, query) = target.origin.split_once('?').unwrap_or((target.origin, ""));
        let is_old = parsed.version == Some(0);
        let mut request =
            Self { wants_header, path: path.to_owned(), query: query.to_owned(), is_old, ..Self::default() };
        for line in parsed.headers.iter() {
            // Bytes that are no text are in no header that is used.
            let Ok(value) = std::str::from_utf8(line.value) else { continue };
            let value = value.trim();
            if line.name.eq_ignore_ascii_case("host") {
                if request.host.replace(value.to_owned()).is_some() {
                    return Err(BadRequest::Malformed("two Host headers".to_owned()));
                }
            } else if line.name.eq_ignore_ascii_case("authorization") {
                let scheme =
                    value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
                request.bearer = scheme.map(|(_, secret)| secret.trim().to_owned());
            } else if line.name.eq_ignore_ascii_case("accept") {
                value.clone_into(&mut request.accept);
            }
        }
        // The authority overrides the Host header, which HTTP/1.1 requires nevertheless.
        if let Some(authority) = target.authority
            && (request.host.is_some() || is_old)
        {
            request.host = Some(authority.to_owned());
        }
        Ok(Some(request))
    }
}

/// What a request line asks for.
struct Target<'a> {
    /// The host, if the line names it.
    authority: Option<&'a str>,
    /// The path, with what follows a question mark.
    origin: &'a str,
}

impl<'a> Target<'a> {
    /// In origin-form, `/metrics`, or in absolute-form, `http://host:port/metrics` (RFC 9112, 3.2).
    fn of(target: &'a str) -> Result<Self, BadRequest> {
        const SCHEME: &str = "http://";
        let is_absolute = target.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME));
        if !is_absolute {
            return Ok(Self { authority: None, origin: target });
        }
        let rest = &target[SCHEME.len()..];
        let (authority, origin) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.is_empty() {
            return Err(BadRequest::Malformed("the target has no host".to_owned()));
        }
        let origin = if origin.starts_with('/') { origin } else { "/" };
        Ok(Self { authority: Some(authority), origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<PageRequest>, BadRequest> {
        PageRequest::parse(text.as_bytes())
    }

    #[test]
    fn what_is_used_of_a_header_is_found_in_any_case() {
        let request = parsed(
            "HEAD /job.json?job=7&x=1 HTTP/1.1\r\nhOsT: node-1:9464\r\nAUTHORIZATION: bearer  secret \r\naccept: a/b\r\n\r\n",
        );
        let request = request.unwrap().unwrap();
        assert_eq!(["job", "x", "y"].map(|name| request.field(name)), [Some("7"), Some("1"), None]);
        let expected = PageRequest {
            wants_header: true,
            path: "/job.json".to_owned(),
            query: "job=7&x=1".to_owned(),
            host: Some("node-1:9464".to_owned()),
            bearer: Some("secret".to_owned()),
            accept: "a/b".to_owned(),
            ..PageRequest::default()
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn the_authority_of_a_target_stands_for_the_host() {
        let place = |line: &str, host: &str| {
            let request = parsed(&format!("GET {line}\r\n{host}\r\n")).unwrap().unwrap();
            (request.host, request.path, request.is_old)
        };
        let host = |host: &str| Some(host.to_owned());
        for (line, path) in [
            ("http://node-1:9464/metrics HTTP/1.1", "/metrics"),
            ("HTTP://node-1:9464/metrics?x=/ HTTP/1.1", "/metrics"),
            ("http://node-1:9464 HTTP/1.1", "/"),
            ("http://node-1:9464?x HTTP/1.1", "/"),
        ] {
            let expected = (host("node-1:9464"), path.to_owned(), false);
            assert_eq!(place(line, "Host: other\r\n"), expected, "{line}");
        }
        // HTTP/1.1 demands a Host header, HTTP/1.0 knows none.
        assert_eq!(place("http://node-1/metrics HTTP/1.1", "").0, None);
        assert_eq!(
            place("http://node-1/metrics HTTP/1.0", ""),
            (host("node-1"), "/metrics".to_owned(), true)
        );
        assert_eq!(place("/metrics HTTP/1.0", ""), (None, "/metrics".to_owned(), true));
        assert!(matches!(parsed("GET http:///metrics HTTP/1.1\r\n\r\n"), Err(BadRequest::Malformed(_))));
    }

    #[test]
    fn half_a_header_is_waited_for_and_what_is_none_is_refused() {
        for half in ["", "G", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: a\r\n"] {
            assert!(parsed(half).unwrap().is_none(), "{half:?}");
        }
        for wrong in ["\x16\x03\x01\x02 HTTP", "GET / HTTP/7\r\n\r\n", "GET / HTTP/1.1\r\nA B: c\r\n\r\n"] {
            assert!(matches!(parsed(wrong), Err(BadRequest::Malformed(_))), "{wrong:?}");
        }
        let twice = "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
        assert!(matches!(parsed(twice), Err(BadRequest::Malformed(_))));
        for method in ["POST", "PUT", "CONNECT", "OPTIONS", "get"] {
            let refused = parsed(&format!("{method} / HTTP/1.1\r\n\r\n"));
            assert!(matches!(refused, Err(BadRequest::Method)), "{method}");
        }
    }

    #[test]
    fn a_long_header_is_refused_however_it_is_long() {
        let many = "a: b\r\n".repeat(HEADER_LINES + 1);
        assert!(matches!(parsed(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Err(BadRequest::TooLong)));
        let long = "x".repeat(HEADER_BYTES);
        assert!(matches!(parsed(&format!("GET /{long} HTTP/1.1\r\n\r\n")), Err(BadRequest::TooLong)));
        assert!(matches!(parsed(&format!("GET / HTTP/1.1\r\na: {long}\r\n\r\n")), Err(BadRequest::TooLong)));
    }

    #[test]
    fn only_a_bearer_is_a_secret() {
        for (value, secret) in [("Bearer a b", Some("a b")), ("Basic YTpi", None), ("Bearer", None)] {
            let request =
                parsed(&format!("GET / HTTP/1.1\r\nAuthorization: {value}\r\n\r\n")).unwrap().unwrap();
            assert_eq!(request.bearer.as_deref(), secret, "{value}");
        }
    }
}
