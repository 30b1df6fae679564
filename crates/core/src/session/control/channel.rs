//! Both directions of a control connection.

use super::{ControlError, Decoder, Message};
use crate::{
    session::{
        codec::TooLong,
        handshake::{Keys, Seals},
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
    /// That of a connection with these keys, on which nothing was said yet.
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
