//! The text of a token: `lsk_<8 characters that name it>_<43 characters of secret>`.
//!
//! A fast hash is right here: the secret has 256 random bits, so there is nothing to guess, and a slow hash would let
//! anyone burn the server's time.

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::app::Random;

/// Length of the part that names the token.
const PUBLIC_CHARS: usize = 8;
/// Length of the secret part: 43 of 62 characters carry 256 bits.
const SECRET_CHARS: usize = 43;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// `lsk_`: a principal in a project.
    Access,
    /// `lsj_`: a machine that wants to become a node.
    Join,
    /// `lsn_`: a node.
    Node,
}

impl TokenKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Access => "lsk",
            Self::Join => "lsj",
            Self::Node => "lsn",
        }
    }
}

/// A fresh token. The text is shown once; the name and the hash are kept.
pub(crate) struct Minted {
    pub(crate) text: String,
    pub(crate) public_id: String,
    pub(crate) hash: [u8; 32],
}

impl Minted {
    pub(crate) fn new(kind: TokenKind, random: &Random) -> Self {
        let public_id = characters(random, PUBLIC_CHARS);
        let secret = characters(random, SECRET_CHARS);
        let text = format!("{}_{public_id}_{secret}", kind.prefix());
        Self { text, public_id, hash: Sha256::digest(secret).into() }
    }
}

impl std::fmt::Debug for Minted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minted").field("public_id", &self.public_id).finish_non_exhaustive()
    }
}

/// A token as someone sent it: well formed, not yet known to be good.
pub(crate) struct Presented {
    pub(crate) public_id: String,
    hash: [u8; 32],
}

impl Presented {
    pub(crate) fn parse(kind: TokenKind, text: &str) -> Option<Self> {
        let rest = text.strip_prefix(kind.prefix())?.strip_prefix('_')?;
        let (public_id, secret) = rest.split_once('_')?;
        let is_well_formed = public_id.len() == PUBLIC_CHARS
            && secret.len() == SECRET_CHARS
            && (public_id.bytes().chain(secret.bytes())).all(|byte| byte.is_ascii_alphanumeric());
        is_well_formed
            .then(|| Self { public_id: public_id.to_owned(), hash: Sha256::digest(secret).into() })
    }

    /// Compares in constant time.
    pub(crate) fn proves(&self, stored_hash: &[u8]) -> bool {
        self.hash.ct_eq(stored_hash).into()
    }
}

impl std::fmt::Debug for Presented {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presented").field("public_id", &self.public_id).finish_non_exhaustive()
    }
}

/// `count` characters, each equally likely.
fn characters(random: &Random, count: usize) -> String {
    // 248 is the largest multiple of 62 in a byte; bytes from there on would favour the first letters.
    const FAIR: u8 = 248;
    let mut text = String::with_capacity(count);
    while text.len() < count {
        for byte in random.bytes::<64>() {
            if byte < FAIR && text.len() < count {
                text.push(char::from(ALPHABET[usize::from(byte % 62)]));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_token_proves_itself_and_no_other_does() {
        let random = Random::system();
        let minted = Minted::new(TokenKind::Access, &random);
        let other = Minted::new(TokenKind::Access, &random);
        let presented = Presented::parse(TokenKind::Access, &minted.text).unwrap();
        assert_eq!(presented.public_id, minted.public_id);
        assert!(presented.proves(&minted.hash));
        assert!(!presented.proves(&other.hash));
        assert!(!presented.proves(&[]));
        assert!(Presented::parse(TokenKind::Node, &minted.text).is_none());
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let minted = Minted::new(TokenKind::Join, &Random::system());
        let secret = minted.text.rsplit('_').next().unwrap();
        let presented = Presented::parse(TokenKind::Join, &minted.text).unwrap();
        assert!(!format!("{minted:?} {presented:?}").contains(secret));
    }

    #[test]
    fn what_is_no_token_is_not_parsed() {
        let good = Minted::new(TokenKind::Access, &Random::system()).text;
        for text in [
            "",
            "lsk_",
            "lsk__",
            &good[..good.len() - 1],
            &format!("{good}x"),
            &good.replace('_', "-"),
        ] {
            assert!(Presented::parse(TokenKind::Access, text).is_none(), "{text}");
        }
    }
}
