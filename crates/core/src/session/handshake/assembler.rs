//! How the messages of a handshake are found in a stream.

use super::{
    error::HandshakeError,
    message::{BODY_BYTES, MAGIC, PREFIX_BYTES, Seen},
};
use alloc::vec::Vec;
use core::mem;

/// Collects one message at a time, and never more than one.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    held: Vec<u8>,
    /// Set at the end, in success or failure: what arrives then is not this machine's.
    pub(super) over: bool,
}

impl Assembler {
    /// Takes what belongs to the next message: how much that was, and the message once it is whole, prefix included.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<Vec<u8>>), HandshakeError> {
        let mut rest = bytes;
        while !self.over {
            let wanted = self.wanted()?;
            let part = &rest[..rest.len().min(wanted - self.held.len())];
            rest = &rest[part.len()..];
            self.held.extend_from_slice(part);
            let magic = self.held.len().min(MAGIC.len());
            if self.held[..magic] != MAGIC[..magic] {
                self.over = true;
                return Err(HandshakeError::NotHerringbone(Seen::new(&self.held)));
            }
            if self.held.len() < wanted {
                break;
            }
            if self.held.len() == self.wanted()? {
                return Ok((bytes.len() - rest.len(), Some(mem::take(&mut self.held))));
            }
        }
        Ok((bytes.len() - rest.len(), None))
    }

    /// How many bytes are missing to the end of the message, or of its prefix while that is not there.
    pub(super) fn missing(&self) -> usize {
        let body = |prefix: &[u8; PREFIX_BYTES]| usize::from(u16::from_le_bytes([prefix[6], prefix[7]]));
        let wanted = PREFIX_BYTES + self.held.first_chunk().map_or(0, body);
        wanted.saturating_sub(self.held.len())
    }

    /// Whether a message has begun and not ended.
    pub(super) fn is_within(&self) -> bool {
        !self.held.is_empty()
    }

    /// How long the message is, or its prefix while that is not there.
    fn wanted(&mut self) -> Result<usize, HandshakeError> {
        let Some([.., zero, low, high]) = self.held.first_chunk::<PREFIX_BYTES>() else {
            return Ok(PREFIX_BYTES);
        };
        let length = u16::from_le_bytes([*low, *high]);
        if *zero != 0 {
            self.over = true;
            return Err(HandshakeError::Malformed { reason: "its prefix is not of this version" });
        }
        if usize::from(length) > BODY_BYTES {
            self.over = true;
            return Err(HandshakeError::TooLong { length });
        }
        Ok(PREFIX_BYTES + usize::from(length))
    }
}
