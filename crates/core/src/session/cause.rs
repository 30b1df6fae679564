//! Why operations of a group failed.

use super::{
    Ranks,
    basis::{ALGORITHM, Basis},
    codec::{Malformed, Reader, Writer},
};
use crate::{group::Rank, wire::Fingerprint};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

/// Why every operation of a group up to some sequence number failed, on all its members alike.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// Members called different operations, or the same ones in another order.
    #[error("{0}")]
    Mismatch(Mismatch),
    /// Two members do not agree about how much one of them sends the other.
    #[error(
        "rank {from} sends {sent} elements to rank {to} in {operation}, and rank {to} expects {expected}: give both the same number"
    )]
    Uneven {
        /// The operation.
        operation: Fingerprint,
        /// The sender.
        from: Rank,
        /// The receiver, which noticed.
        to: Rank,
        /// How many elements the sender has for the receiver.
        sent: u64,
        /// How many the receiver expects.
        expected: u64,
    },
    /// A reducer is gone.
    #[error("rank {rank} lost the reducer at {address}: {reason}")]
    ReducerLost {
        /// The address where it listened.
        address: String,
        /// The member that found it gone.
        rank: Rank,
        /// The reason that it gave.
        reason: String,
        /// The first of its operations that needs reducers.
        sequence: u64,
    },
    /// A member waited for longer than its timeout.
    #[error(
        "rank {rank} waited {} s in {operation} for {}: see what they are doing, or raise the timeout",
        Seconds(*.milliseconds), Ranks(.waiting_for)
    )]
    Timeout {
        /// The member that gave up.
        rank: Rank,
        /// Its operation.
        operation: Fingerprint,
        /// How long it had waited.
        milliseconds: u64,
        /// Whose messages had not come, ascending.
        waiting_for: Vec<Rank>,
    },
    /// Members have not made the group while others waited in it. The group ends with it: if they make one of the same members
    /// now, the others cannot know that it is meant to be this one.
    #[error(
        "rank {rank} waited {} s for {} to make the group, which is over: make it again on all of its ranks",
        Seconds(*.milliseconds), Ranks(.ranks)
    )]
    Unmade {
        /// The member that gave up.
        rank: Rank,
        /// How long it had waited.
        milliseconds: u64,
        /// The ranks that have not made it, ascending.
        ranks: Vec<Rank>,
    },
    /// A member lacks memory for its part of an operation.
    #[error(
        "rank {rank} lacks {bytes} bytes of memory for {operation}: give that rank more memory, or send less at once"
    )]
    Memory {
        /// Which member.
        rank: Rank,
        /// The operation.
        operation: Fingerprint,
        /// How many bytes it asked the system for, which has not given them.
        bytes: u64,
    },
    /// A frame arrived damaged.
    #[error(
        "a frame from rank {from} to rank {to} was damaged on the way: check the network between their hosts"
    )]
    Corrupt {
        /// The sender.
        from: Rank,
        /// The receiver, which noticed.
        to: Rank,
    },
    /// A message arrived undamaged, and no release sends such a message.
    #[error(
        "rank {from} broke the protocol: {problem}, as rank {to} reports: run one release on all ranks, and if they do, report it as a bug"
    )]
    Protocol {
        /// The sender.
        from: Rank,
        /// The receiver, which noticed.
        to: Rank,
        /// The problem.
        problem: String,
    },
    /// The link between two members is lost, and both live.
    #[error(
        "the link between rank {from} and rank {to} is lost, and both live: check the network between their hosts"
    )]
    LinkLost {
        /// One end.
        from: Rank,
        /// The other, which noticed.
        to: Rank,
    },
    /// Members are gone for good. The group ends with it.
    #[error("lost {}: their logs have the reason; form the group again without them", Ranks(.ranks))]
    PeerLost {
        /// The ranks, ascending.
        ranks: Vec<Rank>,
    },
    /// Members have left in order, and have not made a call that another one has made. The group ends with it.
    #[error("{} left without calling {operation}, which rank {caller} has called: make every rank make the same calls before it leaves", Ranks(.ranks))]
    Left {
        /// The ranks, ascending.
        ranks: Vec<Rank>,
        /// The call.
        operation: Fingerprint,
        /// The rank that has called it.
        caller: Rank,
    },
    /// A member has aborted its operations, so the group ends.
    #[error("rank {rank} aborted the group: its log has the reason; form the group again without it")]
    Aborted {
        /// Which member.
        rank: Rank,
        /// Its first operation that had not ended well.
        sequence: u64,
    },
    /// A member's engine panicked, which is a bug of this software. Its data cannot be trusted, so the group ends.
    #[error(
        "the engine of rank {rank} panicked, which is a bug: please report it, with the panic's message, which is in the output of that rank"
    )]
    Panicked {
        /// Whose.
        rank: Rank,
    },
}

