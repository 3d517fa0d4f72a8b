//! What two ranks say to each other before anything else: who calls whom, and that both know the group's key.

use std::io;

use sha2::{Digest as _, Sha256};
use snow::Builder;

use super::join::Network;

/// Authentication by the key alone, with keys for encryption that nobody can find out later.
const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const MAGIC: [u8; 4] = *b"LKSH";
pub(super) const HELLO_BYTES: usize = 24;
/// Of each message of the handshake: a public key and a seal.
pub(super) const MESSAGE_BYTES: usize = 48;
/// The caller's last word: nothing, sealed.
pub(super) const PROOF_BYTES: usize = 16;
/// Before the answer: whether there is one, and the generation.
pub(super) const STATUS_BYTES: usize = 16;
pub(super) const WELCOME: u8 = 1;
pub(super) const STALE: u8 = 2;

/// Who calls whom, in clear; the handshake proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) generation: u64,
    pub(super) lane: u8,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) encrypt: bool,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let small = |rank: usize| u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = u8::from(self.encrypt);
        bytes[5] = self.lane;
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..20].copy_from_slice(&small(self.from));
        bytes[20..].copy_from_slice(&small(self.to));
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let small = |at: usize| {
            let word = u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
            usize::try_from(word).ok()
        };
        let hello = Self {
            generation: u64::from_le_bytes(std::array::from_fn(|index| bytes[8 + index])),
            lane: bytes[5],
            from: small(16)?,
            to: small(20)?,
            encrypt: bytes[4] == 1,
        };
        (hello.encode() == *bytes).then_some(hello)
    }
}

/// The state of a handshake that begins with such a hello.
pub(super) fn handshake<'h>(psk: &'h [u8; 32], hello: &'h [u8]) -> io::Result<Builder<'h>> {
    let protocol = PROTOCOL.parse().map_err(io::Error::other)?;
    let builder = Builder::new(protocol).psk(0, psk).map_err(io::Error::other)?;
    builder.prologue(hello).map_err(io::Error::other)
}

/// The key of all handshakes of a generation.
pub(super) fn psk(network: &Network) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"lockstep ranks");
    hash.update(network.generation.to_le_bytes());
    hash.update(&network.key);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_comes_through_and_nothing_else_is_taken_for_one() {
        let hello = Hello { generation: 7 << 40, lane: 1, from: 3, to: 2, encrypt: true };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        for index in [0, 4, 7] {
            let mut other = bytes;
            other[index] ^= 0x40;
            assert_eq!(Hello::decode(&other), None, "octet {index}");
        }
    }
}
