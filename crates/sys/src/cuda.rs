//! CUDA, through its driver, which is loaded when it is first used.
//!
//! Streams and events are numbers of a table here, so a wrong one is an error and no wild pointer. Only the program's own streams
//! and memory are raw, and [`DeviceStream::from_raw`] and [`DeviceMemory::from_raw`] say what they have to be.
//!
//! Each copy keeps both of its memories until an event behind it is complete, or its stream idle. So memory that a caller drops too
//! early stays. What has ended is looked for when an event of the stream is released.

mod driver;
#[cfg(test)]
mod tests;

use crate::device::{
    Accelerator, AcceleratorError, DeviceEvent, DeviceMemory, DeviceStream, DeviceWord, DeviceWords,
    PinnedMemory,
};
use driver::{Functions, Handle};
use libc::c_void;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the words for which streams wait: a page.
const WORDS: usize = 4096 / size_of::<u32>();

/// One device of CUDA, by its primary context.
pub struct Cuda {
    ordinal: i32,
    functions: &'static Functions,
    context: Context,
    table: Mutex<Table>,
    /// `None` where streams cannot wait for values.
    words: Option<Words>,
}

/// `CUcontext`. It is retained and never released, as the runtime library does.
#[derive(Clone, Copy)]
struct Context(Handle);

// SAFETY: any thread may push a context.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Words of the host that streams wait for and write. They stay until the process ends, because a stream may come late.
struct Words {
    /// Invariant: valid for [`WORDS`] words, which are only used as atomics here.
    start: NonNull<AtomicU32>,
    device: u64,
    free: Mutex<DeviceWords>,
}

// SAFETY: the words are atomics that are never freed.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

#[derive(Default)]
struct Table {
    streams: Vec<Stream>,
    /// The streams that nobody uses. Some may still have something to do.
    given_back: Vec<usize>,
    events: BTreeMap<usize, Recorded>,
    next_event: usize,
    unused: Vec<Event>,
}

/// An event that was not released.
struct Recorded {
    event: Event,
    /// The own stream that it is of.
    stream: Option<usize>,
}

struct Stream {
    handle: Event,
    /// Copies that may still run, and what keeps their memory.
    running: VecDeque<RunningCopy>,
}

struct RunningCopy {
    /// `None` where the driver has recorded none: a later copy's tells that this one has ended.
    behind: Option<Event>,
    _device: DeviceMemory,
    _host: Arc<dyn Any + Send + Sync>,
}

/// `CUevent`, or `CUstream`.
#[derive(Clone, Copy)]
struct Event(Handle);

// SAFETY: any thread may use the driver's handles.
unsafe impl Send for Event {}

/// A context that this thread has pushed, until it pops it. Meanwhile no call of the thread ends a graph that another thread captures.
struct Pushed {
    functions: &'static Functions,
    /// What the driver refuses else while a graph is captured.
    mode: libc::c_int,
}

impl Pushed {
    fn new(functions: &'static Functions, context: Context) -> Result<Self, AcceleratorError> {
        // SAFETY: the context is retained.
        functions.check("cuCtxPushCurrent", unsafe { (functions.context_push)(context.0) })?;
        let mut pushed = Self { functions, mode: driver::RELAXED };
        pushed.exchange_mode();
        Ok(pushed)
    }

    fn exchange_mode(&mut self) {
        // SAFETY: the driver writes the thread's former mode. Where it fails, calls are refused as for other threads.
        unsafe { (self.functions.exchange_capture_mode)(&raw mut self.mode) };
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        self.exchange_mode();
        let mut popped: Handle = null_mut();
        // SAFETY: this thread has pushed a context, and the driver writes which it pops.
        unsafe { (self.functions.context_pop)(&raw mut popped) };
    }
}

/// Ends the registration of memory.
struct Registration {
    functions: &'static Functions,
    context: Context,
    start: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Ok(_pushed) = Pushed::new(self.functions, self.context) else { return };
        // SAFETY: the memory was registered by this address, and it is still there, because its owner drops this first. No copy
        // runs: each keeps the owner.
        unsafe {
            (self.functions.host_unregister)(std::ptr::with_exposed_provenance_mut::<c_void>(self.start))
        };
    }
}