impl Cause {
    /// Whether the group ends with it; after any other cause its next generation works.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Cause::PeerLost { .. }
                | Cause::Left { .. }
                | Cause::Aborted { .. }
                | Cause::Panicked { .. }
                | Cause::Unmade { .. }
        )
    }

    /// The operation over which it was noticed, if there is one and a disagreement can be the cause.
    pub fn sequence(&self) -> Option<u64> {
        match self {
            Cause::Mismatch(mismatch) => Some(mismatch.sequence),
            Cause::Timeout { operation, .. }
            | Cause::Uneven { operation, .. }
            | Cause::Left { operation, .. }
            | Cause::Memory { operation, .. } => Some(operation.sequence),
            Cause::ReducerLost { sequence, .. } => Some(*sequence),
            _ => None,
        }
    }

    /// Which it is, as it travels.
    fn number(&self) -> u8 {
        match self {
            Cause::Mismatch(_) => 1,
            Cause::ReducerLost { .. } => 2,
            Cause::Timeout { .. } => 3,
            Cause::Unmade { .. } => 11,
            Cause::Memory { .. } => 10,
            Cause::Corrupt { .. } => 4,
            Cause::LinkLost { .. } => 8,
            Cause::Protocol { .. } => 9,
            Cause::PeerLost { .. } => 5,
            Cause::Left { .. } => 13,
            Cause::Panicked { .. } => 6,
            Cause::Aborted { .. } => 12,
            Cause::Uneven { .. } => 7,
        }
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.u8(self.number());
        match self {
            Cause::Mismatch(mismatch) => mismatch.write(to),
            Cause::ReducerLost { address, rank, reason, sequence } => {
                to.text("a reducer's address", address);
                to.u32(*rank);
                to.cut_text(reason);
                to.u64(*sequence);
            }
            Cause::Timeout { rank, operation, milliseconds, waiting_for } => {
                to.u32(*rank);
                to.fingerprint(operation);
                to.u64(*milliseconds);
                to.ranks(waiting_for);
            }
            Cause::Unmade { rank, milliseconds, ranks } => {
                to.u32(*rank);
                to.u64(*milliseconds);
                to.ranks(ranks);
            }
            Cause::Memory { rank, operation, bytes } => {
                to.u32(*rank);
                to.fingerprint(operation);
                to.u64(*bytes);
            }
            Cause::Corrupt { from, to: receiver } => {
                to.u32(*from);
                to.u32(*receiver);
            }
            Cause::LinkLost { from, to: receiver } => {
                to.u32(*from);
                to.u32(*receiver);
            }
            Cause::Protocol { from, to: receiver, problem } => {
                to.u32(*from);
                to.u32(*receiver);
                to.cut_text(problem);
            }
            Cause::PeerLost { ranks } => to.ranks(ranks),
            Cause::Left { ranks, operation, caller } => {
                to.ranks(ranks);
                to.fingerprint(operation);
                to.u32(*caller);
            }
            Cause::Panicked { rank } => to.u32(*rank),
            Cause::Aborted { rank, sequence } => {
                to.u32(*rank);
                to.u64(*sequence);
            }
            Cause::Uneven { operation, from, to: receiver, sent, expected } => {
                to.fingerprint(operation);
                [from, receiver].into_iter().for_each(|rank| to.u32(*rank));
                [sent, expected].into_iter().for_each(|elements| to.u64(*elements));
            }
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => Cause::Mismatch(Mismatch::read(from)?),
            2 => Cause::ReducerLost {
                address: from.text()?,
                rank: from.u32()?,
                reason: from.text()?,
                sequence: from.u64()?,
            },
            3 => Cause::Timeout {
                rank: from.u32()?,
                operation: from.fingerprint()?,
                milliseconds: from.u64()?,
                waiting_for: from.ranks()?,
            },
            11 => Cause::Unmade { rank: from.u32()?, milliseconds: from.u64()?, ranks: from.ranks()? },
            10 => Cause::Memory { rank: from.u32()?, operation: from.fingerprint()?, bytes: from.u64()? },
            4 => Cause::Corrupt { from: from.u32()?, to: from.u32()? },
            8 => Cause::LinkLost { from: from.u32()?, to: from.u32()? },
            9 => Cause::Protocol { from: from.u32()?, to: from.u32()?, problem: from.text()? },
            5 => Cause::PeerLost { ranks: from.ranks()? },
            13 => Cause::Left { ranks: from.ranks()?, operation: from.fingerprint()?, caller: from.u32()? },
            6 => Cause::Panicked { rank: from.u32()? },
            12 => Cause::Aborted { rank: from.u32()?, sequence: from.u64()? },
            7 => Cause::Uneven {
                operation: from.fingerprint()?,
                from: from.u32()?,
                to: from.u32()?,
                sent: from.u64()?,
                expected: from.u64()?,
            },
            _ => return Err(Malformed("it names an unknown cause")),
        })
    }
}

