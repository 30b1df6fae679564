//! Sums of events: a listener of the engine counts operations, how long they take and whom they wait for.
//!
//! It is called under the engine's lock, so it only adds numbers. Readers copy them first.

use herringbone::core::collective::Collective;
use herringbone::core::wire::Fingerprint;
use herringbone::status::MemberId;
use herringbone::{OperationId, OperationPurpose, Sink, TraceEvent};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The upper bounds of histograms, in seconds: three in each power of ten, from 10 us to 100 s.
pub(crate) const BOUNDS: [f64; 22] = [
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 25.0, 50.0, 100.0,
];
/// Shorter silences happen on a busy machine.
const SUSPICIOUS: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(2);

/// The collectives of messages.
const SEND: &str = "send";
const RECEIVE: &str = "receive";
/// The algorithm of messages that went with what announced them.
const ANNOUNCED: &str = "announced";

/// How a call is counted; `None` if it is not the program's, because the receive of an announcement waits until there is a message.
fn called(purpose: OperationPurpose, call: &Fingerprint) -> Option<&'static str> {
    match purpose {
        OperationPurpose::Sends => Some(SEND),
        OperationPurpose::Receives => Some(RECEIVE),
        OperationPurpose::Announces | OperationPurpose::Serves => None,
        _ => Some(Collective::from_code(call.collective, call.root).map_or("unknown", Collective::name)),
    }
}

/// How many values are in each bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// Up to each bound, and above the last one; not yet summed up.
    buckets: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Histogram {
    fn add(&mut self, value: f64) {
        let bucket = BOUNDS.partition_point(|bound| *bound < value);
        self.buckets[bucket] += 1;
        self.sum += value;
    }

    /// How many values there are.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of the values.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    /// Each bound with the number of values between it and the one before.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS.into_iter().chain([f64::MAX]);
        bounds.zip(self.buckets).collect()
    }
}

/// How long the successful operations of a kind took.
#[derive(Clone, Debug)]
pub(crate) struct OperationCount {
    pub(crate) collective: &'static str,
    pub(crate) algorithm: String,
    pub(crate) seconds: Histogram,
}

/// The events of a process since its first listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventCounts {
    /// The kinds of operations, in the order in which they came.
    pub(crate) operations: Vec<OperationCount>,
    /// How many ended with an error, by its kind.
    pub(crate) failures: BTreeMap<&'static str, u64>,
    /// For how long operations have waited for a member, and the number of operations of each wait.
    pub(crate) waits: BTreeMap<String, Histogram>,
    /// How often something went wrong, by its kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// The waits that are not over, by the order in which they began.
    waiting: BTreeMap<u64, Waiting>,
    /// How many waits have begun.
    begun: u64,
}

impl EventCounts {
    /// The place of a kind of operations, which there are few of.
    fn kind(&mut self, collective: &'static str, algorithm: &str) -> usize {
        let is_it = |it: &OperationCount| it.collective == collective && it.algorithm == algorithm;
        self.operations.iter().position(is_it).unwrap_or_else(|| {
            let (algorithm, seconds) = (algorithm.to_owned(), Histogram::default());
            self.operations.push(OperationCount { collective, algorithm, seconds });
            self.operations.len() - 1
        })
    }

    /// For how many seconds each member was waited for until a moment, in finished and unfinished waits.
    pub(crate) fn waited(&self, until: Duration) -> BTreeMap<String, f64> {
        let mut sums: BTreeMap<String, f64> =
            self.waits.iter().map(|(name, waits)| (name.clone(), waits.sum())).collect();
        for waiting in self.waiting.values() {
            waiting.names(|name| *sums.entry(name.to_owned()).or_default() += waiting.seconds(until));
        }
        sums
    }

    /// An operation or a message of some kind is over.
    fn ended(
        &mut self,
        kind: impl FnOnce(&mut Self) -> usize,
        issued: Duration,
        now: Duration,
        result: &herringbone::Result<()>,
    ) {
        match result {
            Ok(()) => {
                let kind = kind(self);
                self.operations[kind].seconds.add(now.saturating_sub(issued).as_secs_f64());
            }
            Err(error) => *self.failures.entry(error.kind().name()).or_default() += 1,
        }
    }

