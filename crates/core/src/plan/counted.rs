//! For tests: what a schedule's programs send from host to host.

use super::Request;
use crate::algorithm::{Algorithm, Layout};
use crate::collective::Collective;
use crate::group::Group;
use crate::schedule::{Form, Step};
use alloc::collections::BTreeMap;

/// An all-reduce of so much that only links count.
pub(super) fn large<'a>(group: &'a Group, hosts: &'a [u32]) -> Request<'a> {
    let (collective, bytes) = (Collective::AllReduce, 1 << 40);
    Request { collective, bytes, widening: 1, group, reducers: 0, hosts, forced: None }
}

/// How many chunks the busiest host sends to others, or receives from them, and how many the buffer has. A reducer has a
/// host of its own; partial sums count as often as they are wide.
pub(super) fn busiest(request: &Request<'_>, algorithm: &Algorithm) -> (u64, u64) {
    let layout = Layout { reducers: request.reducers, hosts: request.hosts };
    let schedule = algorithm.schedule(request.collective, request.group, &layout).unwrap();
    let host = |rank: u32| request.hosts.get(rank as usize).map_or((1, rank), |host| (0, *host));
    let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
    for rank in 0..schedule.ranks() {
        let program = schedule.program(rank);
        for step in program.steps() {
            let Step::Send { from, to } = *step else { continue };
            let wide = program.form(from) == Some(Form::Acc);
            let units = if wide { u64::from(request.widening) } else { 1 };
            for lane in program.lanes(to).iter().filter(|lane| host(**lane) != host(rank)) {
                *sent.entry(host(rank)).or_insert(0) += units;
                *received.entry(host(*lane)).or_insert(0) += units;
            }
        }
    }
    let busiest = sent.into_values().chain(received.into_values()).max().unwrap_or(0);
    (busiest, u64::from(schedule.cut().chunks()))
}
