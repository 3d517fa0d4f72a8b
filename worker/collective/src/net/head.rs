//! The head of a message: 56 bytes, little-endian, before the payload. It has the payload's checksum: that of TCP lets one
//! broken segment in some 65,000 pass, and a wrong number would be everybody's.

use std::time::Duration;

use crate::op::OpWords;

/// "LKS2", so that no other stream is taken for ours.
const MAGIC: u32 = u32::from_le_bytes(*b"LKS2");

/// What a message carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers to be added up by whoever gets them.
    Part,
    /// Numbers as they are for all.
    Result,
    /// A few bytes that leaders tell each other.
    Note,
    /// The group is given up; the payload says why.
    Abort,
    /// No payload: the sender itself waits for the ranks whose bits `first` has, or, without any, is busy itself;
    /// `partial` says for how long they have announced to be so.
    Waiting,
}

/// What pauses travel in.
const PAUSE_UNIT: Duration = Duration::from_millis(100);

/// A pause as it travels: rounded up, at most some 109 minutes.
pub(crate) fn pause_units(pause: Duration) -> u16 {
    u16::try_from(pause.as_millis().div_ceil(PAUSE_UNIT.as_millis())).unwrap_or(u16::MAX)
}

/// The largest payload of a note or a verdict.
pub(crate) const NOTE_BYTES_CAP: usize = 64 << 20;

/// The head of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// Of a part: which of the sender's partial sums. Of waiting: what is left of a pause, in [`PAUSE_UNIT`]s.
    pub(crate) partial: u16,
    /// The exchange it belongs to, counted from 1 since the group formed.
    pub(crate) exchange: u64,
    pub(crate) op: OpWords,
    /// Of numbers: the first, in the collective.
    pub(crate) first: u64,
    /// Bytes of the payload.
    pub(crate) bytes: u32,
    /// CRC-32 of the payload.
    pub(crate) check: u32,
}

impl Head {
    /// Of a [`Kind::Waiting`]: how long the pause lasts from now on at most.
    pub(crate) fn pause(&self) -> Duration {
        PAUSE_UNIT * u32::from(self.partial)
    }

    pub(crate) const BYTES: usize = 56;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let kind: u16 = match self.kind {
            Kind::Part => 1,
            Kind::Result => 2,
            Kind::Note => 3,
            Kind::Abort => 4,
            Kind::Waiting => 5,
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&kind.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.partial.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.exchange.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.op[0].to_le_bytes());
        bytes[24..32].copy_from_slice(&self.op[1].to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.check.to_le_bytes());
        bytes
    }

    /// `None` when it is no head of ours.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let quarter =
            |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let kind = match half(4) {
            1 => Kind::Part,
            2 => Kind::Result,
            3 => Kind::Note,
            4 => Kind::Abort,
            5 => Kind::Waiting,
            _ => return None,
        };
        let is_ours = quarter(0) == MAGIC && bytes[48..].iter().all(|octet| *octet == 0);
        is_ours.then(|| Self {
            kind,
            partial: half(6),
            exchange: word(8),
            op: [word(16), word(24)],
            first: word(32),
            bytes: quarter(40),
            check: quarter(44),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_travels_rounded_up() {
        let told = |pause| {
            let partial = pause_units(pause);
            let (kind, op) = (Kind::Waiting, [0; 2]);
            Head { kind, partial, exchange: 0, op, first: 0, bytes: 0, check: 0 }.pause()
        };
        assert_eq!(told(Duration::ZERO), Duration::ZERO);
        assert_eq!(told(Duration::from_millis(1)), PAUSE_UNIT);
        assert_eq!(told(Duration::from_secs(300)), Duration::from_secs(300));
        assert_eq!(told(Duration::from_secs(1 << 20)), PAUSE_UNIT * 65535);
    }

    #[test]
    fn a_head_comes_through_and_nothing_else_is_taken_for_one() {
        let head = Head {
            kind: Kind::Result,
            partial: 3,
            exchange: u64::MAX - 1,
            op: [7, 8 << 50],
            first: 1 << 40,
            bytes: 12,
            check: 13,
        };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Some(head));
        for index in [0, 5, 50] {
            let mut other = bytes;
            other[index] ^= 0x40;
            assert_eq!(Head::decode(&other), None, "octet {index}");
        }
    }
}
