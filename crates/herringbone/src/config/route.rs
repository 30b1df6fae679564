//! The address that this host has on its way to another one, which a process sends to the others.

use super::{Config, interface::present, launchers, resolve};
use crate::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// The address at which a worker listens, which it tells the others and from which it calls, and the source of that
/// address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The address.
    pub address: IpAddr,
    /// The interface that has it, if one of this host's is up and has it.
    pub interface: Option<String>,
    /// Whether a setting has chosen it. Otherwise it is the address on the way.
    pub is_chosen: bool,
}

/// The address that a worker with `config` would use if rank 0 were at `host`, a name or an address. Nothing is sent.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if the host has no address, or if no interface matches
/// `HERRINGBONE_IFNAME`; [`ErrorKind::Io`](crate::ErrorKind::Io) if there is no way to the host.
pub fn route_to(config: &Config, host: &str) -> Result<Route> {
    let usual = on_the_way_to(host)?;
    let chosen = config.local_address(usual)?;
    let address = chosen.unwrap_or(usual);
    let holder = present()?.into_iter().find(|interface| interface.addresses.contains(&address));
    Ok(Route { address, interface: holder.map(|interface| interface.name), is_chosen: chosen.is_some() })
}

/// Whether an address is one of this host's interfaces that are up, or a loopback address.
///
/// # Errors
/// [`ErrorKind::Io`](crate::ErrorKind::Io) if the interfaces cannot be listed.
pub fn is_own_address(address: IpAddr) -> Result<bool> {
    Ok(address.is_loopback() || present()?.iter().any(|interface| interface.addresses.contains(&address)))
}

/// This host's address on the way to `host`.
pub(crate) fn on_the_way_to(host: &str) -> Result<IpAddr> {
    let there = resolve("MASTER_ADDR", &launchers::address(host, 9))?;
    let any: IpAddr =
        if there.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket sends nothing; it only asks for the route.
    let route = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(there)?;
        socket.local_addr()
    });
    Ok(route.map_err(|error| Error::io(format_args!("finding the way to {host}"), error))?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rendezvous;

    fn config() -> Config {
        Config::new(0, 2, Rendezvous::Tcp(String::new()))
    }

    #[test]
    fn the_way_to_this_host_is_loopback_and_a_setting_overrules_it() {
        let route = route_to(&config(), "127.0.0.1").unwrap();
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(
            (route.address, route.interface.as_deref(), route.is_chosen),
            (loopback, Some("lo"), false)
        );
        assert!(route_to(&config().interfaces("=lo"), "127.0.0.1").unwrap().is_chosen);
        assert!(
            is_own_address(loopback).unwrap() && !is_own_address("203.0.113.9".parse().unwrap()).unwrap()
        );
    }

    #[test]
    fn what_is_not_there_is_named() {
        let said = |config: &Config, host: &str| route_to(config, host).unwrap_err().to_string();
        assert!(said(&config().interfaces("nope0"), "127.0.0.1").contains("HERRINGBONE_IFNAME: \"nope0\""));
        assert!(said(&config(), "no such host").contains("no such host"));
    }
}
