//! The engine's input from its surroundings: links that are made, processes that die or leave, the hub's messages, and
//! time.

use super::{
    Engine, disband, fences,
    outbox::{Deferred, Event},
    rebalance,
    runtime::Runtime,
    timers::Timer,
};
use crate::{
    Error,
    clock::{Moment, resolution},
    core::session::{Cause, control::Message, membership::MemberId, watch::GroupEvent},
    execute::issue::{Caller, Identity, Queued},
    log::{Level, LogRecord},
    transport::{
        Broken,
        endpoint::{Endpoint, Link, send_control},
        layout,
        stats::{Moved, readable_bytes},
    },
};
use std::{sync::atomic::Ordering, time::Duration};

/// How long after its timeout an operation fails even if no decision has come.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a link may be on its way from a rank that has left: it made it before, for what it had to send.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// How long an operation that needs more of a rank that has left waits for a better reason to fail: that rank may have left
/// because another died, of which word is on its way.
const GRACE: Duration = Duration::from_millis(300);
/// How often a reducer shows its workers that it lives.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// After this silence a reducer is suspected, in a warning.
const SUSPECT: Duration = Duration::from_secs(2);
/// After this silence it is lost: the workers go on without it.
const LOST: Duration = Duration::from_secs(3);

impl Engine {
    /// Something has happened to groups, as the control thread knows.
    pub(crate) fn take(&mut self, event: GroupEvent) {
        match event {
            GroupEvent::FromHub(Message::Forget { group }) => {
                // No member takes part in it any more.
                disband::left_by_all(&mut self.runtime, group);
            }
            GroupEvent::FromHub(message) => {
                if let Some(group) = message.group() {
                    self.heard_from_hub(group, message);
                }
            }
            GroupEvent::PeerDied { worker, death, hub_is_gone } => {
                self.lose(worker, &death.to_string(), hub_is_gone);
            }
            GroupEvent::PeerLeft(worker) => self.leave(worker),
            GroupEvent::LinkBroke { endpoint, cause } => {
                fences::dispute_all_with(&mut self.runtime, endpoint, &cause);
            }
            GroupEvent::NoHub => {
                self.runtime.groups.lose_hub(&mut self.runtime.out);
                self.look_at_close_checks();
            }
        }
        self.catch_up();
    }

    /// Puts a new link in place. If there was one, it is of no use to the other end any more.
    pub(crate) fn connect(&mut self, index: MemberId, link: Link) {
        if self.runtime.links.endpoints[index].is_up() {
            self.runtime.out.push(Deferred::Broken { endpoint: index, reason: Broken::Closed });
            self.catch_up();
        }
        let Runtime { links, out, .. } = &mut self.runtime;
        links.connect(index, link, out);
        if self.runtime.links.endpoints[index].left.is_some() {
            self.read_to_the_end(index);
        }
        self.runtime.out.push(Deferred::Start);
        self.runtime.out.flushes = true;
        for pair_group in self.messages.pair_groups() {
            self.runtime.out.push(Deferred::Served(pair_group));
        }
        self.catch_up();
    }

    /// A link could not be made.
    pub(crate) fn no_link(&mut self, index: MemberId, problem: String) {
        let endpoint = &mut self.runtime.links.endpoints[index];
        if matches!(endpoint.link, Link::Wanted) {
            endpoint.lose(problem.clone());
            self.runtime.out.events.push(Event::Broken { endpoint: index, reason: Broken::Io(problem) });
        }
        if endpoint.is_reducer() {
            self.runtime.out.observer.lost(index, self.runtime.links.why_lost(index));
            self.lose_reducer(index);
        }
    }

    /// A socket has something to read, or takes something again. Returns whether anything moved.
    pub(crate) fn serve(&mut self, index: MemberId, room: bool, readable: bool) -> bool {
        let mut moved = false;
        let Some(endpoint) = self.runtime.links.endpoints.get_mut(index) else { return false };
        if room && let Link::Tcp(link) = &mut endpoint.link {
            link.has_room = true;
            moved |= self.runtime.flush_socket(index);
            // A result may come straight to where something was sent from, once that has left.
            self.catch_up();
        }
        if readable {
            moved |= self.receive_socket(index);
        }
        self.catch_up();
        moved
    }

