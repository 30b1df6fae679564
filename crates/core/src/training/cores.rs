//! Computing on cores that threads of sums use, too.

use crate::simulate::Picoseconds;
use alloc::vec::Vec;
use core::ops::Range;

/// The cores of a computer on which workers compute and sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputingCores {
    /// How many there are; 0 counts as 1.
    pub all: u32,
    /// Threads that compute on them, of all workers together. With fewer threads than cores, sums have the others for themselves.
    pub threads: u32,
}

/// How far computing is, while sums take their part of the cores.
#[derive(Debug)]
pub(super) struct SharedComputing {
    cores: Option<ComputingCores>,
    /// When each sum runs, and what it takes of the cores.
    sums: Vec<(Range<Picoseconds>, Picoseconds)>,
    /// Until when all is known, and what is computed by then, in the time that it takes alone.
    now: Picoseconds,
    done: Picoseconds,
}

impl SharedComputing {
    pub(super) fn on(cores: Option<ComputingCores>) -> Self {
        Self { cores, sums: Vec::new(), now: 0, done: 0 }
    }

    /// A sum takes `used` of the cores during `span`, evenly. It begins when computing has [reached](Self::reaches) its last gradient, or later.
    pub(super) fn shares(&mut self, span: Range<Picoseconds>, used: Picoseconds) {
        if self.cores.is_some() && !span.is_empty() {
            self.sums.push((span, used));
        }
    }

    /// When so much is computed as takes `work` alone. Sums that begin later than that make no difference.
    pub(super) fn reaches(&mut self, work: Picoseconds) -> Picoseconds {
        let Some(cores) = self.cores else { return work };
        while self.done < work {
            let left = work - self.done;
            let edges = self.sums.iter().flat_map(|(span, _)| [span.start, span.end]);
            let until = edges.filter(|edge| *edge > self.now).min();
            let piece = self.now..until.unwrap_or(Picoseconds::MAX);
            let length = piece.end - piece.start;
            let progress = self.progress(cores, &piece);
            if progress >= left {
                // The last part of the piece is left over: sums that begin in it are told later.
                let taken = u128::from(left) * u128::from(length);
                return self.now.saturating_add(taken.div_ceil(u128::from(progress)) as Picoseconds);
            }
            if until.is_none() {
                return Picoseconds::MAX;
            }
            (self.now, self.done) = (piece.end, self.done + progress);
        }
        self.now
    }

    /// What is computed in a piece of time in which the same sums run from beginning to end.
    fn progress(&self, cores: ComputingCores, piece: &Range<Picoseconds>) -> Picoseconds {
        let length = u128::from(piece.end - piece.start);
        let running = self.sums.iter().filter(|(span, _)| span.start <= piece.start && piece.end <= span.end);
        let used: u128 =
            running.map(|(span, used)| u128::from(*used) * length / u128::from(span.end - span.start)).sum();
        let all = u128::from(cores.all.max(1));
        let free = (all * length).saturating_sub(used);
        (free / u128::from(cores.threads).clamp(1, all)).min(length) as Picoseconds
    }
}
