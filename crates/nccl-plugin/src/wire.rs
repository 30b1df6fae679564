//! The protocol, without sockets: the greeting of each stream, and how messages are cut over the streams of a
//! connection.
//!
//! A connection carries messages in one direction, in the order in which they are sent and posted. Message `m` of a connection with
//! `n` streams has a header on stream `m % n`, and its bytes in pieces from that stream on, one on each. Both ends compute the pieces
//! from the header, so a piece has no header of its own, and each stream is read in order.
//!
//! All bytes from a stream are checked here before they decide anything. An invalid header ends the connection, and so
//! does a message that is longer than the receive that was posted for it.

pub(crate) mod greeting;
pub(crate) mod message;
pub(crate) mod receive_queue;
pub(crate) mod send_queue;
