//! Both directions of a control connection.

use super::{ControlError, MESSAGE_BYTES, Message, PREFIX_BYTES};
use crate::{
    session::{
        codec::{Malformed, TooLong},
        handshake::{Key, Keys, Seals},
    },
    wire::Checksum,
};
use alloc::vec::Vec;

/// One end of a control connection. Each message is [sealed](Seals), so that each is accepted once and in order.
#[derive(Debug)]
pub struct ControlChannel {
    crc: Checksum,
    said: Seals,
    heard: Decoder,
}

impl ControlChannel {
    /// The channel of a new connection with these keys.
    pub fn new(crc: Checksum, keys: Keys) -> Self {
        Self { crc, said: Seals::new(keys.sending), heard: Decoder::sealed(crc, keys.receiving) }
    }

    /// The next message to send, as bytes.
    ///
    /// # Errors
    /// As [`Message::encode`]; then it is as if the message had never been there.
    pub fn encode(&mut self, message: &Message) -> Result<Vec<u8>, TooLong> {
        let (crc, seal) = (self.crc, self.said.present());
        let bytes = message.encode(|bytes| crc(bytes) ^ seal)?;
        self.said.advance();
        Ok(bytes)
    }

    /// Appends bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.heard.push(bytes);
    }

    /// The next message that has arrived in full; see [`Decoder::next_message`].
    pub fn next_message(&mut self) -> Result<Option<Message>, ControlError> {
        self.heard.next_message()
    }
}

/// Finds the messages in a stream of bytes.
///
/// Push the bytes that have arrived, then take messages until none is left: it then holds less than one message.
#[derive(Debug)]
pub struct Decoder {
    arrived: Vec<u8>,
    taken: usize,
    crc: Checksum,
    seals: Seals,
}

impl Decoder {
    /// A decoder at the beginning of a stream.
    pub fn new(crc: Checksum) -> Self {
        Self::sealed(crc, Key::default())
    }

    /// The same, of a stream whose messages are sealed.
    pub fn sealed(crc: Checksum, key: Key) -> Self {
        Self { arrived: Vec::new(), taken: 0, crc, seals: Seals::new(key) }
    }

    /// Appends bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.arrived.drain(..self.taken);
        self.taken = 0;
        self.arrived.extend_from_slice(bytes);
    }

    /// The next whole message; `None` until more has arrived. An error stays: the stream is lost.
    pub fn next_message(&mut self) -> Result<Option<Message>, ControlError> {
        let waiting = &self.arrived[self.taken..];
        let Some((prefix, rest)) = waiting.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let [length, body_crc, prefix_crc] =
            [0, 4, 8].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| prefix[at + byte])));
        self.compare(&prefix[..8], prefix_crc)?;
        if length as usize > MESSAGE_BYTES {
            return Err(ControlError::Length { length });
        }
        let Some(body) = rest.get(..length as usize) else { return Ok(None) };
        self.compare(body, body_crc)?;
        let message = Message::decode(body).map_err(|Malformed(reason)| ControlError::Malformed {
            number: body.first().copied().unwrap_or(0),
            reason,
        })?;
        self.taken += PREFIX_BYTES + length as usize;
        self.seals.advance();
        Ok(Some(message))
    }

    fn compare(&self, bytes: &[u8], claimed: u32) -> Result<(), ControlError> {
        let found = (self.crc)(bytes) ^ self.seals.present();
        if found == claimed { Ok(()) } else { Err(ControlError::Checksum { found, claimed }) }
    }
}