    /// The poller cannot watch a link's socket.
    pub(crate) fn unwatched(&mut self, index: MemberId, problem: &std::io::Error) {
        let reason = Broken::Io(format!("its socket cannot be watched: {problem}"));
        self.runtime.out.push(Deferred::Broken { endpoint: index, reason });
        self.catch_up();
    }

    /// A link is of no use any more: operations that waited for an answer on it may be able to go on without.
    pub(super) fn broken(&mut self, index: MemberId, reason: Broken) {
        let Runtime { links, ops, out, .. } = &mut self.runtime;
        if !links.drop_link(index, &reason, out) {
            return;
        }
        out.events.push(Event::Broken { endpoint: index, reason });
        for operation in ops.table.iter() {
            if operation.endpoints().any(|endpoint| endpoint == index) {
                out.push(Deferred::Run(operation.key));
            }
        }
        if links.endpoints[index].left.is_some() {
            out.departed();
        }
        if self.reduces {
            fences::drop_operations_with(&mut self.runtime, index);
        } else if links.endpoints[index].is_reducer() {
            out.observer.lost(index, links.why_lost(index));
            self.lose_reducer(index);
        }
    }

    /// A rank has died. What it sent before is still used.
    pub(crate) fn lose(&mut self, index: MemberId, reason: &str, hub_is_gone: bool) {
        while self.receive_shared(index) || self.receive_socket(index) {
            self.catch_up();
        }
        self.runtime.out.push(Deferred::Broken { endpoint: index, reason: Broken::Closed });
        self.catch_up();
        self.runtime.links.endpoints[index].dead = true;
        self.runtime.out.observer.lost(index, reason);
        fences::lose(&mut self.runtime, index, reason, hub_is_gone);
        self.look_at_close_checks();
    }

    /// A rank has left in order: it has finished its part, and nobody is to be harmed. What it sent is read to its end, and still
    /// used, also by operations that begin only later here: at once in shared memory, until the end of a socket, and, if a link
    /// is still under way, once that is there. Only an operation that needs more of it fails.
    pub(crate) fn leave(&mut self, index: MemberId) {
        let Runtime { links, out, .. } = &mut self.runtime;
        links.leave(index, out.now());
        out.timers.ensure(Timer::Departures, out.now() + GRACE);
        if links.endpoints[index].is_lost() {
            // Its socket was read to the end before its goodbye came.
            out.departed();
        } else {
            self.read_to_the_end(index);
            self.runtime.out.push(Deferred::Start);
        }
        self.catch_up();
    }

    fn read_to_the_end(&mut self, index: MemberId) {
        while self.receive_shared(index) {
            self.catch_up();
        }
        if self.runtime.links.endpoints[index].is_shared() {
            self.runtime.out.push(Deferred::Broken { endpoint: index, reason: Broken::Closed });
        }
    }

    /// Tells reducers that this rank leaves in order: no hub tells them.
    pub(crate) fn say_goodbye_to_reducers(&mut self) {
        let is_served = |endpoint: &&mut Endpoint| endpoint.is_reducer() && endpoint.is_up();
        let reducers = self.runtime.links.endpoints.iter_mut().filter(is_served);
        reducers.for_each(|reducer| send_control(reducer, &Message::Bye));
        self.flush();
    }

    /// How a worker has left that said so, for people.
    pub(crate) fn describe_departure(&self, worker: MemberId) -> String {
        let observer = &self.runtime.out.observer;
        let (operations, Moved { sent, received }) = (observer.next(), observer.moved_with(worker));
        let name = &self.runtime.links.endpoints[worker].name;
        let s = if operations == 1 { "" } else { "s" };
        format!(
            "{name} has left: {operations} operation{s}, {} exchanged with it",
            readable_bytes(sent + received)
        )
    }

    /// Leaves word in shared memory that this rank leaves in order.
    pub(crate) fn say_goodbye(&self) {
        layout::goodbye(self.runtime.ops.staging.segment()).store(1, Ordering::Release);
    }

    /// Whether a process has left, or died.
    pub(crate) fn has_gone(&self, id: MemberId) -> bool {
        let endpoint = &self.runtime.links.endpoints[id];
        endpoint.left.is_some() || endpoint.dead
    }

    /// What groups wait for that are closed may never come.
    fn look_at_close_checks(&mut self) {
        let Runtime { groups, out, .. } = &mut self.runtime;
        groups.numbers().into_iter().for_each(|number| out.push(Deferred::Forget(number)));
        self.catch_up();
    }

