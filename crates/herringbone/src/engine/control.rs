//! What the surroundings tell the engine: links that are made, processes that die or leave, what the hub says, and time.

use super::{
    Engine,
    backlog::not_started,
    messages::Others,
    outbox::{Event, Todo},
    recovery::EngineParts,
    timers::Timer,
};
use crate::{
    Error,
    clock::resolution,
    core::session::{Cause, control::Message, membership::MemberId, watch::GroupEvent},
    execute::issue::Identity,
    transport::{
        Broken,
        endpoint::{Link, send_control},
        layout,
        ticket::OpKey,
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
            GroupEvent::FromHub(Message::Forget { group }) => self.left_by_all(group),
            GroupEvent::FromHub(message) => {
                if let Some(group) = message.group() {
                    self.told_by_hub(group, message);
                }
            }
            GroupEvent::PeerDied { worker, death, hub_is_gone } => {
                self.lose(worker, &death.to_string(), hub_is_gone);
            }
            GroupEvent::PeerLeft(worker) => self.leave(worker),
            GroupEvent::LinkBroke { endpoint, cause } => self.dispute_all_with(endpoint, &cause),
            GroupEvent::NoHub => self.without_hub(),
        }
    }

    /// Puts a new link in place. If there was one, it is of no use to the other end any more.
    pub(crate) fn connect(&mut self, index: MemberId, link: Link) {
        if self.links.endpoints[index].is_up() {
            self.out.push(Todo::Broken { endpoint: index, reason: Broken::Closed });
            self.catch_up();
        }
        self.links.connect(index, link, &mut self.out);
        if self.links.endpoints[index].left.is_some() {
            self.read_to_the_end(index);
        }
        self.out.push(Todo::Start);
        self.out.push(Todo::Flush);
        for carrier in self.messages.carriers() {
            self.out.push(Todo::Served(carrier));
        }
        self.catch_up();
    }

    /// A link could not be made.
    pub(crate) fn no_link(&mut self, index: MemberId, problem: String) {
        let endpoint = &mut self.links.endpoints[index];
        if matches!(endpoint.link, Link::Wanted) {
            endpoint.lose(problem.clone());
            self.out.events.push(Event::Broken { endpoint: index, reason: Broken::Io(problem) });
        }
        if endpoint.is_reducer() {
            self.out.observer.lost(index, self.links.why_lost(index));
            self.lose_reducer(index);
        }
    }

    /// A socket has something to read, or takes something again. Returns whether anything moved.
    pub(crate) fn serve(&mut self, index: MemberId, (room, readable): (bool, bool)) -> bool {
        let mut moved = false;
        let Some(endpoint) = self.links.endpoints.get_mut(index) else { return false };
        if room && let Link::Tcp(link) = &mut endpoint.link {
            link.has_room = true;
            moved |= self.ops.flush_socket(index, &mut self.links, &mut self.out);
            // A result may come straight to where something was sent from, once that has left.
            self.catch_up();
        }
        if readable {
            moved |= self.receive_socket(index);
        }
        self.catch_up();
        moved
    }

    /// How many links are sockets.
    pub(crate) fn sockets(&self) -> usize {
        self.links.sockets
    }

    /// The poller cannot watch a link's socket.
    pub(crate) fn unwatched(&mut self, index: MemberId, problem: &std::io::Error) {
        let reason = Broken::Io(format!("its socket cannot be watched: {problem}"));
        self.out.push(Todo::Broken { endpoint: index, reason });
        self.catch_up();
    }

    /// A link is of no use any more: operations that waited for an answer on it may be able to go on without.
    pub(super) fn broken(&mut self, index: MemberId, reason: Broken) {
        let Self { links, ops, out, .. } = self;
        if !links.drop_link(index, &reason, out) {
            return;
        }
        out.events.push(Event::Broken { endpoint: index, reason });
        for operation in ops.table.iter() {
            if operation.endpoints().any(|endpoint| endpoint == index) {
                out.push(Todo::Run(operation.key));
            }
        }
        if links.endpoints[index].left.is_some() {
            out.push(Todo::Departed);
        }
        if self.reduces {
            self.groups.drop_operations_with(index, &mut self.out);
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
        self.out.push(Todo::Broken { endpoint: index, reason: Broken::Closed });
        self.catch_up();
        let Self { links, groups, ops, backlog, out, .. } = self;
        links.endpoints[index].dead = true;
        out.observer.lost(index, reason);
        groups.lose(index, (reason, hub_is_gone), (ops, backlog), (links, out));
        self.look_at_farewells();
    }

    /// A rank has left in order: it has finished its part, and nobody is to be harmed. What it sent is read to its end, and still
    /// used, also by operations that begin only later here: at once in shared memory, until the end of a socket, and, if a link
    /// is still under way, once that is there. Only an operation that needs more of it fails.
    pub(crate) fn leave(&mut self, index: MemberId) {
        self.links.endpoints[index].left = Some(self.out.now());
        self.out.after(Timer::Departed(index), GRACE);
        if self.links.endpoints[index].is_lost() {
            // Its socket was read to the end before its goodbye came.
            self.out.push(Todo::Departed);
        } else {
            self.out.after(Timer::UnderWay(index), UNDER_WAY);
            self.read_to_the_end(index);
            self.out.push(Todo::Start);
        }
        self.catch_up();
    }

    fn read_to_the_end(&mut self, index: MemberId) {
        while self.receive_shared(index) {
            self.catch_up();
        }
        if self.links.endpoints[index].is_shared() {
            self.out.push(Todo::Broken { endpoint: index, reason: Broken::Closed });
        }
    }

    /// Leaves word in shared memory that this rank leaves in order.
    pub(crate) fn say_goodbye(&self) {
        layout::goodbye(self.ops.staging.segment()).store(1, Ordering::Release);
    }

    /// Whether a process has left, or died.
    pub(crate) fn has_gone(&self, id: MemberId) -> bool {
        let endpoint = &self.links.endpoints[id];
        endpoint.left.is_some() || endpoint.dead
    }

    /// Whether a local rank has left such word.
    pub(crate) fn has_said_goodbye(&self, index: MemberId) -> bool {
        self.links.has_said_goodbye(index)
    }

    /// Says on all sockets that nothing more will come.
    pub(crate) fn hang_up(&mut self) {
        self.links.hang_up();
    }

    /// Whether all sockets have been closed from the other end too.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.links.is_hung_up()
    }

    /// An operation that has just begun may need what a rank that left never sent. Ranks that left later may only have followed.
    pub(super) fn fail_if_any_departed(&mut self, key: OpKey) {
        let departed = self.links.departed(self.out.now(), GRACE);
        let _failed = departed.into_iter().any(|index| self.fail_if_departed(key, index));
    }

    /// Returns whether the operation fails.
    fn fail_if_departed(&mut self, key: OpKey, index: MemberId) -> bool {
        let Self { links, groups, ops, out, .. } = self;
        if !ops.needs(key, index, groups) {
            return false;
        }
        let Some(operation) = ops.get(key).filter(|operation| operation.caller.completion.is_some()) else {
            return false;
        };
        let which = (operation.id.group, operation.id.fingerprint.sequence);
        groups.fail_departed(which, key, index, (links, out));
        true
    }

    /// Nobody decides any more: rank 0 has left, and is not there for the others either.
    pub(crate) fn without_hub(&mut self) {
        self.groups.lose_hub(&mut self.out);
        self.look_at_farewells();
    }

    /// What groups wait for that are closed may never come.
    fn look_at_farewells(&mut self) {
        self.groups.numbers().into_iter().for_each(|number| self.out.push(Todo::Forget(number)));
        self.catch_up();
    }

    /// What the hub says about a group.
    pub(crate) fn told_by_hub(&mut self, number: u32, message: Message) {
        let Self { links, groups, ops, backlog, recoveries, waits, out, .. } = self;
        match message {
            Message::Recover { .. } => {
                recoveries.stand_still(number, &mut EngineParts { groups, ops, backlog, links, out });
            }
            Message::Resume(resume) => self.resume(number, resume),
            Message::Late(late) => waits.tell(&late, (groups, ops, backlog), recoveries, (links, out)),
            message => {
                if let Message::Waiting(waiting) = &message {
                    groups.make_way(waiting, (links, out));
                }
                groups.told_by_hub(number, &message, links.rank, out);
            }
        }
        self.catch_up();
    }

    /// No member takes part in a group any more, says the hub.
    pub(crate) fn left_by_all(&mut self, group: u32) {
        self.groups.left_by_all(group, &mut self.ops, &mut self.out);
        self.catch_up();
    }

    /// Sends a control message on a data link.
    pub(crate) fn say(&mut self, index: MemberId, message: &Message) {
        send_control(&mut self.links.endpoints[index], message);
        self.flush();
    }

    /// Sends a control message on all data links.
    pub(crate) fn say_to_all(&mut self, message: &Message) {
        for endpoint in self.links.endpoints.iter_mut().filter(|endpoint| endpoint.is_up()) {
            send_control(endpoint, message);
        }
        self.flush();
    }

    /// Whether there are groups that have not ended.
    pub(crate) fn has_groups(&self) -> bool {
        self.groups.iter().any(|group| !group.state.is_over())
    }

    /// Shows on every socket that this process lives.
    pub(crate) fn show_life(&mut self) {
        self.links.show_life();
        self.flush();
    }

    /// A thread has panicked in here, so nothing here is to be relied on: all groups end, everywhere.
    pub(crate) fn break_down(&mut self) {
        self.groups.break_down((!self.reduces).then_some(self.links.rank), &mut self.out);
        self.catch_up();
        if self.reduces {
            // It has no rank to say so by: its workers see their connections end.
            self.links.hang_up();
        }
    }

    /// A reducer is gone: groups go on without it.
    pub(super) fn lose_reducer(&mut self, index: MemberId) {
        let Self { links, groups, out, .. } = self;
        groups.iter().for_each(|group| links.accuse(group, index, links.why_lost(index), out));
    }

    /// A link between workers broke and neither died: operations that need it fail, everywhere.
    pub(crate) fn dispute_all_with(&mut self, index: MemberId, cause: &Cause) {
        self.groups.dispute_all_with(index, cause, (&self.ops, &self.backlog), &mut self.out);
        self.catch_up();
    }

    /// Looks after what has waited for long. Posted about ten times a second.
    pub(crate) fn tick(&mut self) {
        self.flush();
        while let Some(timer) = self.out.timers.expire(self.out.now()) {
            self.expired(timer);
            self.catch_up();
        }
    }

    fn expired(&mut self, timer: Timer) {
        let Self { links, groups, out, .. } = self;
        match timer {
            Timer::Operations => {
                self.issue_late();
                let Self { links, groups, backlog, messages, out, .. } = self;
                messages.look(&mut Others { groups, backlog, links, out });
                self.look_through_operations();
                self.look_through_queue();
                self.waits.look(&mut self.groups, (&self.ops, &self.backlog), &mut self.out);
                let is_idle =
                    self.backlog.queue.is_empty() && self.messages.is_idle() && self.late.is_empty();
                if self.ops.table.len() > 0 || !is_idle {
                    self.out.look_soon(Timer::Operations);
                }
            }
            Timer::Silence => self.listen_for_silence(),
            Timer::Group(number) => {
                groups.get_mut(number).into_iter().for_each(|group| group.state.time_has_passed(out));
            }
            Timer::UnderWay(index) => {
                let endpoint = &mut links.endpoints[index];
                if matches!(endpoint.link, Link::None | Link::Wanted) {
                    endpoint.lose("it left the group".to_owned());
                    out.push(Todo::Departed);
                    self.fail_all_departed(index);
                }
            }
            Timer::Departed(index) => self.fail_all_departed(index),
        }
    }

    fn fail_all_departed(&mut self, index: MemberId) {
        if self.links.departed(self.out.now(), GRACE).contains(&index) {
            for key in self.ops.table.keys() {
                self.fail_if_departed(key, index);
            }
        } else {
            // It may be lost only later, and operations may begin to need it.
            self.out.look_soon(Timer::Departed(index));
        }
    }

    fn look_through_operations(&mut self) {
        for key in self.ops.table.keys() {
            let Some(operation) = self.ops.get(key) else { continue };
            if operation.caller.completion.is_none() {
                continue;
            }
            let waited = self.out.now().since(operation.caller.issued).saturating_sub(resolution());
            let (id, timeout) = (operation.id, operation.caller.timeout);
            if waited >= timeout {
                let missing = operation.missing();
                if let Some(error) = self.overdue(&id, (timeout, waited), missing) {
                    self.out.push(Todo::Fail { key, error, keep_memory: true });
                }
            }
        }
    }

    fn look_through_queue(&mut self) {
        let (now, resolution) = (self.out.now(), resolution());
        let overdue = self.backlog.queue.iter().filter_map(|queued| {
            let waited = now.since(queued.caller.issued).saturating_sub(resolution);
            (waited >= queued.caller.timeout).then_some((queued.id, queued.caller.timeout, waited))
        });
        for (id, timeout, waited) in overdue.collect::<Vec<_>>() {
            let group = self.groups.get(id.group);
            let missing = group.map_or_else(Vec::new, |group| self.links.wanted(group).collect());
            if let Some(error) = self.overdue(&id, (timeout, waited), missing)
                && let Some(queued) = self.backlog.take(&id)
            {
                not_started(queued, &error, &mut self.groups, (&self.links, &mut self.out));
            }
        }
    }

    /// An operation has taken too long: its group is to be fenced. Returns why it fails, if no decision has come in time.
    fn overdue(
        &mut self,
        id: &Identity,
        (timeout, waited): (Duration, Duration),
        missing: Vec<MemberId>,
    ) -> Option<Error> {
        let cause = Cause::Timeout {
            rank: self.links.rank,
            operation: id.fingerprint,
            milliseconds: timeout.as_millis() as u64,
            waiting_for: self.links.ranks(&missing),
        };
        let group = self.groups.get_mut(id.group)?;
        if waited < timeout + PATIENCE {
            group.state.dispute(cause, &mut self.out);
            return None;
        }
        group.state.fail(id.fingerprint.sequence);
        Some(super::failure::error(&cause, &[]))
    }

    /// Gives up reducers that hang: their kernels keep connections open and take in what is sent, but no sign of life has come
    /// for long, while operations need reducers. Nobody reads sockets, or misses anything, while there are none.
    fn listen_for_silence(&mut self) {
        let needed = !self.reduces && self.ops.table.iter().any(|operation| operation.with_reducers());
        let passed = self.links.silent_for(self.out.now(), needed);
        if !needed {
            return;
        }
        self.out.look_soon(Timer::Silence);
        for index in self.links.endpoints.ids() {
            let endpoint = &mut self.links.endpoints[index];
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
            let endpoint = &self.links.endpoints[index];
            if endpoint.silence >= LOST {
                self.out.push(Todo::Broken { endpoint: index, reason: Broken::Silent(endpoint.silence) });
            } else if endpoint.silence >= SUSPECT {
                self.out.observer.suspected(|| vec![index], endpoint.silence);
                let (name, silence) = (&endpoint.name, endpoint.silence.as_secs());
                let what = format_args!("the reducer at {name} has been silent for {silence} s");
                crate::log::warn(&format!("rank {}", self.links.rank), what);
            }
        }
    }
}
