//! The meaning of the tables' functions, for all versions of the table.

use crate::{
    accepting::StreamListener,
    connecting::StreamDial,
    devices,
    failure::PluginFailure,
    layout::{DeviceProperties, HOST_MEMORY},
    logger,
    pointers::{DataPointer, HandlePointer, LogFunction, OpaqueNumber, PlacePointer},
    registry::{DIALS, LISTENERS, RECEIVERS, RequestNumber, SENDERS},
    wire::greeting::{HandleProblem, ListenHandle, VERSION},
};
use std::ffi::c_int;

/// Sets the plug-in up. NCCL calls it once, or for each communicator.
///
/// # Errors
/// If a setting cannot be used, or there is no interface: NCCL then takes another network.
pub(crate) fn init(log: LogFunction) -> Result<(), PluginFailure> {
    logger::set(log);
    devices::find()
}

/// How many devices there are.
///
/// # Errors
/// If there is no place for the number, or the plug-in is not set up.
pub(crate) fn devices(count: PlacePointer<c_int>) -> Result<(), PluginFailure> {
    count.fill("ndev", devices::all()?.len() as c_int)
}

/// The properties of a device.
///
/// # Errors
/// If there is no such device, or no place for them.
pub(crate) fn properties<P: DeviceProperties>(
    number: c_int,
    place: PlacePointer<P>,
) -> Result<(), PluginFailure> {
    place.fill("props", P::of(devices::one(number)?, number))
}

/// Listens at a device for one sender or more.
///
/// # Errors
/// If there is no such device, or the system does not let it.
pub(crate) fn listen(
    device: c_int,
    handle: HandlePointer,
    comm: PlacePointer<OpaqueNumber>,
) -> Result<(), PluginFailure> {
    let listener = StreamListener::open(devices::one(device)?)?;
    handle.write(listener.handle().to_bytes())?;
    let number = LISTENERS.add(listener);
    let filled = comm.fill("listenComm", OpaqueNumber::new(number));
    if filled.is_err() {
        LISTENERS.remove(number)?;
    }
    filled
}

/// Connects to the receiver of a handle. Until that is done, `comm` is null, and the handle knows what is being made.
///
/// # Errors
/// If the handle is no receiver's, or that cannot be reached.
pub(crate) fn connect(
    device: c_int,
    place: HandlePointer,
    comm: PlacePointer<OpaqueNumber>,
) -> Result<(), PluginFailure> {
    devices::one(device)?;
    comm.fill("sendComm", OpaqueNumber::NONE)?;
    let mut handle = ListenHandle::from_bytes(&place.read()?).map_err(|problem| match problem {
        HandleProblem::Foreign => PluginFailure::usage(
            "the other rank's network is not Herringbone: set NCCL_NET=Herringbone on all ranks",
        ),
        HandleProblem::Version(other) => PluginFailure::usage(format!(
            "the other rank's plug-in speaks version {other}, and this one {VERSION}: install the same one on all hosts"
        )),
    })?;
    if handle.pending == 0 {
        handle.pending = DIALS.add(StreamDial::begin(handle.clone())?);
        place.write(handle.to_bytes())?;
    }
    let advanced = DIALS.with(handle.pending, |dial| match dial.is_for(&handle) {
        true => dial.advance(),
        false => Err(PluginFailure::argument("NCCL has changed a handle")),
    });
    if matches!(advanced, Ok(false)) {
        return Ok(());
    }
    let dial = DIALS.remove(handle.pending)?;
    advanced?;
    handle.pending = 0;
    place.write(handle.to_bytes())?;
    comm.fill("sendComm", OpaqueNumber::new(SENDERS.add(dial.finish())))
}

