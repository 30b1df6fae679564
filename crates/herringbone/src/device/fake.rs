//! An accelerator for tests: the test says when its streams move, and it finds missing waits itself.
//!
//! Its memory is memory of the host ([`DeviceMemory::of_host`]). A stream is a queue. [`step`](FakeAccelerator::step) runs the first entry
//! of one stream that is ready, and nothing else runs anything. Each access to memory is checked against all others
//! ([`hazards`](FakeAccelerator::hazards)).

mod order;

use super::shared::lock;
use crate::sys::{
    device::{
        Accelerator, AcceleratorError, DeviceEvent, DeviceMemory, DeviceStream, DeviceWord, DeviceWords,
        PinnedMemory,
    },
    region::Region,
};
use order::{Accesses, Actor, Clock};
use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// Words for values.
const WORDS: usize = 64;

/// A wait that is left out, to show that its lack is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// The stream does not wait for the event of the n-th wait, from 0.
    IgnoreEvent(usize),
    /// The stream does not wait for the value of the n-th wait, from 0.
    IgnoreValue(usize),
    /// The n-th copy fails, from 0.
    FailCopy(usize),
    /// The n-th registration of host memory fails, from 0.
    FailRegistration(usize),
    /// The n-th event is not recorded, from 0.
    FailRecord(usize),
    /// The n-th event fails when it is complete, from 0: its stream did not do what was before.
    FailEvent(usize),
}

/// An accelerator whose streams move when a test says so.
pub struct FakeAccelerator {
    waits_for_values: bool,
    fault: Option<PlantedFault>,
    /// Held by a call that waits for the whole device, and for a moment by each other call of the program's and of the engine's.
    context: Mutex<()>,
    state: Mutex<State>,
}

/// What a read of a stream has found, once it has run.
#[derive(Clone, Debug, Default)]
pub struct FakeRead(Arc<Mutex<Option<Vec<u8>>>>);

impl FakeRead {
    /// The bytes, once the stream has come to the read.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        lock(&self.0).clone()
    }
}

struct State {
    streams: Vec<Stream>,
    /// All that there ever were: what waits for one may come after its release.
    events: Vec<Event>,
    words: DeviceWords,
    values: Vec<Value>,
    hosts: BTreeMap<u64, Clock>,
    accesses: Accesses,
    hazards: Vec<String>,
    calls: Calls,
    /// Streams that do not move.
    resting: Vec<DeviceStream>,
    /// Streams that nobody uses.
    given_back: Vec<usize>,
}

/// How many calls there were.
#[derive(Default)]
struct Calls {
    waits: usize,
    value_waits: usize,
    copies: usize,
    registrations: usize,
    records: usize,
}

#[derive(Default)]
struct Stream {
    queue: VecDeque<Entry>,
    clock: Clock,
    capturing: bool,
}

/// Something that a stream has to do, and what the thread knew that gave it that.
struct Entry {
    action: Action,
    host: Clock,
}

enum Action {
    Copy { from: Region, to: Region, what: &'static str },
    Write { to: Region, bytes: Vec<u8> },
    Read { from: Region, found: FakeRead },
    Record(usize),
    Await(usize),
    AwaitValue(DeviceWord),
    WriteValue(DeviceWord),
}

#[derive(Default)]
struct Event {
    /// The stream's, once it has come there.
    clock: Option<Clock>,
    released: bool,
}

#[derive(Clone, Default)]
struct Value {
    value: u32,
    clock: Clock,
}

/// A number for each thread.
fn this_thread() -> Actor {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static OWN: Cell<Option<u64>> = const { Cell::new(None) });
    Actor::Host(OWN.with(|own| {
        let number = own.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        own.set(Some(number));
        number
    }))
}

impl FakeAccelerator {
    /// One whose streams can wait for values, or not, and with a fault, if one is planted.
    pub fn new(waits_for_values: bool, fault: Option<PlantedFault>) -> Arc<Self> {
        let state = State {
            streams: Vec::new(),
            events: Vec::new(),
            words: DeviceWords::new(WORDS),
            values: vec![Value::default(); WORDS],
            hosts: BTreeMap::new(),
            accesses: Accesses::default(),
            hazards: Vec::new(),
            calls: Calls::default(),
            resting: Vec::new(),
            given_back: Vec::new(),
        };
        Arc::new(Self { waits_for_values, fault, context: Mutex::default(), state: Mutex::new(state) })
    }