    /// What the hub says about a group.
    pub(crate) fn heard_from_hub(&mut self, number: u32, message: Message) {
        let Self { runtime, recoveries, waits, .. } = self;
        match message {
            Message::Recover { .. } => recoveries.stand_still(number, runtime),
            Message::Resume(resume) => self.resume(number, resume),
            Message::PortOutcome(outcome) => rebalance::settle(runtime, &outcome),
            Message::Late(late) => waits.tell(&late, runtime, recoveries),
            message => {
                if let Message::Waiting(waiting) = &message {
                    fences::make_links_for(runtime, waiting);
                }
                fences::heard_from_hub(runtime, number, &message);
            }
        }
        self.catch_up();
    }

    /// Sends a control message on a data link.
    pub(crate) fn send_control(&mut self, index: MemberId, message: &Message) {
        send_control(&mut self.runtime.links.endpoints[index], message);
        self.flush();
    }

    /// Sends a control message on all data links.
    pub(crate) fn broadcast_control(&mut self, message: &Message) {
        for endpoint in self.runtime.links.endpoints.iter_mut().filter(|endpoint| endpoint.is_up()) {
            send_control(endpoint, message);
        }
        self.flush();
    }

    /// Whether there are groups that have not ended.
    pub(crate) fn has_groups(&self) -> bool {
        self.runtime.groups.iter().any(|group| !group.state.is_over())
    }

    /// Shows on every socket that this process lives.
    pub(crate) fn show_life(&mut self) {
        self.runtime.links.show_life();
        self.flush();
    }

    /// A thread has panicked in here, so nothing here is to be relied on: all groups end, everywhere.
    pub(crate) fn break_down(&mut self) {
        let Runtime { links, groups, out, .. } = &mut self.runtime;
        groups.break_down((!self.reduces).then_some(links.rank), out);
        self.catch_up();
        if self.reduces {
            // It has no rank to say so by: its workers see their connections end.
            self.runtime.links.hang_up();
        }
    }

    /// A reducer is gone: groups go on without it.
    pub(super) fn lose_reducer(&mut self, index: MemberId) {
        let Runtime { links, groups, out, .. } = &mut self.runtime;
        groups.iter().for_each(|group| links.suspect(group, index, links.why_lost(index), out));
    }

    /// Looks after what has waited for long. Posted about ten times a second.
    pub(crate) fn tick(&mut self) {
        self.flush();
        while let Some(timer) = self.runtime.out.timers.expire(self.runtime.out.now()) {
            self.expired(timer);
            self.catch_up();
        }
    }

    fn expired(&mut self, timer: Timer) {
        match timer {
            Timer::Operations => {
                self.issue_late();
                self.messages.look(&mut self.runtime);
                self.look_through_operations();
                self.look_through_queue();
                self.waits.look(&mut self.runtime);
                self.check_silence();
                let Runtime { ops, backlog, .. } = &self.runtime;
                let is_idle = backlog.queue.is_empty() && self.messages.is_idle() && self.late.is_empty();
                if ops.table.len() > 0 || !is_idle {
                    self.runtime.out.look_soon(Timer::Operations);
                }
            }
            Timer::Group(number) => {
                let Runtime { groups, out, .. } = &mut self.runtime;
                groups.get_mut(number).into_iter().for_each(|group| group.state.time_has_passed(out));
            }
            Timer::Departures => self.look_at_departures(),
            Timer::Ports(number) => rebalance::report(&mut self.runtime, number),
        }
    }

    /// Fails the operations that need more of a rank that has left, once nothing more comes from it. Where several have left, the
    /// first is the reason: others may only have followed.
    fn look_at_departures(&mut self) {
        let Runtime { links, ops, out, .. } = &mut self.runtime;
        let (mut departed, mut all) = (Vec::new(), true);
        for (index, since) in links.left().collect::<Vec<_>>() {
            let (endpoint, ago) = (&mut links.endpoints[index], out.now().since(since));
            if matches!(endpoint.link, Link::None | Link::Wanted) && ago >= UNDER_WAY {
                endpoint.lose("it left the group".to_owned());
                out.departed();
            }
            match endpoint.is_lost() && ago >= GRACE {
                true => departed.push(index),
                false => all = false,
            }
        }
        if !all {
            // It may be lost only later, and operations may begin to need it.
            out.look_soon(Timer::Departures);
        }
        for key in ops.table.keys() {
            departed.iter().any(|index| fences::fail_if_departed(&mut self.runtime, key, *index));
        }
    }

