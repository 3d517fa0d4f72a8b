//! What programs that measure ranks have in common: ranks as processes, started as an agent starts
//! them, and the protocol of bench/README.md. Knows nothing of what is measured.

mod parent;
mod protocol;
mod rank;

pub use parent::Ranks;
pub use protocol::{answer_commands, peak_rss_mib};
pub use rank::{RankArguments, milliseconds, serve, take_core};
