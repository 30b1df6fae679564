//! Reducers that hang: their kernels keep connections open and take in what is sent, but no sign of life comes.

use super::Engine;
use crate::{
    transport::endpoint::Link,
    {
        core::wire::{Header, Kind},
        transport::Broken,
    },
};
use std::time::{Duration, Instant};

/// How often a reducer shows its workers that it lives.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// After this silence a reducer is suspected, in a warning.
const SUSPECT: Duration = Duration::from_secs(3);
/// After this silence it is lost.
const LOST: Duration = Duration::from_secs(6);
/// How much silence one look adds at most: this process may have stood still as well.
const LOOK: Duration = Duration::from_millis(200);

impl Engine {
    /// Sends a frame without meaning on every socket that has nothing to carry. One that is full shows no life either, but its
    /// other end has something to read.
    pub(crate) fn show_life(&mut self) {
        for index in &self.linked {
            let endpoint = &mut self.endpoints[*index as usize];
            if matches!(&endpoint.link, Link::Tcp(link) if link.is_flushed()) {
                endpoint.notice(Header::new(Kind::Credit, 0, 0, 0));
            }
        }
        self.flush();
    }

    /// Gives up reducers that have been silent for long while operations need reducers. Nobody reads sockets, or misses
    /// anything, while there are none.
    pub(super) fn listen_for_silence(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.ticked, now)).min(LOOK);
        let needed = |engine: &Self| engine.ops.iter().any(|operation| operation.with_reducers());
        if self.reduces || !needed(self) {
            return;
        }
        for index in 0..self.endpoints.len() as u32 {
            let endpoint = &mut self.endpoints[index as usize];
            if !endpoint.is_reducer || !endpoint.is_up() {
                continue;
            }
            let before = endpoint.silence;
            endpoint.silence += passed;
            if (before < SUSPECT) == (endpoint.silence < SUSPECT) && endpoint.silence < LOST {
                continue;
            }
            // What nobody has come to read yet is a sign as well.
            self.receive_socket(index);
            let endpoint = &self.endpoints[index as usize];
            if endpoint.silence >= LOST {
                self.broken(index, Broken::Silent(endpoint.silence));
            } else if endpoint.silence >= SUSPECT {
                let (name, silence) = (&endpoint.name, endpoint.silence.as_secs());
                let what = format_args!("the reducer at {name} has been silent for {silence} s");
                crate::log::warn(&format!("rank {}", self.me), what);
            }
        }
    }
}
