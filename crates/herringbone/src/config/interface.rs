//! The network interface of a worker: the meaning of `HERRINGBONE_IFNAME`.

use super::{
    nearest::{did_you_mean, nearest},
    settings,
};
use crate::{
    Error, Result,
    sys::interface::{Interface, list},
};
use std::net::IpAddr;

/// A choice of interfaces by name, in the notation of `NCCL_SOCKET_IFNAME`: beginnings of names, separated by commas;
/// with `=` before the list whole names, with `^` before it (`^=` for whole names) all interfaces but these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interfaces {
    /// The variable that it comes from.
    setting: String,
    text: String,
}

/// A choice, taken apart.
struct Choice<'a> {
    names: Vec<&'a str>,
    excluded: bool,
    whole: bool,
}

impl Interfaces {
    /// The choice `text`, which the variable `setting` holds.
    pub(crate) fn new(setting: impl Into<String>, text: impl Into<String>) -> Self {
        Self { setting: setting.into(), text: text.into() }
    }

    /// Whether it was meant for another library, and so only says how other hosts are reached.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.setting != settings::IFNAME.name
    }

    /// The address to use, of the first interface in the order of the choice that has one. Of several that are as good
    /// it is `usual`, the one without any choice, or else the first of its kind (IPv4 or IPv6), or else the first.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) with the interfaces of `present` if none is chosen.
    pub(crate) fn address(&self, present: &[Interface], usual: IpAddr) -> Result<IpAddr> {
        let choice = self.choice()?;
        let chosen = choice.tiers(present).into_iter().find_map(|tier| {
            let addresses: Vec<IpAddr> = tier.iter().flat_map(|interface| usable(interface)).collect();
            let alike = |address: &&IpAddr| address.is_ipv4() == usual.is_ipv4();
            let same = addresses.iter().find(|address| **address == usual);
            same.or_else(|| addresses.iter().find(alike)).or(addresses.first()).copied()
        });
        chosen.ok_or_else(|| self.nothing(&choice, present))
    }

    /// All interfaces that are chosen and have an address, each once, in the order of the choice. If the choice only excludes some,
    /// those that lead to no other host are left out unless nothing else is left.
    ///
    /// # Errors
    /// As [`address`](Self::address).
    pub(super) fn all<'i>(&self, present: &'i [Interface]) -> Result<Vec<&'i Interface>> {
        let choice = self.choice()?;
        let chosen = choice.all(present);
        if chosen.is_empty() { Err(self.nothing(&choice, present)) } else { Ok(chosen) }
    }

    /// As [`all`](Self::all) of a choice that excludes nothing: none if no interface has an address.
    pub(super) fn without_choice(present: &[Interface]) -> Vec<&Interface> {
        Choice { names: Vec::new(), excluded: true, whole: false }.all(present)
    }

    fn choice(&self) -> Result<Choice<'_>> {
        let (excluded, list) = strip(self.text.trim(), '^');
        let (whole, list) = strip(list, '=');
        let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        match names.iter().find(|name| name.starts_with(['^', '='])) {
            _ if names.is_empty() => {
                Err(Error::config(&self.setting, format_args!("{:?} names no interface", self.text)))
            }
            Some(name) => {
                let problem = format_args!("{name:?}: write ^ or = once, before the whole list").to_string();
                Err(Error::config(&self.setting, problem))
            }
            None => Ok(Choice { names, excluded, whole }),
        }
    }

    fn nothing(&self, choice: &Choice<'_>, present: &[Interface]) -> Error {
        let shown = |interface: &Interface| {
            let addresses: Vec<String> = usable(interface).map(|address| address.to_string()).collect();
            format!("{} ({})", interface.name, addresses.join(", "))
        };
        let useful: Vec<&Interface> = present.iter().filter(|each| usable(each).next().is_some()).collect();
        let names = useful.iter().map(|interface| interface.name.as_str());
        let meant = choice.names.iter().find_map(|name| nearest(name, names.clone()));
        let meant = if choice.excluded { None } else { meant };
        let list: Vec<String> = useful.into_iter().map(shown).collect();
        let text = &self.text;
        Error::config(
            &self.setting,
            format_args!(
                "{text:?} leaves no interface that is up and has an address; this host has {}{}",
                list.join(", "),
                did_you_mean(meant)
            ),
        )
    }
}

/// This host's interfaces that are up.
///
/// # Errors
/// [`ErrorKind::Io`](crate::ErrorKind::Io) if they cannot be listed.
pub(super) fn present() -> Result<Vec<Interface>> {
    list().map_err(|error| Error::io("listing the network interfaces", error))
}

/// Whether `text` begins with `mark`, and what follows.
fn strip(text: &str, mark: char) -> (bool, &str) {
    text.strip_prefix(mark).map_or((false, text), |rest| (true, rest))
}

/// The addresses that other hosts can be told. An IPv6 address of one link means nothing without its link.
pub(super) fn usable(interface: &Interface) -> impl Iterator<Item = IpAddr> {
    let of_one_link = |address: &IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    interface.addresses.iter().copied().filter(move |address| !of_one_link(address))
}

