//! With reducers or without: what links carry decides.

use super::{Choice, HOST_CHUNK_BYTES, REDUCTION_SERVER_BYTES, Request, stages};
use crate::algorithm::{Algorithm, Layout};
use crate::collective::Collective;
use alloc::{format, string::String};

/// A way through reducers.
#[derive(Debug)]
struct Way {
    algorithm: Algorithm,
    /// What the busiest link carries each way, if the buffer is N k: N workers, k reducers.
    busiest: u64,
    /// The smallest buffer, in bytes, that is worth it.
    least: u64,
    /// What else is to be said of it.
    also: &'static str,
}

/// Whichever leaves less to the busiest link.
pub(super) fn choose(request: &Request<'_>) -> Choice {
    let Request { bytes, reducers, group, .. } = *request;
    let (n, k) = (u64::from(group.size()), u64::from(reducers));
    let (inputs, sums, stages) = (inputs(request), sums(request), stages::choose(request));
    // Of hosts that add up first at most half as much comes back.
    let better = sums.filter(|sums| sums.busiest <= inputs.busiest);
    let (way, later) = match better {
        Some(sums) if bytes >= sums.least => (sums, None),
        later => (inputs, later),
    };
    let (with, without) = (way.busiest, stages.busiest * k);
    let of_buffer = |units: u64| units as f64 / (n * k) as f64;
    let compared = format!(
        "the busiest link carries {:.2} of the buffer each way with {reducers} reducer{}, {:.2} without",
        of_buffer(with),
        if reducers == 1 { "" } else { "s" },
        of_buffer(without)
    );
    let later = later.filter(|sums| sums.busiest < without).map_or(String::new(), |sums| {
        format!("; from {} B up, hosts that add up first make it {:.2}", sums.least, of_buffer(sums.busiest))
    });
    if with < without {
        let Way { algorithm, least, also, .. } = way;
        return Choice {
            algorithm,
            why: format!("{compared}, and {bytes} B are at least {least}{also}{later}"),
        };
    }
    Choice { algorithm: stages.algorithm, why: format!("{compared}{later}; {}", stages.why) }
}

/// Each worker sends its whole buffer.
fn inputs(request: &Request<'_>) -> Way {
    let (m, n, k) = counts(request);
    let (algorithm, busiest) = (Algorithm::ReductionServer, (m * n * k).max(n * n));
    Way { algorithm, busiest, least: REDUCTION_SERVER_BYTES, also: "" }
}

/// Each host sends one partial sum of it, if its workers are a whole node of the canonical tree.
fn sums(request: &Request<'_>) -> Option<Way> {
    let Request { group, reducers, hosts, widening, .. } = *request;
    let algorithm = Algorithm::hosts_and_reducers();
    let schedule =
        algorithm.schedule(Collective::AllReduce, group, &Layout { reducers, hosts, links: None }).ok()?;
    let (_, n, k) = counts(request);
    let hosts = hosts.chunk_by(|a, b| a == b);
    let lone = hosts.clone().filter(|host| host.len() == 1).count() as u64;
    let wide = u64::from(widening);
    let received = lone + wide * (hosts.count() as u64 - lone);
    Some(Way {
        algorithm,
        busiest: (wide * n * k).max(received * n),
        least: REDUCTION_SERVER_BYTES.max(HOST_CHUNK_BYTES * u64::from(schedule.cut().chunks())),
        also: "; each host adds up what its workers have first",
    })
}

/// The most workers of a host, workers, reducers.
fn counts(request: &Request<'_>) -> (u64, u64, u64) {
    (stages::most_on_a_host(request), u64::from(request.group.size()), u64::from(request.reducers))
}

#[cfg(test)]
mod tests {
    use super::super::counted::tests::{busiest, large};
    use super::*;
    use crate::group::Group;
    use alloc::vec::Vec;

    #[test]
    fn the_busiest_link_carries_what_the_programs_say() {
        let layouts =
            [&[1, 1][..], &[1; 5], &[2, 2], &[2, 1], &[2, 2, 2], &[4, 4], &[4, 4, 3], &[8; 4], &[2, 2, 1, 1]];
        for sizes in layouts {
            let hosts: Vec<u32> =
                (0..).zip(sizes).flat_map(|(host, size)| (0..*size).map(move |_| host)).collect();
            let group = Group::of_size(hosts.len() as u32);
            for (reducers, widening) in [(1, 1), (2, 2), (3, 1), (4, 8), (8, 1)] {
                let request = Request { widening, reducers, ..large(&group, &hosts) };
                for way in [Some(inputs(&request)), sums(&request)].into_iter().flatten() {
                    // Of chunks, as many as the schedule has.
                    let (counted, chunks) = busiest(&request, &way.algorithm);
                    let whole = u64::from(group.size()) * u64::from(reducers);
                    assert_eq!(way.busiest * chunks, counted * whole, "{sizes:?}, {request:?}, {way:?}");
                }
            }
        }
    }
}
