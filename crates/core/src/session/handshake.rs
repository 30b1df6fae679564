//! The first messages on every connection: they identify the other side, and prove that it knows the job's token.
//!
//! ```text
//! client                                                                 server
//!   Hello    versions, purpose, who it is, a nonce          ->
//!                                         <-    Challenge    agreed version, a nonce
//!   Proof    HMAC(token, client, Hello Challenge)           ->
//!                                         <-    Welcome      who it is, HMAC(token, server, all of the above)
//!   Ready    if the connection stays                        ->
//! ```
//! Instead of its next message a server can send a Refuse with a [`Refusal`]. The client proves itself first, so a
//! stranger who connects learns nothing that depends on the token. The proofs cover every earlier byte, so neither
//! side's identity, version or purpose can be altered. They cover both nonces, so no recording can be played again. The
//! labels of the two directions differ, so no proof can be reflected. (HMAC-SHA256: RFC 2104, FIPS 180-4.) A client that
//! waits in vain hangs up and calls again. Its Ready shows a server that stood still meanwhile which of these connections
//! it has kept: without it both could believe in different ones. After the
//! handshake, [`Keys`] protect only the place of each message: an attacker who can alter packets on their way still
//! can.
//!
//! A message is a prefix of eight bytes (magic `a8 'H' 'R' 'B'`, kind u8, zero u8, length u16), then its body. At most
//! 1 KiB is held per connection. Bytes that do not begin with the magic are refused at the first wrong byte, without an
//! answer. The caller gives a connection [`DEADLINE_MILLISECONDS`] for all of it, limits how many can be in it at once,
//! and draws the nonces from the system's random numbers.

mod assembler;
mod error;
mod keys;
mod message;
mod transcript;

pub use super::versions::Versions;
pub use error::{Expected, HandshakeError};
pub use keys::{Key, Keys, Seals};
pub use message::{Hello, Identity, Purpose, READY, Seen};

use super::{
    Refusal, Role,
    codec::{Malformed, Reader, Writer},
};
use alloc::vec::Vec;
use assembler::Assembler;
use core::fmt;
use message::{CHALLENGE, HELLO, PREFIX_BYTES, PROOF, REFUSE, WELCOME, kind, message};
use transcript::{PROOF_BYTES, Transcript};

/// The time limit of a handshake, from the connection's first moment to the Welcome.
pub const DEADLINE_MILLISECONDS: u64 = 5_000;

/// The least bytes of a message: that many can be read before anything is known of the other side.
pub const LEAST_BYTES: usize = PREFIX_BYTES;

/// How many random bytes each side contributes.
pub const NONCE_BYTES: usize = 32;

/// The clients that a server admits. A field that is `None` allows any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The server's versions.
    pub versions: Versions,
    /// Its job.
    pub job: Option<u64>,
    /// How many workers there are.
    pub world: Option<u32>,
}

/// A connection whose two ends know that both know the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Established {
    /// The version that both will speak.
    pub version: u16,
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The identity of the other end.
    pub other: Identity,
    /// The keys that bind the following bytes to this connection.
    pub keys: Keys,
}

/// The result of taking bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Received<T> {
    /// How many of them belonged to the handshake; later bytes follow it.
    pub consumed: usize,
    /// The end of this side's part, when it is reached.
    pub done: Option<T>,
}

/// The side that opened the connection.
pub struct Client {
    hello: Hello,
    expected: Option<Expected>,
    version: Option<u16>,
    transcript: Transcript,
    incoming: Assembler,
    outgoing: Option<Vec<u8>>,
}

impl Client {
    /// Begins; `nonce` must be random and used once.
    pub fn new(hello: Hello, expected: Expected, token: &[u8], nonce: [u8; NONCE_BYTES]) -> Self {
        Self { expected: Some(expected), ..Self::of_anyone(hello, token, nonce) }
    }

    /// As [`new`](Self::new), for any server that knows the token.
    pub fn of_anyone(hello: Hello, token: &[u8], nonce: [u8; NONCE_BYTES]) -> Self {
        let mut body = Writer::default();
        hello.write(&mut body);
        body.bytes(&nonce);
        let (mut transcript, first) = (Transcript::new(token), message(HELLO, body));
        transcript.absorb(&first);
        let (incoming, outgoing) = (Assembler::default(), Some(first));
        Self { hello, expected: None, version: None, transcript, incoming, outgoing }
    }

