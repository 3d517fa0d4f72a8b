//! The fashion example's loader, over IDX files made here: small, and wrong in every way.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use camino::Utf8Path;
use common::{LIMITS, guest, quiet};
use lockstep_sandbox::{BatchData, GuestError, Loader, Sandbox};

const SIDE: usize = 28;
const PIXELS: usize = SIDE * SIDE;

/// An IDX file of unsigned bytes.
fn idx(shape: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, shape.len() as u8];
    bytes.extend(shape.iter().flat_map(|length| length.to_be_bytes()));
    bytes.extend_from_slice(elements);
    bytes
}

/// Any pixels, different for each image.
fn pixels(images: usize) -> Vec<u8> {
    (0..images * PIXELS).map(|at| (at * 7919 % 251) as u8).collect()
}

fn write(folder: &Utf8Path, prefix: &str, labels: &[u8]) {
    let count = labels.len() as u32;
    let images = idx(&[count, SIDE as u32, SIDE as u32], &pixels(labels.len()));
    std::fs::write(folder.join(format!("{prefix}-images-idx3-ubyte")), images).unwrap();
    let labels = idx(&[count], labels);
    std::fs::write(folder.join(format!("{prefix}-labels-idx1-ubyte")), labels).unwrap();
}

fn open(folder: &Utf8Path, config: &str, split: &str) -> Result<Loader, GuestError> {
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, "examples/fashion", "fashion-loader.wasm");
    Loader::open(&sandbox, &component, LIMITS, config, split, folder, quiet())
}

/// `x` and `y` of a batch.
fn load(loader: &mut Loader, indices: &[u64], training: bool) -> (Vec<f32>, Vec<i64>) {
    let seeds: Vec<u64> = (100..).take(indices.len()).collect();
    let batch = loader.load(indices, &seeds, training).unwrap();
    let [x, y] = &batch.tensors[..] else { panic!("{batch:?}") };
    assert_eq!((x.name.as_str(), &x.shape[..]), ("x", &[indices.len(), 1, SIDE, SIDE][..]));
    assert_eq!((y.name.as_str(), &y.shape[..]), ("y", &[indices.len()][..]));
    match (&x.data, &y.data) {
        (BatchData::F32(x), BatchData::I64(y)) => (x.clone(), y.clone()),
        other => panic!("{other:?}"),
    }
}

fn normalised(pixel: u8) -> f32 {
    (f32::from(pixel) / 255.0 - 0.2860) / 0.3530
}

/// An image mirrored or not, then moved; black comes in.
fn changed(image: &[u8], mirrored: bool, down: i64, right: i64) -> Vec<f32> {
    let mut to = vec![normalised(0); PIXELS];
    for row in 0..SIDE as i64 {
        for column in 0..SIDE as i64 {
            let seen = if mirrored { SIDE as i64 - 1 - column } else { column };
            let (row_to, column_to) = (row + down, column + right);
            let inside = 0..SIDE as i64;
            if inside.contains(&row_to) && inside.contains(&column_to) {
                let from = image[(row * SIDE as i64 + seen) as usize];
                to[(row_to * SIDE as i64 + column_to) as usize] = normalised(from);
            }
        }
    }
    to
}

#[test]
fn samples_are_the_files_images_and_labels() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    write(folder, "train", &[3, 0, 9]);
    write(folder, "t10k", &[7]);
    let mut train = open(folder, r#"{"augment": true}"#, "train").unwrap();
    let mut eval = open(folder, "{}", "eval").unwrap();
    assert_eq!((train.len().unwrap(), eval.len().unwrap()), (3, 1));
    let expected: Vec<f32> = pixels(3).into_iter().map(normalised).collect();
    let (x, y) = load(&mut train, &[2, 0], false);
    assert_eq!(x, [&expected[2 * PIXELS..], &expected[..PIXELS]].concat());
    assert_eq!(y, [9, 3]);
    assert_eq!(load(&mut eval, &[0], true), (expected[..PIXELS].to_vec(), vec![7]));
}

#[test]
fn training_images_are_mirrored_and_shifted_by_two_pixels_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    write(folder, "train", &[1]);
    let mut loader = open(folder, r#"{"augment": true}"#, "train").unwrap();
    let (x, _) = load(&mut loader, &[0; 400], true);
    assert_eq!(load(&mut loader, &[0; 400], true).0, x, "the seeds decide");
    let image = pixels(1);
    let mut kinds = Vec::new();
    for mirrored in [false, true] {
        for down in -2..=2 {
            kinds.extend((-2..=2).map(|right| changed(&image, mirrored, down, right)));
        }
    }
    let mut seen = vec![0; kinds.len()];
    for image in x.chunks(PIXELS) {
        let kind = kinds.iter().position(|kind| kind == image).expect("one of the fifty changes");
        seen[kind] += 1;
    }
    // 400 draws of 50 kinds: one that is not seen at all has a probability of 0.0003.
    assert!(seen.iter().filter(|count| **count == 0).count() <= 2, "{seen:?}");
}

#[test]
fn a_file_that_is_not_what_it_says_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let error = |name: &str, bytes: &[u8]| {
        write(folder, "train", &[1, 2]);
        std::fs::write(folder.join(name), bytes).unwrap();
        open(folder, "{}", "train").unwrap_err().to_string()
    };
    let images = "train-images-idx3-ubyte";
    let labels = "train-labels-idx1-ubyte";
    let whole = idx(&[2, 28, 28], &pixels(2));
    let expect = |found: String, part: &str| assert!(found.contains(part), "{found}");
    expect(error(images, &[0x1f, 0x8b, 8]), "train-images-idx3-ubyte: compressed by gzip");
    expect(error(images, &whole[..15]), "15 bytes, too short for an IDX header");
    expect(error(images, &whole[..16 + 2 * PIXELS - 1]), "which is not what its shape [2, 28, 28]");
    expect(
        error(images, &idx(&[2 * 784], &pixels(2))),
        "begins with [0, 0, 8, 1], expected [0, 0, 8, 3]",
    );
    expect(error(images, &idx(&[u32::MAX; 3], &[])), "is not what its shape");
    expect(error(images, &idx(&[2, 14, 56], &pixels(2))), "images of 14x56 pixels, expected 28x28");
    expect(error(labels, &idx(&[3], &[1, 2, 3])), "has 3 labels, train-images-idx3-ubyte 2 images");
    let sample = error(labels, &idx(&[2], &[1, 10]));
    expect(sample.clone(), "label 10, expected 0 to 9");
    expect(sample, "(Sample 1)");
    std::fs::remove_file(folder.join(labels)).unwrap();
    expect(open(folder, "{}", "train").unwrap_err().to_string(), "no file \"train-labels");
    expect(open(folder, "{}", "test").unwrap_err().to_string(), "no split \"test\"");
}