impl Cuda {
    /// The device with this number in the runtime library. If `waits_for_values`, its streams wait for values where the driver
    /// can do that.
    ///
    /// A stream that waits for a value waits for copies that are not queued yet. A call of the driver that waits for the device,
    /// such as one that frees memory or loads a kernel, holds a lock that queueing needs: a deadlock.
    ///
    /// # Errors
    /// There is no driver, or no such device.
    pub fn open(ordinal: i32, waits_for_values: bool) -> Result<Self, AcceleratorError> {
        let functions = driver::functions()?;
        // SAFETY: the driver writes what the pointers lead to, and nothing else is passed.
        let context = unsafe {
            functions.check("cuInit", (functions.init)(0))?;
            let mut device = 0;
            functions.check("cuDeviceGet", (functions.device_get)(&raw mut device, ordinal))?;
            let mut context: Handle = null_mut();
            functions
                .check("cuDevicePrimaryCtxRetain", (functions.context_retain)(&raw mut context, device))?;
            Context(context)
        };
        let mut cuda = Self { ordinal, functions, context, table: Mutex::default(), words: None };
        let can_wait = functions.stream_wait_value.is_some() && functions.stream_write_value.is_some();
        if waits_for_values && can_wait {
            // Without words the host waits.
            cuda.words = cuda.make_words().ok();
        }
        Ok(cuda)
    }

    fn make_words(&self) -> Result<Words, AcceleratorError> {
        let _pushed = self.push()?;
        let mut start: *mut c_void = null_mut();
        let mut device = 0;
        // SAFETY: the driver writes the two addresses.
        unsafe {
            let status = (self.functions.host_alloc)(
                &raw mut start,
                WORDS * size_of::<u32>(),
                driver::PORTABLE_AND_MAPPED,
            );
            self.functions.check("cuMemHostAlloc", status)?;
            let status = (self.functions.host_address)(&raw mut device, start, 0);
            self.functions.check("cuMemHostGetDevicePointer", status)?;
        }
        let start = NonNull::new(start.cast::<AtomicU32>())
            .ok_or_else(|| AcceleratorError::new("cuMemHostAlloc", "it gave no address"))?;
        for index in 0..WORDS {
            // SAFETY: the page has so many words, and nobody else knows it.
            unsafe { start.add(index).write(AtomicU32::new(0)) };
        }
        Ok(Words { start, device, free: Mutex::new(DeviceWords::new(WORDS)) })
    }

    fn push(&self) -> Result<Pushed, AcceleratorError> {
        Pushed::new(self.functions, self.context)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a copy on one of the own streams by `queue`, and keeps both memories until it has ended.
    fn copy(
        &self,
        call: &'static str,
        stream: &DeviceStream,
        device: &DeviceMemory,
        host: &PinnedMemory,
        at: usize,
        queue: impl FnOnce(u64, *mut c_void, usize, Handle) -> driver::DriverStatus,
    ) -> Result<(), AcceleratorError> {
        let address =
            device.device_address().ok_or_else(|| AcceleratorError::new(call, "the memory is not CUDA's"))?;
        if at.checked_add(device.len()).is_none_or(|end| end > host.len()) {
            let problem = format!("{} bytes from {at} on do not fit {} bytes", device.len(), host.len());
            return Err(AcceleratorError::new(call, problem));
        }
        if device.is_empty() {
            return Ok(());
        }
        let _pushed = self.push()?;
        let mut table = self.lock();
        let number = table.own(call, stream)?;
        let handle = table.streams[number].handle;
        // Before the copy: what fails then has queued nothing.
        let event = table.unused_event(self.functions)?;
        // SAFETY: the place lies within the host's memory, as was checked.
        let place = unsafe { host.start().add(at) };
        let status = queue(address as u64, place.as_ptr().cast(), device.len(), handle.0);
        if let Err(error) = self.functions.check(call, status) {
            table.unused.push(event);
            return Err(error);
        }
        let behind = table.record_by(self.functions, event, handle).ok();
        let kept = RunningCopy { behind, _device: device.clone(), _host: host.keep() };
        table.streams[number].running.push_back(kept);
        Ok(())
    }

    /// The driver's handle of a stream.
    fn handle_of(&self, table: &Table, stream: &DeviceStream) -> Result<Event, AcceleratorError> {
        if let Some(foreign) = stream.handle() {
            return Ok(Event(std::ptr::with_exposed_provenance_mut(foreign)));
        }
        Ok(table.streams[table.own("a stream", stream)?].handle)
    }

    fn word_of(&self, word: DeviceWord) -> Result<(&Words, u64), AcceleratorError> {
        let words = self.words.as_ref().filter(|_| word.index < WORDS);
        let words = words.ok_or_else(|| AcceleratorError::new("a value", "this device has no such word"))?;
        Ok((words, words.device + (word.index * size_of::<u32>()) as u64))
    }
}

impl Table {
    /// The number of a stream of this table's.
    fn own(&self, call: &'static str, stream: &DeviceStream) -> Result<usize, AcceleratorError> {
        let number = stream.number().filter(|number| *number < self.streams.len());
        number.ok_or_else(|| AcceleratorError::new(call, "this device has not made the stream"))
    }

