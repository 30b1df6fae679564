//! The tables and structures of NCCL's interface, one for each version that is exported.
//!
//! The facts are from NVIDIA's public headers, `src/include/plugin/net/net_v*.h` of NCCL at commit 5067397c (2.30.7).
//! `tests/abi.txt` has the sizes and offsets that a C compiler finds in them, and a test compares the built plug-in
//! with these.

use crate::{
    devices::NetDevice,
    pointers::{
        DataPointer, FirstPointer, HandlePointer, LogFunction, OpaqueNumber, PlacePointer, StaticText,
        UnusedPointer,
    },
};
use std::ffi::{c_float, c_int};

/// The name of the network, which `NCCL_NET` chooses, with the zero byte at its end.
pub(crate) type NetworkName = [u8; 12];

/// `NCCL_NET_MAX_DEVS_PER_NIC_V11`, that of version 10, too.
const DEVICES_V11: usize = 4;
/// `NCCL_NET_MAX_DEVS_PER_NIC_V12`.
const DEVICES_V12: usize = 8;
/// `NCCL_MAX_NET_SIZE_BYTES`: the largest message that NCCL accepts as possible.
const LARGEST_MESSAGE: usize = 1 << 40;
/// How many comms there may be, as of NCCL's own sockets.
const MOST_COMMS: c_int = 65_536;
/// `NCCL_PTR_HOST`: memory of this processor.
pub(crate) const HOST_MEMORY: c_int = 1;
/// `NCCL_NET_ID_UNDEF`.
const NO_ID: i16 = -1;

/// A function that is not there.
pub(crate) type MissingFunction = Option<extern "C" fn()>;

/// What all versions of the properties begin with.
#[derive(Debug)]
#[repr(C)]
struct PropertiesHead {
    name: StaticText,
    pci_path: StaticText,
    guid: u64,
    memory_kinds: c_int,
    registers_for_all: c_int,
}

/// What follows in all versions, behind `forceFlush` where there is one.
#[derive(Debug)]
#[repr(C)]
struct PropertiesRest {
    speed: c_int,
    port: c_int,
    latency: c_float,
    most_comms: c_int,
    most_receives: c_int,
    offload: c_int,
    offload_version: c_int,
}

/// Of which devices one consists: `ncclNetVDeviceProps`.
#[derive(Debug)]
#[repr(C)]
struct FusedDevices<const MOST: usize> {
    count: c_int,
    devices: [c_int; MOST],
}

/// The largest messages of the two kinds, in bytes.
#[derive(Debug)]
#[repr(C)]
struct LargestMessages {
    point_to_point: usize,
    collective: usize,
}

/// `ncclNetProperties_v8_t`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PropertiesV8 {
    head: PropertiesHead,
    rest: PropertiesRest,
}

/// `ncclNetProperties_v10_t`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PropertiesV10 {
    head: PropertiesHead,
    force_flush: c_int,
    rest: PropertiesRest,
    fused: FusedDevices<DEVICES_V11>,
    largest: LargestMessages,
}

/// `ncclNetProperties_v11_t`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PropertiesV11 {
    older: PropertiesV10,
    most_requests: c_int,
}

/// `ncclNetProperties_v12_t`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PropertiesV12 {
    head: PropertiesHead,
    force_flush: c_int,
    rest: PropertiesRest,
    fused: FusedDevices<DEVICES_V12>,
    largest: LargestMessages,
    most_requests: c_int,
    rail: i16,
    plane: i16,
}

/// A version of the properties.
pub(crate) trait DeviceProperties {
    /// Those of a device, which has this number.
    fn of(device: &'static NetDevice, number: c_int) -> Self;
}

impl PropertiesHead {
    fn of(device: &'static NetDevice, number: c_int) -> Self {
        Self {
            name: StaticText::new(&device.name),
            pci_path: device.pci_path().map_or(StaticText::NONE, StaticText::new),
            guid: number as u64,
            memory_kinds: HOST_MEMORY,
            registers_for_all: 0,
        }
    }
}

impl PropertiesRest {
    fn of(device: &NetDevice) -> Self {
        Self {
            speed: device.speed,
            port: 0,
            // Not known.
            latency: 0.0,
            most_comms: MOST_COMMS,
            most_receives: 1,
            // NCCL_NET_DEVICE_HOST and NCCL_NET_DEVICE_INVALID_VERSION: the processor moves everything.
            offload: 0,
            offload_version: 0,
        }
    }
}

impl<const MOST: usize> FusedDevices<MOST> {
    /// A device by itself.
    fn alone(number: c_int) -> Self {
        let mut devices = [0; MOST];
        devices[0] = number;
        Self { count: 1, devices }
    }
}

impl LargestMessages {
    const ANY: Self = Self { point_to_point: LARGEST_MESSAGE, collective: LARGEST_MESSAGE };
}

impl DeviceProperties for PropertiesV8 {
    fn of(device: &'static NetDevice, number: c_int) -> Self {
        Self { head: PropertiesHead::of(device, number), rest: PropertiesRest::of(device) }
    }
}

impl DeviceProperties for PropertiesV10 {
    fn of(device: &'static NetDevice, number: c_int) -> Self {
        Self {
            head: PropertiesHead::of(device, number),
            force_flush: 0,
            rest: PropertiesRest::of(device),
            fused: FusedDevices::alone(number),
            largest: LargestMessages::ANY,
        }
    }
}

impl DeviceProperties for PropertiesV11 {
    fn of(device: &'static NetDevice, number: c_int) -> Self {
        Self { older: PropertiesV10::of(device, number), most_requests: 1 }
    }
}

impl DeviceProperties for PropertiesV12 {
    fn of(device: &'static NetDevice, number: c_int) -> Self {
        Self {
            head: PropertiesHead::of(device, number),
            force_flush: 0,
            rest: PropertiesRest::of(device),
            fused: FusedDevices::alone(number),
            largest: LargestMessages::ANY,
            most_requests: 1,
            rail: NO_ID,
            plane: NO_ID,
        }
    }
}

/// A table, `ncclNet_v*_t`: the parts that versions have in common, and the functions that differ.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct NetTable<Init, Properties: 'static, Listen, Connect, Send, Receive, Newer> {
    pub(crate) name: &'static NetworkName,
    pub(crate) init: Init,
    pub(crate) devices: extern "C" fn(PlacePointer<c_int>) -> c_int,
    pub(crate) properties: extern "C" fn(c_int, PlacePointer<Properties>) -> c_int,
    pub(crate) listen: Listen,
    pub(crate) connect: Connect,
    pub(crate) made: MadeFunctions,
    pub(crate) send: Send,
    pub(crate) receive: Receive,
    pub(crate) request: RequestFunctions,
    pub(crate) newer: Newer,
}