    /// Queues that the stream writes these bytes: a program's kernel.
    ///
    /// # Errors
    /// The stream is not of this accelerator, or the memory is no host's.
    pub fn write(
        &self,
        stream: &DeviceStream,
        to: &DeviceMemory,
        bytes: Vec<u8>,
    ) -> Result<(), AcceleratorError> {
        let to = simulated(to)?;
        self.queue(stream, |_| Action::Write { to, bytes })
    }

    /// Queues that the stream reads these bytes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, stream: &DeviceStream, from: &DeviceMemory) -> Result<FakeRead, AcceleratorError> {
        let (from, found) = (simulated(from)?, FakeRead::default());
        let returned = found.clone();
        self.queue(stream, |_| Action::Read { from, found })?;
        Ok(returned)
    }

    /// Runs one entry of a ready stream: the one at index `pick`, modulo their number. Returns whether a stream was ready.
    pub fn step(&self, pick: u64) -> bool {
        let mut state = lock(&self.state);
        let ready: Vec<usize> = (0..state.streams.len()).filter(|stream| state.is_ready(*stream)).collect();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[(pick % ready.len() as u64) as usize];
        state.run_first(stream);
        true
    }

    /// Runs one entry of this stream, if it is ready.
    pub fn step_stream(&self, stream: &DeviceStream) -> bool {
        let mut state = lock(&self.state);
        let number =
            stream.number().filter(|number| *number < state.streams.len() && state.is_ready(*number));
        number.map(|number| state.run_first(number)).is_some()
    }

    /// Runs streams until none is ready.
    pub fn run(&self) {
        while self.step(0) {}
    }

    /// Stops these streams until the next call of this function; all others can run.
    pub fn rest(&self, streams: &[DeviceStream]) {
        lock(&self.state).resting = streams.to_vec();
    }

    /// Waits until no stream has anything to do. Meanwhile every call on the accelerator waits, because
    /// drivers hold a lock: CUDA's does while it frees memory, loads a kernel or copies to unregistered memory.
    pub fn synchronize(&self) {
        let _held = lock(&self.context);
        while self.is_busy() {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }

    /// Whether a stream has something to do, which may wait.
    pub fn is_busy(&self) -> bool {
        lock(&self.state).streams.iter().any(|stream| !stream.queue.is_empty())
    }

    /// All accesses that did not wait for others which they meet.
    pub fn hazards(&self) -> Vec<String> {
        lock(&self.state).hazards.clone()
    }

    /// How many waits for events and for values were queued, and how many copies.
    pub fn counts(&self) -> [usize; 3] {
        let state = lock(&self.state);
        [state.calls.waits, state.calls.value_waits, state.calls.copies]
    }

    /// How many events were not released, and how many streams not given back.
    pub fn in_use(&self) -> [usize; 2] {
        let state = lock(&self.state);
        let events = state.events.iter().filter(|event| !event.released).count();
        [events, state.streams.len() - state.given_back.len()]
    }

    /// Whether calls on the stream are recorded for a graph.
    pub fn set_capturing(&self, stream: &DeviceStream, capturing: bool) {
        let mut state = lock(&self.state);
        if let Some(stream) = stream.number().and_then(|number| state.streams.get_mut(number)) {
            stream.capturing = capturing;
        }
    }

    fn queue(
        &self,
        stream: &DeviceStream,
        action: impl FnOnce(&mut State) -> Action,
    ) -> Result<(), AcceleratorError> {
        drop(lock(&self.context));
        let mut state = lock(&self.state);
        let number = stream.number().filter(|number| *number < state.streams.len());
        let number =
            number.ok_or_else(|| AcceleratorError::new("a fake stream", "there is no such stream"))?;
        let action = action(&mut state);
        let host = state.host().clone();
        state.streams[number].queue.push_back(Entry { action, host });
        Ok(())
    }

    fn copy(
        &self,
        stream: &DeviceStream,
        from: Region,
        to: Region,
        what: &'static str,
    ) -> Result<(), AcceleratorError> {
        let mut fails = false;
        let fault = self.fault;
        self.queue(stream, |state| {
            fails = fault == Some(PlantedFault::FailCopy(state.calls.copies));
            state.calls.copies += 1;
            if fails {
                Action::Copy { from: Region::zeroed(0), to: Region::zeroed(0), what }
            } else {
                Action::Copy { from, to, what }
            }
        })?;
        if fails { Err(AcceleratorError::new("a fake copy", "it was planted to fail")) } else { Ok(()) }
    }
}