    /// An event to record, a used one if there is one.
    fn unused_event(&mut self, functions: &Functions) -> Result<Event, AcceleratorError> {
        if let Some(event) = self.unused.pop() {
            return Ok(event);
        }
        let mut event: Handle = null_mut();
        // SAFETY: the driver writes the event.
        let status = unsafe { (functions.event_create)(&raw mut event, driver::DISABLE_TIMING) };
        functions.check("cuEventCreate", status).map(|()| Event(event))
    }

    /// Records an event, which is unused again where the driver does not.
    fn record_by(
        &mut self,
        functions: &Functions,
        event: Event,
        stream: Event,
    ) -> Result<Event, AcceleratorError> {
        // SAFETY: the event is of this table, and the stream of this device.
        let status = unsafe { (functions.event_record)(event.0, stream.0) };
        let recorded = functions.check("cuEventRecord", status);
        if recorded.is_err() {
            self.unused.push(event);
        }
        recorded.map(|()| event)
    }

    /// Takes the copies of a stream that have ended, to be dropped without the lock: an owner of memory may call the device.
    fn take_ended(&mut self, functions: &Functions, stream: usize) -> Vec<RunningCopy> {
        let running = &mut self.streams[stream].running;
        let mut ended = 0;
        for (number, copy) in (1..).zip(running.iter()) {
            let Some(behind) = copy.behind else { continue };
            // SAFETY: the event is of this table.
            if unsafe { (functions.event_query)(behind.0) } != driver::SUCCESS {
                break;
            }
            ended = number;
        }
        self.take_first(stream, ended)
    }

    /// Takes so many copies of a stream.
    fn take_first(&mut self, stream: usize, copies: usize) -> Vec<RunningCopy> {
        let ended: Vec<RunningCopy> = self.streams[stream].running.drain(..copies).collect();
        self.unused.extend(ended.iter().filter_map(|copy| copy.behind));
        ended
    }

    /// All copies of a stream that has nothing to do; `None` while it has.
    fn take_of_idle(
        &mut self,
        functions: &Functions,
        stream: usize,
    ) -> Result<Option<Vec<RunningCopy>>, AcceleratorError> {
        // SAFETY: the stream is of this table.
        let status = unsafe { (functions.stream_query)(self.streams[stream].handle.0) };
        if status == driver::NOT_READY {
            return Ok(None);
        }
        functions.check("cuStreamQuery", status)?;
        Ok(Some(self.take_first(stream, self.streams[stream].running.len())))
    }

    /// A stream that was given back and has nothing to do, and the copies that it has done.
    fn used_stream(&mut self, functions: &Functions) -> Option<(usize, Vec<RunningCopy>)> {
        for place in 0..self.given_back.len() {
            let number = self.given_back[place];
            if let Ok(Some(ended)) = self.take_of_idle(functions, number) {
                self.given_back.swap_remove(place);
                return Some((number, ended));
            }
        }
        None
    }
}

impl Accelerator for Cuda {
    fn waits_for_values(&self) -> bool {
        self.words.is_some()
    }

