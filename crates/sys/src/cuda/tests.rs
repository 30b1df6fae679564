//! Streams, events and copies over a driver of these tests, whose streams are one queue that moves when a test says so.

use super::*;
use driver::{Address, DriverStatus, NOT_READY, SUCCESS};
use libc::{c_char, c_int, c_uint};
use std::cell::RefCell;

/// `CUDA_ERROR_OUT_OF_MEMORY`
const REFUSED: DriverStatus = 2;

/// What the driver of this thread has done.
#[derive(Default)]
struct Queue {
    /// How many things were queued on any stream, and how many of them are done.
    queued: usize,
    done: usize,
    /// Where each event was recorded.
    events: Vec<usize>,
    /// How many events are there, how many streams were made, and how many copies queued.
    live_events: usize,
    streams: usize,
    copies: usize,
    /// The calls that it refuses.
    refused: Vec<&'static str>,
}

thread_local!(static QUEUE: RefCell<Queue> = RefCell::default());

fn with<R>(f: impl FnOnce(&mut Queue) -> R) -> R {
    QUEUE.with_borrow_mut(f)
}

/// Does a call, unless the driver refuses it.
fn call(name: &str, f: impl FnOnce(&mut Queue)) -> DriverStatus {
    with(|queue| {
        if queue.refused.contains(&name) {
            return REFUSED;
        }
        f(queue);
        SUCCESS
    })
}

macro_rules! ready {
    ($($name:ident($($argument:ty),*);)+) => {
        $(extern "C" fn $name($(_: $argument),*) -> DriverStatus { SUCCESS })+
    };
}

ready! {
    init(c_uint);
    error_text(DriverStatus, *mut *const c_char);
    device_get(*mut c_int, c_int);
    context_retain(*mut Handle, c_int);
    context_push(Handle);
    context_pop(*mut Handle);
    stream_destroy(Handle);
    stream_wait_event(Handle, Handle, c_uint);
    stream_is_capturing(Handle, *mut c_int);
    exchange_capture_mode(*mut c_int);
    host_register(*mut c_void, usize, c_uint);
    host_unregister(*mut c_void);
    host_alloc(*mut *mut c_void, usize, c_uint);
    host_address(*mut Address, *mut c_void, c_uint);
}

/// A handle that stands for a number, and is not null.
fn handle_of(number: usize) -> Handle {
    std::ptr::without_provenance_mut(number + 1)
}

unsafe extern "C" fn stream_create(stream: *mut Handle, _: c_uint) -> DriverStatus {
    // SAFETY: the caller passes a place for the stream.
    call("cuStreamCreate", |queue| unsafe {
        stream.write(handle_of(queue.streams));
        queue.streams += 1;
    })
}

extern "C" fn stream_synchronize(_: Handle) -> DriverStatus {
    call("cuStreamSynchronize", |queue| queue.done = queue.queued)
}

extern "C" fn stream_query(_: Handle) -> DriverStatus {
    with(|queue| if queue.done < queue.queued { NOT_READY } else { SUCCESS })
}

unsafe extern "C" fn event_create(event: *mut Handle, _: c_uint) -> DriverStatus {
    // SAFETY: the caller passes a place for the event.
    call("cuEventCreate", |queue| unsafe {
        event.write(handle_of(queue.events.len()));
        queue.events.push(0);
        queue.live_events += 1;
    })
}

extern "C" fn event_destroy(_: Handle) -> DriverStatus {
    call("cuEventDestroy", |queue| queue.live_events -= 1)
}

extern "C" fn event_record(event: Handle, _: Handle) -> DriverStatus {
    call("cuEventRecord", |queue| {
        queue.queued += 1;
        queue.events[event.addr() - 1] = queue.queued;
    })
}

extern "C" fn event_query(event: Handle) -> DriverStatus {
    with(|queue| if queue.done < queue.events[event.addr() - 1] { NOT_READY } else { SUCCESS })
}

extern "C" fn copy_out(_: *mut c_void, _: Address, _: usize, _: Handle) -> DriverStatus {
    call("cuMemcpyDtoHAsync", |queue| {
        queue.queued += 1;
        queue.copies += 1;
    })
}

extern "C" fn copy_in(_: Address, _: *const c_void, _: usize, _: Handle) -> DriverStatus {
    SUCCESS
}

static DRIVER: Functions = Functions {
    init,
    error_text,
    device_get,
    context_retain,
    context_push,
    context_pop,
    stream_create,
    stream_destroy,
    stream_synchronize,
    stream_query,
    stream_wait_event,
    stream_is_capturing,
    exchange_capture_mode,
    event_create,
    event_destroy,
    event_record,
    event_query,
    copy_out,
    copy_in,
    host_register,
    host_unregister,
    host_alloc,
    host_address,
    stream_wait_value: None,
    stream_write_value: None,
};

fn device() -> Cuda {
    let context = Context(handle_of(0));
    Cuda { ordinal: 0, functions: &DRIVER, context, table: Mutex::default(), words: None }
}

