//! What bits do not depend on.

use super::*;

#[test]
fn avx2_and_avx512_give_the_same_bits() {
    if isa() < Isa::Avx512 {
        return;
    }
    for shape in SHAPES {
        let [m, n, k] = shape;
        let operands = Operands::new(rough(m * k, 1), rough(k * n, 2), shape);
        for (a, b) in operands.views() {
            for mode in [Write::Set, Write::Add] {
                let of = |isa| {
                    let mut c = rough(m * n, 3);
                    run(Product::new(a, b).on(isa).mode(mode), &mut c);
                    bits(&c)
                };
                assert_eq!(of(Isa::Avx2), of(Isa::Avx512), "{shape:?} {mode:?}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let counts = [1, 2, 4].map(|count| Threads::new(count).unwrap());
    let large = [[100, 333, 900], [8, 2000, 300], [900, 7, 400], [513, 64, 65], [300, 300, 8]];
    for shape in SHAPES.into_iter().chain(large) {
        let [m, n, k] = shape;
        let operands = Operands::new(rough(m * k, 1), rough(k * n, 2), shape);
        let bias = rough(n, 5);
        for (a, b) in operands.views() {
            for isa in Isa::supported() {
                let [one, two, four] = counts.each_ref().map(|threads| {
                    let mut c = rough(m * n, 3);
                    let epilogue =
                        Epilogue { bias: Bias::PerColumn(&bias), activation: Activation::Relu };
                    let product = Product::new(a, b).on(isa).mode(Write::Add).then(epilogue);
                    product.run(MatrixMut::new(&mut c, m, n), threads, &mut Scratch::new());
                    bits(&c)
                });
                assert!(one == two && one == four, "{shape:?} {isa:?}");
            }
        }
    }
}

/// An element's bits depend on its row of A and its column of B alone, within a way.
#[test]
fn bits_do_not_depend_on_the_place_in_the_result() {
    let (m, n, k) = (61, 83, 700);
    let (a, b) = (rough(m * k, 1), rough(k * n, 2));
    for isa in Isa::supported() {
        let mut whole = vec![0.0; m * n];
        run(Product::new(Matrix::new(&a, m, k), Matrix::new(&b, k, n)).on(isa), &mut whole);
        for (from, to) in [(0, 1), (0, 20), (5, 61), (17, 40), (60, 61)] {
            let some = Matrix::new(&a[from * k..to * k], to - from, k);
            let mut part = vec![0.0; (to - from) * n];
            run(Product::new(some, Matrix::new(&b, k, n)).on(isa), &mut part);
            assert_eq!(bits(&part), bits(&whole[from * n..to * n]), "rows {from}..{to} {isa:?}");
        }
        for (from, to) in [(0, 17), (0, 40), (7, 83), (31, 64)] {
            let some = Matrix::strided(&b[from..], (k, to - from), (n, 1));
            let mut part = vec![0.0; m * (to - from)];
            run(Product::new(Matrix::new(&a, m, k), some).on(isa), &mut part);
            for (part, whole) in part.chunks(to - from).zip(whole.chunks(n)) {
                assert_eq!(bits(part), bits(&whole[from..to]), "columns {from}..{to} {isa:?}");
            }
        }
    }
}

/// Ranks keep the same numbers at different places of their memory.
#[test]
fn bits_do_not_depend_on_where_the_matrices_lie() {
    for [m, n, k] in SHAPES {
        let at = |offset: usize| {
            let place = |len, salt| [vec![0.0; offset], rough(len, salt)].concat();
            let (a, b, mut c) = (place(m * k, 1), place(n * k, 2), place(m * n, 3));
            let a = Matrix::new(&a[offset..], m, k);
            let b = Matrix::new(&b[offset..], n, k).transposed();
            product(&mut c[offset..], Write::Add, a, b);
            bits(&c[offset..])
        };
        let expected = at(0);
        for offset in 1..9 {
            assert_eq!(at(offset), expected, "{m} {n} {k} at {offset}");
        }
    }
}
