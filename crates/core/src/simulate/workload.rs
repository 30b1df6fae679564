//! The input of a simulation.

use super::machine::Rig;
use crate::{
    collective::UnevenParts,
    prepare::{Call, Prepared, Sizing, TooManySegments, prepare},
    schedule::Program,
    verify::Verified,
};

/// The input of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    /// The schedule.
    pub verified: &'a Verified,
    /// The call; of the schedule's collective.
    pub call: Call,
    /// How it is cut.
    pub sizing: Sizing,
    /// How many such operations are called at once.
    pub operations: u32,
    /// How many of them run at once at most, limited by staging memory.
    pub at_once: u32,
    /// Each rank's parts, if they can differ; the call's count is [`Call::UNEVEN`] then.
    pub parts: Option<&'a [UnevenParts]>,
    /// Simulate at most this many segments; 0: all.
    pub segments: u32,
}

impl<'a> Workload<'a> {
    /// A single operation, all of it, whose parts are equal.
    pub fn of_one(verified: &'a Verified, call: Call, sizing: Sizing) -> Self {
        Self { verified, call, sizing, operations: 1, at_once: 1, parts: None, segments: 0 }
    }

    /// The staging memory that an operation gets at most in the default configuration, in bytes: 7/8 of 64 MiB.
    pub const STAGED: usize = 56 << 20;
    /// How many operations run at once in the default configuration.
    pub const AT_ONCE: u32 = 4;

    /// How calls are cut on these machines by default; `segment_bytes` is the user's preference.
    pub fn sizing(machine: &Rig, verified: &Verified, segment_bytes: usize) -> Sizing {
        let workers = verified.schedule().workers();
        let hosts = machine.workers_hosts(workers);
        Sizing { hosts, shared: hosts == 1, segment_bytes, most_staged: Self::STAGED }
    }

    pub(super) fn prepared(&self, rank: u32, machine: &Rig) -> Result<Prepared, TooManySegments> {
        self.prepared_from(&self.verified.schedule().program(rank), rank, machine)
    }

    /// The same, given the rank's program in the schedule.
    pub(super) fn prepared_from(
        &self,
        program: &Program,
        rank: u32,
        machine: &Rig,
    ) -> Result<Prepared, TooManySegments> {
        let shared = |other| machine.is_shared(rank, other);
        let parts = self.parts.map(|parts| &parts[rank as usize]);
        let mut prepared = prepare(self.verified, program, rank, self.call, parts, self.sizing, shared)?;
        if self.segments > 0 && self.segments < prepared.segments {
            prepared.segments = self.segments;
            for peer in &mut prepared.peers {
                (peer.gives, peer.takes) = (peer.gives.min(self.segments), peer.takes.min(self.segments));
            }
        }
        Ok(prepared)
    }
}
