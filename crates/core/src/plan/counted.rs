//! What a schedule's programs send from host to host, counted.

use crate::schedule::{Form, Schedule, SlotChunks, Step};
use alloc::collections::BTreeMap;

/// How many [units](crate::schedule::Cut::units) of the buffer, chunks if all are equal, go through the busiest host's link, one way:
/// the most that a host sends to others, or receives from them. `hosts` is as in [`Layout::hosts`](crate::algorithm::Layout::hosts); a worker without one, and each reducer, has a
/// host of its own. Partial sums count as often as they are wide.
pub fn busiest_link(schedule: &Schedule, hosts: &[u32], widening: u32) -> u64 {
    let host = |rank: u32| hosts.get(rank as usize).map_or((1, rank), |host| (0, *host));
    let cut = schedule.cut();
    let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
    for rank in 0..schedule.ranks() {
        let program = schedule.program(rank);
        let program = program.chunk_by_chunk();
        let mut held = SlotChunks::new(&program, cut.chunks());
        for step in program.steps() {
            held.step(step);
            let Step::Send { from, to } = *step else { continue };
            let wide = program.form(from) == Some(Form::Acc);
            let units = u64::from(cut.units_of(held.chunk(from)));
            let units = if wide { u64::from(widening) * units } else { units };
            for lane in program.lanes(to).iter().filter(|lane| host(**lane) != host(rank)) {
                *sent.entry(host(rank)).or_insert(0) += units;
                *received.entry(host(*lane)).or_insert(0) += units;
            }
        }
    }
    sent.into_values().chain(received.into_values()).max().unwrap_or(0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Request;
    use super::*;
    use crate::algorithm::{Algorithm, Layout};
    use crate::codec::Codec;
    use crate::collective::Collective;
    use crate::group::Group;

    /// An all-reduce of so much that only links count.
    pub(crate) fn large<'a>(group: &'a Group, hosts: &'a [u32]) -> Request<'a> {
        let (collective, bytes) = (Collective::AllReduce, 1 << 40);
        Request {
            collective,
            bytes,
            widening: 1,
            group,
            reducers: 0,
            hosts,
            forced: None,
            codec: Codec::Plain,
            links: None,
            ports: None,
        }
    }

    /// How many chunks the busiest link carries, and how many the buffer has.
    pub(crate) fn busiest(request: &Request<'_>, algorithm: &Algorithm) -> (u64, u64) {
        let layout = Layout { reducers: request.reducers, hosts: request.hosts, links: None };
        let schedule = algorithm.schedule(request.collective, request.group, &layout).unwrap();
        let chunks = u64::from(schedule.cut().units());
        (busiest_link(&schedule, request.hosts, request.widening), chunks)
    }

    #[test]
    fn what_stays_inside_a_host_goes_through_no_link() {
        let group = Group::of_size(4);
        let carried = |hosts: &[u32]| busiest(&large(&group, hosts), &Algorithm::OneShot).0;
        assert_eq!(carried(&[0; 4]), 0);
        assert_eq!(carried(&[0, 0, 0, 1]), 3);
        assert_eq!(carried(&[]), 3, "each has a host of its own");
    }
}