    /// A wait is over.
    fn end_wait(&mut self, wait: u64, now: Duration) {
        let Some(waiting) = self.waiting.remove(&wait) else { return };
        waiting.names(|name| {
            // A name is copied once: this runs under the engine's lock.
            match self.waits.get_mut(name) {
                Some(waits) => waits.add(waiting.seconds(now)),
                None => self.waits.entry(name.to_owned()).or_default().add(waiting.seconds(now)),
            }
        });
    }
}

/// The moment by the clock of events.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The counts of a process, to which all its listeners add.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedCounts(Arc<Mutex<EventCounts>>);

impl SharedCounts {
    fn lock(&self) -> MutexGuard<'_, EventCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Their present values.
    pub(crate) fn read(&self) -> EventCounts {
        self.lock().clone()
    }

    /// A rank's listener, which adds to them. `peers` names the members of its job.
    pub(crate) fn listener(&self, peers: BTreeMap<MemberId, String>) -> Box<dyn Sink> {
        let peers = Arc::new(Peers::Named(peers));
        Box::new(Counting { counts: self.clone(), peers, followed: HashMap::new() })
    }

    /// A reducer's listener in one of its jobs. The members that it knows are workers, by their ranks.
    pub(crate) fn reducer_listener(&self) -> Box<dyn Sink> {
        Box::new(Counting { counts: self.clone(), peers: Arc::new(Peers::Workers), followed: HashMap::new() })
    }
}

/// Listens in one job.
#[derive(Debug)]
struct Counting {
    counts: SharedCounts,
    peers: Arc<Peers>,
    /// Unfinished operations. Each takes much more memory elsewhere.
    followed: HashMap<OperationId, Followed>,
}

/// The names of a job's members.
#[derive(Debug)]
enum Peers {
    /// By their names.
    Named(BTreeMap<MemberId, String>),
    /// A reducer knows workers alone, by their ranks.
    Workers,
}

/// An operation that has not ended.
#[derive(Debug)]
struct Followed {
    /// The place of its kind among all.
    kind: usize,
    issued: Duration,
    /// The number of its wait, if it waits.
    wait: Option<u64>,
}

/// A wait that is not over.
#[derive(Clone, Debug)]
struct Waiting {
    since: Duration,
    on: Vec<MemberId>,
    peers: Arc<Peers>,
}

impl Waiting {
    fn seconds(&self, until: Duration) -> f64 {
        until.saturating_sub(self.since).as_secs_f64()
    }

    /// Hands over the name of each member that is waited for.
    fn names(&self, mut each: impl FnMut(&str)) {
        for member in &self.on {
            match &*self.peers {
                Peers::Named(names) => match names.get(member) {
                    Some(name) => each(name),
                    None => each(&format!("member {}", member.number())),
                },
                Peers::Workers => each(&format!("rank {}", member.number())),
            }
        }
    }
}

impl Counting {
    fn fault(&self, kind: &'static str) {
        *self.counts.lock().faults.entry(kind).or_default() += 1;
    }
}

impl Sink for Counting {
    fn event(&mut self, now: Duration, event: &TraceEvent<'_>) {
        match event {
            TraceEvent::Issued { operation, call, algorithm, purpose, .. } => {
                let Some(collective) = called(*purpose, call) else { return };
                let kind = self.counts.lock().kind(collective, algorithm);
                self.followed.insert(*operation, Followed { kind, issued: now, wait: None });
            }
            TraceEvent::Waited { operation, endpoints } => {
                let Some(followed) = self.followed.get_mut(operation) else { return };
                let mut counts = self.counts.lock();
                let wait = counts.begun;
                counts.begun += 1;
                if let Some(before) = followed.wait.replace(wait) {
                    counts.end_wait(before, now);
                }
                let next = Waiting { since: now, on: endpoints.to_vec(), peers: self.peers.clone() };
                counts.waiting.insert(wait, next);
            }
            TraceEvent::Ended { operation, result } => {
                let Some(followed) = self.followed.remove(operation) else { return };
                let mut counts = self.counts.lock();
                if let Some(wait) = followed.wait {
                    counts.end_wait(wait, now);
                }
                counts.ended(|_| followed.kind, followed.issued, now, result);
            }
            TraceEvent::Delivered { receives, issued, result } => {
                let kind = if *receives { RECEIVE } else { SEND };
                self.counts.lock().ended(|counts| counts.kind(kind, ANNOUNCED), *issued, now, result);
            }
            // The event repeats each second.
            TraceEvent::Suspected { silent, .. } if SUSPICIOUS.contains(silent) => self.fault("suspected"),
            TraceEvent::Lost { .. } => self.fault("lost"),
            TraceEvent::Fenced { .. } => self.fault("fenced"),
            _ => {}
        }
    }
}