    /// The next message to send; call this after `new` and after every [`receive`](Self::receive).
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        self.outgoing.take()
    }

    /// How many bytes belong to the handshake in any case. A caller that reads no more at once leaves the bytes behind
    /// it in the socket.
    pub fn wants(&self) -> usize {
        self.incoming.missing()
    }

    /// Takes bytes that have arrived. After it is done or has failed, it consumes no more.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Received<Established>, HandshakeError> {
        receive(self, bytes)
    }

    fn prove(&mut self, challenge: &[u8]) -> Result<(), HandshakeError> {
        let mut body = Reader(&challenge[PREFIX_BYTES..]);
        let version = body.u16()?;
        body.array::<NONCE_BYTES>()?;
        body.finish()?;
        if !self.hello.versions.contain(version) {
            return Err(HandshakeError::Malformed { reason: "it chose a version that was not offered" });
        }
        self.transcript.absorb(challenge);
        let mut body = Writer::default();
        body.bytes(&self.transcript.client_proof());
        let proof = message(PROOF, body);
        self.transcript.absorb(&proof);
        self.version = Some(version);
        self.outgoing = Some(proof);
        Ok(())
    }

    fn enter(&mut self, version: u16, welcome: &[u8]) -> Result<Established, HandshakeError> {
        let said = welcome.split_last_chunk::<PROOF_BYTES>().filter(|(said, _)| said.len() >= PREFIX_BYTES);
        let (said, proof) = said.ok_or(Malformed("it ends too early"))?;
        self.transcript.absorb(said);
        if !self.transcript.server_proven(proof) {
            return Err(HandshakeError::Unproven);
        }
        let mut body = Reader(&said[PREFIX_BYTES..]);
        let found = Identity::read(&mut body)?;
        body.finish()?;
        let own = self.hello.identity;
        if own.job != 0 && found.job != own.job {
            return Err(HandshakeError::Refusing(Refusal::Job { ours: own.job, theirs: found.job }));
        }
        if let Some(expected) = self.expected {
            if found.role != expected.role || expected.rank.is_some_and(|rank| rank != found.rank) {
                return Err(HandshakeError::WrongPeer { expected, found });
            }
            if expected.incarnation.is_some_and(|incarnation| incarnation != found.incarnation) {
                let Identity { role, rank, .. } = found;
                return Err(HandshakeError::Refusing(Refusal::Restarted { role, rank }));
            }
        }
        let keys = self.transcript.keys_of_client();
        Ok(Established { version, purpose: self.hello.purpose, other: found, keys })
    }
}

/// The side that accepted the connection.
pub struct Server {
    policy: Policy,
    nonce: [u8; NONCE_BYTES],
    asked: Option<(Hello, u16)>,
    transcript: Transcript,
    incoming: Assembler,
    outgoing: Option<Vec<u8>>,
}

impl Server {
    /// Waits for a client; `nonce` must be random and used once.
    pub fn new(token: &[u8], nonce: [u8; NONCE_BYTES], policy: Policy) -> Self {
        let (transcript, incoming) = (Transcript::new(token), Assembler::default());
        Self { policy, nonce, asked: None, transcript, incoming, outgoing: None }
    }

    /// The next message to send; call this after every [`receive`](Self::receive), even after one that failed.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        self.outgoing.take()
    }

    /// How many bytes belong to the handshake in any case. A caller that reads no more at once leaves the bytes behind
    /// it in the socket.
    pub fn wants(&self) -> usize {
        self.incoming.missing()
    }

    /// Whether the client has begun a message and not ended it. An honest client sends each in one piece.
    pub fn is_interrupted(&self) -> bool {
        self.incoming.is_within()
    }

    /// Takes bytes that have arrived. After it has a [`Claim`] or has failed, it consumes no more.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Received<Claim>, HandshakeError> {
        receive(self, bytes)
    }

    fn challenge(&mut self, message_of_client: &[u8]) -> Result<(), HandshakeError> {
        let mut from = Reader(&message_of_client[PREFIX_BYTES..]);
        // What a later version appends to its Hello is covered by the proofs, and otherwise of no concern here.
        let hello = Hello::read(&mut from)?;
        from.array::<NONCE_BYTES>()?;
        let (ours, theirs) = (self.policy.versions, hello.versions);
        let version = ours.agree(theirs).ok_or_else(|| self.refuse(Refusal::Version { ours, theirs }))?;
        let mut body = Writer::default();
        body.u16(version);
        body.bytes(&self.nonce);
        let challenge = message(CHALLENGE, body);
        self.transcript.absorb(message_of_client);
        self.transcript.absorb(&challenge);
        self.asked = Some((hello, version));
        self.outgoing = Some(challenge);
        Ok(())
    }

    fn examine(&mut self, hello: Hello, version: u16, proof: &[u8]) -> Result<Claim, HandshakeError> {
        let mut body = Reader(&proof[PREFIX_BYTES..]);
        let claimed = body.array()?;
        body.finish()?;
        if !self.transcript.client_proven(&claimed) {
            return Err(self.refuse(Refusal::Token));
        }
        self.policy.check(&hello).map_err(|refusal| self.refuse(refusal))?;
        self.transcript.absorb(proof);
        Ok(Claim { hello, version, transcript: self.transcript.clone() })
    }

    fn refuse(&mut self, refusal: Refusal) -> HandshakeError {
        self.outgoing = Some(refuse(&refusal));
        HandshakeError::Refusing(refusal)
    }
}

