//! A loader of made-up digits: `x` f32 `[n, 64]`, `y` s64 `[n]`. Reads no data.

use lockstep_guest::{Error, Loader, Request, config, export_loader, put};
use misbehave::{Config, Mode, misbehave};

const SAMPLES: u64 = 256;
const PIXELS: usize = 64;

struct Misbehaving {
    config: Config,
    calls: u64,
}

impl Loader for Misbehaving {
    fn open(settings: &str, split: &str) -> Result<Self, Error> {
        lockstep_guest::log::info(&format!("opened {split}"));
        Ok(Self { config: config(settings)?, calls: 0 })
    }

    fn len(&self) -> u64 {
        self.config.samples.unwrap_or(SAMPLES)
    }

    fn load(&mut self, request: &Request) -> Result<(), Error> {
        let samples = request.indices.len();
        let pixel = |(index, at): (u64, usize)| ((index * 31 + at as u64 * 7) % 17) as f32 / 16.0;
        let grid = request.indices.iter().flat_map(|&index| (0..PIXELS).map(move |at| (index, at)));
        let mut x: Vec<f32> = grid.map(pixel).collect();
        let y: Vec<i64> = request.indices.iter().map(|index| (index % 10) as i64).collect();

        self.calls += 1;
        if self.config.after_calls < self.calls {
            misbehave(self.config.mode)?;
            match self.config.mode {
                Mode::Shape => return put("x", &[samples as u32, 1 + PIXELS as u32], &x),
                Mode::Nan => x.fill(f32::NAN),
                Mode::Huge => {
                    // Each is small enough for one call of the host; all of them together are not.
                    for name in 0..32 {
                        let row = vec![0_u8; (1 << 20) / samples.max(1)];
                        let piece = row.repeat(samples);
                        put(&format!("x{name}"), &[samples as u32, row.len() as u32], &piece)?;
                    }
                }
                _ => {}
            }
        }
        put("x", &[samples as u32, PIXELS as u32], &x)?;
        put("y", &[samples as u32], &y)
    }
}

export_loader!(Misbehaving);
