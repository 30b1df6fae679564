//! The properties of a schedule that a proof has found, and the kind of proof.

use super::{graph::Graph, order::Order, run, symbols::Results};
use crate::{
    algorithm::cost::{Cost, Count},
    choice::choices,
};

choices! {
    "a way of proving":
    /// How a schedule was proven.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Proof {
        /// All ranks' programs were run together.
        EachRank => "each rank",
        /// One rank's program was run, of which the others are [counterparts](crate::schedule::Symmetry).
        Symmetry => "symmetry",
    }
}

/// What a proof says of a schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proven {
    pub(super) order: Order,
    pub(super) serial: bool,
    pub(super) restartable: bool,
    pub(super) cost: Cost,
}

impl Proven {
    /// What follows from a graph that was run to these results.
    pub(super) fn of(graph: &Graph, count: &Count, results: &Results) -> Self {
        let Results { order, rounds, alone } = *results;
        let (serial, restartable, cost) = (run::serial(graph), graph.restartable, count.cost(rounds, alone));
        Self { order, serial, restartable, cost }
    }
}
