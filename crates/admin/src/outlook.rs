//! The state that this process shows: its places in jobs, and the server that it runs.

use crate::events::SharedCounts;
use crate::watch::{AskTarget, JobWatch};
use herringbone::server::{ServedFigures, ServerFigures, ServerView};
use herringbone::{JobFigures, JobView, Stats};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How many places in jobs are kept that this process has left.
const LEFT: usize = 8;
/// How many jobs of a server are shown at once, each by a thread of its own.
const CHOSEN: usize = 8;
/// Figures of this age were asked for by the same client.
const JUST_NOW: Duration = Duration::from_millis(300);

/// The state of a process.
pub(crate) struct Outlook {
    places: Mutex<Vec<SeenPlace>>,
    /// The counts of places that were dropped.
    past: Mutex<Stats>,
    server: Mutex<Option<ShownServer>>,
    /// The events that listeners have counted.
    events: SharedCounts,
    /// How often the file of metrics could not be written.
    unwritten: AtomicU64,
    watch: Arc<JobWatch>,
    /// The known state of the server's jobs that somebody has asked for.
    chosen: Mutex<BTreeMap<u64, Arc<JobWatch>>>,
    own: Weak<Self>,
}

/// A place in a job, and its last known state.
#[derive(Clone)]
pub(crate) struct SeenPlace {
    pub(crate) view: JobView,
    pub(crate) known: Option<Known<JobFigures>>,
}

/// The server of this process, and its last known state.
#[derive(Clone)]
pub(crate) struct ShownServer {
    pub(crate) view: ServerView,
    pub(crate) known: Option<Known<ServerFigures>>,
}

/// The state of a process, and its time.
pub(crate) struct Known<T> {
    pub(crate) figures: Arc<T>,
    at: Instant,
}

impl<T> Clone for Known<T> {
    fn clone(&self) -> Self {
        Self { figures: self.figures.clone(), at: self.at }
    }
}

impl<T> Known<T> {
    fn now(figures: T) -> Self {
        Self { figures: Arc::new(figures), at: Instant::now() }
    }

    /// How old it is.
    pub(crate) fn age(&self) -> Duration {
        let age = self.at.elapsed();
        // An answer to the same request is new.
        if age < JUST_NOW { Duration::ZERO } else { age }
    }
}

