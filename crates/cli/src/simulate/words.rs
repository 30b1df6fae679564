//! Times and places for people.

use herringbone::core::simulate::{Picoseconds, Resource, SECOND};
use indicatif::HumanBytes;

/// A time in seconds.
pub(super) fn seconds(time: Picoseconds) -> f64 {
    time as f64 / SECOND as f64
}

/// How large an operation is: its buffer, or the largest of a rank where parts differ.
pub(super) fn size(bytes: u64, parts_differ: bool) -> String {
    match parts_differ {
        true => format!("unequal parts (at most {} on a rank)", HumanBytes(bytes)),
        false => HumanBytes(bytes).to_string(),
    }
}

/// A place in words.
pub(super) fn named(place: Resource, workers: u32) -> String {
    match place {
        Resource::Thread(rank) if rank >= workers => format!("the thread of reducer {}", rank - workers),
        Resource::Thread(rank) => format!("the thread of rank {rank}"),
        Resource::Out(host) => format!("the port of host {host} (outbound)"),
        Resource::Into(host) => format!("the port of host {host} (inbound)"),
        Resource::Link { from, to } => format!("the link from {from} to {to}"),
        Resource::SwitchOut(switch) => format!("switch {switch} (outbound)"),
        Resource::SwitchInto(switch) => format!("switch {switch} (inbound)"),
        Resource::SiteOut(site) => format!("the uplink of site {site} (outbound)"),
        Resource::SiteInto(site) => format!("the uplink of site {site} (inbound)"),
    }
}
