//! A receiver that waits for its sender.

use crate::{
    connecting::{secret_number, tune},
    devices::NetDevice,
    failure::PluginFailure,
    logger,
    receiving::ReceiveSide,
    wire::greeting::{HELLO_BYTES, ListenHandle, SecretNumber, StreamHello},
};
use std::{
    io::{self, Read},
    net::{SocketAddr, TcpListener, TcpStream},
};

/// How many streams may wait until their connections are complete: others than the sender's may be among them.
const MOST_ARRIVALS: usize = 256;

/// A stream that has come.
#[derive(Debug)]
struct ArrivedStream {
    socket: TcpStream,
    from: SocketAddr,
    bytes: [u8; HELLO_BYTES],
    read: usize,
    /// What it says, once it has said all of it.
    hello: Option<StreamHello>,
}

/// What becomes of a stream.
enum Arrival {
    Waits,
    /// It is not the sender's, or it is over.
    Foreign,
    /// It was the sender's and is over.
    Lost,
}

/// A listening socket, and the streams that have come to it.
#[derive(Debug)]
pub(crate) struct StreamListener {
    socket: TcpListener,
    handle: ListenHandle,
    arrivals: Vec<ArrivedStream>,
}

impl StreamListener {
    /// Listens at an address of a device.
    ///
    /// # Errors
    /// If the system does not let it.
    pub(crate) fn open(device: &NetDevice) -> Result<Self, PluginFailure> {
        let listen = || {
            let socket = TcpListener::bind((device.address, 0))?;
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            let handle =
                ListenHandle { address, streams: device.streams, token: secret_number()?, pending: 0 };
            Ok(Self { socket, handle, arrivals: Vec::new() })
        };
        listen()
            .map_err(|error| PluginFailure::system(format_args!("listening at {}", device.address), &error))
    }

    /// What the sender needs.
    pub(crate) fn handle(&self) -> &ListenHandle {
        &self.handle
    }

    /// A connection of which all streams have come, if there is one.
    ///
    /// # Errors
    /// If the system gives no sockets, or a sender is gone before all its streams were there.
    pub(crate) fn accept(&mut self) -> Result<Option<ReceiveSide>, PluginFailure> {
        self.take_arrivals().map_err(|error| {
            PluginFailure::system(format_args!("accepting at {}", self.handle.address), &error)
        })?;
        let (token, streams) = (self.handle.token, self.handle.streams);
        let (mut waiting, mut lost) = (Vec::new(), None);
        for mut arrival in std::mem::take(&mut self.arrivals) {
            match arrival.hear(&token, streams) {
                Arrival::Waits => waiting.push(arrival),
                Arrival::Foreign => logger::info(&format!(
                    "{} came to {} and is not of this job; it is ignored",
                    arrival.from, self.handle.address
                )),
                Arrival::Lost => lost = Some(arrival),
            }
        }
        self.arrivals = waiting;
        let Some(lost) = lost else { return self.complete() };
        // The other streams of that connection are of no use. Those of other senders are.
        let connection = |arrival: &ArrivedStream| arrival.hello.map(|hello| hello.connection);
        self.arrivals.retain(|arrival| connection(arrival) != connection(&lost));
        let why = "it has closed the connection before all its streams were there";
        Err(PluginFailure::remote("accepting from", lost.from, why))
    }

    fn take_arrivals(&mut self) -> io::Result<()> {
        loop {
            let (socket, from) = match self.socket.accept() {
                Ok(arrival) => arrival,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // It came and is gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            socket.set_nonblocking(true)?;
            if self.arrivals.len() == MOST_ARRIVALS {
                let silent = self.arrivals.iter().position(|arrival| arrival.hello.is_none());
                self.arrivals.remove(silent.unwrap_or(0));
            }
            let arrival = ArrivedStream { socket, from, bytes: [0; HELLO_BYTES], read: 0, hello: None };
            self.arrivals.push(arrival);
        }
    }

    fn complete(&mut self) -> Result<Option<ReceiveSide>, PluginFailure> {
        let streams = self.handle.streams;
        let stream_of = |arrivals: &[ArrivedStream], connection: SecretNumber, index: usize| {
            arrivals.iter().position(|arrival| {
                let is_it =
                    |hello: &StreamHello| hello.connection == connection && usize::from(hello.index) == index;
                arrival.hello.as_ref().is_some_and(is_it)
            })
        };
        let connections = self.arrivals.iter().filter_map(|arrival| Some(arrival.hello?.connection));
        let is_complete = |connection: &SecretNumber| {
            (0..streams).all(|index| stream_of(&self.arrivals, *connection, index).is_some())
        };
        let Some(connection) = connections.into_iter().find(is_complete) else { return Ok(None) };
        let mut sockets = Vec::with_capacity(streams);
        let mut peer = self.handle.address;
        for index in 0..streams {
            let at = stream_of(&self.arrivals, connection, index).expect("the connection is complete");
            let ArrivedStream { socket, from, .. } = self.arrivals.remove(at);
            tune(&socket).map_err(|error| PluginFailure::remote("accepting from", from, error))?;
            sockets.push(socket);
            peer = from;
        }
        Ok(Some(ReceiveSide::new(sockets, peer)))
    }
}

impl ArrivedStream {
    /// Reads what has come of the hello, and of one that has come looks whether the stream is still there.
    fn hear(&mut self, token: &SecretNumber, streams: usize) -> Arrival {
        while self.read < HELLO_BYTES {
            match self.socket.read(&mut self.bytes[self.read..]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Arrival::Waits,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => return Arrival::Foreign,
                Ok(count) => self.read += count,
            }
            if self.read == HELLO_BYTES {
                self.hello = StreamHello::from_bytes(&self.bytes, token, streams);
            }
        }
        match self.socket.peek(&mut [0]) {
            _ if self.hello.is_none() => Arrival::Foreign,
            Ok(1..) => Arrival::Waits,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Arrival::Waits
            }
            Ok(0) | Err(_) => Arrival::Lost,
        }
    }
}