impl Outlook {
    /// For a process that is not in a job yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            let (own, outlook) = (own.clone(), own.clone());
            let watch = JobWatch::new(false, move || outlook.upgrade()?.target(None));
            Self {
                events: SharedCounts::default(),
                places: Mutex::default(),
                past: Mutex::default(),
                server: Mutex::default(),
                unwritten: AtomicU64::new(0),
                watch,
                chosen: Mutex::default(),
                own,
            }
        })
    }

    fn places(&self) -> MutexGuard<'_, Vec<SeenPlace>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_server(&self) -> MutexGuard<'_, Option<ShownServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server that this process runs.
    pub(crate) fn server(&self) -> Option<ServerView> {
        self.own_server().as_ref().map(|server| server.view.clone())
    }

    /// The same, in its present state, or in the state when the engines of all its jobs were last free.
    pub(crate) fn look_at_server(&self) -> Option<ShownServer> {
        // Nothing is asked for under this lock.
        let mut server = self.own_server().clone()?;
        if let Some(figures) = server.view.figures().filter(|figures| figures.busy == 0) {
            server.known = Some(Known::now(figures));
            // An answer that another thread has meanwhile got is as new.
            *self.own_server() = Some(server.clone());
        }
        Some(server)
    }

    /// Adds a place in a job. Returns whether it is a new one.
    pub(crate) fn add(&self, view: JobView) -> bool {
        let mut places = self.places();
        let is_new = !places.iter().any(|place| place.view.is_same(&view));
        if is_new {
            places.push(SeenPlace { view, known: None });
        }
        while places.iter().filter(|place| place.view.is_over()).count() > LEFT {
            let Some(oldest) = places.iter().position(|place| place.view.is_over()) else { break };
            if let Some(known) = places.remove(oldest).known {
                add_stats(
                    &mut self.past.lock().unwrap_or_else(PoisonError::into_inner),
                    &known.figures.stats,
                );
            }
        }
        is_new
    }

    /// Shows a server.
    pub(crate) fn set_server(&self, view: ServerView) {
        *self.own_server() = Some(ShownServer { view, known: None });
    }

    /// What has happened in all jobs of this process.
    pub(crate) fn events(&self) -> &SharedCounts {
        &self.events
    }

    /// The file of metrics could not be written.
    pub(crate) fn count_unwritten(&self) {
        self.unwritten.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the file of metrics could not be written.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// The job as all its members see it.
    pub(crate) fn watch(&self) -> &Arc<JobWatch> {
        &self.watch
    }

    /// A job as all its members see it; `None` if this process is not in it, does not serve it, or shows as many others.
    pub(crate) fn watch_of(&self, job: u64) -> Option<Arc<JobWatch>> {
        if self.present().is_some_and(|view| view.place().job == job) {
            return Some(self.watch.clone());
        }
        let served = self.server()?.figures()?.jobs;
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.retain(|job, watch| watch.is_in_use() && served.iter().any(|served| served.job == *job));
        let is_shown = served.iter().any(|served| served.job == job)
            && (chosen.contains_key(&job) || chosen.len() < CHOSEN);
        is_shown.then(|| {
            let own = self.own.clone();
            let watch = || JobWatch::new(true, move || own.upgrade()?.target(Some(job)));
            chosen.entry(job).or_insert_with(watch).clone()
        })
    }

    /// Its places in jobs, in their present state, or in the state when their engines were last free.
    pub(crate) fn look(&self) -> Vec<SeenPlace> {
        // Nothing is asked for under this lock.
        let mut places = self.places().clone();
        for place in &mut places {
            if let Some(figures) = place.view.figures() {
                place.known = Some(Known::now(figures));
            }
        }
        let mut kept = self.places();
        for place in &places {
            let same = |kept: &&mut SeenPlace| kept.view.is_same(&place.view);
            if let Some(kept) = kept.iter_mut().find(same)
                && kept
                    .known
                    .as_ref()
                    .is_none_or(|kept| Some(kept.at) < place.known.as_ref().map(|known| known.at))
            {
                kept.known.clone_from(&place.known);
            }
        }
        places
    }

    /// The counts of these places and all before them.
    pub(crate) fn counted(&self, places: &[SeenPlace]) -> Stats {
        let mut all = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known = places.iter().filter_map(|place| place.known.as_ref());
        known.for_each(|known| add_stats(&mut all, &known.figures.stats));
        all
    }

    /// The place in the job that formed last, if it is not over.
    pub(crate) fn present(&self) -> Option<JobView> {
        self.places().iter().rev().map(|place| &place.view).find(|view| !view.is_over()).cloned()
    }

    /// What distinguishes this process from others of its host: `rank-3`, or `reducer-7070` by its port.
    pub(crate) fn name(&self) -> Option<String> {
        let of_server = || Some(format!("reducer-{}", self.server()?.address().port()));
        self.present().map(|view| format!("rank-{}", view.place().rank)).or_else(of_server)
    }

    /// Whom to ask for the present job, or for one that the server serves.
    fn target(&self, job: Option<u64>) -> Option<AskTarget> {
        if let Some(view) = self.present().filter(|_| job.is_none()) {
            let place = view.place();
            let own = place.address.clone()?;
            let token = view.token().map(str::to_owned);
            let (addresses, samples) = (vec![own.clone()], place.rank == 0);
            return Some(AskTarget { addresses, token, own, jobs: None, samples });
        }
        let server = self.server()?;
        let served = server.figures()?.jobs;
        let own = reached(&server);
        // Rank 0 knows all members; of a job that has none the reducer answers for itself.
        let is_it = |served: &ServedFigures| job.is_none_or(|job| served.job == job);
        if job.is_some() && !served.iter().any(is_it) {
            return None;
        }
        let hub = served.iter().filter(|served| is_it(served)).find_map(|served| served.hub.clone());
        let addresses = hub.into_iter().chain([own.clone()]).collect();
        let jobs = Some(served.iter().map(|job| job.job).collect());
        Some(AskTarget {
            addresses,
            token: server.token().map(str::to_owned),
            own,
            jobs,
            samples: job.is_none(),
        })
    }
}

/// Adds what only grows, but for operations, which are [heard of](Outlook::events).
fn add_stats(to: &mut Stats, more: &Stats) {
    let ways = [
        (&mut to.workers_shm, more.workers_shm),
        (&mut to.workers_tcp, more.workers_tcp),
        (&mut to.reducers_tcp, more.reducers_tcp),
    ];
    for (to, more) in ways {
        to.sent += more.sent;
        to.received += more.received;
    }
    to.failed += more.failed;
    to.connections += more.connections;
    to.rebalanced += more.rebalanced;
    to.waiting += more.waiting;
    to.in_flight += more.in_flight;
}

/// Where a server is reached from this host, which can listen at all addresses.
fn reached(server: &ServerView) -> String {
    let mut address = server.address();
    if address.ip().is_unspecified() {
        let loopback =
            if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    address.to_string()
}
