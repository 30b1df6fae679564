//! CUDA, through its driver, which is loaded when it is first used.
//!
//! Streams and events are numbers of a table here, so a wrong one is an error and no wild pointer. Only the program's own streams
//! and memory are raw, and [`DeviceStream::from_raw`] and [`DeviceMemory::from_raw`] say what they have to be.
//!
//! Each copy keeps both of its memories until an event behind it is complete. So memory that a caller drops too early stays.

mod driver;

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
    events: BTreeMap<usize, Event>,
    next_event: usize,
    unused: Vec<Event>,
}

struct Stream {
    handle: Event,
    /// Copies that may still run, and what keeps their memory.
    running: VecDeque<RunningCopy>,
}

struct RunningCopy {
    behind: Event,
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
        let number = stream.number().filter(|number| *number < table.streams.len());
        let number =
            number.ok_or_else(|| AcceleratorError::new(call, "copies take streams of this device's"))?;
        let handle = table.streams[number].handle;
        table.prune(self.functions, number);
        // SAFETY: the place lies within the host's memory, as was checked.
        let place = unsafe { host.start().add(at) };
        self.functions.check(call, queue(address as u64, place.as_ptr().cast(), device.len(), handle.0))?;
        let behind = table.record(self.functions, handle);
        let kept = RunningCopy {
            // Without an event the memory stays until the stream ends.
            behind: *behind.as_ref().unwrap_or(&Event(null_mut())),
            _device: device.clone(),
            _host: host.keep(),
        };
        table.streams[number].running.push_back(kept);
        behind.map(|_| ())
    }

    /// The driver's handle of a stream.
    fn handle_of(&self, table: &Table, stream: &DeviceStream) -> Result<Event, AcceleratorError> {
        if let Some(foreign) = stream.handle() {
            return Ok(Event(std::ptr::with_exposed_provenance_mut(foreign)));
        }
        let own = stream.number().and_then(|number| table.streams.get(number));
        own.map(|stream| stream.handle)
            .ok_or_else(|| AcceleratorError::new("a stream", "this device has not made it"))
    }

    fn word_of(&self, word: DeviceWord) -> Result<(&Words, u64), AcceleratorError> {
        let words = self.words.as_ref().filter(|_| word.index < WORDS);
        let words = words.ok_or_else(|| AcceleratorError::new("a value", "this device has no such word"))?;
        Ok((words, words.device + (word.index * size_of::<u32>()) as u64))
    }
}

impl Table {
    /// Records an event, a used one if there is one.
    fn record(&mut self, functions: &Functions, stream: Event) -> Result<Event, AcceleratorError> {
        let event = match self.unused.pop() {
            Some(event) => event,
            None => {
                let mut event: Handle = null_mut();
                // SAFETY: the driver writes the event.
                let status = unsafe { (functions.event_create)(&raw mut event, driver::DISABLE_TIMING) };
                functions.check("cuEventCreate", status)?;
                Event(event)
            }
        };
        // SAFETY: the event is of this table, and the stream of this device.
        functions.check("cuEventRecord", unsafe { (functions.event_record)(event.0, stream.0) })?;
        Ok(event)
    }

    /// Lets go of what copies have kept that have ended.
    fn prune(&mut self, functions: &Functions, stream: usize) {
        let Self { streams, unused, .. } = self;
        let running = &mut streams[stream].running;
        while let Some(copy) = running.front().filter(|copy| !copy.behind.0.is_null()) {
            // SAFETY: the event is of this table.
            if unsafe { (functions.event_query)(copy.behind.0) } != driver::SUCCESS {
                return;
            }
            unused.extend(running.pop_front().map(|copy| copy.behind));
        }
    }
}

impl Accelerator for Cuda {
    fn waits_for_values(&self) -> bool {
        self.words.is_some()
    }

    fn stream(&self) -> Result<DeviceStream, AcceleratorError> {
        let _pushed = self.push()?;
        let mut handle: Handle = null_mut();
        // SAFETY: the driver writes the stream.
        let status = unsafe { (self.functions.stream_create)(&raw mut handle, driver::NON_BLOCKING) };
        self.functions.check("cuStreamCreate", status)?;
        let mut table = self.lock();
        table.streams.push(Stream { handle: Event(handle), running: VecDeque::new() });
        Ok(DeviceStream::own(table.streams.len() - 1))
    }

    fn handle(&self, stream: &DeviceStream) -> usize {
        self.handle_of(&self.lock(), stream).map_or(0, |handle| handle.0.expose_provenance())
    }

    fn record(&self, stream: &DeviceStream) -> Result<DeviceEvent, AcceleratorError> {
        let _pushed = self.push()?;
        let mut table = self.lock();
        let handle = self.handle_of(&table, stream)?;
        let event = table.record(self.functions, handle)?;
        let number = table.next_event;
        table.next_event += 1;
        table.events.insert(number, event);
        Ok(DeviceEvent(number))
    }

    fn wait(&self, stream: &DeviceStream, event: DeviceEvent) -> Result<(), AcceleratorError> {
        let _pushed = self.push()?;
        let table = self.lock();
        let handle = self.handle_of(&table, stream)?;
        let Some(event) = table.events.get(&event.0) else {
            return Err(AcceleratorError::new("cuStreamWaitEvent", "there is no such event"));
        };
        // SAFETY: the event is of this table, and the stream of this device.
        let status = unsafe { (self.functions.stream_wait_event)(handle.0, event.0, 0) };
        self.functions.check("cuStreamWaitEvent", status)
    }

    fn query(&self, event: DeviceEvent) -> Result<bool, AcceleratorError> {
        let _pushed = self.push()?;
        let table = self.lock();
        let Some(event) = table.events.get(&event.0) else {
            return Err(AcceleratorError::new("cuEventQuery", "there is no such event"));
        };
        // SAFETY: the event is of this table.
        match unsafe { (self.functions.event_query)(event.0) } {
            driver::NOT_READY => Ok(false),
            status => self.functions.check("cuEventQuery", status).map(|()| true),
        }
    }

    fn release(&self, event: DeviceEvent) {
        let mut table = self.lock();
        // A stream that waits for it has taken what it was recorded for, so it can be recorded again.
        if let Some(event) = table.events.remove(&event.0) {
            table.unused.push(event);
        }
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
        events.extend(std::mem::take(&mut table.events).into_values());
        for stream in table.streams.drain(..) {
            // SAFETY: the stream is this table's. Its copies have ended before what they keep is dropped.
            unsafe {
                (functions.stream_synchronize)(stream.handle.0);
                (functions.stream_destroy)(stream.handle.0);
            }
            events.extend(stream.running.iter().map(|copy| copy.behind).filter(|event| !event.0.is_null()));
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