impl Drop for Counting {
    /// The job is over, so all its waits end.
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        for wait in self.followed.values().filter_map(|followed| followed.wait) {
            counts.end_wait(wait, now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATION: OperationId = OperationId { group: 0, generation: 0, sequence: 7 };

    #[test]
    fn bounds_ascend_and_a_value_is_in_the_first_bucket_that_has_room_for_it() {
        assert!(BOUNDS.is_sorted());
        let mut histogram = Histogram::default();
        for value in [0.0, 1e-5, 1.1e-5, 0.3, 100.0, 1e6] {
            histogram.add(value);
        }
        assert_eq!((histogram.count(), histogram.sum()), (6, 1_000_100.300_021));
        let filled: Vec<(f64, u64)> =
            histogram.buckets().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(1e-5, 2), (2.5e-5, 1), (0.5, 1), (100.0, 1), (f64::MAX, 1)]);
    }

    #[test]
    fn waits_are_those_for_each_member_until_others_are_waited_for_or_the_end() {
        let counts = SharedCounts::default();
        let members = [1, 2].map(MemberId::new);
        let peers = members.iter().map(|member| (*member, format!("rank {}", member.number()))).collect();
        let mut listener = counts.listener(peers);
        let at = |milliseconds| Duration::from_millis(milliseconds);
        let call = Fingerprint { collective: Collective::AllReduce.code(), ..Fingerprint::default() };
        let purpose = OperationPurpose::Called;
        let (operation, group, algorithm) = (OPERATION, "world", "radix");
        let issued = TraceEvent::Issued { operation, call: &call, group, algorithm, purpose };
        listener.event(at(10), &issued);
        listener.event(at(20), &TraceEvent::Waited { operation: OPERATION, endpoints: &members });
        listener.event(at(50), &TraceEvent::Waited { operation: OPERATION, endpoints: &members[1..] });
        let waited = counts.read().waited(at(100));
        assert_eq!(
            waited.into_iter().collect::<Vec<_>>(),
            [("rank 1".to_owned(), 0.03), ("rank 2".to_owned(), 0.08)]
        );
        listener.event(at(150), &TraceEvent::Ended { operation: OPERATION, result: &Ok(()) });
        // It was issued before somebody listened.
        let other = OperationId { sequence: 8, ..OPERATION };
        listener.event(at(160), &TraceEvent::Ended { operation: other, result: &Ok(()) });
        let counts = counts.read();
        let waits: Vec<_> =
            counts.waits.iter().map(|(name, waits)| (name.as_str(), waits.count(), waits.sum())).collect();
        assert_eq!(waits, [("rank 1", 1, 0.03), ("rank 2", 2, 0.13)]);
        assert_eq!(counts.waited(at(900))["rank 2"], 0.13);
        let [operations] = &counts.operations[..] else { panic!("{counts:?}") };
        assert_eq!((operations.collective, operations.algorithm.as_str()), ("all_reduce", "radix"));
        assert_eq!((operations.seconds.count(), operations.seconds.sum()), (1, 0.14));
    }

    /// A sum that goes back looks like one that starts over.
    #[test]
    fn waits_of_a_job_that_ends_meanwhile_stay_counted() {
        let counts = SharedCounts::default();
        let peers = BTreeMap::from([(MemberId::new(1), "rank 1".to_owned())]);
        let mut listener = counts.listener(peers);
        let call = Fingerprint::default();
        let issued = TraceEvent::Issued {
            operation: OPERATION,
            call: &call,
            group: "world",
            algorithm: "",
            purpose: OperationPurpose::Called,
        };
        listener.event(Duration::ZERO, &issued);
        let waited = TraceEvent::Waited { operation: OPERATION, endpoints: &[MemberId::new(1)] };
        listener.event(now().saturating_sub(Duration::from_secs(5)), &waited);
        let shown = counts.read().waited(now())["rank 1"];
        drop(listener);
        assert!(counts.read().waited(now())["rank 1"] >= shown && shown >= 5.0);
    }
}
