//! Leaving in order: a rank until its goodbye was heard, rank 0 until the others have left.

use super::{Leaving, PARTING, Watch};
use crate::{
    group::Rank,
    session::{Ranks, control::Message},
};
use alloc::{format, vec::Vec};
use core::{mem, time::Duration};

impl Watch {
    /// This process leaves; rank 0 lingers for the others, or does not.
    pub fn leave(&mut self, lingers: bool, now: Duration) {
        if !lingers {
            self.patience.linger = Duration::ZERO;
        }
        self.leaving = Some(Leaving { since: now, warned: false });
        // Rank 0 leaves as a rank now and as the hub last.
        let goodbye = if self.hub.is_some() { Message::Leave { rank: self.me } } else { Message::Bye };
        self.spread(self.me, &goodbye);
    }

    /// Whether this process is leaving.
    pub fn leaves(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether this process has left. Rank 0 stays until the others have left, for a while, and then says goodbye as
    /// the hub. Any other rank stays, for a moment at most, until its goodbye is sent (`unsent` if it is not) and rank
    /// 0 has hung up. A socket that is closed while data arrives drops its unsent data.
    pub fn has_left(&mut self, unsent: bool, now: Duration) -> bool {
        let Some(Leaving { since, warned }) = &mut self.leaving else { return false };
        let (left_for, is_hub) = (now.saturating_sub(*since), self.hub.is_some());
        let waits = !self.peers.is_empty() && (is_hub || unsent || left_for < PARTING);
        if waits && left_for < self.patience.linger {
            if is_hub && left_for >= self.patience.half() && !mem::replace(warned, true) {
                let others: Vec<Rank> = self.peers.keys().copied().collect();
                let (others, most) = (Ranks(&others), self.patience.linger.as_secs());
                let why = "they learn from rank 0 which ranks are lost";
                self.log(true, None, format!("waiting for {others} to leave, for at most {most} s: {why}"));
            }
            return false;
        }
        if is_hub {
            self.spread(self.me, &Message::Bye);
        }
        true
    }
}
