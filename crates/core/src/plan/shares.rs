//! The best shares: how long the chunks of each kind are to be, so that the busiest port is done as early as possible.
//!
//! The load of a port is linear in the lengths of chunks, so a linear program gives the best real lengths. Shares are
//! sixteenths, and equal inputs have to lead to equal shares on all ranks. So the search uses whole numbers, from
//! several starts, and scans exactly over one kind or two kinds at a time. For one stage of `radix` between N lone
//! ranks the answer is known. Port i carries 1 + (N - 2) w of the buffer each way if it owns a part w. So w rises until
//! all ports that own anything are busy for equally long. A port that is busy for longer with its 1 alone owns nothing.

use super::port_loads::{PortLoads, directions};
use crate::{algorithm::Shares, topology::Port};
use alloc::{vec, vec::Vec};

/// What rates divide: times are microseconds for a GB, so that a thousand bytes/s and terabytes/s both have whole ones.
const WORK: u64 = 1_000_000_000_000_000;

/// So many kinds are scanned two by two; each scan tries all lengths of both.
const MOST_IN_PAIRS: usize = 4;

/// How long the busiest port takes: `busy / whole` microseconds for a buffer of a GB.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortTime {
    busy: u64,
    whole: u64,
}

impl PortTime {
    fn is_less(self, other: Self) -> bool {
        u128::from(self.busy) * u128::from(other.whole) < u128::from(other.busy) * u128::from(self.whole)
    }

    /// Whether no port whose rate is known carries anything.
    pub(super) fn is_nothing(self) -> bool {
        self.busy == 0
    }

    /// Whether it is less than so many hundredths of another one.
    pub(super) fn is_below(self, percent: u64, other: Self) -> bool {
        let [own, others] = [(self, other), (other, self)]
            .map(|(time, divisor)| u128::from(time.busy) * u128::from(divisor.whole));
        100 * own < u128::from(percent) * others
    }

    /// Milliseconds for a buffer of a GB.
    pub(super) fn of_gigabyte(self) -> f64 {
        self.busy as f64 / self.whole.max(1) as f64 / 1e3
    }
}

/// One direction of a port, or several that carry as much at the same rate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    /// How many microseconds a GB takes, for each unit of length of the chunks of each kind.
    each: Vec<u64>,
}

/// What is searched: the loads of ports over their rates.
pub(super) struct ShareSearch {
    ways: Vec<Way>,
    chunks: Vec<u64>,
}

