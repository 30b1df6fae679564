//! The plug-in as NCCL uses it: opened by its path, its tables found by their names, and functions called at offsets of NVIDIA's
//! headers. Nothing here is taken from the plug-in's own sources.

use crate::abi::{Structure, constant, structure};
use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_ulong, c_void},
    mem,
    path::PathBuf,
    ptr,
    sync::Mutex,
    time::{Duration, Instant},
};

/// The versions of the interface that the plug-in has.
pub(crate) const VERSIONS: [u32; 4] = [8, 10, 11, 12];
/// How long anything may take that does not hang.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) type Pointer = *mut c_void;
/// What a handle is to NCCL.
pub(crate) type Handle = [u8; 128];

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The plug-in's log. A plug-in calls it as a function with any number of values, and always passes one text: on this platform
/// functions of both kinds find their values in the same places.
extern "C" fn log(
    level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: both are texts of C.
    let (format, text) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(text)) };
    assert_eq!(format.to_str(), Ok("%s"), "a text of the plug-in is no format");
    let level = match i64::from(level) {
        level if level == constant("NCCL_LOG_WARN") => "WARN",
        level if level == constant("NCCL_LOG_INFO") => "INFO",
        other => panic!("no line of a plug-in has level {other}"),
    };
    LINES.lock().unwrap().push(format!("{level} {}", text.to_str().unwrap()));
}

/// The lines that have been logged so far, by all tests of this process.
pub(crate) fn logged() -> Vec<String> {
    LINES.lock().unwrap().clone()
}

/// The library, which cargo has built for this test.
pub(crate) fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libherringbone_nccl_plugin.so")
}

/// A table of the plug-in.
pub(crate) struct Net {
    pub(crate) version: u32,
    pub(crate) layout: Structure,
    table: *const u8,
}

// SAFETY: nobody writes to a table.
unsafe impl Sync for Net {}
// SAFETY: as above.
unsafe impl Send for Net {}

fn symbol(name: &str) -> *const u8 {
    let (path, name) = (CString::new(library().to_str().unwrap()).unwrap(), CString::new(name).unwrap());
    // SAFETY: both are texts of C; the library stays open.
    let found =
        unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL), name.as_ptr()) };
    assert!(!found.is_null(), "{path:?} has no {name:?}");
    found.cast()
}

/// Declares the functions of a table: each reads its address where the headers have it.
macro_rules! at {
    ($net:expr, $field:literal, fn($($kind:ty),*)) => {{
        let address = $net.pointer($field);
        assert!(!address.is_null(), "the table of version {} has no {}", $net.version, $field);
        // SAFETY: the headers say that a function of this kind is there.
        unsafe { mem::transmute::<Pointer, extern "C" fn($($kind),*) -> c_int>(address) }
    }};
}

impl Net {
    /// A table that is not set up.
    pub(crate) fn open(version: u32) -> Self {
        let layout = structure(&format!("ncclNet_v{version}_t"));
        Self { version, layout, table: symbol(&format!("ncclNetPlugin_v{version}")) }
    }

    /// A table that is set up.
    pub(crate) fn ready(version: u32) -> Self {
        let net = Self::open(version);
        assert_eq!(net.init(), 0, "{:?}", logged());
        net
    }

    /// What a field holds.
    pub(crate) fn pointer(&self, field: &str) -> Pointer {
        // SAFETY: the table has as many bytes as the headers say.
        unsafe { self.table.add(self.layout.offset(field)).cast::<Pointer>().read() }
    }

    pub(crate) fn init(&self) -> c_int {
        let (log, none) = (log as *const () as Pointer, ptr::null_mut());
        let mut context = none;
        match self.version {
            8 => at!(self, "init", fn(Pointer))(log),
            10 => at!(self, "init", fn(Pointer, Pointer))(log, none),
            _ => {
                let mut config: c_int = -1;
                let init = at!(self, "init", fn(*mut Pointer, u64, *mut c_int, Pointer, Pointer));
                init(&mut context, 7, &mut config, log, none)
            }
        }
    }

    pub(crate) fn devices(&self) -> c_int {
        let mut count = -1;
        assert_eq!(at!(self, "devices", fn(*mut c_int))(&mut count), 0);
        count
    }

    pub(crate) fn properties(&self, device: c_int, place: *mut u8) -> c_int {
        at!(self, "getProperties", fn(c_int, *mut u8))(device, place)
    }

    pub(crate) fn listen(&self, device: c_int, handle: &mut Handle) -> (c_int, Pointer) {
        let (mut comm, place) = (ptr::null_mut(), handle.as_mut_ptr());
        let code = match self.version {
            8 | 10 => at!(self, "listen", fn(c_int, *mut u8, *mut Pointer))(device, place, &mut comm),
            _ => at!(self, "listen", fn(Pointer, c_int, *mut u8, *mut Pointer))(
                ptr::null_mut(),
                device,
                place,
                &mut comm,
            ),
        };
        (code, comm)
    }

