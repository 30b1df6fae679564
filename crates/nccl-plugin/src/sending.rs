//! The sending end of a connection.

use crate::{
    failure::PluginFailure,
    slots::{RequestSlots, SLOTS, SlotRequest},
    wire::send_queue::SendQueue,
};
use herringbone::Region;
use herringbone_sys::socket::{IoVec, send_vectored};
use std::{
    io,
    net::{SocketAddr, TcpStream},
};

/// The streams to a receiver, and the messages that are on their way.
#[derive(Debug)]
pub(crate) struct SendSide {
    sockets: Vec<TcpStream>,
    peer: SocketAddr,
    queue: SendQueue,
    slots: RequestSlots,
    /// Why nothing can be sent any more.
    failure: Option<PluginFailure>,
}

impl SendSide {
    /// Over these streams, which are in their order, to the receiver there.
    pub(crate) fn new(sockets: Vec<TcpStream>, peer: SocketAddr) -> Self {
        let queue = SendQueue::new(sockets.len(), SLOTS);
        Self { sockets, peer, queue, slots: RequestSlots::new(), failure: None }
    }

    /// Begins to send a message after all others: none if too many requests are not complete.
    ///
    /// # Errors
    /// If the connection has failed.
    pub(crate) fn post(&mut self, message: Region) -> Result<Option<SlotRequest>, PluginFailure> {
        let bytes = message.len();
        let Some(request) = self.slots.take(message) else { return Ok(None) };
        self.queue.post(request.slot, bytes);
        self.advance()?;
        Ok(Some(request))
    }

    /// The size of a message that the system has taken as a whole, so that its memory may change. The request is over then.
    ///
    /// # Errors
    /// If there is no such request, or the connection has failed.
    pub(crate) fn test(&mut self, request: SlotRequest) -> Result<Option<usize>, PluginFailure> {
        self.slots.check(request)?;
        if !self.queue.is_written(request.slot) {
            self.advance()?;
        }
        let is_over = self.queue.is_written(request.slot);
        Ok(is_over.then(|| {
            let bytes = self.slots.memory(request.slot).len();
            self.slots.release(request.slot);
            bytes
        }))
    }

    /// Writes what the streams take now.
    fn advance(&mut self) -> Result<(), PluginFailure> {
        if self.failure.is_none() {
            let written = (0..self.sockets.len()).try_for_each(|stream| self.write(stream));
            self.failure = written.err().map(|error| PluginFailure::remote("sending to", self.peer, error));
        }
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn write(&mut self, stream: usize) -> io::Result<()> {
        while let Some(item) = self.queue.front(stream) {
            let memory = self.slots.memory(item.slot);
            let access = memory.access().expect("the memory of a request is there until it is complete");
            let payload = access.span().slice(item.payload.clone());
            let parts = [IoVec::Bytes(item.header()), IoVec::Span(payload)];
            let sent = match send_vectored(&self.sockets[stream], &parts, self.queue.has_more(stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                sent => sent?,
            };
            drop(access);
            if !self.queue.written(stream, sent) {
                return Ok(());
            }
        }
        Ok(())
    }
}