    fn stream(&self) -> Result<DeviceStream, AcceleratorError> {
        let _pushed = self.push()?;
        let used = self.lock().used_stream(self.functions);
        if let Some((number, _ended)) = used {
            return Ok(DeviceStream::own(number));
        }
        let mut handle: Handle = null_mut();
        // SAFETY: the driver writes the stream.
        let status = unsafe { (self.functions.stream_create)(&raw mut handle, driver::NON_BLOCKING) };
        self.functions.check("cuStreamCreate", status)?;
        let mut table = self.lock();
        table.streams.push(Stream { handle: Event(handle), running: VecDeque::new() });
        Ok(DeviceStream::own(table.streams.len() - 1))
    }

    fn give_back_stream(&self, stream: DeviceStream) {
        let mut table = self.lock();
        if let Ok(number) = table.own("a stream", &stream) {
            table.given_back.push(number);
        }
    }

    fn is_idle(&self, stream: &DeviceStream) -> Result<bool, AcceleratorError> {
        let _pushed = self.push()?;
        let mut table = self.lock();
        let number = table.own("cuStreamQuery", stream)?;
        let ended = table.take_of_idle(self.functions, number);
        drop(table);
        Ok(ended?.is_some())
    }

    fn handle(&self, stream: &DeviceStream) -> usize {
        self.handle_of(&self.lock(), stream).map_or(0, |handle| handle.0.expose_provenance())
    }

    fn record(&self, stream: &DeviceStream) -> Result<DeviceEvent, AcceleratorError> {
        let _pushed = self.push()?;
        let mut table = self.lock();
        let handle = self.handle_of(&table, stream)?;
        let event = table.unused_event(self.functions)?;
        let event = table.record_by(self.functions, event, handle)?;
        let number = table.next_event;
        table.next_event += 1;
        table.events.insert(number, Recorded { event, stream: stream.number() });
        Ok(DeviceEvent(number))
    }

    fn wait(&self, stream: &DeviceStream, event: DeviceEvent) -> Result<(), AcceleratorError> {
        let _pushed = self.push()?;
        let table = self.lock();
        let handle = self.handle_of(&table, stream)?;
        let Some(Recorded { event, .. }) = table.events.get(&event.0) else {
            return Err(AcceleratorError::new("cuStreamWaitEvent", "there is no such event"));
        };
        // SAFETY: the event is of this table, and the stream of this device.
        let status = unsafe { (self.functions.stream_wait_event)(handle.0, event.0, 0) };
        self.functions.check("cuStreamWaitEvent", status)
    }

    fn query(&self, event: DeviceEvent) -> Result<bool, AcceleratorError> {
        let _pushed = self.push()?;
        let table = self.lock();
        let Some(Recorded { event, .. }) = table.events.get(&event.0) else {
            return Err(AcceleratorError::new("cuEventQuery", "there is no such event"));
        };
        // SAFETY: the event is of this table.
        match unsafe { (self.functions.event_query)(event.0) } {
            driver::NOT_READY => Ok(false),
            status => self.functions.check("cuEventQuery", status).map(|()| true),
        }
    }

    fn release(&self, event: DeviceEvent) {
        let pushed = self.push();
        let mut table = self.lock();
        let Some(Recorded { event, stream }) = table.events.remove(&event.0) else { return };
        // A stream that waits for it has taken what it was recorded for, so it can be recorded again.
        table.unused.push(event);
        let stream = stream.filter(|_| pushed.is_ok());
        let _ended = stream.map(|stream| table.take_ended(self.functions, stream));
        drop((table, pushed));
    }

    fn register(&self, memory: &PinnedMemory) -> Result<(), AcceleratorError> {
        if memory.is_empty() {
            return Ok(());
        }
        let _pushed = self.push()?;
        let start = memory.start().as_ptr();
        // SAFETY: the memory is there, and its owner ends the registration first.
        let status = unsafe {
            (self.functions.host_register)(start.cast(), memory.len(), driver::PORTABLE_AND_MAPPED)
        };
        self.functions.check("cuMemHostRegister", status)?;
        let registration = Registration {
            functions: self.functions,
            context: self.context,
            start: start.expose_provenance(),
        };
        memory.registered(Box::new(registration));
        Ok(())
    }

