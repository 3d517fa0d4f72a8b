//! Makes tensors of stretches of an ASCII text: a token is a byte, from 0 to 127.
//!
//! `input_ids` is s64 `[n, T]`, `T` characters; `y` is s64 `[n, T]`, the character after each. The text is cut into cells of `T`
//! characters; a sample is the stretch that begins with its cell. With `shift`, a training sample begins anywhere in
//! its cell, as its seed says, so that an epoch sees each cell once and other epochs see it cut elsewhere.
//! The last twentieth of the text is the split `eval`.

use lockstep_guest::{Error, Loader, Random, Request, config, dataset, export_loader, put};

/// The file in the dataset.
const FILE: &str = "text.txt";

/// Tokens there are.
const VOCABULARY: u8 = 128;

/// One part in so many, the last, is the split `eval`.
const EVAL_PART: u64 = 20;

/// Longest stretch.
const LENGTH_CAP: u32 = 65_536;

/// Bytes of one read while the text is checked.
const PIECE: u32 = 1 << 20;

/// Settings, `loader.config` in the job.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Characters of a sample, `T`.
    length: u32,
    /// Training samples begin anywhere in their cell.
    #[serde(default)]
    shift: bool,
}

struct Text {
    length: u64,
    shift: bool,
    file: dataset::Object,
    /// Where the split begins in the file, and how many characters it has.
    start: u64,
    size: u64,
}

impl Loader for Text {
    fn open(settings: &str, split: &str) -> Result<Self, Error> {
        let Config { length, shift } = config(settings)?;
        if !(1..=LENGTH_CAP).contains(&length) {
            return Err(Error::Config(format!("length is {length}, expected 1 to {LENGTH_CAP}")));
        }
        let file = dataset::open(FILE)?;
        let (all, length) = (file.size(), u64::from(length));
        let trained_on = all - all / EVAL_PART;
        let (start, size) = match split {
            "train" => (0, trained_on),
            "eval" => (trained_on, all - trained_on),
            other => return Err(Error::data(format!("no split {other:?}, only train and eval"))),
        };
        if size <= length {
            let message =
                format!("{FILE} has {size} characters for {split}, fewer than length + 1");
            return Err(Error::data(message));
        }
        check(&file, start, size)?;
        Ok(Self { length, shift, file, start, size })
    }

    fn len(&self) -> u64 {
        // The last character of a stretch has one after it.
        (self.size - 1) / self.length
    }

    fn load(&mut self, request: &Request) -> Result<(), Error> {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for (&index, &seed) in request.indices.iter().zip(&request.seeds) {
            if self.len() <= index {
                return Err(Error::sample(index, "no such stretch"));
            }
            let shift = match request.training && self.shift {
                true => Random::new(seed).below(self.length),
                false => 0,
            };
            // A shifted last cell would run over the end of the split.
            let last = self.size - 1 - self.length;
            let from = self.start + last.min(index * self.length + shift);
            let bytes = self.file.read(from, self.length as u32 + 1)?;
            let ([before @ .., _], [_, after @ ..]) = (&bytes[..], &bytes[..]) else {
                return Err(Error::sample(index, "the text ends before this stretch"));
            };
            inputs.extend(before.iter().map(|&byte| i64::from(byte)));
            targets.extend(after.iter().map(|&byte| i64::from(byte)));
        }
        let shape = [request.indices.len() as u32, self.length as u32];
        put("input_ids", &shape, &inputs)?;
        put("y", &shape, &targets)
    }
}

/// Refuses a byte that is no token.
fn check(file: &dataset::Object, start: u64, size: u64) -> Result<(), Error> {
    let mut checked = 0;
    while checked < size {
        // No further than the split: what the other one holds is not this one's to refuse.
        let length = u64::from(PIECE).min(size - checked);
        let piece = file.read(start + checked, length as u32)?;
        if piece.is_empty() {
            return Err(Error::data(format!("{FILE} ends at {}", start + checked)));
        }
        if let Some(at) = piece.iter().position(|&byte| VOCABULARY <= byte) {
            let (byte, at) = (piece[at], start + checked + at as u64);
            return Err(Error::data(format!(
                "{FILE}: byte {byte} at {at}, expected ASCII (below 128)"
            )));
        }
        checked += piece.len() as u64;
    }
    Ok(())
}

export_loader!(Text);
