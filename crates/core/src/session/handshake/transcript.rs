//! All that the two sides of a handshake have said, under the token.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How long a proof is.
pub(super) const PROOF_BYTES: usize = 32;

const CLIENT: [u8; 16] = *b"herringbone clie";
const SERVER: [u8; 16] = *b"herringbone serv";

/// The running authentication codes of both directions, over the same bytes under different labels. A proof is one of
/// them at some moment; to know it, one must know the token and have heard every byte.
#[derive(Clone)]
pub(super) struct Transcript {
    client: Hmac<Sha256>,
    server: Hmac<Sha256>,
}

impl Transcript {
    /// Nothing said yet.
    pub(super) fn new(token: &[u8]) -> Self {
        let keyed = Hmac::<Sha256>::new_from_slice(token).expect("HMAC takes keys of any length");
        Self { client: keyed.clone().chain_update(CLIENT), server: keyed.chain_update(SERVER) }
    }

    /// Either side has said this.
    pub(super) fn absorb(&mut self, said: &[u8]) {
        self.client.update(said);
        self.server.update(said);
    }

    pub(super) fn client_proof(&self) -> [u8; PROOF_BYTES] {
        self.client.clone().finalize().into_bytes().into()
    }

    pub(super) fn server_proof(&self) -> [u8; PROOF_BYTES] {
        self.server.clone().finalize().into_bytes().into()
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
