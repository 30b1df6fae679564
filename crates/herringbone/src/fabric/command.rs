//! Commands of other threads to the control thread.

use super::{arrival::Arrival, recorder::FlightRecorder};
use crate::{
    clock::Moment,
    core::{
        group::Rank,
        session::{
            control::Message,
            membership::MemberId,
            survivors::Shrink,
            watch::{ShrinkAnswer, Watch},
        },
    },
    engine::outbox::Event,
    node::EventHandler,
    sys::{doorbell::Bell, pidfd::Pidfd},
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

/// After how long without a call a process does not want to join any more.
const CALLS_AGAIN: Duration = Duration::from_secs(2);

/// How long the hub may take to say who did not come.
const LAST_WORD: Duration = Duration::from_millis(300);

/// The commands of other threads to the control thread.
pub(crate) enum Command {
    Event(Event),
    /// A local rank's process, to be watched.
    Watch(MemberId, Pidfd),
    /// A reducer has answered, or has called by itself, in this life; or it has not answered.
    Greeted {
        address: String,
        life: Option<u64>,
    },
    /// This process leaves; rank 0 lingers for the others, or does not.
    Close {
        lingers: bool,
    },
}

/// Work for the control thread, from any thread.
pub(crate) struct Commands {
    queue: Mutex<VecDeque<Command>>,
    pub(crate) bell: Bell,
    /// Answers for those that wait for them.
    answers: Mutex<BTreeMap<u32, ShrinkAnswer>>,
    answered: Condvar,
    /// Where connections of other ranks go during an election.
    arrivals: Mutex<Option<mpsc::Sender<Arrival>>>,
    /// Ranks that were lost, of which new processes have called to join, and when last.
    newcomers: Mutex<BTreeMap<Rank, Instant>>,
}

impl Commands {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let (queue, answers, answered) = (Mutex::default(), Mutex::default(), Condvar::new());
        Ok(Arc::new(Self {
            queue,
            bell: Bell::new()?,
            answers,
            answered,
            arrivals: Mutex::default(),
            newcomers: Mutex::default(),
        }))
    }

    pub(crate) fn send(&self, command: Command) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        // The control thread looks ten times a second in any case.
        let _rung = self.bell.ring();
    }

    /// For the hub, wherever it is.
    pub(crate) fn tell_hub(&self, message: Message) {
        self.send(Command::Event(Event::ToHub(message)));
    }

    /// Somebody may wait for this.
    pub(super) fn answer(&self, group: u32, answer: ShrinkAnswer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.insert(group, answer);
        self.answered.notify_all();
    }

    /// A new process of a lost rank wants to join. It retries until the job re-forms.
    pub(super) fn note_newcomer(&self, rank: Rank) {
        self.newcomers.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, Instant::now());
    }

    /// The lost ranks whose new processes want to join, ascending.
    pub(crate) fn newcomers(&self) -> Vec<Rank> {
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.retain(|_, last| last.elapsed() < CALLS_AGAIN);
        newcomers.keys().copied().collect()
    }

    /// An election begins: other ranks will connect to this one.
    pub(super) fn expect_arrivals(&self) -> mpsc::Receiver<Arrival> {
        let (sender, arrivals) = mpsc::channel();
        *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        arrivals
    }

    pub(super) fn expect_no_arrivals(&self) {
        *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn arrivals(&self) -> Option<mpsc::Sender<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What comes of the request to go on with the members of a group that are left, in so long.
    pub(crate) fn wait_for_survivors(&self, shrink: Shrink, timeout: Duration) -> Option<ShrinkAnswer> {
        let group = shrink.group;
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
        self.tell_hub(Message::Shrink(shrink));
        self.answer_within(group, timeout).or_else(|| {
            self.tell_hub(Message::Unshrink { group });
            self.answer_within(group, LAST_WORD)
        })
    }

    /// What has become known of who is gone since this was last asked, when there is no hub.
    pub(super) fn known_to_be_gone(&self, shrink: Shrink) -> Option<BTreeMap<Rank, bool>> {
        let group = shrink.group;
        let answer = self.answer_within(group, Duration::ZERO);
        self.tell_hub(Message::Shrink(shrink));
        match answer {
            Some(ShrinkAnswer::NoHub(gone)) => Some(gone),
            _ => None,
        }
    }

    fn answer_within(&self, group: u32, timeout: Duration) -> Option<ShrinkAnswer> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |answers: &mut BTreeMap<u32, ShrinkAnswer>| !answers.contains_key(&group);
        let waited = self.answered.wait_timeout_while(answers, timeout, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.remove(&group)
    }

    pub(crate) fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Has a watch look at what an engine asks of its surroundings.
pub(crate) fn pass_on(event: Event, watch: &mut Watch, now: Moment) {
    match event {
        Event::Want(endpoint) => watch.wants_link(endpoint),
        Event::Broken { endpoint, reason } => {
            let cause = |from, to| reason.cause(from, to);
            watch.link_broke(endpoint, cause, &reason, now.since_start());
        }
        Event::ToHub(message) => watch.tell_hub(message),
        // Its recorder writes.
        Event::Failed => {}
    }
}

/// The engine's events become commands.
pub(crate) struct ToControl {
    pub(crate) commands: Arc<Commands>,
    /// Of a rank that is a process of its own.
    pub(crate) recorder: Option<Arc<FlightRecorder>>,
}

impl EventHandler for ToControl {
    fn handle(&self, events: Vec<Event>) {
        for event in events {
            match (event, &self.recorder) {
                (Event::Failed, Some(recorder)) => recorder.failed(),
                (event, _) => self.commands.send(Command::Event(event)),
            }
        }
    }
}