/// Takes the connection of a sender. Until one is there, `comm` is null.
///
/// # Errors
/// If there is no such listener, or its sender is gone.
pub(crate) fn accept(listener: OpaqueNumber, comm: PlacePointer<OpaqueNumber>) -> Result<(), PluginFailure> {
    comm.fill("recvComm", OpaqueNumber::NONE)?;
    match LISTENERS.with(listener.number(), StreamListener::accept)? {
        Some(receiver) => comm.fill("recvComm", OpaqueNumber::new(RECEIVERS.add(receiver))),
        None => Ok(()),
    }
}

/// Makes memory known. Nothing needs to be done for this processor's.
///
/// # Errors
/// If it is another device's memory.
pub(crate) fn register(
    kind: c_int,
    data: DataPointer,
    bytes: usize,
    handle: PlacePointer<OpaqueNumber>,
) -> Result<(), PluginFailure> {
    if kind != HOST_MEMORY {
        return Err(PluginFailure::internal(format!(
            "NCCL registers memory of kind {kind}, and its properties allow only the host's"
        )));
    }
    data.lend(bytes, true)?;
    handle.fill_if_wanted(OpaqueNumber::NONE);
    Ok(())
}

/// Begins to send. `request` is null if that has to wait for other requests.
///
/// # Errors
/// If there is no such comm, or its connection has failed.
pub(crate) fn send(
    comm: OpaqueNumber,
    data: DataPointer,
    bytes: usize,
    request: PlacePointer<OpaqueNumber>,
) -> Result<(), PluginFailure> {
    let (comm, memory) = (comm.number(), data.lend(bytes, false)?);
    let posted = SENDERS.with(comm, |sender| sender.post(memory))?;
    let shown = posted.map(|request| RequestNumber { comm, is_receive: false, request }.shown());
    request.fill("request", shown.unwrap_or(OpaqueNumber::NONE))
}

/// Begins to receive one message. `request` is null if that has to wait for other requests.
///
/// # Errors
/// If several messages are asked for, there is no such comm, or its connection has failed.
pub(crate) fn receive(
    comm: OpaqueNumber,
    count: c_int,
    message: impl FnOnce() -> Result<IncomingBuffer, PluginFailure>,
    request: PlacePointer<OpaqueNumber>,
) -> Result<(), PluginFailure> {
    if count != 1 {
        return Err(PluginFailure::usage(format!(
            "NCCL groups {count} receives, and its properties allow only 1"
        )));
    }
    let IncomingBuffer { data, bytes } = message()?;
    let (comm, memory) = (comm.number(), data.lend(bytes, true)?);
    let posted = RECEIVERS.with(comm, |receiver| receiver.post(memory))?;
    let shown = posted.map(|request| RequestNumber { comm, is_receive: true, request }.shown());
    request.fill("request", shown.unwrap_or(OpaqueNumber::NONE))
}

/// Where a message is put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncomingBuffer {
    pub(crate) data: DataPointer,
    pub(crate) bytes: usize,
}

/// Goes on with a request's connection, and says whether the request is complete, and how many bytes it has moved then.
///
/// # Errors
/// If there is no such request, or its connection has failed.
pub(crate) fn test(
    request: OpaqueNumber,
    done: PlacePointer<c_int>,
    sizes: PlacePointer<c_int>,
) -> Result<(), PluginFailure> {
    done.fill("done", 0)?;
    let RequestNumber { comm, is_receive, request } = RequestNumber::read(request);
    let moved = if is_receive {
        RECEIVERS.with(comm, |receiver| receiver.test(request))?
    } else {
        SENDERS.with(comm, |sender| sender.test(request))?
    };
    let Some(bytes) = moved else { return Ok(()) };
    // NCCL counts in `int` here whatever it has posted.
    sizes.fill_if_wanted(bytes as c_int);
    done.fill("done", 1)
}

/// The bytes of a size that NCCL counts as `int`.
///
/// # Errors
/// If it is negative.
pub(crate) fn size_of_int(size: c_int) -> Result<usize, PluginFailure> {
    size.try_into().map_err(|_| PluginFailure::argument(format!("NCCL passed the size {size}")))
}
