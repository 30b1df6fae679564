//! A server's ranges in an epoch: copies execute all operations of their owners.

use super::{
    epoch::{EpochId, SettledEpoch, Tenure},
    log::RangeLog,
    message::{ImagePart, PeerMessage},
    state::{HeldLog, NodeOutput, SentImage, TableNode},
};
use alloc::vec::Vec;

/// How many operations of a range there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeProgress {
    /// The operations that were executed here.
    pub executed: u64,
    /// The operations among these that all copies have.
    pub settled: u64,
}

impl TableNode {
    /// The ranges that this server owns.
    pub(super) fn owned(&self) -> Vec<u32> {
        let tenures = self.settled.iter().flat_map(|settled| (0..).zip(&settled.tenures));
        tenures.filter(|(_, tenure)| tenure.owner == Some(self.own.server)).map(|(range, _)| range).collect()
    }

    /// What becomes of a range in a new epoch.
    pub(super) fn take_place(
        &mut self,
        range: u32,
        tenure: &Tenure,
        settled: &SettledEpoch,
        was_owner: bool,
    ) {
        let id = settled.epoch.id;
        let own = self.own.server;
        if tenure.owner == Some(own) {
            let held = self.ranges.entry(range).or_default();
            (held.epoch, held.is_whole, held.is_loaded) = (id, true, true);
            held.log.own(&tenure.copies);
            self.outputs.push(NodeOutput::Own { range });
            self.equip_copies(range, tenure, settled);
            return;
        }
        if was_owner {
            self.outputs.push(NodeOutput::Disown { range });
        }
        match tenure.copies.iter().find(|copy| copy.server == own) {
            Some(copy) if copy.sequence.is_some() => {
                let held = self.ranges.entry(range).or_default();
                (held.epoch, held.is_whole, held.is_loaded) = (id, true, true);
            }
            // Its owner sends an image.
            Some(_) => {
                if let Some(held) = self.ranges.get_mut(&range) {
                    (held.is_whole, held.is_loaded) = (false, false);
                }
            }
            None => {
                if self.ranges.remove(&range).is_some() {
                    self.outputs.push(NodeOutput::Forget { range });
                }
            }
        }
    }

    /// Copies get what they lack.
    fn equip_copies(&mut self, range: u32, tenure: &Tenure, settled: &SettledEpoch) {
        let Some(held) = self.ranges.get(&range) else { return };
        let (id, sequence, stable) = (settled.epoch.id, held.log.sequence(), held.log.stable());
        let mut outputs = Vec::new();
        for copy in &tenure.copies {
            let to = copy.server;
            let mut send = |message| outputs.push(NodeOutput::Send { to, message });
            // It may not have heard of the epoch from its decider.
            send(PeerMessage::Commit(settled.clone()));
            if held.log.is_imaged(to) {
                let (part, record) = (ImagePart::Begin { sequence }, Vec::new());
                send(PeerMessage::Image { epoch: id, range, part, record });
                outputs.push(NodeOutput::SendImage(SentImage { range, to, epoch: id }));
                continue;
            }
            for (sequence, operation) in held.log.after(copy.sequence.unwrap_or_default()) {
                let operation = operation.clone();
                send(PeerMessage::Operate { epoch: id, range, sequence, stable, operation });
            }
        }
        self.outputs.extend(outputs);
        self.outputs.push(NodeOutput::Settled { range, sequence: stable });
    }

    /// This server, the owner, has executed an operation. Returns its number. Once an output
    /// [`Settled`](NodeOutput::Settled) reaches that number, the result can be sent.
    pub fn append(&mut self, range: u32, operation: Vec<u8>) -> u64 {
        let Some(held) = self.ranges.get_mut(&range) else { return 0 };
        let before = held.log.stable();
        let sequence = held.log.append(operation.clone());
        let stable = held.log.stable();
        let copies = self.tenure(range).map(|tenure| tenure.copies.clone()).unwrap_or_default();
        let epoch = self.settled_id().unwrap_or_default();
        for copy in copies {
            let operation = operation.clone();
            self.send(copy.server, PeerMessage::Operate { epoch, range, sequence, stable, operation });
        }
        if stable > before {
            self.outputs.push(NodeOutput::Settled { range, sequence: stable });
        }
        sequence
    }

    /// How far a range is here.
    pub fn progress(&self, range: u32) -> Option<RangeProgress> {
        let log = &self.ranges.get(&range)?.log;
        Some(RangeProgress { executed: log.sequence(), settled: log.stable() })
    }

    /// Whether this server takes words about a range from one that says that it is its owner in an epoch. What it has promised
    /// must not be without that one.
    pub(super) fn follows(&self, from: u32, epoch: EpochId, range: u32) -> bool {
        let Some(peer) = self.peers.get(&from) else { return false };
        let is_in_all = self.possible.iter().all(|possible| possible.members.get(&from) == Some(&peer.life));
        let is_in_it = self.settled.as_ref().is_some_and(|settled| {
            settled.epoch.id == epoch && settled.epoch.members.get(&from) == Some(&peer.life)
        });
        is_in_all && is_in_it && self.owner(range) == Some(from)
    }

    pub(super) fn operated(&mut self, from: u32, range: u32, sequence: u64, stable: u64, operation: Vec<u8>) {
        let epoch = self.settled_id().unwrap_or_default();
        let Some(held) = self.ranges.get_mut(&range) else { return };
        if held.log.follow(sequence, &operation) {
            self.outputs.push(NodeOutput::Execute { range, operation });
        }
        held.log.settled_to(stable);
        if held.is_loaded {
            let sequence = held.log.sequence();
            self.send(from, PeerMessage::Executed { epoch, range, sequence });
        }
    }

    pub(super) fn executed(&mut self, from: u32, epoch: EpochId, range: u32, sequence: u64) {
        let own = self.own.server;
        let Some(tenure) = self.tenure(range).filter(|tenure| tenure.owner == Some(own)) else { return };
        let is_copy = tenure.copies.iter().any(|copy| copy.server == from);
        if !is_copy || self.settled_id() != Some(epoch) {
            return;
        }
        let Some(held) = self.ranges.get_mut(&range) else { return };
        if held.log.count(from, sequence) {
            let (part, record) = (ImagePart::Counted, Vec::new());
            self.outputs.push(NodeOutput::Send {
                to: from,
                message: PeerMessage::Image { epoch, range, part, record },
            });
        }
        if held.log.has(from, sequence) {
            let sequence = held.log.stable();
            self.outputs.push(NodeOutput::Settled { range, sequence });
        }
    }

    pub(super) fn imaged(&mut self, from: u32, range: u32, part: ImagePart, record: Vec<u8>) {
        let epoch = self.settled_id().unwrap_or_default();
        match part {
            ImagePart::Begin { sequence } => {
                let held = HeldLog { log: RangeLog::at(sequence), epoch, is_whole: false, is_loaded: false };
                self.ranges.insert(range, held);
                self.outputs.push(NodeOutput::BeginImage { range });
            }
            ImagePart::Record => self.outputs.push(NodeOutput::Load { range, record }),
            ImagePart::End => {
                let Some(held) = self.ranges.get_mut(&range) else { return };
                held.is_loaded = true;
                let sequence = held.log.sequence();
                self.outputs.push(NodeOutput::EndImage { range, record });
                self.send(from, PeerMessage::Executed { epoch, range, sequence });
            }
            ImagePart::Counted => {
                if let Some(held) = self.ranges.get_mut(&range).filter(|held| held.is_loaded) {
                    held.is_whole = true;
                }
                self.tell_standing();
            }
        }
    }
}
