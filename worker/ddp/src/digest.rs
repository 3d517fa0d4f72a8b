//! Digests by which ranks notice that they differ. Not against malice.

/// Odd, with bits all over: multiplication spreads a change to the bits above.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// Lanes of [`of_floats`], so that the processor need not wait for each product.
const LANES: usize = 16;

/// A digest of numbers in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    pub(crate) fn add(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(FACTOR);
        self.0 = mixed ^ (mixed >> 29);
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// Of the bits of `values`. Any single bit that differs gives another digest.
pub fn of_floats(values: &[f32]) -> u64 {
    let mut lanes = [Digest::EMPTY.value(); LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            // A bijection of the lane for every value, and of the value for every lane.
            let mixed = (*lane ^ u64::from(value.to_bits())).wrapping_mul(FACTOR);
            *lane = mixed ^ (mixed >> 29);
        }
    }
    let mut digest = Digest::EMPTY;
    lanes.iter().for_each(|lane| digest.add(*lane));
    rest.iter().for_each(|value| digest.add(value.to_bits().into()));
    digest.add(values.len() as u64);
    digest.value()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn one_bit_makes_another_digest(
            mut values in proptest::collection::vec(any::<f32>(), 1..200),
            at in any::<prop::sample::Index>(),
            bit in 0..32_u32,
        ) {
            let before = of_floats(&values);
            prop_assert_eq!(of_floats(&values), before);
            let at = at.index(values.len());
            let value = &mut values[at];
            *value = f32::from_bits(value.to_bits() ^ (1 << bit));
            prop_assert_ne!(of_floats(&values), before);
        }
    }

    #[test]
    fn order_and_length_count() {
        assert_ne!(of_floats(&[1.0, 2.0]), of_floats(&[2.0, 1.0]));
        assert_ne!(of_floats(&[0.0; 16]), of_floats(&[0.0; 32]));
        assert_ne!(of_floats(&[0.0]), of_floats(&[-0.0]));
    }
}
