//! What happens in a world: time passes, control messages arrive, links are made, processes end, hang, or leave.

use super::{VirtualWorld, event::WorldEvent, machine::note_event, member_at, transitions};
use crate::{
    core::session::{
        control::Message,
        fence::Directed,
        membership::MemberId,
        watch::{Effect, TICK},
    },
    engine::control::SIGN_OF_LIFE,
    fabric::command::pass_on,
    transport::{
        endpoint::Link,
        tcp::{
            TcpLink,
            virtual_link::{PipeEnd, VirtualLink},
        },
    },
};
use std::time::Duration;

/// How long a rank calls another one that does not answer, and how often.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);
const REDUCER_PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(500);
/// How soon a poller that found something ready is asked again.
const LOOK_AGAIN: Duration = Duration::from_micros(20);
/// How long a call waits that finds a fence under way.
const UNFREEZE: Duration = Duration::from_millis(1);

impl VirtualWorld {
    pub(super) fn handle(&mut self, event: WorldEvent) {
        let now = self.clock.now();
        if let Some(at) = event.to() {
            let Some(machine) = &mut self.machines[at] else { return };
            if machine.is_hung {
                machine.held.push(event);
                return;
            }
        }
        match event {
            WorldEvent::Nothing => {}
            WorldEvent::Done(number) => {
                let act = self.events.acts.remove(&number).expect("it was not done yet");
                act(self);
            }
            WorldEvent::Look(at) => {
                self.events.looks.remove(&at);
                self.settle(at);
            }
            WorldEvent::Tick(at) => {
                self.after(TICK, WorldEvent::Tick(at));
                let machine = self.machine(at);
                if !machine.is_timeless {
                    machine.engine.at(now).tick();
                }
                if let Some(watch) = &mut machine.watch {
                    transitions::taking(watch, |watch| watch.tick(now.since_start()));
                }
                self.settle(at);
            }
            WorldEvent::SignOfLife(at) => {
                self.after(SIGN_OF_LIFE, WorldEvent::SignOfLife(at));
                self.machine(at).engine.at(now).show_life();
                self.settle(at);
            }
            WorldEvent::Said { from, to, message } => {
                if self.network.control.contains(&(to, from))
                    && let Some(watch) = &mut self.machine(to).watch
                {
                    transitions::control(watch, &message);
                    watch.heard(from as u32, now.since_start());
                    transitions::taking(watch, |watch| watch.message(from as u32, message));
                    self.settle(to);
                }
            }
            WorldEvent::Parted { at, from } => {
                if self.network.control.remove(&(at, from))
                    && let Some(watch) = &mut self.machine(at).watch
                {
                    transitions::taking(watch, |watch| watch.unreachable(from as u32));
                    self.settle(at);
                }
            }
            WorldEvent::Called { caller, endpoint, other, for_so_long } => {
                self.called(caller, endpoint, other, for_so_long);
            }
            WorldEvent::Linked { caller, endpoint, end, pipe } => {
                self.machine(caller).connect(endpoint, end, pipe, now);
                self.settle(caller);
            }
            WorldEvent::Greeted { at, address } => self.greeted(at, &address),
        }
    }

    /// Lets a process do all that it can do now.
    pub(super) fn settle(&mut self, at: usize) {
        let now = self.clock.now();
        loop {
            let Some(machine) = self.machines[at].as_mut().filter(|machine| !machine.is_hung) else { return };
            let events = machine.drive(now);
            let idle = events.is_empty();
            for event in events {
                if let Some(watch) = &mut machine.watch {
                    note_event(&machine.engine, watch, &event);
                    pass_on(event, watch, now);
                }
            }
            let (effects, moved) = machine.effects(now);
            if idle && !moved && effects.is_empty() {
                break;
            }
            effects.into_iter().for_each(|effect| self.apply_effect(at, effect));
        }
        let machine = self.machine(at);
        let (ready, left) = (machine.is_ready(), machine.go_on_leaving(now));
        let waits = machine.called.iter().all(|called| called.ended.is_some()) && !machine.program.is_empty();
        let leaves = machine.exit.leaving.is_some();
        if left {
            let (effects, _) = self.machine(at).effects(now);
            effects.into_iter().for_each(|effect| self.apply_effect(at, effect));
            self.kill(at);
        } else if ready {
            self.look_after(LOOK_AGAIN, at);
        } else if waits || leaves {
            self.look_after(UNFREEZE, at);
        }
    }

    /// Has a thread look again after a while, unless it does so earlier anyway.
    fn look_after(&mut self, delay: Duration, at: usize) {
        let then = self.clock.now() + delay;
        if self.events.looks.get(&at).is_none_or(|earlier| *earlier > then) {
            self.events.looks.insert(at, then);
            self.after(delay, WorldEvent::Look(at));
        }
    }

