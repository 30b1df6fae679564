//! The addresses that can be used with each token.

use crate::{Error, ErrorKind, Result};

/// The shortest token that is used at an address that others reach.
const TOKEN_CHARACTERS: usize = 16;

/// Whether an address can be used: without a token that is hard to guess, only loopback.
///
/// # Errors
/// [`ErrorKind::Auth`], which explains how to set one.
pub fn check_exposure(address: std::net::SocketAddr, token: Option<&str>) -> Result<()> {
    let ip = address.ip();
    let characters = token.map_or(0, |token| token.chars().count());
    if characters >= TOKEN_CHARACTERS || ip.is_loopback() {
        return Ok(());
    }
    let problem = match token.filter(|token| !token.is_empty()) {
        None => format!("no job token is set, and {ip} is not loopback: such an address needs one"),
        Some(_) => format!(
            "the job's token has fewer than {TOKEN_CHARACTERS} characters, and {ip} is not loopback: others could guess it"
        ),
    };
    Err(Error::new(ErrorKind::Auth {
        problem,
        hint: "set HERRINGBONE_TOKEN to the same secret text for every worker and reducer, for instance \
               HERRINGBONE_TOKEN=$(openssl rand -hex 32)",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_others_reach_a_token_has_to_be_long_enough() {
        let at = |address: &str, token| check_exposure(address.parse().unwrap(), token);
        for token in [None, Some(""), Some("x"), Some("123456789012345"), Some("ääääääää")] {
            for address in ["0.0.0.0:7070", "192.0.2.1:7070", "[::]:7070"] {
                let error = at(address, token).unwrap_err();
                let problem =
                    if token.is_none_or(str::is_empty) { "no job token" } else { "fewer than 16 characters" };
                assert!(matches!(error.kind(), ErrorKind::Auth { .. }), "{error}");
                assert!(
                    error.to_string().contains(problem) && error.to_string().contains("openssl"),
                    "{error}"
                );
            }
            assert!(at("127.0.0.1:7070", token).is_ok() && at("[::1]:7070", token).is_ok());
        }
        assert!(at("0.0.0.0:7070", Some("1234567890123456")).is_ok());
    }
}
