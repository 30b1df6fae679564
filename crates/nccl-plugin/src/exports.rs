//! The tables that NCCL finds by their names, and their functions, which only pass each call on.

use crate::{
    calls::{self, IncomingBuffer},
    failure::SUCCESS,
    layout::{
        DeviceProperties, MadeFunctions, NetTable, NetV8, NetV10, NetV11, NetworkName, NewerFunctions,
        PropertiesV11, PropertiesV12, RequestFunctions,
    },
    outcome::code_of,
    pointers::{
        DataPointer, FirstPointer, HandlePointer, LogFunction, OpaqueNumber, PlacePointer, UnusedPointer,
    },
    registry::{LISTENERS, RECEIVERS, SENDERS},
};
use std::ffi::c_int;

static NAME: NetworkName = *b"Herringbone\0";

const MADE: MadeFunctions = MadeFunctions { accept, register, register_file: None, deregister };
const REQUEST: RequestFunctions = RequestFunctions {
    flush,
    test,
    close_send,
    close_receive,
    close_listen,
    device_memory: None,
    consumed: None,
};

/// For NCCL 2.20 to 2.25.
#[unsafe(no_mangle)]
static ncclNetPlugin_v8: NetV8 = NetTable {
    name: &NAME,
    init: init_v8,
    devices,
    properties,
    listen: listen_v8,
    connect: connect_v8,
    made: MADE,
    send: send_v8,
    receive: receive_v8,
    request: REQUEST,
    newer: [],
};

/// For NCCL 2.26 and 2.27.
#[unsafe(no_mangle)]
static ncclNetPlugin_v10: NetV10 = NetTable {
    name: &NAME,
    init: init_v10,
    devices,
    properties,
    listen: listen_v8,
    connect: connect_v10,
    made: MADE,
    send: send_v10,
    receive: receive_v10,
    request: REQUEST,
    newer: [None],
};

/// For NCCL 2.28 and 2.29.
#[unsafe(no_mangle)]
static ncclNetPlugin_v11: NetV11<PropertiesV11> = newest();

/// For NCCL 2.30 and later.
#[unsafe(no_mangle)]
static ncclNetPlugin_v12: NetV11<PropertiesV12> = newest();

const fn newest<P: DeviceProperties + 'static>() -> NetV11<P> {
    NetTable {
        name: &NAME,
        init: init_v11,
        devices,
        properties,
        listen: listen_v11,
        connect: connect_v11,
        made: MADE,
        send: send_v10,
        receive: receive_v10,
        request: REQUEST,
        newer: NewerFunctions { fuse: None, finalize, attribute: None },
    }
}

extern "C" fn init_v8(log: LogFunction) -> c_int {
    code_of(|| calls::init(log))
}

extern "C" fn init_v10(log: LogFunction, _profiler: UnusedPointer) -> c_int {
    code_of(|| calls::init(log))
}

extern "C" fn init_v11(
    context: PlacePointer<OpaqueNumber>,
    _communicator: u64,
    _config: UnusedPointer,
    log: LogFunction,
    _profiler: UnusedPointer,
) -> c_int {
    context.fill_if_wanted(OpaqueNumber::NONE);
    code_of(|| calls::init(log))
}

extern "C" fn devices(count: PlacePointer<c_int>) -> c_int {
    code_of(|| calls::devices(count))
}

extern "C" fn properties<P: DeviceProperties>(device: c_int, place: PlacePointer<P>) -> c_int {
    code_of(|| calls::properties(device, place))
}

extern "C" fn listen_v8(device: c_int, handle: HandlePointer, comm: PlacePointer<OpaqueNumber>) -> c_int {
    code_of(|| calls::listen(device, handle, comm))
}

extern "C" fn listen_v11(
    _context: OpaqueNumber,
    device: c_int,
    handle: HandlePointer,
    comm: PlacePointer<OpaqueNumber>,
) -> c_int {
    code_of(|| calls::listen(device, handle, comm))
}

extern "C" fn connect_v8(
    device: c_int,
    handle: HandlePointer,
    comm: PlacePointer<OpaqueNumber>,
    _offload: UnusedPointer,
) -> c_int {
    code_of(|| calls::connect(device, handle, comm))
}