/// Queues a copy of memory that `keep` owns.
fn copy<K: Any + Send + Sync>(
    cuda: &Cuda,
    stream: &DeviceStream,
    keep: &Arc<K>,
) -> Result<(), AcceleratorError> {
    // SAFETY: the driver of these tests touches no memory.
    let memory = unsafe { DeviceMemory::from_raw(1 << 40, 64, keep.clone()) };
    cuda.copy_out(stream, &memory, &PinnedMemory::zeroed(64), 0)
}

/// The streams do all that they were given.
fn run() {
    with(|queue| queue.done = queue.queued);
}

fn refuse(calls: &[&'static str]) {
    with(|queue| queue.refused = calls.to_vec());
}

#[test]
fn a_copy_keeps_its_memory_until_an_event_behind_it_is_released() {
    let cuda = device();
    let (stream, keep) = (cuda.stream().unwrap(), Arc::new(()));
    copy(&cuda, &stream, &keep).unwrap();
    let early = cuda.record(&stream).unwrap();
    cuda.release(early);
    assert_eq!(Arc::strong_count(&keep), 2, "the copy has not ended");
    let late = cuda.record(&stream).unwrap();
    run();
    assert!(cuda.query(late).unwrap());
    cuda.release(late);
    assert_eq!(Arc::strong_count(&keep), 1, "no later copy comes that would look for this one's end");
}

#[test]
fn a_copy_whose_event_is_not_recorded_is_queued_and_holds_back_no_other() {
    let cuda = device();
    let (stream, keep) = (cuda.stream().unwrap(), Arc::new(()));
    refuse(&["cuEventRecord"]);
    copy(&cuda, &stream, &keep).expect("it is queued");
    refuse(&[]);
    copy(&cuda, &stream, &keep).unwrap();
    let event = cuda.record(&stream).unwrap();
    run();
    cuda.release(event);
    assert_eq!(Arc::strong_count(&keep), 1);
    // No copy comes behind this one. The stream says that it has ended.
    refuse(&["cuEventRecord"]);
    copy(&cuda, &stream, &keep).unwrap();
    assert_eq!((cuda.is_idle(&stream), Arc::strong_count(&keep)), (Ok(false), 2));
    run();
    assert_eq!((cuda.is_idle(&stream), Arc::strong_count(&keep)), (Ok(true), 1));
}

#[test]
fn a_copy_is_not_queued_if_there_is_no_event_for_it() {
    let cuda = device();
    let (stream, keep) = (cuda.stream().unwrap(), Arc::new(()));
    refuse(&["cuEventCreate"]);
    assert_eq!(copy(&cuda, &stream, &keep).unwrap_err().call, "cuEventCreate");
    assert_eq!((with(|queue| queue.copies), Arc::strong_count(&keep)), (0, 1));
}

#[test]
fn an_event_that_is_not_recorded_is_used_for_another() {
    let cuda = device();
    let (stream, keep) = (cuda.stream().unwrap(), Arc::new(()));
    for refused in ["cuEventRecord", "cuMemcpyDtoHAsync"] {
        refuse(&[refused]);
        for _ in 0..3 {
            let recorded = cuda.record(&stream).map(|event| cuda.release(event));
            assert_eq!(recorded.is_err(), refused == "cuEventRecord");
            assert_eq!(copy(&cuda, &stream, &keep).is_err(), refused == "cuMemcpyDtoHAsync");
        }
        assert_eq!(with(|queue| queue.live_events), 1, "{refused}");
    }
    drop(cuda);
    assert_eq!(with(|queue| queue.live_events), 0);
}

#[test]
fn a_stream_that_was_given_back_is_used_again_once_it_is_idle() {
    let cuda = device();
    let (stream, keep) = (cuda.stream().unwrap(), Arc::new(()));
    copy(&cuda, &stream, &keep).unwrap();
    cuda.give_back_stream(stream);
    let second = cuda.stream().unwrap();
    assert_ne!(second, stream, "it has something to do");
    run();
    assert_eq!((cuda.stream().unwrap(), Arc::strong_count(&keep)), (stream, 1));
    assert!(![stream, second].contains(&cuda.stream().unwrap()));
    assert_eq!(with(|queue| queue.streams), 3);
}

/// Owns memory, and asks the device when it is dropped.
struct Asking {
    cuda: Arc<Cuda>,
    stream: DeviceStream,
}

impl Drop for Asking {
    fn drop(&mut self) {
        assert_ne!(self.cuda.handle(&self.stream), 0);
    }
}

#[test]
fn an_owner_of_memory_may_call_the_device_when_it_is_dropped() {
    let cuda = Arc::new(device());
    let stream = cuda.stream().unwrap();
    for _ in 0..2 {
        let keep = Arc::new(Asking { cuda: cuda.clone(), stream });
        copy(&cuda, &stream, &keep).unwrap();
        drop(keep);
        run();
    }
    let event = cuda.record(&stream).unwrap();
    run();
    cuda.release(event);
    assert_eq!(Arc::strong_count(&cuda), 1);
}