    fn apply_effect(&mut self, at: usize, effect: Effect) {
        match effect {
            Effect::Send(Directed { to, message }) => self.send(at, to as usize, message),
            Effect::Disconnect(rank) => {
                self.network.control.remove(&(at, rank as usize));
                let delay = self.delay(at, rank as usize) + self.network.control_delay;
                self.after(delay, WorldEvent::Parted { at: rank as usize, from: at });
            }
            Effect::Connect(endpoint) => {
                let (other, for_so_long) = (self.machine_of(endpoint, at), Duration::ZERO);
                self.after(
                    2 * self.setup.conditions.latency,
                    WorldEvent::Called { caller: at, endpoint, other, for_so_long },
                );
            }
            Effect::Probe(address) => {
                self.after(2 * self.setup.conditions.latency, WorldEvent::Greeted { at, address });
            }
            Effect::Log { warns, peer, line } => crate::log::of_rank(at as u32, warns, peer, line),
            // No rank of a world asks for that.
            Effect::Answer { .. } => {}
            Effect::Members(_) | Effect::Groups(_) => unreachable!("the machine does it"),
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let passes = self.network.filter.as_mut().is_none_or(|filter| filter(to, &message));
        if passes && self.network.control.contains(&(from, to)) {
            let delay = self.delay(from, to) + self.network.control_delay;
            self.after(delay, WorldEvent::Said { from, to, message });
        }
    }

    fn greeted(&mut self, at: usize, address: &str) {
        let answers = |reducer: &usize| {
            let is_apart = self.is_blocked(at, *reducer) || self.is_blocked(*reducer, at);
            self.machines[*reducer].as_ref().is_some_and(|of| !of.is_hung && !is_apart)
        };
        let life = self.reducer_at(address).filter(answers).map(|at| self.life(at));
        let now = self.clock.now().since_start();
        self.machine(at).watch.as_mut().expect("a worker greets").greeted(address, life, now);
        self.settle(at);
    }

    fn called(&mut self, caller: usize, endpoint: MemberId, other: usize, for_so_long: Duration) {
        let (now, latency) = (self.clock.now(), self.setup.conditions.latency);
        let is_apart = self.is_blocked(caller, other) || self.is_blocked(other, caller);
        let answers = self.machines[other].as_ref().is_some_and(|machine| !machine.is_hung && !is_apart);
        if !answers {
            let is_reducer = self.roster.is_reducer(member_at(other));
            let patience = if is_reducer { REDUCER_PATIENCE } else { WORKER_PATIENCE };
            let link = &self.machine(caller).engine.runtime.links.endpoints[endpoint].link;
            if for_so_long >= patience {
                let problem = "nobody answers".to_owned();
                self.machine(caller).engine.at(now).no_link(endpoint, problem);
                self.settle(caller);
            } else if matches!(link, Link::Wanted) {
                let for_so_long = for_so_long + PAUSE;
                self.after(PAUSE, WorldEvent::Called { caller, endpoint, other, for_so_long });
            }
            return;
        }
        let seed = self.rng.roll();
        let (link, ends) = VirtualLink::new(self.setup.conditions, seed, &self.clock);
        let [ours, theirs] = ends.map(TcpLink::of_virtual);
        self.machine(other).connect(member_at(caller), theirs, PipeEnd { link: link.clone(), side: 1 }, now);
        self.settle(other);
        self.after(
            latency,
            WorldEvent::Linked { caller, endpoint, end: ours, pipe: PipeEnd { link, side: 0 } },
        );
    }

    /// A process ends: the kernel closes what it had.
    pub(crate) fn kill(&mut self, at: usize) {
        self.trace.note(self.clock.passed(), &format_args!("{at} ends"));
        self.machines[at] = None;
        let connections: Vec<_> =
            self.network.control.iter().copied().filter(|(end, _)| *end == at).collect();
        for (_, peer) in connections {
            self.network.control.remove(&(at, peer));
            let delay = self.delay(at, peer) + self.network.control_delay;
            self.after(delay, WorldEvent::Parted { at: peer, from: at });
        }
    }

    /// A reducer that has ended is started again.
    pub(crate) fn restart(&mut self, at: usize) {
        if self.machines[at].is_none() {
            *self.lives.entry(at).or_default() += 1;
            self.machines[at] = Some(self.reducer());
            self.after(SIGN_OF_LIFE, WorldEvent::SignOfLife(at));
        }
    }

    /// The life of a reducer.
    fn life(&self, at: usize) -> u64 {
        1000 * at as u64 + self.lives.get(&at).copied().unwrap_or(0)
    }

    /// A reducer is told to end: it says so to its workers.
    pub(crate) fn drain(&mut self, at: usize) {
        let now = self.clock.now();
        self.machine(at).engine.at(now).broadcast_control(&Message::Bye);
        self.settle(at);
    }

    /// A process is stopped: its kernel takes in what is sent to it, and nothing answers.
    pub(crate) fn hang(&mut self, at: usize) {
        self.trace.note(self.clock.passed(), &format_args!("{at} is stopped"));
        self.machine(at).is_hung = true;
    }

    /// A process that was stopped goes on.
    pub(crate) fn resume(&mut self, at: usize) {
        self.trace.note(self.clock.passed(), &format_args!("{at} goes on"));
        let machine = self.machine(at);
        machine.is_hung = false;
        let held = std::mem::take(&mut machine.held);
        held.into_iter().for_each(|event| self.after(Duration::ZERO, event));
        self.after(Duration::ZERO, WorldEvent::Look(at));
    }

    /// A worker leaves in order.
    pub(crate) fn leave(&mut self, at: usize) {
        self.trace.note(self.clock.passed(), &format_args!("{at} leaves"));
        let now = self.clock.now();
        self.machine(at).exit.leaving = Some((now, false));
        self.settle(at);
    }
}
