//! Reading from a socket: headers are searched in a buffer, payloads go straight to their destination.

use super::{Pipe, broken};
use crate::{
    core::{
        session::handshake::{Key, Seals},
        wire::{FINGERPRINT_BYTES, Fingerprint, HEADER_BYTES, Header, WireError},
    },
    sys::span::Span,
    transport::{Broken, Destination, Inbox},
};
use std::{io, ops::Range, sync::Arc};

/// How much is read at once while no long message arrives: more than the first packet of one.
const READ_BYTES: usize = 16 << 10;
/// How much is read of what follows a payload: its header, with a fingerprint.
const NEXT: usize = HEADER_BYTES + FINGERPRINT_BYTES;
/// How much has to be missing of a message for its bytes to be waited for, and for how many at a time: mostly all of
/// them, for nothing can be done with a part.
const WORTH_WAITING: usize = 16 << 10;
const ENOUGH_BYTES: usize = 256 << 10;
/// After so much no further read begins in a turn, so that links take turns.
const TURN_BYTES: usize = 2 << 20;

/// The reading half of a link.
#[derive(Debug)]
pub(crate) struct Incoming {
    pipe: Arc<dyn Pipe>,
    /// Of the frame whose header comes next.
    seals: Seals,
    buffer: Box<[u8]>,
    filled: Range<usize>,
    receiving: Option<Receiving>,
    /// How many bytes have to be there before the poller finds the socket readable.
    wanted: usize,
}

/// A frame whose payload is arriving.
#[derive(Debug)]
struct Receiving {
    header: Header,
    destination: Destination,
    received: usize,
}

impl Incoming {
    pub(super) fn new(pipe: Arc<dyn Pipe>, key: Key) -> Self {
        let buffer = vec![0; READ_BYTES].into();
        Self { pipe, seals: Seals::new(key), buffer, filled: 0..0, receiving: None, wanted: 1 }
    }

    /// A payload that is arriving in `staged` is read to nowhere from now on.
    pub(super) fn divert(&mut self, staged: &Range<usize>) {
        if let Some(receiving) = &mut self.receiving
            && matches!(receiving.destination, Destination::Staged(at) if staged.contains(&at))
        {
            receiving.destination = Destination::Skip;
        }
    }

