//! One asker for a process: a thread that asks all members of the job often while somebody looks, and rarely otherwise.

use crate::ask::Asker;
use crate::history::JobHistory;
use crate::json;
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How old an answer can be to be given again.
const FRESH: Duration = Duration::from_secs(1);
/// How long somebody waits who wants a new one: then the last one is given.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How many wait at once for a new one. Others get the last one, so that places remain for clients with other requests.
const WAITING: usize = 8;
/// How long after somebody has looked all are asked each second.
const LOOKED_AT: Duration = Duration::from_secs(60);
/// How often all are asked while nobody looks.
const UNSEEN: Duration = Duration::from_secs(10);

/// Whom to ask, and for whom.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AskTarget {
    /// Where to ask, the first that answers and knows all members being used.
    pub(crate) addresses: Vec<String>,
    /// The token of the job.
    pub(crate) token: Option<String>,
    /// The address of this process.
    pub(crate) own: String,
    /// The jobs of a reducer.
    pub(crate) jobs: Option<Vec<u64>>,
    /// Whether all are asked even if nobody looks.
    pub(crate) samples: bool,
}

/// What is known of a job, for all that look at it.
pub(crate) struct JobWatch {
    state: Mutex<WatchState>,
    changed: Condvar,
    /// Whom to ask, at the moment; `None` if there is no job.
    target: Box<dyn Fn() -> Option<AskTarget> + Send + Sync>,
    /// What has moved, for the thread that asks.
    history: Mutex<JobHistory>,
    /// Whether it is one of the jobs that somebody has asked for, and not the one that the process shows.
    is_chosen: bool,
}

#[derive(Default)]
struct WatchState {
    looked: Option<Instant>,
    latest: Option<Latest>,
    runs: bool,
    /// Whether a job has begun since its members were last asked.
    begins: bool,
    /// How many wait for an answer.
    waiting: usize,
}

struct Latest {
    at: Instant,
    text: Arc<str>,
}

impl JobWatch {
    /// Asks whom `target` names: for the job that the process shows, or for one that was chosen of many.
    pub(crate) fn new(
        is_chosen: bool,
        target: impl Fn() -> Option<AskTarget> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let target = Box::new(target);
        let (state, history) = (Mutex::default(), Mutex::default());
        Arc::new(Self { state, changed: Condvar::new(), target, history, is_chosen })
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts its thread, unless it runs.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        self.start_in(&mut self.state())
    }

    /// Whether somebody looks, or all are asked even if nobody does.
    pub(crate) fn is_in_use(&self) -> bool {
        self.state().runs
    }

    fn start_in(self: &Arc<Self>, state: &mut WatchState) -> io::Result<()> {
        if !state.runs {
            let watch = self.clone();
            thread::Builder::new().name("hb-admin-ask".to_owned()).spawn(move || watch.run())?;
            state.runs = true;
        }
        Ok(())
    }

    /// How the job stands, at most a second old if its members answer; `None` if nothing is known.
    pub(crate) fn job(self: &Arc<Self>) -> Option<Arc<str>> {
        let is_there = (self.target)().is_some();
        let began = Instant::now();
        let mut state = self.state();
        state.looked = Some(began);
        // Without a thread the last answer is all there is.
        let _started = self.start_in(&mut state);
        self.changed.notify_all();
        loop {
            if let Some(latest) = state.latest.as_ref().filter(|latest| latest.at + FRESH > began) {
                return Some(latest.text.clone());
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            if left.is_zero() || !is_there {
                // An old answer says when it was given.
                return state.latest.as_ref().filter(|_| is_there).map(|latest| latest.text.clone());
            }
            if state.waiting == WAITING {
                return state.latest.as_ref().map(|latest| latest.text.clone());
            }
            state.waiting += 1;
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
    }

    /// There is a job to ask about.
    pub(crate) fn job_begins(&self) {
        self.state().begins = true;
        self.changed.notify_all();
    }

    /// Asks for as long as there is a reason to.
    fn run(&self) {
        let mut asked: Option<(AskTarget, Asker)> = None;
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(target) = (self.target)() else {
                asked = None;
                if !self.rest(Instant::now(), FRESH, false) {
                    return;
                }
                continue;
            };
            let is_new = asked.as_ref().is_none_or(|(before, _)| !before.asks_as(&target));
            if is_new {
                let asker = Asker::new(target.addresses.clone(), target.token.clone());
                asked = Some((target.clone(), asker));
            }
            let Some((_, asker)) = &mut asked else { continue };
            let began = Instant::now();
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let Ok(round) = asker.ask_all(is_new) else {
                if !self.rest(began, FRESH, target.samples) {
                    return;
                }
                continue;
            };
            history.add(&round, at);
            if self.is_looked_at() {
                let mut object = json::object(&round);
                extend(&mut object, &target, at, &history);
                let text = object.to_string().into();
                self.state().latest = Some(Latest { at: began, text });
                self.changed.notify_all();
            }
            if !self.rest(began, FRESH, target.samples) {
                return;
            }
        }
    }

    fn is_looked_at(&self) -> bool {
        self.state().looked.is_some_and(|looked| looked.elapsed() < LOOKED_AT)
    }

    /// Waits until all have to be asked again: `pause` after the last time if somebody looks, later if nobody does, and at once if a job
    /// begins. A client that looks after the pause, or as the first for long, need not wait. Returns whether the thread continues: the
    /// thread of one of many jobs ends when nobody looks, and the next client starts it again.
    fn rest(&self, began: Instant, pause: Duration, samples: bool) -> bool {
        let mut state = self.state();
        loop {
            if std::mem::take(&mut state.begins) {
                return true;
            }
            let looked = state.looked.filter(|looked| looked.elapsed() < LOOKED_AT);
            let next = match looked {
                Some(_) => began + pause,
                None if samples => began + UNSEEN,
                None if self.is_chosen => {
                    state.runs = false;
                    return false;
                }
                None => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            };
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl AskTarget {
    /// Whether it is asked in the same way.
    fn asks_as(&self, other: &Self) -> bool {
        (&self.addresses, &self.token) == (&other.addresses, &other.token)
    }
}

/// Adds who answers, when, and what was moved in the last minutes.
fn extend(object: &mut Value, target: &AskTarget, at: f64, history: &JobHistory) {
    let Value::Object(fields) = object else { return };
    fields.insert("asked_at".to_owned(), json!(at));
    fields.insert("own".to_owned(), json!(target.own));
    fields.insert("history".to_owned(), history.object());
    if let Some(jobs) = &target.jobs {
        fields.insert("jobs".to_owned(), jobs.iter().map(|job| json::number(*job)).collect());
    }
}
