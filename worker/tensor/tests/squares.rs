//! The greatest of two by two pixels: the loops for images of even sizes against those for all windows.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use lockstep_tensor::{Accumulate, GradBuffer, Layout, Op, ParamId, Pool2d, Tape, Value};

const PLANES: usize = 6;
const HEIGHT: usize = 10;
const SQUARES: Pool2d = Pool2d { kernel: [2, 2], stride: [2, 2], padding: [0, 0] };

/// Few different numbers, so that many are equal, and some that are not finite.
fn pixel(plane: usize, row: usize, column: usize) -> f32 {
    match (plane * 7919 + row * 104_729 + column * 1_299_709) % 11 {
        0 => f32::NAN,
        1 => f32::NEG_INFINITY,
        2 => f32::INFINITY,
        other => (other % 4) as f32,
    }
}

/// Results, and the gradient of the first `HEIGHT` times `inner` pixels of each plane, of two uses of the image.
/// A row and a column more are in no window.
fn pooled(inner: usize, more: usize) -> [Vec<u32>; 2] {
    let (height, width) = (HEIGHT + more, inner + more);
    let shape = vec![2, PLANES / 2, height, width];
    let layout = Arc::new(Layout::new(vec![("x".to_owned(), shape)]).unwrap());
    let mut weights = Vec::new();
    for plane in 0..PLANES {
        for row in 0..height {
            weights.extend((0..width).map(|column| pixel(plane, row, column)));
        }
    }
    let mut tape = Tape::<f32>::new(Arc::clone(&layout));
    let x = tape.param(ParamId(0));
    let uses: [Value; 2] =
        [(); 2].map(|()| tape.apply(Op::MaxPool2d(SQUARES), &[x], &weights).unwrap());
    let results = tape.values(uses[0]).unwrap().to_vec();
    let seeds = [1, 2].map(|by| (0..results.len()).map(|i| (i * by) as f32).collect::<Vec<_>>());
    let seeds: [(Value, &[f32]); 2] = [(uses[0], &seeds[0]), (uses[1], &seeds[1])];
    let mut gradients = GradBuffer::new(layout);
    tape.backward(&seeds, &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    let rows = gradients.values().chunks(width).enumerate();
    let rows = rows.filter(|(row, _)| row % height < HEIGHT);
    let inside = rows.flat_map(|(_, row)| &row[..inner]);
    [results.iter().map(|y| y.to_bits()).collect(), inside.map(|g| g.to_bits()).collect()]
}

#[test]
fn squares_equal_windows_that_leave_pixels_out() {
    // Rows that are whole vectors, and rows that are put side by side.
    for width in [32, 34] {
        let [results, gradient] = pooled(width, 0);
        assert_eq!([&results, &gradient].map(Vec::len), [15 * width, 60 * width]);
        assert!(results.iter().any(|&bits| f32::from_bits(bits).is_nan()));
        assert_eq!([results, gradient], pooled(width, 1));
    }
}
