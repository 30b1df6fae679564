//! With reducers or without: the load of links decides.

use super::{
    Choice, HOST_CHUNK_BYTES, REDUCTION_SERVER_BYTES, Request, SHARDED_RANKS, size::ByteCount, stages,
};
use crate::algorithm::{Algorithm, Layout, MixedShares};
use crate::collective::Collective;
use alloc::{format, string::String};

/// The least bytes of each chunk, of which a reducer has several, that are worth it for workers to fold beside reducers.
const MIXED_CHUNK_BYTES: u64 = 64 << 10;

/// Of a hundred parts of what others leave to the busiest link, what it may leave at most.
const WORTH_PERCENT: u64 = 95;

/// A way to sum.
#[derive(Debug)]
struct Way {
    algorithm: Algorithm,
    /// What the busiest link carries each way, of a buffer that is `whole`.
    busiest: u64,
    whole: u64,
    /// The smallest buffer, in bytes, that is worth it.
    least: u64,
    /// What else is to be said of it.
    also: &'static str,
}

impl Way {
    /// How much of the buffer that is.
    fn of_buffer(&self) -> f64 {
        self.busiest as f64 / self.whole as f64
    }

    /// Whether it leaves the busiest link less than another way, or no more than so many hundredths of it.
    fn is_lighter(&self, than: &Self, percent: u64) -> bool {
        let [own, other] =
            [(self, than), (than, self)].map(|(way, by)| u128::from(way.busiest) * u128::from(by.whole));
        100 * own < u128::from(percent) * other
    }
}

/// Whichever leaves less to the busiest link.
pub(super) fn choose(request: &Request<'_>) -> Choice {
    let Request { bytes, group, .. } = *request;
    let (inputs, sums, stages) = (inputs(request), sums(request), stages::choose(request));
    let without = Way {
        algorithm: stages.algorithm,
        busiest: stages.busiest,
        whole: group.size().into(),
        least: 0,
        also: "",
    };
    // Of hosts that add up first at most half as much comes back.
    let better = sums.filter(|sums| !inputs.is_lighter(sums, 100));
    let (way, later) = match better {
        Some(sums) if bytes >= sums.least => (sums, None),
        later => (inputs, later),
    };
    let mixed = mixed(request).filter(|mixed| bytes >= mixed.least);
    let way = mixed
        .filter(|mixed| [&way, &without].iter().all(|other| mixed.is_lighter(other, WORTH_PERCENT)))
        .unwrap_or(way);
    let (loaded, unloaded) = (way.of_buffer(), without.of_buffer());
    let later = later.filter(|sums| sums.is_lighter(&without, 100)).map_or(String::new(), |sums| {
        format!("; from {} up, {:.2} x if each host sums first", ByteCount(sums.least), sums.of_buffer())
    });
    if way.is_lighter(&without, 100) {
        let Way { algorithm, least, also, .. } = way;
        let compared = pays(request, least, loaded, unloaded);
        return Choice { algorithm, why: format!("{compared}{also}{later}") };
    }
    let compared = does_not_pay(request, loaded, unloaded);
    Choice { algorithm: without.algorithm, why: format!("{compared}{later}; {}", stages.why) }
}

/// Why reducers are used: they leave less of the buffer to the busiest link.
pub(super) fn pays(request: &Request<'_>, least_bytes: u64, with: f64, without: f64) -> String {
    let (bytes, least, reducers) = (ByteCount(request.bytes), ByteCount(least_bytes), reducers(request));
    format!(
        "{bytes} >= {least}, so {reducers} pay{}: {with:.2} x the buffer per link instead of {without:.2} x",
        if request.reducers == 1 { "s" } else { "" }
    )
}

/// Why they are not used.
pub(super) fn does_not_pay(request: &Request<'_>, with: f64, without: f64) -> String {
    let does = if request.reducers == 1 { "does" } else { "do" };
    format!("{} {does} not pay: {with:.2} x the buffer per link, {without:.2} x without", reducers(request))
}

fn reducers(request: &Request<'_>) -> String {
    format!("{} reducer{}", request.reducers, if request.reducers == 1 { "" } else { "s" })
}

/// Each worker sends its whole buffer.
fn inputs(request: &Request<'_>) -> Way {
    let (m, n, k) = counts(request);
    let (algorithm, busiest) = (Algorithm::ReductionServer, (m * n * k).max(n * n));
    Way { algorithm, busiest, whole: n * k, least: REDUCTION_SERVER_BYTES, also: "" }
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
        whole: n * k,
        least: REDUCTION_SERVER_BYTES.max(HOST_CHUNK_BYTES * u64::from(schedule.cut().chunks())),
        also: "; each host sums its workers first",
    })
}

/// Workers and reducers fold side by side: for lone workers, of whom there are more than reducers. Each talks with every other.
fn mixed(request: &Request<'_>) -> Option<Way> {
    let (m, n, k) = counts(request);
    if m != 1 || n <= 2 || !(1..n).contains(&k) || n + k > u64::from(SHARDED_RANKS) {
        return None;
    }
    let MixedShares { reducer, worker } = MixedShares::best(request.group.size(), request.reducers);
    let (reducer, worker) = (u64::from(reducer), u64::from(worker));
    let chunks = k * reducer + n * worker;
    Some(Way {
        algorithm: Algorithm::Mixed { shares: None },
        busiest: (chunks - worker + (n - 1) * worker).max(n * reducer),
        whole: chunks,
        least: REDUCTION_SERVER_BYTES.max(MIXED_CHUNK_BYTES * chunks),
        also: "; workers sum the rest",
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
                for way in [Some(inputs(&request)), sums(&request), mixed(&request)].into_iter().flatten() {
                    // Of chunks, as many as the schedule has.
                    let (counted, chunks) = busiest(&request, &way.algorithm);
                    assert_eq!(way.busiest * chunks, counted * way.whole, "{sizes:?}, {request:?}, {way:?}");
                }
            }
        }
    }
}
