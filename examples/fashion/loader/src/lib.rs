//! Makes tensors of the Fashion-MNIST images, read from the IDX files they are published as.
//!
//! `x` is f32 `[n, 1, 28, 28]`, pixels from 0 to 1 with the training images' mean taken off, divided by their
//! deviation; `y` is s64 `[n]`. The split `train` has 60,000 images, `eval` 10,000 others.
//!
//! Images are read when they are asked for: the guest holds the labels and one image at a time.

mod idx;

use idx::IdxFile;
use lockstep_guest::{Error, Loader, Random, Request, config, export_loader, put};

/// Images are squares of so many pixels.
const SIDE: usize = 28;
const PIXELS: usize = SIDE * SIDE;

/// Mean and deviation of all pixels of the training images, where 1 is white.
const MEAN: f32 = 0.2860;
const DEVIATION: f32 = 0.3530;

/// Kinds of clothing.
const CLASSES: u8 = 10;

/// Farthest that an image is shifted, pixels, in each direction.
const SHIFT: i64 = 2;

/// Settings, `loader.config` in the job.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Mirrors and shifts each training image, as its seed says.
    augment: bool,
}

struct Fashion {
    config: Config,
    images: IdxFile<3>,
    labels: Vec<u8>,
}

impl Loader for Fashion {
    fn open(settings: &str, split: &str) -> Result<Self, Error> {
        let config = config(settings)?;
        let prefix = match split {
            "train" => "train",
            "eval" => "t10k",
            other => return Err(Error::data(format!("no split {other:?}, only train and eval"))),
        };
        let images = IdxFile::<3>::open(&format!("{prefix}-images-idx3-ubyte"))?;
        let labels = IdxFile::<1>::open(&format!("{prefix}-labels-idx1-ubyte"))?;
        let [count, height, width] = images.shape();
        if (height, width) != (SIDE, SIDE) {
            let found = format!("{} has images of {height}x{width} pixels", images.name());
            return Err(Error::data(format!("{found}, expected {SIDE}x{SIDE}")));
        }
        if labels.shape() != [count] {
            let [found] = labels.shape();
            let (images, labels) = (images.name(), labels.name());
            return Err(Error::data(format!(
                "{labels} has {found} labels, {images} {count} images"
            )));
        }
        let labels = labels.elements(0, count)?;
        match labels.iter().position(|&label| CLASSES <= label) {
            None => Ok(Self { config, images, labels }),
            Some(at) => {
                let message = format!("label {}, expected 0 to {}", labels[at], CLASSES - 1);
                Err(Error::sample(at as u64, message))
            }
        }
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
            let label = self.labels.get(at).ok_or_else(|| Error::sample(index, "no such image"))?;
            let image = self.images.elements(at * PIXELS, PIXELS)?;
            let change = match request.training && self.config.augment {
                true => Change::drawn(seed),
                false => Change::default(),
            };
            change.append(&image, &mut x);
            y.push(i64::from(*label));
        }
        put("x", &[samples as u32, 1, SIDE as u32, SIDE as u32], &x)?;
        put("y", &[samples as u32], &y)
    }
}

/// What is done to an image.
#[derive(Default)]
struct Change {
    mirrored: bool,
    down: i64,
    right: i64,
}

impl Change {
    fn drawn(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mirrored = random.below(2) == 1;
        let mut shift = || random.below(2 * SHIFT as u64 + 1) as i64 - SHIFT;
        Self { mirrored, down: shift(), right: shift() }
    }

    /// Adds the changed image's numbers. What comes in from outside is black.
    fn append(&self, image: &[u8], to: &mut Vec<f32>) {
        let side = SIDE as i64;
        for row in 0..side {
            let from_row = usize::try_from(row - self.down).ok();
            let pixels = from_row.and_then(|row| image.chunks_exact(SIDE).nth(row)).unwrap_or(&[]);
            to.extend((0..side).map(|column| {
                let shifted = column - self.right;
                let from_column = if self.mirrored { side - 1 - shifted } else { shifted };
                let pixel = usize::try_from(from_column).ok().and_then(|at| pixels.get(at));
                NUMBERS[usize::from(pixel.copied().unwrap_or(BLACK))]
            }));
        }
    }
}

const BLACK: u8 = 0;

/// What each pixel becomes.
const NUMBERS: [f32; 256] = {
    let mut numbers = [0.0; 256];
    let mut pixel = 0;
    while pixel < numbers.len() {
        numbers[pixel] = (pixel as f32 / 255.0 - MEAN) / DEVIATION;
        pixel += 1;
    }
    numbers
};

export_loader!(Fashion);