extern "C" fn connect_v10(
    device: c_int,
    _config: UnusedPointer,
    handle: HandlePointer,
    comm: PlacePointer<OpaqueNumber>,
    _offload: UnusedPointer,
) -> c_int {
    code_of(|| calls::connect(device, handle, comm))
}

extern "C" fn connect_v11(
    _context: OpaqueNumber,
    device: c_int,
    handle: HandlePointer,
    comm: PlacePointer<OpaqueNumber>,
    _offload: UnusedPointer,
) -> c_int {
    code_of(|| calls::connect(device, handle, comm))
}

extern "C" fn accept(
    listener: OpaqueNumber,
    comm: PlacePointer<OpaqueNumber>,
    _offload: UnusedPointer,
) -> c_int {
    code_of(|| calls::accept(listener, comm))
}

extern "C" fn register(
    _comm: OpaqueNumber,
    data: DataPointer,
    bytes: usize,
    kind: c_int,
    handle: PlacePointer<OpaqueNumber>,
) -> c_int {
    code_of(|| calls::register(kind, data, bytes, handle))
}

extern "C" fn deregister(_comm: OpaqueNumber, _handle: OpaqueNumber) -> c_int {
    SUCCESS
}

extern "C" fn send_v8(
    comm: OpaqueNumber,
    data: DataPointer,
    bytes: c_int,
    _tag: c_int,
    _handle: OpaqueNumber,
    request: PlacePointer<OpaqueNumber>,
) -> c_int {
    code_of(|| calls::send(comm, data, calls::size_of_int(bytes)?, request))
}

extern "C" fn send_v10(
    comm: OpaqueNumber,
    data: DataPointer,
    bytes: usize,
    _tag: c_int,
    _handle: OpaqueNumber,
    _profiler: UnusedPointer,
    request: PlacePointer<OpaqueNumber>,
) -> c_int {
    code_of(|| calls::send(comm, data, bytes, request))
}

extern "C" fn receive_v8(
    comm: OpaqueNumber,
    count: c_int,
    data: FirstPointer<DataPointer>,
    sizes: FirstPointer<c_int>,
    _tags: UnusedPointer,
    _handles: UnusedPointer,
    request: PlacePointer<OpaqueNumber>,
) -> c_int {
    let message = || {
        let bytes = calls::size_of_int(sizes.first("sizes")?)?;
        Ok(IncomingBuffer { data: data.first("data")?, bytes })
    };
    code_of(|| calls::receive(comm, count, message, request))
}

extern "C" fn receive_v10(
    comm: OpaqueNumber,
    count: c_int,
    data: FirstPointer<DataPointer>,
    sizes: FirstPointer<usize>,
    _tags: UnusedPointer,
    _handles: UnusedPointer,
    _profiler: UnusedPointer,
    request: PlacePointer<OpaqueNumber>,
) -> c_int {
    let message = || Ok(IncomingBuffer { data: data.first("data")?, bytes: sizes.first("sizes")? });
    code_of(|| calls::receive(comm, count, message, request))
}

/// Nothing has to be flushed: what is received lies in this processor's memory.
extern "C" fn flush(
    _comm: OpaqueNumber,
    _count: c_int,
    _data: UnusedPointer,
    _sizes: UnusedPointer,
    _handles: UnusedPointer,
    request: PlacePointer<OpaqueNumber>,
) -> c_int {
    code_of(|| request.fill("request", OpaqueNumber::NONE))
}

extern "C" fn test(request: OpaqueNumber, done: PlacePointer<c_int>, sizes: PlacePointer<c_int>) -> c_int {
    code_of(|| calls::test(request, done, sizes))
}

extern "C" fn close_send(comm: OpaqueNumber) -> c_int {
    code_of(|| SENDERS.remove(comm.number()).map(drop))
}

extern "C" fn close_receive(comm: OpaqueNumber) -> c_int {
    code_of(|| RECEIVERS.remove(comm.number()).map(drop))
}

extern "C" fn close_listen(comm: OpaqueNumber) -> c_int {
    code_of(|| LISTENERS.remove(comm.number()).map(drop))
}

/// A communicator is over. Its comms are closed one by one, and devices stay as they are.
extern "C" fn finalize(_context: OpaqueNumber) -> c_int {
    SUCCESS
}