    fn look_through_operations(&mut self) {
        for key in self.runtime.ops.table.keys() {
            let Runtime { ops, out, .. } = &self.runtime;
            let Some(operation) = ops.get(key).filter(|_| ops.is_awaited(key)) else { continue };
            let overdue = Overdue::new(operation.id, &operation.caller, out.now());
            if let Some(overdue) = overdue
                && let Some(error) = overdue.fail(operation.missing(), &mut self.runtime)
            {
                self.runtime.fail(key, &error, true);
            }
        }
    }

    fn look_through_queue(&mut self) {
        let Runtime { backlog, out, .. } = &self.runtime;
        let overdue = |queued: &Queued| Overdue::new(queued.id, &queued.caller, out.now());
        for overdue in backlog.queue.iter().filter_map(overdue).collect::<Vec<_>>() {
            let Runtime { links, groups, .. } = &self.runtime;
            let group = groups.get(overdue.id.group);
            let missing = group.map_or_else(Vec::new, |group| links.wanted(group).collect());
            if let Some(error) = overdue.fail(missing, &mut self.runtime)
                && let Some(queued) = self.runtime.backlog.take(&overdue.id)
            {
                self.runtime.not_started(queued, &error);
            }
        }
    }

    /// Gives up reducers that hang: their kernels keep connections open and take in what is sent, but no sign of life has come
    /// for long, while operations need reducers. Nobody reads sockets, or misses anything, while there are none.
    fn check_silence(&mut self) {
        let needed =
            !self.reduces && self.runtime.ops.table.iter().any(|operation| operation.with_reducers());
        let passed = self.runtime.links.silent_for(self.runtime.out.now(), needed);
        if !needed {
            return;
        }
        for index in self.runtime.links.endpoints.ids() {
            let endpoint = &mut self.runtime.links.endpoints[index];
            if !endpoint.is_reducer() || !endpoint.is_up() {
                continue;
            }
            let before = endpoint.silence;
            endpoint.silence += passed;
            if (before < SUSPECT) == (endpoint.silence < SUSPECT) && endpoint.silence < LOST {
                continue;
            }
            // What nobody has come to read yet is a sign as well.
            self.receive_socket(index);
            let endpoint = &self.runtime.links.endpoints[index];
            if endpoint.silence >= LOST {
                self.runtime
                    .out
                    .push(Deferred::Broken { endpoint: index, reason: Broken::Silent(endpoint.silence) });
            } else if endpoint.silence >= SUSPECT {
                self.runtime.out.observer.suspected(|| vec![index], endpoint.silence);
                let (name, silence) = (&endpoint.name, endpoint.silence.as_secs());
                let what = format_args!("the reducer at {name} has been silent for {silence} s");
                let (who, peer) = (format!("rank {}", self.runtime.links.rank), format!("reducer {name}"));
                LogRecord::new(Level::Warn, &who).peer(&peer).say(what);
            }
        }
    }
}

/// An operation that has taken longer than its timeout.
struct Overdue {
    id: Identity,
    timeout: Duration,
    waited: Duration,
}

impl Overdue {
    fn new(id: Identity, caller: &Caller, now: Moment) -> Option<Self> {
        let waited = now.since(caller.issued).saturating_sub(resolution());
        (waited >= caller.timeout).then_some(Self { id, timeout: caller.timeout, waited })
    }

    /// Its group is to be fenced, as this rank waits for these. Returns why it fails, if no decision has come in time.
    fn fail(&self, missing: Vec<MemberId>, runtime: &mut Runtime) -> Option<Error> {
        let Runtime { links, groups, out, .. } = runtime;
        let cause = Cause::Timeout {
            rank: links.rank,
            operation: self.id.fingerprint,
            milliseconds: self.timeout.as_millis() as u64,
            waiting_for: links.ranks(&missing),
        };
        let group = groups.get_mut(self.id.group)?;
        if self.waited < self.timeout + PATIENCE {
            group.state.dispute(cause, out);
            return None;
        }
        group.state.fail(self.id.fingerprint.sequence);
        Some(super::failure::error(&cause, &[]))
    }
}
