//! Makes tensors of handwritten digits in a CSV file: 64 pixels from 0 to 16, then the digit.
//!
//! `x` is f32 `[n, 64]`, pixels from 0 to 1; `y` is s64 `[n]`. The last 360 rows are the split `eval`.

use lockstep_guest::{Error, Loader, Random, Request, config, export_loader, put, read_file};

/// The file in the dataset.
const FILE: &str = "digits.csv";

/// Images are squares of so many pixels.
const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;

/// Rows of the file, and how many of them are trained on.
const ROWS: usize = 1797;
const TRAIN_ROWS: usize = 1437;

/// Settings, `loader.config` in the job.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Shifts each training image by up to one pixel in each direction, as its seed says.
    augment: bool,
}

struct Digits {
    config: Config,
    pixels: Vec<f32>,
    labels: Vec<i64>,
}

impl Loader for Digits {
    fn open(settings: &str, split: &str) -> Result<Self, Error> {
        let config = config(settings)?;
        let bytes = read_file(FILE)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| Error::data(error.to_string()))?;
        let rows: Vec<&str> = text.lines().collect();
        if rows.len() != ROWS {
            return Err(Error::data(format!("{FILE} has {} rows, expected {ROWS}", rows.len())));
        }
        let rows = match split {
            "train" => &rows[..TRAIN_ROWS],
            "eval" => &rows[TRAIN_ROWS..],
            other => return Err(Error::data(format!("no split {other:?}, only train and eval"))),
        };
        let mut digits = Digits { config, pixels: Vec::new(), labels: Vec::new() };
        for (index, row) in rows.iter().enumerate() {
            digits.read_row(row).map_err(|why| Error::sample(index as u64, why))?;
        }
        Ok(digits)
    }

    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn load(&mut self, request: &Request) -> Result<(), Error> {
        let samples = request.indices.len();
        let mut x = Vec::with_capacity(samples * PIXELS);
        let mut y = Vec::with_capacity(samples);
        for (&index, &seed) in request.indices.iter().zip(&request.seeds) {
            let at = index as usize;
            let label = self.labels.get(at).ok_or_else(|| Error::sample(index, "no such row"))?;
            let image = &self.pixels[at * PIXELS..][..PIXELS];
            if request.training && self.config.augment {
                x.extend_from_slice(&shifted(image, seed));
            } else {
                x.extend_from_slice(image);
            }
            y.push(*label);
        }
        put("x", &[samples as u32, PIXELS as u32], &x)?;
        put("y", &[samples as u32], &y)
    }
}

impl Digits {
    fn read_row(&mut self, row: &str) -> Result<(), String> {
        let numbers: Vec<u8> = row
            .split(',')
            .map(|cell| cell.parse().map_err(|_| format!("{cell:?} is no number")))
            .collect::<Result<_, _>>()?;
        let [pixels @ .., label] = numbers.as_slice() else { return Err("empty".to_owned()) };
        if pixels.len() != PIXELS || 9 < *label {
            return Err(format!("expected {PIXELS} pixels and a digit, got {row:?}"));
        }
        self.pixels.extend(pixels.iter().map(|&pixel| f32::from(pixel) / 16.0));
        self.labels.push(i64::from(*label));
        Ok(())
    }
}

/// The image moved by -1, 0 or 1 in each direction; what comes in from outside is blank.
fn shifted(image: &[f32], seed: u64) -> [f32; PIXELS] {
    let mut random = Random::new(seed);
    let (down, right) = (random.below(3) as isize - 1, random.below(3) as isize - 1);
    std::array::from_fn(|at| {
        let row = (at / SIDE).checked_add_signed(-down).filter(|row| *row < SIDE);
        let column = (at % SIDE).checked_add_signed(-right).filter(|column| *column < SIDE);
        row.zip(column).map_or(0.0, |(row, column)| image[row * SIDE + column])
    })
}

export_loader!(Digits);
