//! Times and places as people read them.

use herringbone::core::simulate::{Picoseconds, Resource, SECOND};

/// A time in seconds.
pub(super) fn seconds(time: Picoseconds) -> f64 {
    time as f64 / SECOND as f64
}

/// A place in words.
pub(super) fn named(place: Resource, workers: u32) -> String {
    match place {
        Resource::Thread(rank) if rank >= workers => format!("the thread of reducer {}", rank - workers),
        Resource::Thread(rank) => format!("the thread of rank {rank}"),
        Resource::Out(host) => format!("the port of host {host}, outwards"),
        Resource::Into(host) => format!("the port of host {host}, inwards"),
        Resource::Link { from, to } => format!("the link from {from} to {to}"),
    }
}