impl ShareSearch {
    /// For loads of these ports, of which a rate of 0 is never busy.
    pub(super) fn new(loads: &PortLoads, ports: &[Port]) -> Self {
        let mut ways: Vec<Way> = Vec::new();
        for (carried, rate) in loads.directions().zip(directions(ports)) {
            let Some(inverse) = WORK.checked_div(rate) else { continue };
            let way = Way { each: carried.iter().map(|count| count.saturating_mul(inverse)).collect() };
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        Self { ways, chunks: loads.chunks().to_vec() }
    }

    /// How long the busiest port takes with chunks of these lengths; `None` if the buffer has no length.
    pub(super) fn time(&self, lengths: &[u8]) -> Option<PortTime> {
        let weighed = |counts: &[u64]| {
            let each =
                counts.iter().zip(lengths).map(|(count, length)| count.saturating_mul((*length).into()));
            each.fold(0u64, u64::saturating_add)
        };
        let whole = weighed(&self.chunks);
        let busy = self.ways.iter().map(|way| weighed(&way.each)).max().unwrap_or(0);
        (whole > 0).then_some(PortTime { busy, whole })
    }

    /// The lengths that leave the least to the busiest port, and its time; the largest is [`Shares::WHOLE`], or nearly.
    pub(super) fn best(&self, starts: &[Vec<u8>]) -> (Vec<u8>, PortTime) {
        let even = vec![Shares::WHOLE; self.chunks.len()];
        let mut best = (even.clone(), self.time(&even).unwrap_or(PortTime { busy: 0, whole: 1 }));
        for start in core::iter::once(&even).chain(starts) {
            let Some(time) = self.time(start) else { continue };
            let found = self.descended(start.clone(), time);
            if found.1.is_less(best.1) {
                best = found;
            }
        }
        let largest = best.0.iter().copied().max().unwrap_or(Shares::WHOLE).max(1);
        let times = Shares::WHOLE / largest;
        best.0.iter_mut().for_each(|length| *length *= times);
        best
    }

    /// From a start downhill, until no scan finds anything better.
    fn descended(&self, mut lengths: Vec<u8>, mut time: PortTime) -> (Vec<u8>, PortTime) {
        let kinds = lengths.len();
        let seconds = if kinds <= MOST_IN_PAIRS { kinds } else { 1 };
        let scans = (0..kinds).flat_map(|one| (0..seconds).map(move |step| (one, (one + step) % kinds)));
        let scans: Vec<(usize, usize)> =
            scans.filter(|(one, other)| one <= other || kinds > MOST_IN_PAIRS).collect();
        loop {
            let before = time;
            for &(one, other) in &scans {
                self.scan(&mut lengths, &mut time, one, other);
            }
            if !time.is_less(before) {
                return (lengths, time);
            }
        }
    }

    /// Tries all lengths of two kinds, or of one.
    fn scan(&self, lengths: &mut [u8], time: &mut PortTime, one: usize, other: usize) {
        let mut tried = lengths.to_vec();
        for first in 0..=Shares::WHOLE {
            tried[one] = first;
            let seconds = if one == other { first..=first } else { 0..=Shares::WHOLE };
            for second in seconds {
                tried[other] = second;
                if let Some(found) = self.time(&tried).filter(|found| found.is_less(*time)) {
                    *time = found;
                    lengths.copy_from_slice(&tried);
                }
            }
        }
    }
}

/// The lengths of hosts' shares that fill ports evenly where a host that owns a part w of the buffer carries 1 + (H - 2) w each way:
/// in sixteenths of the largest. `rates` has one for each of the H hosts; 0 stands for the largest.
pub(super) fn filled(rates: &[u64]) -> Vec<u8> {
    let hosts = rates.len() as u128;
    let largest = rates.iter().copied().max().unwrap_or(0).max(1);
    let rates: Vec<u128> =
        rates.iter().map(|rate| u128::from(if *rate == 0 { largest } else { *rate })).collect();
    if hosts <= 2 {
        return vec![Shares::WHOLE; rates.len()];
    }
    // Of the hosts that own anything, which are the fastest ones, the parts (t r - 1) / (H - 2) are 1 together.
    let mut fastest = rates.clone();
    fastest.sort_unstable_by(|a, b| b.cmp(a));
    let (mut sum, mut owning) = (0, 0);
    for rate in &fastest {
        // With this one the time is (H - 2 + owning) / sum, which is too little for it to own anything unless t r > 1.
        let (more, owners) = (sum + rate, owning + 1);
        if owning > 0 && (hosts - 2 + owners) * rate <= more {
            break;
        }
        (sum, owning) = (more, owners);
    }
    // In units of 1 / (sum (H - 2)).
    let part = |rate: u128| ((hosts - 2 + owning) * rate).saturating_sub(sum);
    let most = fastest.first().map_or(1, |rate| part(*rate)).max(1);
    let sixteenths = |rate: &u128| (part(*rate) * u128::from(Shares::WHOLE) + most / 2) / most;
    rates.iter().map(|rate| sixteenths(rate).min(u128::from(Shares::WHOLE)) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::super::port_loads::tests::{HostLoads, one_stage};
    use super::*;

    fn ports(rates: &[u64]) -> Vec<Port> {
        rates.iter().map(|rate| Port { out: *rate, into: *rate }).collect()
    }

    /// The least time by trying everything; each host is a kind of its own.
    fn least(search: &ShareSearch, kinds: usize) -> PortTime {
        let mut lengths = vec![0; kinds];
        let mut best: Option<PortTime> = None;
        loop {
            if let Some(time) = search.time(&lengths)
                && best.is_none_or(|best| time.is_less(best))
            {
                best = Some(time);
            }
            let Some(at) = lengths.iter().position(|length| *length < Shares::WHOLE) else {
                return best.unwrap();
            };
            lengths[..at].fill(0);
            lengths[at] += 1;
        }
    }

    #[test]
    fn searches_find_what_trying_everything_finds() {
        let cases: [&[u64]; 6] =
            [&[5, 1], &[5, 5, 1], &[9, 4, 1], &[5, 5, 5, 1], &[7, 5, 3, 2], &[10, 10, 1, 1]];
        for rates in cases {
            let rates: Vec<u64> = rates.iter().map(|rate| rate * 1_000_000).collect();
            let HostLoads { loads, .. } = one_stage(rates.len() as u32, &[], 1);
            let search = ShareSearch::new(&loads, &ports(&rates));
            let (lengths, time) = search.best(&[filled(&rates)]);
            let least = least(&search, rates.len());
            assert!(
                !least.is_below(100, time),
                "{rates:?}: {lengths:?} takes {time:?}, and {least:?} is possible"
            );
            assert!(lengths.iter().any(|length| *length > Shares::WHOLE / 2), "{lengths:?}");
        }
    }

    /// With more kinds than are scanned two by two: at most 2 % above the least, which `filled` comes close to.
    #[test]
    fn many_kinds_come_near_to_the_real_optimum() {
        for rates in [&[1, 2, 3, 4, 5, 6][..], &[1, 1, 2, 3, 5, 8, 13], &[100, 90, 70, 50, 10, 9, 8, 7]] {
            let rates: Vec<u64> = rates.iter().map(|rate| rate * 10_000_000).collect();
            let hosts = rates.len() as f64;
            let HostLoads { loads, .. } = one_stage(rates.len() as u32, &[], 1);
            let search = ShareSearch::new(&loads, &ports(&rates));
            let (_, time) = search.best(&[filled(&rates)]);
            // Water rises in small steps until the parts are the whole.
            let owned = |level: f64| -> f64 {
                rates.iter().map(|rate| ((level * *rate as f64 - 1.0) / (hosts - 2.0)).max(0.0)).sum()
            };
            let slowest = *rates.iter().min().unwrap() as f64;
            let (mut low, mut high) = (0.0, 2.0 * hosts / slowest);
            for _ in 0..200 {
                let middle = (low + high) / 2.0;
                if owned(middle) < 1.0 { low = middle } else { high = middle }
            }
            let bound = high.max(1.0 / slowest) * 1e12;
            let found = time.of_gigabyte();
            assert!(
                found <= 1.03 * bound && found >= 0.999 * bound,
                "{rates:?}: {found} where {bound} is possible"
            );
        }
    }

    #[test]
    fn filled_shares_are_those_of_the_formula() {
        assert_eq!(filled(&[5, 5, 5, 1]), [16, 16, 16, 0]);
        assert_eq!(filled(&[7, 7, 7, 7]), [16; 4]);
        // Of rates 3, 3 and 2 the third is busy as long as the others when it owns nothing; with 4 for 5 it owns a third.
        assert_eq!(filled(&[3, 3, 2]), [16, 16, 0]);
        assert_eq!(filled(&[5, 5, 4]), [16, 16, 5]);
        assert_eq!(filled(&[4, 1]), [16, 16], "two hosts carry the whole buffer whoever owns what");
        assert_eq!(filled(&[0, 9, 9]), [16, 16, 16], "what is not known counts as the fastest");
        assert_eq!(filled(&[u64::MAX, u64::MAX, 1]), [16, 16, 0]);
    }

    #[test]
    fn ports_without_a_limit_are_never_busy() {
        let HostLoads { loads, .. } = one_stage(3, &[], 1);
        let (_, time) = ShareSearch::new(&loads, &ports(&[0, 0, 0])).best(&[]);
        assert_eq!(time.busy, 0);
    }
}