/// The calls that the members of a group issued under one sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The first operation that is known to differ.
    pub sequence: u64,
    /// The calls, the rarest first and at most [`Mismatch::VARIANTS`]. A single one means that the members already
    /// differed before, further back than they remember.
    pub variants: Vec<Variant>,
}

/// One operation, and the ranks that issued it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The operation.
    pub fingerprint: Fingerprint,
    /// The ranks, ascending.
    pub ranks: Vec<Rank>,
    /// The inputs of its plan, if only the plans differ.
    pub basis: Option<Basis>,
}

impl Mismatch {
    /// How many variants are kept.
    pub const VARIANTS: usize = 4;

    /// Groups the issued calls by equality.
    pub fn new(sequence: u64, issued: impl IntoIterator<Item = (Rank, Fingerprint)>) -> Self {
        let mut variants: Vec<Variant> = Vec::new();
        for (rank, fingerprint) in issued {
            match variants.iter_mut().find(|variant| variant.fingerprint == fingerprint) {
                Some(variant) => variant.ranks.push(rank),
                None => variants.push(Variant { fingerprint, ranks: [rank].into(), basis: None }),
            }
        }
        variants.iter_mut().for_each(|variant| variant.ranks.sort_unstable());
        variants.sort_by(|a, b| (a.ranks.len(), &a.ranks).cmp(&(b.ranks.len(), &b.ranks)));
        variants.truncate(Self::VARIANTS);
        Self { sequence, variants }
    }

    /// The same with the inputs of plans, if only those differ: `basis` finds them by a rank and its plan's digest.
    #[must_use]
    pub fn explained(mut self, basis: impl Fn(Rank, u64) -> Option<Basis>) -> Self {
        if self.is_plan_mismatch() {
            for variant in &mut self.variants {
                let known = variant.ranks.iter().find_map(|rank| basis(*rank, variant.fingerprint.plan));
                variant.basis = known;
            }
        }
        self
    }

    /// Whether all members called the same, but planned it otherwise.
    fn is_plan_mismatch(&self) -> bool {
        let [first, others @ ..] = &self.variants[..] else { return false };
        let same_call = |other: &Variant| {
            Fingerprint { plan: first.fingerprint.plan, ..other.fingerprint } == first.fingerprint
        };
        !others.is_empty() && others.iter().all(same_call)
    }

    /// The call that each variant's members issued, as `call` writes it, and their plan if only that differs.
    pub fn issued(&self, call: impl Fn(&Fingerprint) -> String) -> Vec<(Vec<Rank>, String)> {
        let planned: Vec<&Basis> =
            self.variants.iter().filter_map(|variant| variant.basis.as_ref()).collect();
        let mut names: Vec<&str> = Vec::new();
        for pair in planned.windows(2) {
            let differing = pair[0].difference(pair[1]).into_iter().map(|difference| difference.name);
            names.extend(differing.filter(|name| *name != ALGORITHM));
        }
        names.sort_unstable();
        names.dedup();
        let how = |basis: &Basis| {
            let values = names.iter().filter_map(|name| Some(format!("{name} {}", basis.value(name)?)));
            let values = values.collect::<Vec<_>>().join(", ");
            let with = if values.is_empty() { "" } else { " with " };
            format!(" as {}{with}{values}", basis.algorithm)
        };
        let said = |variant: &Variant| {
            let how = variant.basis.as_ref().map(how).unwrap_or_default();
            (variant.ranks.clone(), call(&variant.fingerprint) + &how)
        };
        self.variants.iter().map(said).collect()
    }

    fn write(&self, to: &mut Writer) {
        to.u64(self.sequence);
        to.list("a list of operations", &self.variants, |to, variant| {
            to.fingerprint(&variant.fingerprint);
            to.ranks(&variant.ranks);
            to.option(variant.basis.as_ref(), |to, basis| basis.write(to));
        });
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let sequence = from.u64()?;
        let variants = from.list(|from| {
            let fingerprint = from.fingerprint()?;
            Ok(Variant { fingerprint, ranks: from.ranks()?, basis: from.option(Basis::read)? })
        })?;
        if variants.len() > Self::VARIANTS {
            return Err(Malformed("it lists too many operations"));
        }
        Ok(Self { sequence, variants })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the ranks disagree about operation {}: ", self.sequence)?;
        let issued = self.issued(|fingerprint| fingerprint.call().to_string());
        for (number, (ranks, call)) in issued.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{} issued {call}", Ranks(ranks))?;
        }
        match &self.variants[..] {
            [first, second, ..] => {
                let fields = first.fingerprint.difference(&second.fingerprint);
                write!(f, " (they differ in {})", fields.join(" and "))?;
            }
            [_] => f.write_str(", and their calls before it differ, further back than ranks remember")?,
            [] => f.write_str("no rank remembers so old a call")?,
        }
        f.write_str(match self.is_plan_mismatch() {
            true => ". Every rank must have the same settings and the same release",
            false => {
                ". Every rank must call the same collectives, with the same arguments, in the same order"
            }
        })
    }
}

struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
