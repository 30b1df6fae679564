//! The receiving end of a connection.

use crate::{
    failure::PluginFailure,
    slots::{RequestSlots, SLOTS, SlotRequest},
    wire::{
        message::HEADER_BYTES,
        receive_queue::{MessageRefusal, ReceiveQueue, Want},
    },
};
use herringbone::Region;
use herringbone_sys::{socket::recv, span::Span};
use std::{
    io,
    net::{SocketAddr, TcpStream},
};

/// The streams from a sender, and the receives that wait for its messages.
#[derive(Debug)]
pub(crate) struct ReceiveSide {
    sockets: Vec<TcpStream>,
    peer: SocketAddr,
    queue: ReceiveQueue,
    slots: RequestSlots,
    /// Why nothing can be received any more.
    failure: Option<PluginFailure>,
}

impl ReceiveSide {
    /// Over these streams, which are in their order, from the sender there.
    pub(crate) fn new(sockets: Vec<TcpStream>, peer: SocketAddr) -> Self {
        let queue = ReceiveQueue::new(sockets.len(), SLOTS);
        Self { sockets, peer, queue, slots: RequestSlots::new(), failure: None }
    }

    /// Memory for the message after those of all other receives: none if too many requests are not complete.
    ///
    /// # Errors
    /// If the connection has failed.
    pub(crate) fn post(&mut self, memory: Region) -> Result<Option<SlotRequest>, PluginFailure> {
        let bytes = memory.len();
        let Some(request) = self.slots.take(memory) else { return Ok(None) };
        self.queue.post(request.slot, bytes);
        self.advance()?;
        Ok(Some(request))
    }

    /// The size of a message that is there as a whole. The request is over then.
    ///
    /// # Errors
    /// If there is no such request, or the connection has failed.
    pub(crate) fn test(&mut self, request: SlotRequest) -> Result<Option<usize>, PluginFailure> {
        self.slots.check(request)?;
        if self.queue.received(request.slot).is_none() {
            self.advance()?;
        }
        let received = self.queue.received(request.slot);
        if received.is_some() {
            self.slots.release(request.slot);
        }
        Ok(received)
    }

    /// Reads what has arrived, as far as there is a place for it.
    fn advance(&mut self) -> Result<(), PluginFailure> {
        while self.failure.is_none() {
            // A header says what the other streams carry, so it is read first, and they are read again after it.
            let (count, first) = (self.sockets.len(), self.queue.header_stream());
            let streams = (0..count).map(|index| (first + index) % count);
            let opened =
                streams.map(|stream| self.read(stream)).try_fold(false, |any, opened| Ok(any | opened?));
            match opened {
                Ok(true) => (),
                Ok(false) => return Ok(()),
                Err(failure) => self.failure = Some(failure),
            }
        }
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Reads from one stream what has arrived there. Whether a header was among it.
    fn read(&mut self, stream: usize) -> Result<bool, PluginFailure> {
        let mut opened = false;
        while let Some(want) = self.queue.want(stream) {
            let mut header = [0; HEADER_BYTES];
            let (wanted, received) = match &want {
                Want::Header(left) => (*left, recv(&self.sockets[stream], Span::of(&mut header[..*left]))),
                Want::Payload { slot, range } => {
                    let memory = self.slots.memory(*slot);
                    let access =
                        memory.access().expect("the memory of a request is there until it is complete");
                    (range.len(), recv(&self.sockets[stream], access.span().slice(range.clone())))
                }
            };
            let count = match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(opened),
                Err(error) => return Err(self.lost(error)),
                Ok(0) => return Err(self.lost("it has closed the connection while a message was awaited")),
                Ok(count) => count,
            };
            match want {
                Want::Header(_) => {
                    opened |= self.queue.header_read(&header[..count]).map_err(|why| self.refused(why))?;
                }
                Want::Payload { .. } => {
                    self.queue.payload_read(stream, count);
                }
            }
            if count < wanted {
                return Ok(opened);
            }
        }
        Ok(opened)
    }

    fn lost(&self, why: impl std::fmt::Display) -> PluginFailure {
        PluginFailure::remote("receiving from", self.peer, why)
    }

    fn refused(&self, refusal: MessageRefusal) -> PluginFailure {
        match refusal {
            MessageRefusal::Header(problem) => self.lost(format_args!(
                "the received bytes are not the header of the next message ({problem:?})"
            )),
            MessageRefusal::TooLong { message, posted } => PluginFailure::usage(format!(
                "{} sends {message} bytes where {posted} were posted: ranks disagree about a size; give all ranks the same \
                 program and the same NCCL_ variables, such as NCCL_PROTO and NCCL_ALGO",
                self.peer
            )),
        }
    }
}
