//! Keys that bind the bytes after a handshake to their connection, their direction and their place.
//!
//! Both ends derive the same two keys from the token and all bytes of the handshake, both nonces included. The sender
//! mixes its key and the number of each message into the message's checksums, and the receiver takes them out again. So
//! a message that comes twice, late, early, back to its sender or on another connection looks damaged: its checksum is
//! right once in 2^32 cases.
//!
//! This protects against mistakes, misdirected bytes and replayed recordings. It does not protect against an attacker
//! who can read and alter packets on their way, because a checksum is no signature. An attacker who has one message can
//! put another in its place without the token, and two messages and some 2^32 tries give the key. An attacker who knows
//! the token and has heard the handshake has the keys at once. The keys do not encrypt anything.

use crate::wire;
use core::fmt;

/// The number that is mixed into the checksums of one direction of one connection. The default changes nothing, for
/// links that need no key.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Key(u64);

/// The keys of a connection, as one end has them: the other one has them the other way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keys {
    /// For messages that this end sends.
    pub sending: Key,
    /// For messages that it receives.
    pub receiving: Key,
}

/// The seal of each message of one direction in turn.
#[derive(Debug)]
pub struct Seals {
    key: Key,
    number: u64,
}

impl Key {
    pub(super) fn new(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }
}

impl Keys {
    /// As the other end has them.
    pub(super) fn swapped(self) -> Self {
        Self { sending: self.receiving, receiving: self.sending }
    }
}

impl Seals {
    /// The seals of a connection that has not carried any message.
    pub fn new(key: Key) -> Self {
        Self { key, number: 0 }
    }

    /// The number that is mixed into the present message's checksums, by exclusive or.
    pub fn present(&self) -> u32 {
        if self.key == Key::default() { 0 } else { (wire::mix(self.key.0, self.number) >> 32) as u32 }
    }

    /// The present message is over: the next one follows.
    pub fn advance(&mut self) {
        self.number += 1;
    }
}

impl fmt::Debug for Key {
    /// Nothing of a key is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}