/// A client that has proved that it knows the token, and waits to be let in.
pub struct Claim {
    hello: Hello,
    version: u16,
    transcript: Transcript,
}

impl Claim {
    /// The client, and its purpose.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Lets the client in: the Welcome to send, and the connection that has come about.
    pub fn accept(mut self, own: Identity) -> (Vec<u8>, Established) {
        let mut body = Writer::default();
        own.write(&mut body);
        body.bytes(&[0; PROOF_BYTES]);
        let mut welcome = message(WELCOME, body);
        let end = welcome.len() - PROOF_BYTES;
        self.transcript.absorb(&welcome[..end]);
        welcome[end..].copy_from_slice(&self.transcript.server_proof());
        let Hello { identity: other, purpose, .. } = self.hello;
        let keys = self.transcript.keys_of_client().swapped();
        (welcome, Established { version: self.version, purpose, other, keys })
    }

    /// Turns the client away: the Refuse to send before closing.
    pub fn refuse(self, refusal: &Refusal) -> Vec<u8> {
        refuse(refusal)
    }
}

impl Policy {
    fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        let Identity { role, job, rank, world, .. } = hello.identity;
        let only_asks = hello.purpose == Purpose::Status;
        let unknown_yet = job == 0
            && (only_asks
                || matches!(
                    hello.purpose,
                    Purpose::Join | Purpose::Decline | Purpose::Enlist | Purpose::Greeting
                ));
        if let Some(ours) = self.job
            && job != ours
            && !unknown_yet
        {
            return Err(Refusal::Job { ours, theirs: job });
        }
        if only_asks {
            return Ok(());
        }
        if let Some(ours) = self.world
            && role == Role::Worker
            && world != ours
        {
            return Err(Refusal::World { rank, ours, theirs: world });
        }
        if rank < world { Ok(()) } else { Err(Refusal::RankOutOfRange { rank, world }) }
    }
}

/// One side of a handshake: a machine that takes whole messages.
trait Side {
    type Done;

    fn incoming(&mut self) -> &mut Assembler;

    fn handle(&mut self, message: &[u8]) -> Result<Option<Self::Done>, HandshakeError>;
}

impl Side for Client {
    type Done = Established;

    fn incoming(&mut self) -> &mut Assembler {
        &mut self.incoming
    }

    fn handle(&mut self, message: &[u8]) -> Result<Option<Established>, HandshakeError> {
        match (kind(message), self.version) {
            (CHALLENGE, None) => self.prove(message).map(|()| None),
            (WELCOME, Some(version)) => self.enter(version, message).map(Some),
            (REFUSE, _) => {
                let refusal = Refusal::read(&mut Reader(&message[PREFIX_BYTES..]))?;
                Err(HandshakeError::Refused(refusal))
            }
            _ => Err(OUT_OF_TURN),
        }
    }
}

impl Side for Server {
    type Done = Claim;

    fn incoming(&mut self) -> &mut Assembler {
        &mut self.incoming
    }

    fn handle(&mut self, message: &[u8]) -> Result<Option<Claim>, HandshakeError> {
        match (kind(message), self.asked) {
            (HELLO, None) => self.challenge(message).map(|()| None),
            (PROOF, Some((hello, version))) => self.examine(hello, version, message).map(Some),
            _ => Err(OUT_OF_TURN),
        }
    }
}

const OUT_OF_TURN: HandshakeError = HandshakeError::Malformed { reason: "it is not this message's turn" };

fn receive<S: Side>(side: &mut S, bytes: &[u8]) -> Result<Received<S::Done>, HandshakeError> {
    let mut consumed = 0;
    loop {
        let (taken, whole) = side.incoming().take(&bytes[consumed..])?;
        consumed += taken;
        let Some(message) = whole else { return Ok(Received { consumed, done: None }) };
        let done = side.handle(&message).inspect_err(|_| side.incoming().over = true);
        if let Some(done) = done? {
            side.incoming().over = true;
            return Ok(Received { consumed, done: Some(done) });
        }
    }
}

fn refuse(refusal: &Refusal) -> Vec<u8> {
    let mut body = Writer::default();
    refusal.write(&mut body);
    message(REFUSE, body)
}

// The transcripts hold keys: nothing of them is shown.

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("hello", &self.hello).finish_non_exhaustive()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("hello", &self.hello).finish_non_exhaustive()
    }
}
