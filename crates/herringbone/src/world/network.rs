//! What is between the processes of a world, besides their links.

use crate::{clock::Moment, core::session::control::Message};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Whether a control message to a process arrives.
type Filter = Box<dyn FnMut(usize, &Message) -> bool>;

/// What is between the processes, besides their links.
#[derive(Default)]
pub(crate) struct Network {
    /// Control connections, by the end that is open.
    pub(super) control: BTreeSet<(usize, usize)>,
    /// How much longer control messages take than bytes of links.
    pub(super) control_delay: Duration,
    /// Until when nothing arrives at the second from the first.
    pub(super) blocked: BTreeMap<(usize, usize), Moment>,
    /// Messages of control connections that this says `false` about are lost, which no connection does: a fault.
    pub(crate) filter: Option<Filter>,
}

impl Network {
    /// Control connections of rank 0 with all others.
    pub(super) fn between(workers: usize) -> Self {
        let control = (1..workers).flat_map(|rank| [(0, rank), (rank, 0)]).collect();
        Self { control, ..Self::default() }
    }
}
