//! The environment's settings for the plug-in for NCCL: its interfaces, and the number of streams of each connection.

use super::{
    interface::{Interfaces, present, usable},
    settings::{Environment, Found, IFNAME, NCCL_STREAMS},
    streams::{nccls_stream_count, stream_count},
};
use crate::{Error, Result, sys::interface::Interface};
use std::net::IpAddr;

/// The variable by which NCCL chooses interfaces, in the notation of `HERRINGBONE_IFNAME`.
const NCCLS_IFNAME: &str = "NCCL_SOCKET_IFNAME";

/// An interface that the plug-in offers to NCCL as a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NcclInterface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// The address where connections to it are accepted: its first IPv4 address, else its first address.
    pub address: IpAddr,
}

/// The settings of the plug-in for NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NcclNetwork {
    /// The interfaces to offer, best first: from `HERRINGBONE_IFNAME`, else `NCCL_SOCKET_IFNAME`, else all interfaces.
    /// The last default leaves out loopback and Docker's interfaces if the host has others.
    pub interfaces: Vec<NcclInterface>,
    /// The number of streams that is asked for, 1 to 64, if one is.
    pub streams: Option<usize>,
}

impl NcclNetwork {
    /// As `environment` and this host's interfaces have it.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if a setting cannot be used, or chooses no interface that has an address;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the host has no interface, or they cannot be listed.
    pub fn of(environment: &Environment) -> Result<Self> {
        Self::among(environment, &present()?)
    }

    fn among(environment: &Environment, present: &[Interface]) -> Result<Self> {
        // GLOO_SOCKET_IFNAME, which workers know, too, is not meant for NCCL.
        let own = environment.text(IFNAME.name)?.map(|text| Interfaces::new(IFNAME.name, text));
        let nccls = environment.text(NCCLS_IFNAME)?.map(|text| Interfaces::new(NCCLS_IFNAME, text));
        let chosen = match own.or(nccls) {
            Some(choice) => choice.all(present)?,
            None => Interfaces::without_choice(present),
        };
        if chosen.is_empty() {
            let none = std::io::Error::new(std::io::ErrorKind::NotFound, "none is up and has an address");
            return Err(Error::io("choosing a network interface", none));
        }
        let streams = NCCL_STREAMS.find(environment)?.map(|found| streams_of(&found)).transpose()?;
        Ok(Self { interfaces: chosen.into_iter().filter_map(offered).collect(), streams })
    }
}

fn offered(interface: &Interface) -> Option<NcclInterface> {
    let address = usable(interface).find(IpAddr::is_ipv4).or_else(|| usable(interface).next())?;
    Some(NcclInterface { name: interface.name.clone(), address })
}

/// The number of streams that is asked for.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if it is none.
fn streams_of(found: &Found) -> Result<usize> {
    let is_own = found.variable == NCCL_STREAMS.name;
    let count = if is_own { stream_count(&found.text) } else { nccls_stream_count(&found.text) };
    count.ok_or_else(|| NCCL_STREAMS.refuse(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Vec<Interface> {
        let interface = |name: &str, addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            Interface { name: name.to_owned(), addresses }
        };
        vec![
            interface("lo", &["127.0.0.1"]),
            interface("eth0", &["2001:db8::5", "10.0.0.5"]),
            interface("ib0", &["2001:db8::6"]),
        ]
    }

    fn network(set: &[(&str, &str)]) -> Result<NcclNetwork> {
        NcclNetwork::among(&Environment::of(set.iter().copied()), &host())
    }

    fn names(set: &[(&str, &str)]) -> Vec<String> {
        network(set).unwrap().interfaces.into_iter().map(|each| each.name).collect()
    }

    #[test]
    fn our_variable_chooses_interfaces_and_then_nccls() {
        assert_eq!(names(&[]), ["eth0", "ib0"]);
        assert_eq!(names(&[("GLOO_SOCKET_IFNAME", "lo")]), ["eth0", "ib0"]);
        assert_eq!(names(&[("NCCL_SOCKET_IFNAME", "=lo")]), ["lo"]);
        assert_eq!(names(&[("NCCL_SOCKET_IFNAME", "lo"), ("HERRINGBONE_IFNAME", "ib")]), ["ib0"]);
        let text = network(&[("NCCL_SOCKET_IFNAME", "eth7")]).unwrap_err().to_string();
        assert!(
            text.contains("NCCL_SOCKET_IFNAME") && text.contains("eth0 (2001:db8::5, 10.0.0.5)"),
            "{text}"
        );
        assert!(NcclNetwork::among(&Environment::default(), &[]).is_err());
    }

    #[test]
    fn the_older_kind_of_address_is_offered_first() {
        let found = network(&[]).unwrap().interfaces;
        let addresses: Vec<String> = found.iter().map(|each| each.address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.5", "2001:db8::6"]);
    }

    #[test]
    fn streams_are_counted_as_ours_or_as_nccls() {
        let streams = |set: &[(&str, &str)]| network(set).map(|network| network.streams);
        let nccls =
            |threads, sockets| [("NCCL_SOCKET_NTHREADS", threads), ("NCCL_NSOCKS_PERTHREAD", sockets)];
        assert_eq!(streams(&[]).unwrap(), None);
        assert_eq!(streams(&[("HERRINGBONE_NCCL_STREAMS", " 8 ")]).unwrap(), Some(8));
        assert_eq!(streams(&nccls("4", "2")).unwrap(), Some(8));
        assert_eq!(streams(&nccls("0", "0")).unwrap(), Some(1));
        assert_eq!(streams(&nccls("4", "")).unwrap(), None);
        for wrong in ["0", "65", "-1", "4:2", "many"] {
            let text = streams(&[("HERRINGBONE_NCCL_STREAMS", wrong)]).unwrap_err().to_string();
            assert!(text.contains("HERRINGBONE_NCCL_STREAMS") && text.contains("from 1 to 64"), "{text}");
        }
        let text = streams(&nccls("16", "8")).unwrap_err().to_string();
        assert!(text.contains("NCCL_SOCKET_NTHREADS:NCCL_NSOCKS_PERTHREAD"), "{text}");
        assert!(streams(&nccls("x", "8")).is_err());
    }

    #[test]
    fn workers_refuse_only_our_own_variable() {
        let problems = |set: &[(&str, &str)]| Environment::of(set.iter().copied()).problems().len();
        assert_eq!(problems(&[("HERRINGBONE_NCCL_STREAMS", "65")]), 1);
        assert_eq!(problems(&[("NCCL_SOCKET_NTHREADS", "x"), ("NCCL_NSOCKS_PERTHREAD", "y")]), 0);
    }
}