/// How a connection is accepted, and memory made known.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MadeFunctions {
    pub(crate) accept: extern "C" fn(OpaqueNumber, PlacePointer<OpaqueNumber>, UnusedPointer) -> c_int,
    pub(crate) register: RegisterFunction,
    pub(crate) register_file: MissingFunction,
    pub(crate) deregister: extern "C" fn(OpaqueNumber, OpaqueNumber) -> c_int,
}

/// How requests end, and comms.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RequestFunctions {
    pub(crate) flush: FlushFunction,
    pub(crate) test: extern "C" fn(OpaqueNumber, PlacePointer<c_int>, PlacePointer<c_int>) -> c_int,
    pub(crate) close_send: extern "C" fn(OpaqueNumber) -> c_int,
    pub(crate) close_receive: extern "C" fn(OpaqueNumber) -> c_int,
    pub(crate) close_listen: extern "C" fn(OpaqueNumber) -> c_int,
    pub(crate) device_memory: MissingFunction,
    pub(crate) consumed: MissingFunction,
}

/// What versions 11 and 12 have more than version 8.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct NewerFunctions {
    pub(crate) fuse: MissingFunction,
    pub(crate) finalize: extern "C" fn(OpaqueNumber) -> c_int,
    pub(crate) attribute: MissingFunction,
}

type RegisterFunction =
    extern "C" fn(OpaqueNumber, DataPointer, usize, c_int, PlacePointer<OpaqueNumber>) -> c_int;
type FlushFunction = extern "C" fn(
    OpaqueNumber,
    c_int,
    UnusedPointer,
    UnusedPointer,
    UnusedPointer,
    PlacePointer<OpaqueNumber>,
) -> c_int;
type NewComm = PlacePointer<OpaqueNumber>;

/// `ncclNet_v8_t`.
pub(crate) type NetV8 = NetTable<
    extern "C" fn(LogFunction) -> c_int,
    PropertiesV8,
    extern "C" fn(c_int, HandlePointer, NewComm) -> c_int,
    extern "C" fn(c_int, HandlePointer, NewComm, UnusedPointer) -> c_int,
    extern "C" fn(OpaqueNumber, DataPointer, c_int, c_int, OpaqueNumber, NewComm) -> c_int,
    extern "C" fn(
        OpaqueNumber,
        c_int,
        FirstPointer<DataPointer>,
        FirstPointer<c_int>,
        UnusedPointer,
        UnusedPointer,
        NewComm,
    ) -> c_int,
    [MissingFunction; 0],
>;

/// How versions from 10 on send.
pub(crate) type SendFunction = extern "C" fn(
    OpaqueNumber,
    DataPointer,
    usize,
    c_int,
    OpaqueNumber,
    UnusedPointer,
    PlacePointer<OpaqueNumber>,
) -> c_int;

/// How versions from 10 on receive.
pub(crate) type ReceiveFunction = extern "C" fn(
    OpaqueNumber,
    c_int,
    FirstPointer<DataPointer>,
    FirstPointer<usize>,
    UnusedPointer,
    UnusedPointer,
    UnusedPointer,
    PlacePointer<OpaqueNumber>,
) -> c_int;

/// `ncclNet_v10_t`.
pub(crate) type NetV10 = NetTable<
    extern "C" fn(LogFunction, UnusedPointer) -> c_int,
    PropertiesV10,
    extern "C" fn(c_int, HandlePointer, NewComm) -> c_int,
    extern "C" fn(c_int, UnusedPointer, HandlePointer, NewComm, UnusedPointer) -> c_int,
    SendFunction,
    ReceiveFunction,
    [MissingFunction; 1],
>;

/// `ncclNet_v11_t` and `ncclNet_v12_t`, which differ in their properties.
pub(crate) type NetV11<Properties> = NetTable<
    extern "C" fn(NewComm, u64, UnusedPointer, LogFunction, UnusedPointer) -> c_int,
    Properties,
    extern "C" fn(OpaqueNumber, c_int, HandlePointer, NewComm) -> c_int,
    extern "C" fn(OpaqueNumber, c_int, HandlePointer, NewComm, UnusedPointer) -> c_int,
    SendFunction,
    ReceiveFunction,
    NewerFunctions,
>;