    /// Reads what there is, up to a turn. Returns whether anything moved.
    pub(crate) fn receive(&mut self, inbox: &mut impl Inbox) -> Result<bool, Broken> {
        let mut moved = 0;
        while moved < TURN_BYTES {
            self.parse(inbox)?;
            let (result, space) = match &mut self.receiving {
                Some(receiving) => {
                    // All that was in the buffer is in the message; what follows it there is the next header.
                    let (result, space) = receiving.read(&*self.pipe, inbox, &mut self.buffer[..NEXT]);
                    let result = result.map(|(bytes, next)| {
                        self.filled = 0..next;
                        bytes
                    });
                    (result, space)
                }
                None => {
                    self.buffer.copy_within(self.filled.clone(), 0);
                    self.filled = 0..self.filled.len();
                    let space = Span::of(&mut self.buffer[self.filled.end..]);
                    let result = self.pipe.read(space, None);
                    (result.inspect(|bytes| self.filled.end += bytes), space.len())
                }
            };
            match result {
                Ok(0) => return Err(Broken::Closed),
                Ok(bytes) => {
                    moved += bytes;
                    if bytes < space {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        self.parse(inbox)?;
        self.wait_for_more();
        Ok(moved > 0)
    }

    /// While a long message arrives, has the poller speak up once for many packets.
    fn wait_for_more(&mut self) {
        let missing = self.receiving.as_ref().map_or(0, Receiving::missing);
        let wanted = if missing < WORTH_WAITING { 1 } else { missing.min(ENOUGH_BYTES) };
        // A socket that does not take the hint is read more often.
        if wanted != self.wanted && self.pipe.set_wanted(wanted).is_ok() {
            self.wanted = wanted;
        }
    }

    /// Works through the buffer: headers, small payloads, the beginnings of large ones.
    fn parse(&mut self, inbox: &mut impl Inbox) -> Result<(), Broken> {
        loop {
            if let Some(receiving) = &mut self.receiving {
                let bytes = receiving.missing().min(self.filled.len());
                receiving.take(&self.buffer[self.filled.start..self.filled.start + bytes], inbox);
                self.filled.start += bytes;
                if receiving.missing() > 0 {
                    return Ok(());
                }
                let Some(complete) = self.receiving.take() else { return Ok(()) };
                complete.deliver(inbox, self.pipe.is_memory())?;
            }
            let Some((header, fingerprint, used)) = self.header()? else { return Ok(()) };
            self.filled.start += used;
            self.seals.advance();
            let destination = inbox.admit(&header, fingerprint.as_ref())?;
            self.receiving = Some(Receiving { header, destination, received: 0 });
        }
    }

    fn header(&self) -> Result<Option<(Header, Option<Fingerprint>, usize)>, Broken> {
        let bytes = &self.buffer[self.filled.clone()];
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let seal = self.seals.present();
        let sealed = |bytes: &[u8]| crc32c::crc32c(bytes) ^ seal;
        let header = Header::decode(head, sealed).map_err(|error| match error {
            WireError::HeaderChecksum { .. } => Broken::Corrupt,
            _ => Broken::Protocol("a frame that this release does not know"),
        })?;
        if !header.fingerprint {
            return Ok(Some((header, None, HEADER_BYTES)));
        }
        let Some(bytes) = bytes[HEADER_BYTES..].first_chunk::<FINGERPRINT_BYTES>() else { return Ok(None) };
        let fingerprint = Fingerprint::decode(bytes, sealed).map_err(|_| Broken::Corrupt)?;
        Ok(Some((header, Some(fingerprint), HEADER_BYTES + FINGERPRINT_BYTES)))
    }
}

impl Receiving {
    fn missing(&self) -> usize {
        self.header.length as usize - self.received
    }

    fn take(&mut self, bytes: &[u8], inbox: &impl Inbox) {
        let at = self.received;
        inbox.with(&mut self.destination, self.header.length as usize, |span| {
            if let Some(span) = span {
                span.slice(at..at + bytes.len()).write(bytes);
            }
        });
        self.received += bytes.len();
    }

    /// Reads what there is of the rest, and into `next` of what follows: how many bytes in all and there, and how many
    /// there could have been.
    fn read(
        &mut self,
        pipe: &dyn Pipe,
        inbox: &impl Inbox,
        next: &mut [u8],
    ) -> (io::Result<(usize, usize)>, usize) {
        let (at, missing) = (self.received, self.missing());
        let space = missing + next.len();
        let length = self.header.length as usize;
        let result = inbox.with(&mut self.destination, length, |span| match span {
            Some(span) => pipe.read(span.slice(at..span.len()), Some(Span::of(next))),
            None => {
                let mut nowhere = [0; 8192];
                let most = missing.min(nowhere.len());
                pipe.read(Span::of(&mut nowhere[..most]), None)
            }
        });
        let result = result.map(|bytes| {
            let own = bytes.min(missing);
            self.received += own;
            (bytes, bytes - own)
        });
        (result, space)
    }

    fn deliver(mut self, inbox: &mut impl Inbox, is_whole: bool) -> Result<(), Broken> {
        let length = self.header.length as usize;
        let crc = inbox.with(&mut self.destination, length, |span| {
            span.filter(|span| !span.is_empty() && !is_whole).map(|span| span.crc32c())
        });
        if crc.is_some_and(|crc| crc != self.header.payload_crc) && inbox.matters(&self.header) {
            return Err(Broken::Corrupt);
        }
        inbox.arrived(&self.header, self.destination)
    }
}
