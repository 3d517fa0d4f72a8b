//! What test guests do when told to.

use lockstep_guest::Error;

/// The guests' config.
#[derive(serde::Deserialize, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub mode: Mode,
    /// Calls that go well before.
    pub after_calls: u64,
    /// What a loader says it has.
    pub samples: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self { mode: Mode::None, after_calls: 0, samples: None }
    }
}

#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Behave.
    None,
    /// Never return.
    Loop,
    /// Allocate without end.
    Bomb,
    /// Panic.
    Trap,
    /// Recurse without end.
    Overflow,
    /// Answer with an error.
    Error,
    /// A wrong shape: the guest itself knows how.
    Shape,
    /// A number that is none.
    Nan,
    /// More output than allowed.
    Huge,
    /// A graph of more numbers than there is memory for.
    Graph,
    /// More log than allowed.
    Chatter,
    /// A loss that depends on nothing, in batches of fewer than 16 samples.
    Blind,
}

/// Does what is the same in all guests. Returns for the modes that are not.
pub fn misbehave(mode: Mode) -> Result<(), Error> {
    match mode {
        Mode::Loop => {
            let mut count = 0_u64;
            loop {
                count = std::hint::black_box(count.wrapping_add(1));
            }
        }
        Mode::Bomb => {
            let mut kept: Vec<Vec<u8>> = Vec::new();
            loop {
                kept.push(std::hint::black_box(vec![1; 4 << 20]));
            }
        }
        Mode::Trap => panic!("told to trap"),
        Mode::Overflow => {
            let sum = descend(u64::MAX);
            Err(Error::internal(format!("the stack has no end: {sum}")))
        }
        Mode::Error => Err(Error::sample(17, "told to fail")),
        Mode::Chatter => {
            for line in 0..100_000 {
                lockstep_guest::log::info(&format!("line {line}"));
            }
            Ok(())
        }
        Mode::None | Mode::Shape | Mode::Nan | Mode::Huge | Mode::Graph | Mode::Blind => Ok(()),
    }
}

/// Neither a loop nor a user of the stack in linear memory: only the machine's own stack grows.
#[inline(never)]
fn descend(depth: u64) -> u64 {
    if depth == 0 { 1 } else { (descend(depth - 1) ^ depth).rotate_left(7) }
}
