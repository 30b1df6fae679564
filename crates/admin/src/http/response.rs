//! Answers.

use super::{gate::GateRefusal, request::BadRequest};
use std::io::{self, Write};
use std::sync::Arc;

/// An answer to a request.
#[derive(Clone, Debug)]
pub(crate) struct PageResponse {
    status: u16,
    kind: &'static str,
    body: Arc<[u8]>,
}

/// Plain text.
const TEXT: &str = "text/plain; charset=utf-8";

impl PageResponse {
    /// A page that is there.
    pub(crate) fn page(kind: &'static str, body: impl Into<Arc<[u8]>>) -> Self {
        Self { status: 200, kind, body: body.into() }
    }

    /// A line of text with a status.
    pub(crate) fn line(status: u16, text: &str) -> Self {
        Self { status, kind: TEXT, body: format!("{text}\n").into_bytes().into() }
    }

    /// Why there is no answer, and what to do.
    pub(crate) fn refusal(refused: GateRefusal) -> Self {
        match refused {
            GateRefusal::NoHost => Self::line(400, "the Host header is missing"),
            GateRefusal::Host => {
                Self::line(421, "unknown host name: use this host's address, its own name or localhost")
            }
            GateRefusal::Token => Self::line(
                401,
                "send the header Authorization: Bearer TEXT, with the text of HERRINGBONE_ADMIN_TOKEN",
            ),
        }
    }

    /// What is wrong with a request; `None` if there is nobody to tell.
    pub(crate) fn bad_request(bad: BadRequest) -> Option<Self> {
        Some(match bad {
            BadRequest::Gone => return None,
            BadRequest::Late => Self::line(408, "the request took too long"),
            BadRequest::TooLong => Self::line(431, "the header is too long"),
            BadRequest::Malformed(why) => Self::line(400, &format!("not a valid HTTP request: {why}")),
            BadRequest::Method => Self::line(405, "only GET and HEAD are allowed"),
        })
    }

    /// There are too many connections.
    pub(crate) fn too_many() -> Self {
        Self::line(503, "too many connections at once")
    }

    /// Writes it, without its body if only the header is wanted.
    pub(crate) fn send(&self, to: &mut impl Write, wants_header: bool) -> io::Result<()> {
        let Self { status, kind, body } = self;
        let more = match status {
            401 => "WWW-Authenticate: Bearer realm=\"herringbone\"\r\n",
            405 => "Allow: GET, HEAD\r\n",
            503 => "Retry-After: 1\r\n",
            _ => "",
        };
        let mut message = format!(
            "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nContent-Security-Policy: default-src 'self'; frame-ancestors 'none'\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n{more}\r\n",
            reason(*status),
            body.len()
        )
        .into_bytes();
        if !wants_header {
            message.extend_from_slice(body);
        }
        to.write_all(&message)
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    }
}
