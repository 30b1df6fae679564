//! The address to listen at, as text.

/// The host and the port of `host:port`, where an IPv6 address is in brackets.
pub(super) fn listen_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let bare = host.strip_prefix('[').map_or(Some(host), |rest| rest.strip_suffix(']'))?;
    let is_plain = host.len() != bare.len() || !bare.contains(':');
    (is_plain && !bare.is_empty()).then_some((bare.to_owned(), port.parse().ok()?))
}
