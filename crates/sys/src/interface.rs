//! The network interfaces of this host, in this network namespace, and their addresses.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its addresses in the system's order; none if it has only some of other kinds.
    pub addresses: Vec<IpAddr>,
}

/// The interfaces that are up, in the system's order, which is the order of their numbers (getifaddrs(3)).
///
/// # Errors
/// The system's error, which is rare: it has no memory left, or no descriptors.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes the head of a list to `first`, which is a place for one.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found: Vec<Interface> = Vec::new();
    let mut next = first;
    // SAFETY: `next` is null or an entry of the list, which lives until freeifaddrs below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as libc::c_uint == 0 {
            continue;
        }
        // SAFETY: every entry has a name, a string of C that lives as long as the entry.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
        // SAFETY: an entry's address is null or a whole `sockaddr` of the kind that its family says.
        let address = unsafe { address(entry.ifa_addr) };
        match found.iter_mut().find(|interface| interface.name == name) {
            Some(known) => known.addresses.extend(address),
            None => {
                let addresses = address.into_iter().collect();
                found.push(Interface { name: name.into_owned(), addresses });
            }
        }
    }
    // SAFETY: `first` is what getifaddrs gave, is freed once, and nothing refers to the list any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The address at `place`, if it is one of the Internet Protocol.
///
/// # Safety
/// `place` is null or points to a `sockaddr` that is as long as its family says.
unsafe fn address(place: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by contract.
    let family = unsafe { place.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: by contract it is a `sockaddr_in`; the copy needs no alignment.
            let address = unsafe { place.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: by contract it is a `sockaddr_in6`; the copy needs no alignment.
            let address = unsafe { place.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed_once_with_its_address() {
        let found = list().unwrap();
        let loopback: Vec<&Interface> = found.iter().filter(|interface| interface.name == "lo").collect();
        assert_eq!(loopback.len(), 1, "{found:?}");
        assert!(loopback[0].addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{found:?}");
    }

    #[test]
    fn addresses_are_read_in_the_networks_byte_order() {
        // SAFETY: a plain struct of C, for which zero is a value.
        let mut four: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        four.sin_family = libc::AF_INET as libc::sa_family_t;
        four.sin_addr.s_addr = u32::from_ne_bytes([192, 0, 2, 7]);
        // SAFETY: as above.
        let mut six: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        six.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        six.sin6_addr.s6_addr[15] = 1;
        // SAFETY: a plain struct of C, for which zero is a value.
        let other: libc::sockaddr = unsafe { std::mem::zeroed() };
        // SAFETY: each is as long as its family says.
        let read =
            unsafe { [address((&raw const four).cast()), address((&raw const six).cast()), address(&other)] };
        assert_eq!(read, [Some("192.0.2.7".parse().unwrap()), Some("::1".parse().unwrap()), None]);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { address(std::ptr::null()) }, None);
    }
}