fn simulated(memory: &DeviceMemory) -> Result<Region, AcceleratorError> {
    if memory.is_lacking() {
        return Err(AcceleratorError::new("a fake copy", "there is no such memory"));
    }
    let problem = "the memory is an accelerator's, and this one is simulated";
    memory.simulated().cloned().ok_or_else(|| AcceleratorError::new("a fake copy", problem))
}

impl State {
    /// What this thread knows.
    fn host(&mut self) -> &mut Clock {
        let Actor::Host(thread) = this_thread() else { unreachable!("a thread is no stream") };
        self.hosts.entry(thread).or_default()
    }

    fn is_ready(&self, stream: usize) -> bool {
        if self.resting.contains(&DeviceStream::own(stream)) {
            return false;
        }
        match self.streams[stream].queue.front().map(|entry| &entry.action) {
            None => false,
            Some(Action::Await(event)) => self.events.get(*event).is_none_or(|event| event.clock.is_some()),
            Some(Action::AwaitValue(word)) => word.is_reached(self.values[word.index].value),
            Some(_) => true,
        }
    }

    fn run_first(&mut self, number: usize) {
        let Some(Entry { action, host }) = self.streams[number].queue.pop_front() else { return };
        let actor = Actor::Stream(number);
        let mut clock = std::mem::take(&mut self.streams[number].clock);
        clock.join(&host);
        clock.tick(actor);
        match action {
            Action::Copy { from, to, what } => {
                self.note(&from, false, actor, &mut clock, what);
                self.note(&to, true, actor, &mut clock, what);
                if let (Some(from), Some(to)) = (from.access(), to.access()) {
                    to.span().copy_from(from.span());
                }
            }
            Action::Write { to, bytes } => {
                self.note(&to, true, actor, &mut clock, "a kernel's write");
                if let Some(to) = to.access() {
                    to.span().write(&bytes);
                }
            }
            Action::Read { from, found } => {
                self.note(&from, false, actor, &mut clock, "a kernel's read");
                *lock(&found.0) = from.access().map(|from| from.span().to_vec());
            }
            Action::Record(event) => {
                self.events[event].clock = Some(clock.clone());
            }
            Action::Await(event) => {
                if let Some(known) = self.events.get(event).and_then(|event| event.clock.as_ref()) {
                    clock.join(known);
                }
            }
            Action::AwaitValue(word) => clock.join(&self.values[word.index].clock),
            Action::WriteValue(word) => self.write_value(word, &clock),
        }
        self.streams[number].clock = clock;
    }

    fn write_value(&mut self, word: DeviceWord, clock: &Clock) {
        let value = &mut self.values[word.index];
        value.value = word.value;
        value.clock.join(clock);
    }

    fn note(&mut self, region: &Region, writes: bool, actor: Actor, clock: &mut Clock, what: &'static str) {
        self.hazards.extend(self.accesses.note(region.addresses(), writes, actor, clock, what));
    }
}

impl Accelerator for FakeAccelerator {
    fn waits_for_values(&self) -> bool {
        self.waits_for_values
    }

    fn stream(&self) -> Result<DeviceStream, AcceleratorError> {
        drop(lock(&self.context));
        let mut state = lock(&self.state);
        let idle = state.given_back.iter().position(|number| state.streams[*number].queue.is_empty());
        let number = match idle {
            Some(place) => state.given_back.swap_remove(place),
            None => {
                state.streams.push(Stream::default());
                state.streams.len() - 1
            }
        };
        Ok(DeviceStream::own(number))
    }

    fn give_back_stream(&self, stream: DeviceStream) {
        lock(&self.state).given_back.extend(stream.number());
    }

    fn is_idle(&self, stream: &DeviceStream) -> Result<bool, AcceleratorError> {
        drop(lock(&self.context));
        let mut state = lock(&self.state);
        let Some(stream) = stream.number().and_then(|number| state.streams.get(number)) else {
            return Err(AcceleratorError::new("a fake stream", "there is no such stream"));
        };
        let (is_idle, clock) = (stream.queue.is_empty(), stream.clock.clone());
        if is_idle {
            state.host().join(&clock);
        }
        Ok(is_idle)
    }

    fn handle(&self, stream: &DeviceStream) -> usize {
        stream.number().unwrap_or_default()
    }

    fn record(&self, stream: &DeviceStream) -> Result<DeviceEvent, AcceleratorError> {
        let record = {
            let mut state = lock(&self.state);
            state.calls.records += 1;
            state.calls.records - 1
        };
        if self.fault == Some(PlantedFault::FailRecord(record)) {
            return Err(AcceleratorError::new("a fake event", "it was planted to fail"));
        }
        let mut made = 0;
        self.queue(stream, |state| {
            made = state.events.len();
            state.events.push(Event::default());
            Action::Record(made)
        })?;
        Ok(DeviceEvent(made))
    }