    pub(crate) fn connect(&self, device: c_int, handle: &mut Handle) -> (c_int, Pointer) {
        let (mut comm, mut offload, none) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let place = handle.as_mut_ptr();
        type Place = *mut Pointer;
        let code = match self.version {
            8 => {
                at!(self, "connect", fn(c_int, *mut u8, Place, Place))(device, place, &mut comm, &mut offload)
            }
            10 => {
                let connect = at!(self, "connect", fn(c_int, Pointer, *mut u8, Place, Place));
                connect(device, none, place, &mut comm, &mut offload)
            }
            _ => {
                let connect = at!(self, "connect", fn(Pointer, c_int, *mut u8, Place, Place));
                connect(none, device, place, &mut comm, &mut offload)
            }
        };
        assert!(offload.is_null(), "nothing is offloaded");
        (code, comm)
    }

    pub(crate) fn accept(&self, listener: Pointer) -> (c_int, Pointer) {
        let (mut comm, mut offload) = (ptr::null_mut(), ptr::null_mut::<c_void>());
        let accept = at!(self, "accept", fn(Pointer, *mut Pointer, *mut Pointer));
        (accept(listener, &mut comm, &mut offload), comm)
    }

    pub(crate) fn register(&self, comm: Pointer, data: &mut [u8], kind: i64) -> c_int {
        let mut handle = ptr::null_mut();
        let register = at!(self, "regMr", fn(Pointer, *mut u8, usize, c_int, *mut Pointer));
        let code = register(comm, data.as_mut_ptr(), data.len(), kind as c_int, &mut handle);
        if code == 0 {
            assert_eq!(at!(self, "deregMr", fn(Pointer, Pointer))(comm, handle), 0);
        }
        code
    }

    pub(crate) fn send(&self, comm: Pointer, data: *const u8, bytes: usize) -> (c_int, Pointer) {
        let (mut request, none) = (ptr::null_mut(), ptr::null_mut());
        let code = match self.version {
            8 => {
                let send = at!(self, "isend", fn(Pointer, *const u8, c_int, c_int, Pointer, *mut Pointer));
                send(comm, data, bytes as c_int, 0, none, &mut request)
            }
            _ => {
                let send =
                    at!(self, "isend", fn(Pointer, *const u8, usize, c_int, Pointer, Pointer, *mut Pointer));
                send(comm, data, bytes, 0, none, none, &mut request)
            }
        };
        (code, request)
    }

    pub(crate) fn receive(&self, comm: Pointer, data: *mut u8, bytes: usize) -> (c_int, Pointer) {
        self.receive_several(comm, 1, data, bytes)
    }

    /// As if a group had so many receives; all lists have one entry.
    pub(crate) fn receive_several(
        &self,
        comm: Pointer,
        count: c_int,
        data: *mut u8,
        bytes: usize,
    ) -> (c_int, Pointer) {
        // NCCL_NET_OPTIONAL_RECV_COMPLETION, which a plug-in may ignore.
        let mut request = ptr::without_provenance_mut(1);
        let (mut data, mut tag, mut none) = (data, 0, ptr::null_mut());
        type Data = *mut *mut u8;
        type Place = *mut Pointer;
        let code = match self.version {
            8 => {
                let mut bytes = bytes as c_int;
                let receive =
                    at!(self, "irecv", fn(Pointer, c_int, Data, *mut c_int, *mut c_int, Place, Place));
                receive(comm, count, &mut data, &mut bytes, &mut tag, &mut none, &mut request)
            }
            _ => {
                let mut bytes = bytes;
                let receive =
                    at!(self, "irecv", fn(Pointer, c_int, Data, *mut usize, *mut c_int, Place, Place, Place));
                let mut profiler = ptr::null_mut();
                receive(comm, count, &mut data, &mut bytes, &mut tag, &mut none, &mut profiler, &mut request)
            }
        };
        (code, request)
    }

    pub(crate) fn flush(&self, comm: Pointer, data: *mut u8) -> (c_int, Pointer) {
        let (mut request, mut data, mut bytes, mut none) =
            (ptr::without_provenance_mut(1), data, 1, ptr::null_mut());
        let flush =
            at!(self, "iflush", fn(Pointer, c_int, *mut *mut u8, *mut c_int, *mut Pointer, *mut Pointer));
        (flush(comm, 1, &mut data, &mut bytes, &mut none, &mut request), request)
    }

