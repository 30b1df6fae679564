//! One process of a world: its engine, and what its threads would do for it.

use super::{
    calls::{Called, Task, TensorTask},
    event::WorldEvent,
    exit::Exit,
    transitions,
};
use crate::{
    Error,
    clock::Moment,
    core::session::{
        control::Message,
        group_state::ReducerUse,
        membership::{MemberId, Roster},
        watch::{Effect, GroupEvent, Watch},
    },
    engine::{Engine, outbox::Event, outbox::Interest, refused::Refused},
    execute::issue::{Issue, WORLD_GROUP},
    fabric::command::pass_on,
    feedback::{Fed, Feedback},
    request::CallAttrs,
    seen,
    sys::region::{Owned, Region},
    transport::{
        endpoint::Link,
        tcp::{TcpLink, virtual_link::PipeEnd},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

/// How long others may take to close their ends.
const HANG_UP: Duration = Duration::from_secs(1);
/// What outputs hold before a call.
const UNTOUCHED: u8 = 0xa5;

/// A call that a rank is to make.
#[derive(Clone)]
pub(crate) struct QueuedCall {
    pub(crate) group: u32,
    pub(crate) task: Rc<Task>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: i32,
    /// The groups that are closed after it, in this order; `true` for those that are closed once all calls have ended.
    pub(crate) closes: Vec<(u32, bool)>,
    /// Since when it waits for its group to go on.
    pub(super) frozen: Option<Moment>,
}

impl QueuedCall {
    /// A call of all ranks.
    pub(crate) fn new(task: Rc<Task>, timeout: Option<Duration>) -> Self {
        Self { group: WORLD_GROUP, task, timeout, priority: 0, closes: Vec::new(), frozen: None }
    }
}

/// One process.
pub(crate) struct Machine {
    pub(crate) engine: Engine,
    /// What its control thread knows; a reducer has none.
    pub(crate) watch: Option<Watch>,
    /// The members of the job, as it knows them.
    pub(super) roster: Arc<Roster>,
    pub(crate) pipes: BTreeMap<MemberId, PipeEnd>,
    wants_room: BTreeSet<MemberId>,
    /// Calls that are to be made, and how many may be under way at once.
    pub(crate) program: VecDeque<QueuedCall>,
    pub(crate) window: usize,
    pub(crate) called: Vec<Called>,
    /// Whether it does not run for the time being.
    pub(crate) is_hung: bool,
    /// Whether no timer of its engine ever expires: a fault.
    pub(crate) is_timeless: bool,
    /// What has happened meanwhile, for when it runs again.
    pub(super) held: Vec<WorldEvent>,
    pub(crate) exit: Exit,
}

impl Machine {
    pub(super) fn new(engine: Engine, watch: Option<Watch>, roster: Arc<Roster>) -> Self {
        Self {
            engine,
            watch,
            roster,
            pipes: BTreeMap::new(),
            wants_room: BTreeSet::new(),
            program: VecDeque::new(),
            window: 1,
            called: Vec::new(),
            is_hung: false,
            is_timeless: false,
            held: Vec::new(),
            exit: Exit::default(),
        }
    }

    /// A link is there.
    pub(super) fn connect(&mut self, endpoint: MemberId, end: TcpLink, pipe: PipeEnd, now: Moment) {
        self.pipes.insert(endpoint, pipe);
        self.engine.runtime.links.endpoints.meet(&[endpoint]);
        self.engine.at(now).connect(endpoint, Link::Tcp(end));
    }

    /// Whether a poller would find a socket of interest.
    pub(super) fn is_ready(&self) -> bool {
        !self.is_hung && self.pipes.keys().any(|endpoint| self.ready(*endpoint) != (false, false))
    }

    fn ready(&self, endpoint: MemberId) -> (bool, bool) {
        let Some(PipeEnd { link, side }) = self.pipes.get(&endpoint) else { return (false, false) };
        let (room, readable) = link.ready(*side);
        (room && self.wants_room.contains(&endpoint), readable)
    }

    /// Has the engine serve its links, as a thread that drives it does, until nothing moves. Returns what it asks for.
    pub(super) fn drive(&mut self, now: Moment) -> Vec<Event> {
        loop {
            let mut moved = false;
            for endpoint in self.pipes.keys().copied().collect::<Vec<_>>() {
                let (room, readable) = self.ready(endpoint);
                if room || readable {
                    moved |= self.engine.at(now).serve(endpoint, room, readable);
                    self.apply_interests();
                }
            }
            moved |= self.engine.at(now).turn();
            self.apply_interests();
            moved |= self.make_calls(now);
            if !moved {
                return std::mem::take(&mut self.engine.runtime.out.events);
            }
        }
    }

    fn apply_interests(&mut self) {
        for interest in std::mem::take(&mut self.engine.runtime.out.interests) {
            match interest {
                Interest::Room { endpoint, wanted: true } => drop(self.wants_room.insert(endpoint)),
                Interest::Room { endpoint, wanted: false } | Interest::New(endpoint) => {
                    self.wants_room.remove(&endpoint);
                }
                Interest::Gone(link) => drop(link),
            }
        }
        let endpoints = &self.engine.runtime.links.endpoints;
        self.pipes.retain(|endpoint, _| endpoints[*endpoint].is_up());
    }

    /// Notes what has ended, and makes the next calls. Returns whether it made any.
    fn make_calls(&mut self, now: Moment) -> bool {
        self.called.iter_mut().for_each(|called| called.look(now));
        let mut made = false;
        while self.closes(now)
            && self.called.iter().filter(|called| called.ended.is_none()).count() < self.window
            && let Some(mut queued) = self.program.pop_front()
        {
            let Some(called) = self.call(&mut queued, now) else {
                self.program.push_front(queued);
                return made;
            };
            self.called.push(called);
            queued.closes.into_iter().for_each(|(group, patient)| self.exit.close(group, patient));
            made = true;
        }
        made
    }

    /// Closes what is to be closed. Returns whether the program goes on.
    fn closes(&mut self, now: Moment) -> bool {
        let is_quiet = self.called.iter().all(|called| called.ended.is_some());
        self.exit.go_on(&mut self.engine, is_quiet, now)
    }

    /// Makes a call, unless a fence is under way or its group is not made yet.
    fn call(&mut self, queued: &mut QueuedCall, now: Moment) -> Option<Called> {
        let QueuedCall { group, task, timeout, priority, frozen, .. } = queued;
        let rank = self.engine.runtime.groups.get(*group)?.settings.me as usize;
        note_group(&self.engine, self.engine.current(*group), "call");
        let input = Region::own(task.inputs[rank].clone());
        let output: Owned<u8> = match task.in_place {
            true => Region::own(task.inputs[rank].clone()),
            false => Region::own(vec![UNTOUCHED; task.expected[rank].len()]),
        };
        let feedback = self.feedback(task, rank);
        let read = if task.in_place { &output } else { &input };
        let (fed, priority, timeout) = (feedback.as_ref().map(Fed::next), *priority, *timeout);
        let (input_region, output_region) = (read.region().clone(), output.region().clone());
        let plain = Issue::new(*group, task.call, input_region, output_region);
        let issue = Issue { fed, attrs: CallAttrs { priority, timeout, ..plain.attrs }, ..plain };
        let buffers = Some((input, output));
        let task = task.clone();
        match self.engine.at(now).issue(&issue, frozen) {
            Ok(completion) => {
                let mut called = Called {
                    group: *group,
                    task,
                    rank,
                    completion: Some(completion),
                    buffers,
                    feedback,
                    ended: None,
                    wrong: None,
                };
                called.look(now);
                Some(called)
            }
            Err(Refused::Frozen) => None,
            Err(Refused::Failed(error) | Refused::Counted(error)) => {
                let ended = Some((now, Err(error)));
                let (completion, wrong) = (None, None);
                Some(Called { group: *group, task, rank, completion, buffers, feedback, ended, wrong })
            }
        }
    }

    /// What is left of a call's tensor, which the calls on it share.
    fn feedback(&self, task: &Task, rank: usize) -> Option<Arc<Feedback>> {
        let TensorTask { identity, steps, before, .. } = task.tensor.as_ref()?;
        let known = self.called.iter().rev().find(|called| {
            called.task.tensor.as_ref().is_some_and(|tensor| Rc::ptr_eq(&tensor.identity, identity))
        });
        let known = known.and_then(|called| called.feedback.clone());
        Some(known.unwrap_or_else(|| Arc::new(Feedback::of(*steps, before[rank].clone()))))
    }

    /// What its watch wants done besides what is to be done to the engine, which is done. Returns also whether that was anything.
    pub(super) fn effects(&mut self, now: Moment) -> (Vec<Effect>, bool) {
        let Self { watch: Some(watch), engine, roster, .. } = self else { return (Vec::new(), false) };
        let (mut effects, mut moved) = (Vec::new(), false);
        while let Some(effect) = watch.next_effect() {
            match effect {
                Effect::Groups(event) => {
                    moved = true;
                    note_group_event(engine, &event);
                    engine.at(now).take(event);
                }
                Effect::Members(members) => {
                    moved = true;
                    engine.at(now).renew(&members);
                    *roster = members;
                }
                effect => effects.push(effect),
            }
            for event in std::mem::take(&mut engine.runtime.out.events) {
                note_event(engine, watch, &event);
                pass_on(event, watch, now);
            }
        }
        (effects, moved)
    }

    /// Goes on leaving in order, as [`Fabric::close`](crate::fabric::Fabric::close) does. Returns whether it has left.
    pub(super) fn go_on_leaving(&mut self, now: Moment) -> bool {
        let (Some((since, said)), Some(watch)) = (&mut self.exit.leaving, &mut self.watch) else {
            return false;
        };
        if !*said && self.engine.at(now).is_flushed() {
            (*since, *said) = (now, true);
            self.engine.say_goodbye();
            self.engine.say_goodbye_to_reducers();
            watch.leave(true, now.since_start());
            self.engine.runtime.links.hang_up();
        }
        let closed = *said && (self.engine.runtime.links.is_hung_up() || now.since(*since) >= HANG_UP);
        closed && watch.has_left(false, now.since_start())
    }

    /// How the calls that were made have ended.
    pub(crate) fn ends(&self) -> Vec<Option<Result<(), Error>>> {
        self.called.iter().map(|called| called.ended.as_ref().map(|(_, end)| end.clone())).collect()
    }

    /// Whether all calls were made and have ended, and what is to be closed is.
    pub(crate) fn is_done(&self) -> bool {
        self.exit.is_done()
            && self.program.is_empty()
            && self.called.iter().all(|called| called.ended.is_some())
    }
}

/// Notes what comes to a group, as a member and as one that may recover.
fn note_group(engine: &Engine, number: u32, input: &'static str) {
    let group = engine.runtime.groups.get(number);
    let member = group.and_then(|group| group.state.member());
    let member = member.map(|member| transitions::member_state(member.phase(), member.is_over()));
    let recovery = group.map(|group| match group.state.reducers() {
        ReducerUse::InUse => "whole",
        ReducerUse::Suspended => "stands still",
        ReducerUse::Replaced { .. } => "over",
    });
    if !["Recover", "Resume", "a reducer is lost"].contains(&input) {
        seen::note("member", member.unwrap_or("not made"), input);
    }
    if !["Fence", "Decide", "Waiting", "Confirm", "Confirmed"].contains(&input) {
        seen::note("recovery", recovery.unwrap_or("not made"), input);
    }
}

/// Notes that an engine has lost a reducer, or tells the hub something, if this says so.
pub(super) fn note_event(engine: &Engine, watch: &Watch, event: &Event) {
    match event {
        Event::Broken { endpoint, .. } if engine.runtime.links.endpoints[*endpoint].is_reducer() => {
            let numbers = engine.runtime.groups.numbers().into_iter();
            numbers.for_each(|number| note_group(engine, number, "a reducer is lost"));
        }
        Event::ToHub(message) => transitions::to_hub(watch, message),
        Event::Failed => {}
        _ => {}
    }
}

/// Notes what happens to the groups of an engine.
fn note_group_event(engine: &Engine, event: &GroupEvent) {
    match event {
        // It changes nothing.
        GroupEvent::FromHub(Message::Late(_) | Message::Forget { .. }) => {}
        GroupEvent::FromHub(message) => {
            message
                .group()
                .into_iter()
                .for_each(|group| note_group(engine, group, transitions::name_of(message)));
        }
        _ => {}
    }
}