    fn wait(&self, stream: &DeviceStream, event: DeviceEvent) -> Result<(), AcceleratorError> {
        let fault = self.fault;
        self.queue(stream, |state| {
            let is_ignored = fault == Some(PlantedFault::IgnoreEvent(state.calls.waits));
            state.calls.waits += 1;
            if is_ignored { nothing() } else { Action::Await(event.0) }
        })
    }

    fn query(&self, event: DeviceEvent) -> Result<bool, AcceleratorError> {
        drop(lock(&self.context));
        let mut state = lock(&self.state);
        let known = state.events.get(event.0).filter(|event| !event.released);
        let Some(clock) = known.map(|event| event.clock.clone()) else {
            return Err(AcceleratorError::new("a fake event", "there is no such event"));
        };
        let Some(clock) = clock else { return Ok(false) };
        if self.fault == Some(PlantedFault::FailEvent(event.0)) {
            return Err(AcceleratorError::new("a fake event", "it was planted to fail"));
        }
        state.host().join(&clock);
        Ok(true)
    }

    fn release(&self, event: DeviceEvent) {
        let mut state = lock(&self.state);
        if let Some(event) = state.events.get_mut(event.0) {
            event.released = true;
        }
    }

    fn register(&self, _memory: &PinnedMemory) -> Result<(), AcceleratorError> {
        drop(lock(&self.context));
        let mut state = lock(&self.state);
        let fails = self.fault == Some(PlantedFault::FailRegistration(state.calls.registrations));
        state.calls.registrations += 1;
        if fails {
            Err(AcceleratorError::new("a fake registration", "it was planted to fail"))
        } else {
            Ok(())
        }
    }

    fn copy_out(
        &self,
        stream: &DeviceStream,
        from: &DeviceMemory,
        to: &PinnedMemory,
        at: usize,
    ) -> Result<(), AcceleratorError> {
        let from = simulated(from)?;
        let to = to.region().part(at..at + from.len());
        self.copy(stream, from, to, "a copy out")
    }

    fn copy_in(
        &self,
        stream: &DeviceStream,
        from: &PinnedMemory,
        at: usize,
        to: &DeviceMemory,
    ) -> Result<(), AcceleratorError> {
        let to = simulated(to)?;
        let from = from.region().part(at..at + to.len());
        self.copy(stream, from, to, "a copy in")
    }

    fn take_word(&self) -> Option<DeviceWord> {
        if self.waits_for_values { lock(&self.state).words.take() } else { None }
    }

    fn give_back(&self, word: DeviceWord) {
        lock(&self.state).words.give_back(word);
    }

    fn wait_value(&self, stream: &DeviceStream, word: DeviceWord) -> Result<(), AcceleratorError> {
        let fault = self.fault;
        self.queue(stream, |state| {
            let is_ignored = fault == Some(PlantedFault::IgnoreValue(state.calls.value_waits));
            state.calls.value_waits += 1;
            if is_ignored { nothing() } else { Action::AwaitValue(word) }
        })
    }

    fn write_value(&self, stream: &DeviceStream, word: DeviceWord) -> Result<(), AcceleratorError> {
        self.queue(stream, |_| Action::WriteValue(word))
    }

    fn set_value(&self, word: DeviceWord) {
        let mut state = lock(&self.state);
        let clock = state.host().clone();
        state.write_value(word, &clock);
    }

    fn is_capturing(&self, stream: &DeviceStream) -> Result<bool, AcceleratorError> {
        drop(lock(&self.context));
        let state = lock(&self.state);
        Ok(stream
            .number()
            .and_then(|number| state.streams.get(number))
            .is_some_and(|stream| stream.capturing))
    }

    fn host_uses(&self, memory: &PinnedMemory, bytes: Range<usize>) {
        let mut state = lock(&self.state);
        let mut clock = std::mem::take(state.host());
        let region = memory.region().part(bytes);
        state.note(&region, true, this_thread(), &mut clock, "the engine");
        *state.host() = clock;
    }
}

/// In place of a wait.
fn nothing() -> Action {
    Action::Write { to: Region::zeroed(0), bytes: Vec::new() }
}

impl fmt::Debug for FakeAccelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeAccelerator").field("busy", &self.is_busy()).finish_non_exhaustive()
    }
}