    /// The code, and the size of a request that is complete.
    pub(crate) fn test(&self, request: Pointer) -> (c_int, Option<usize>) {
        let (mut done, mut bytes) = (-1, -1);
        let code = at!(self, "test", fn(Pointer, *mut c_int, *mut c_int))(request, &mut done, &mut bytes);
        (code, (done == 1).then_some(bytes as usize))
    }

    /// As [`test`](Self::test) where nobody wants the size.
    pub(crate) fn test_without_size(&self, request: Pointer) -> (c_int, bool) {
        let mut done = -1;
        let code =
            at!(self, "test", fn(Pointer, *mut c_int, *mut c_int))(request, &mut done, ptr::null_mut());
        (code, done == 1)
    }

    /// Closes by one of the three functions.
    pub(crate) fn close(&self, which: &str, comm: Pointer) -> c_int {
        match which {
            "closeSend" => at!(self, "closeSend", fn(Pointer))(comm),
            "closeRecv" => at!(self, "closeRecv", fn(Pointer))(comm),
            _ => at!(self, "closeListen", fn(Pointer))(comm),
        }
    }

    /// The code, and the size once the request is complete; fails if that takes long.
    pub(crate) fn wait(&self, request: Pointer) -> (c_int, usize) {
        let begin = Instant::now();
        loop {
            match self.test(request) {
                (0, None) => assert!(begin.elapsed() < LONG, "a request hangs: {:?}", logged()),
                (code, bytes) => return (code, bytes.unwrap_or(0)),
            }
        }
    }
}

/// Both ends of a connection in this process.
pub(crate) struct Pair {
    pub(crate) net: Net,
    pub(crate) handle: Handle,
    pub(crate) listener: Pointer,
    pub(crate) sender: Pointer,
    pub(crate) receiver: Pointer,
}

impl Pair {
    /// Connects by a table of this version.
    pub(crate) fn new(version: u32) -> Self {
        let net = Net::ready(version);
        let mut handle = [0; 128];
        let (code, listener) = net.listen(0, &mut handle);
        assert!(code == 0 && !listener.is_null(), "{:?}", logged());
        let (sender, receiver) = connect_both(&net, &mut handle, listener);
        Self { net, handle, listener, sender, receiver }
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, into: &mut [u8]) -> Pointer {
        let (code, request) = self.net.receive(self.receiver, into.as_mut_ptr(), into.len());
        assert!(code == 0 && !request.is_null(), "{code}: {:?}", logged());
        request
    }

    /// Begins to send.
    pub(crate) fn send(&self, data: &[u8]) -> Pointer {
        let (code, request) = self.net.send(self.sender, data.as_ptr(), data.len());
        assert!(code == 0 && !request.is_null(), "{code}: {:?}", logged());
        request
    }

    /// Waits until all of these are complete, whose sizes these are then.
    pub(crate) fn wait_all(&self, requests: &[Pointer]) -> Vec<usize> {
        let mut sizes = vec![None; requests.len()];
        let begin = Instant::now();
        while sizes.iter().any(Option::is_none) {
            for (size, request) in sizes.iter_mut().zip(requests).filter(|(size, _)| size.is_none()) {
                let (code, found) = self.net.test(*request);
                assert_eq!(code, 0, "{:?}", logged());
                *size = found;
            }
            assert!(begin.elapsed() < LONG, "requests hang: {:?}", logged());
        }
        sizes.into_iter().flatten().collect()
    }

    /// Closes what is open.
    pub(crate) fn close(self) {
        let Self { net, listener, sender, receiver, .. } = self;
        for (which, comm) in [("closeSend", sender), ("closeRecv", receiver), ("closeListen", listener)] {
            assert_eq!(net.close(which, comm), 0, "{which}: {:?}", logged());
        }
    }
}

/// Connects as NCCL does: both ends are asked until both are there.
pub(crate) fn connect_both(net: &Net, handle: &mut Handle, listener: Pointer) -> (Pointer, Pointer) {
    let (mut sender, mut receiver): (Pointer, Pointer) = (ptr::null_mut(), ptr::null_mut());
    let begin = Instant::now();
    while sender.is_null() || receiver.is_null() {
        if sender.is_null() {
            let (code, comm) = net.connect(0, handle);
            assert_eq!(code, 0, "{:?}", logged());
            sender = comm;
        }
        if receiver.is_null() {
            let (code, comm) = net.accept(listener);
            assert_eq!(code, 0, "{:?}", logged());
            receiver = comm;
        }
        assert!(begin.elapsed() < LONG, "a connection hangs: {:?}", logged());
    }
    (sender, receiver)
}

/// Bytes that no other seed gives.
pub(crate) fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed as u64 + 1);
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(next).collect()
}