impl Choice<'_> {
    /// As [`Interfaces::all`]; none if nothing is chosen.
    fn all<'i>(&self, present: &'i [Interface]) -> Vec<&'i Interface> {
        let mut found: Vec<&Interface> = Vec::new();
        for tier in self.tiers(present) {
            if self.excluded && !found.is_empty() {
                break;
            }
            for interface in tier.into_iter().filter(|interface| usable(interface).next().is_some()) {
                if !found.iter().any(|known| known.name == interface.name) {
                    found.push(interface);
                }
            }
        }
        found
    }

    /// The interfaces that are chosen, best first; those of one tier are as good.
    fn tiers<'i>(&self, present: &'i [Interface]) -> Vec<Vec<&'i Interface>> {
        let whole = |interface: &Interface, name: &str| interface.name == name;
        let begins = |interface: &Interface, name: &str| !self.whole && interface.name.starts_with(name);
        let those = |test: &dyn Fn(&Interface) -> bool| present.iter().filter(|each| test(each)).collect();
        if !self.excluded {
            let each = self.names.iter().flat_map(|name| {
                [those(&|interface| whole(interface, name)), those(&|interface| begins(interface, name))]
            });
            return each.collect();
        }
        let allowed = |interface: &Interface| {
            !self.names.iter().any(|name| whole(interface, name) || begins(interface, name))
        };
        // As for NCCL, what leads to no other host is the last resort of those that are not named.
        let inner = |interface: &Interface| interface.name == "lo" || interface.name.starts_with("docker");
        vec![
            those(&|interface| allowed(interface) && !inner(interface)),
            those(&|interface| allowed(interface) && inner(interface)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn host() -> Vec<Interface> {
        let interface = |name: &str, addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            Interface { name: name.to_owned(), addresses }
        };
        vec![
            interface("lo", &["127.0.0.1", "::1"]),
            interface("docker0", &["172.17.0.1"]),
            interface("eth10", &["10.0.10.5"]),
            interface("eth1", &["10.0.1.5", "fe80::1", "2001:db8::5"]),
            interface("ib0", &["fe80::2", "2001:db8:1::5"]),
            interface("tun0", &["fe80::3"]),
        ]
    }

    fn chosen(text: &str, usual: &str) -> Result<String> {
        let choice = Interfaces::new(settings::IFNAME.name, text);
        choice.address(&host(), usual.parse().unwrap()).map(|address| address.to_string())
    }

    #[test]
    fn names_choose_as_for_nccl() {
        let cases = [
            ("eth1", "10.0.1.5"),
            ("=eth1", "10.0.1.5"),
            ("eth", "10.0.10.5"),
            ("e", "10.0.10.5"),
            ("ib9,eth10,eth1", "10.0.10.5"),
            (" = eth1 , eth10 ", "10.0.1.5"),
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("^eth", "2001:db8:1::5"),
            ("^eth,ib", "127.0.0.1"),
            ("^=eth1", "10.0.10.5"),
            ("^eth10", "10.0.1.5"),
            ("^lo", "10.0.10.5"),
            ("^lo,eth,ib,tun", "172.17.0.1"),
        ];
        for (text, address) in cases {
            assert_eq!(chosen(text, "192.0.2.1").unwrap(), address, "{text:?}");
        }
    }

    #[test]
    fn all_that_are_chosen_are_there_once() {
        let all = |text: &str| {
            let choice = Interfaces::new("NCCL_SOCKET_IFNAME", text);
            let host = host();
            choice.all(&host).map(|found| found.iter().map(|each| each.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(all("eth").unwrap(), ["eth10", "eth1"]);
        assert_eq!(all("ib,eth1,eth,tun").unwrap(), ["ib0", "eth1", "eth10"]);
        assert_eq!(all("^ib").unwrap(), ["eth10", "eth1"]);
        assert_eq!(all("^eth,ib").unwrap(), ["lo", "docker0"]);
        assert!(all("=eth").unwrap_err().to_string().contains("NCCL_SOCKET_IFNAME"));
        let host = host();
        let usual: Vec<&str> =
            Interfaces::without_choice(&host).iter().map(|each| each.name.as_str()).collect();
        assert_eq!(usual, ["eth10", "eth1", "ib0"]);
        assert!(Interfaces::without_choice(&[]).is_empty());
    }

    #[test]
    fn of_several_the_one_on_the_way_wins_then_its_kind() {
        assert_eq!(chosen("eth", "10.0.1.5").unwrap(), "10.0.1.5");
        assert_eq!(chosen("^docker", "10.0.1.5").unwrap(), "10.0.1.5");
        assert_eq!(
            chosen("eth10,eth1", "10.0.1.5").unwrap(),
            "10.0.10.5",
            "the order of the list comes first"
        );
        assert_eq!(chosen("eth1", "2001:db8::1").unwrap(), "2001:db8::5");
        assert_eq!(chosen("lo", "::1").unwrap(), "::1");
        assert_eq!(chosen("ib0", "192.0.2.1").unwrap(), "2001:db8:1::5", "there is no other kind");
    }

    #[test]
    fn what_chooses_nothing_is_told_what_there_is() {
        let said = |text: &str| {
            let error = chosen(text, "192.0.2.1").unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Config { setting, .. } if setting == "HERRINGBONE_IFNAME")
            );
            error.to_string()
        };
        let text = said("eht1");
        for part in ["\"eht1\"", "lo (127.0.0.1, ::1)", "eth1 (10.0.1.5, 2001:db8::5)", "mean eth1?"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("tun0"), "it has no address to tell: {text}");
        assert!(said("=eth").contains("did you mean eth1?"));
        assert!(said("tun0").contains("\"tun0\" leaves no interface"));
        assert!(!said("^lo,docker,eth,ib,tun").contains("did you mean"));
        assert!(said("^").contains("names no interface"));
        assert!(said("eth1,^lo").contains("before the whole list"));
    }

    #[test]
    fn only_our_own_variable_is_not_borrowed() {
        assert!(!Interfaces::new("HERRINGBONE_IFNAME", "lo").is_borrowed());
        assert!(Interfaces::new("NCCL_SOCKET_IFNAME", "lo").is_borrowed());
    }
}