    fn copy_out(
        &self,
        stream: &DeviceStream,
        from: &DeviceMemory,
        to: &PinnedMemory,
        at: usize,
    ) -> Result<(), AcceleratorError> {
        self.copy("cuMemcpyDtoHAsync", stream, from, to, at, |device, host, bytes, stream| {
            // SAFETY: both memories are valid for so many bytes, and are kept until the copy has ended.
            unsafe { (self.functions.copy_out)(host, device, bytes, stream) }
        })
    }

    fn copy_in(
        &self,
        stream: &DeviceStream,
        from: &PinnedMemory,
        at: usize,
        to: &DeviceMemory,
    ) -> Result<(), AcceleratorError> {
        self.copy("cuMemcpyHtoDAsync", stream, to, from, at, |device, host, bytes, stream| {
            // SAFETY: as in `copy_out`.
            unsafe { (self.functions.copy_in)(device, host, bytes, stream) }
        })
    }

    fn take_word(&self) -> Option<DeviceWord> {
        self.words.as_ref()?.free.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn give_back(&self, word: DeviceWord) {
        if let Some(words) = &self.words {
            words.free.lock().unwrap_or_else(PoisonError::into_inner).give_back(word);
        }
    }

    fn wait_value(&self, stream: &DeviceStream, word: DeviceWord) -> Result<(), AcceleratorError> {
        let (_pushed, (_, address)) = (self.push()?, self.word_of(word)?);
        let handle = self.handle_of(&self.lock(), stream)?;
        let Some(wait) = self.functions.stream_wait_value else {
            return Err(AcceleratorError::new("cuStreamWaitValue32", "the driver lacks it"));
        };
        // SAFETY: the word is never freed, and the stream is of this device.
        let status = unsafe { wait(handle.0, address, word.value, driver::AT_LEAST) };
        self.functions.check("cuStreamWaitValue32", status)
    }

    fn write_value(&self, stream: &DeviceStream, word: DeviceWord) -> Result<(), AcceleratorError> {
        let (_pushed, (_, address)) = (self.push()?, self.word_of(word)?);
        let handle = self.handle_of(&self.lock(), stream)?;
        let Some(write) = self.functions.stream_write_value else {
            return Err(AcceleratorError::new("cuStreamWriteValue32", "the driver lacks it"));
        };
        // SAFETY: as in `wait_value`.
        let status = unsafe { write(handle.0, address, word.value, driver::WRITE_DEFAULT) };
        self.functions.check("cuStreamWriteValue32", status)
    }

    fn set_value(&self, word: DeviceWord) {
        if let Ok((words, _)) = self.word_of(word) {
            // SAFETY: the page has such a word, and is never freed.
            unsafe { words.start.add(word.index).as_ref() }.store(word.value, Ordering::Release);
        }
    }

    fn is_capturing(&self, stream: &DeviceStream) -> Result<bool, AcceleratorError> {
        let _pushed = self.push()?;
        let handle = self.handle_of(&self.lock(), stream)?;
        let mut status = 0;
        // SAFETY: the driver writes the status, and the stream is of this device.
        let called = unsafe { (self.functions.stream_is_capturing)(handle.0, &raw mut status) };
        if called == driver::CAPTURE_IMPLICIT {
            return Ok(true);
        }
        self.functions.check("cuStreamIsCapturing", called)?;
        Ok(status != 0)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let functions = self.functions;
        let Ok(_pushed) = Pushed::new(functions, self.context) else { return };
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut events = std::mem::take(&mut table.unused);
        events.extend(std::mem::take(&mut table.events).into_values().map(|recorded| recorded.event));
        for stream in table.streams.drain(..) {
            // SAFETY: the stream is this table's. Its copies have ended before what they keep is dropped.
            unsafe {
                (functions.stream_synchronize)(stream.handle.0);
                (functions.stream_destroy)(stream.handle.0);
            }
            events.extend(stream.running.iter().filter_map(|copy| copy.behind));
        }
        for event in events {
            // SAFETY: the event is this table's, and nothing uses it any more.
            unsafe { (functions.event_destroy)(event.0) };
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({})", self.ordinal)
    }
}
