//! Makes tensors of handwritten digits in a CSV file: 64 pixels from 0 to 16, then the digit.
//!
//! `x` is f32 `[n, 64]`, each image with mean 0 and deviation 1, so that how hard a writer presses says nothing;
//! `y` is s64 `[n]`. The last 360 rows, by other writers, are the split `eval`.

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
    /// Moves, turns and stretches each training image a little, as its seed says.
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
            let image = if request.training && self.config.augment {
                moved(image, seed)
            } else {
                std::array::from_fn(|pixel| image[pixel])
            };
            x.extend_from_slice(&standardised(&image));
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

/// With mean 0 and deviation 1.
fn standardised(image: &[f32; PIXELS]) -> [f32; PIXELS] {
    let mean = image.iter().sum::<f32>() / PIXELS as f32;
    let variance = image.iter().map(|pixel| (pixel - mean).powi(2)).sum::<f32>() / PIXELS as f32;
    // A blank image stays blank.
    let scale = 1.0 / (variance.sqrt() + 1e-3);
    image.map(|pixel| (pixel - mean) * scale)
}

/// How far an image may be moved (pixels), turned (radians) and stretched (fraction), in each direction.
const MOVE: f32 = 0.7;
const TURN: f32 = 0.21;
const STRETCH: f32 = 0.1;

/// The image moved, turned and stretched at random about its middle; what comes in from outside is blank.
fn moved(image: &[f32], seed: u64) -> [f32; PIXELS] {
    let mut random = Random::new(seed);
    let mut within = |limit: f32| (2.0 * random.unit() - 1.0) * limit;
    let (down, right, turn, stretch) =
        (within(MOVE), within(MOVE), within(TURN), 1.0 + within(STRETCH));
    let (sine, cosine) = (turn.sin() / stretch, turn.cos() / stretch);
    let middle = (SIDE as f32 - 1.0) / 2.0;
    std::array::from_fn(|at| {
        let (row, column) = ((at / SIDE) as f32 - middle, (at % SIDE) as f32 - middle);
        let from_row = cosine * row - sine * column + middle + down;
        let from_column = sine * row + cosine * column + middle + right;
        between(image, from_row, from_column)
    })
}

/// The value between pixels, linear in both directions; blank outside.
fn between(image: &[f32], row: f32, column: f32) -> f32 {
    let pixel = |row: f32, column: f32| {
        let inside = |at: f32| (0.0..SIDE as f32).contains(&at);
        if inside(row) && inside(column) {
            image[row as usize * SIDE + column as usize]
        } else {
            0.0
        }
    };
    let (top, left) = (row.floor(), column.floor());
    let (low, side) = (row - top, column - left);
    let upper = pixel(top, left) * (1.0 - side) + pixel(top, left + 1.0) * side;
    let lower = pixel(top + 1.0, left) * (1.0 - side) + pixel(top + 1.0, left + 1.0) * side;
    upper * (1.0 - low) + lower * low
}

export_loader!(Digits);
