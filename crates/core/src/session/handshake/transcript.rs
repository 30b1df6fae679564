//! All bytes of the two sides of a handshake, under the token.

use super::keys::{Key, Keys};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How long a proof is.
pub(super) const PROOF_BYTES: usize = 32;

const CLIENT: [u8; 16] = *b"herringbone clie";
const SERVER: [u8; 16] = *b"herringbone serv";
const KEYS: [u8; 16] = *b"herringbone keys";

/// The running authentication codes of both directions, and of what follows the handshake, over the same bytes under different
/// labels. A proof is one of them at some moment; to know it, one must know the token and have heard every byte.
#[derive(Clone)]
pub(super) struct Transcript {
    client: Hmac<Sha256>,
    server: Hmac<Sha256>,
    /// Of this one nothing is ever sent.
    keys: Hmac<Sha256>,
}

impl Transcript {
    /// Nothing said yet.
    pub(super) fn new(token: &[u8]) -> Self {
        let keyed = Hmac::<Sha256>::new_from_slice(token).expect("HMAC takes keys of any length");
        let labelled = |label| keyed.clone().chain_update(label);
        Self { client: labelled(CLIENT), server: labelled(SERVER), keys: labelled(KEYS) }
    }

    /// Either side has said this.
    pub(super) fn absorb(&mut self, said: &[u8]) {
        self.client.update(said);
        self.server.update(said);
        self.keys.update(said);
    }

    pub(super) fn client_proof(&self) -> [u8; PROOF_BYTES] {
        self.client.clone().finalize().into_bytes().into()
    }

    pub(super) fn server_proof(&self) -> [u8; PROOF_BYTES] {
        self.server.clone().finalize().into_bytes().into()
    }

    /// The keys of the connection, as the client has them.
    pub(super) fn keys_of_client(&self) -> Keys {
        let code: [u8; 32] = self.keys.clone().finalize().into_bytes().into();
        let key = |at: usize| Key::new(core::array::from_fn(|offset| code[at + offset]));
        Keys { sending: key(0), receiving: key(8) }
    }

    /// Compares in constant time.
    pub(super) fn client_proven(&self, proof: &[u8; PROOF_BYTES]) -> bool {
        self.client.clone().verify_slice(proof).is_ok()
    }

    /// Compares in constant time.
    pub(super) fn server_proven(&self, proof: &[u8; PROOF_BYTES]) -> bool {
        self.server.clone().verify_slice(proof).is_ok()
    }
}
