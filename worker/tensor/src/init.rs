//! Initial weights, drawn so that every rank draws the same without talking.
//!
//! # The generator
//! Each number is a function of (seed, name of the parameter, place in it) alone: no order of calls, no
//! number of ranks and no layout changes it. A parameter's stream is SplitMix64's: element i is
//!
//! ```text
//! key  = mix(seed + GAMMA) xor fnv1a64(name)
//! bits = mix(mix(key + GAMMA) + (i + 1) · GAMMA)
//! mix(z): z = (z xor z >> 30) · bf58476d1ce4e5b9; z = (z xor z >> 27) · 94d049bb133111eb; z xor z >> 31
//! GAMMA = 9e3779b97f4a7c15, all sums and products modulo 2⁶⁴
//! ```
//!
//! and its upper 53 bits are a fraction in [0, 1). `f32` weights are the rounded `f64` ones.
//!
//! A normal number is made of the fractions 2i and 2i + 1 of the stream. Logarithm and cosine are those of
//! `libm`, which is compiled in: a machine's own would differ from another's in the last bit.
//!
//! # Source
//! Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. Box and Muller, "A note on the
//! generation of random normal deviates", 1958.

use crate::real::Real;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// PyTorch's default for both the weight and the bias of a linear layer: uniform between
/// ±1/√fan_in, where `fan_in` is the number of the layer's inputs, for the bias too. Zeros if that is 0.
pub fn kaiming_uniform<T: Real>(seed: u64, name: &str, fan_in: usize, out: &mut [T]) {
    let bound = if fan_in == 0 { 0.0 } else { 1.0 / (fan_in as f64).sqrt() };
    uniform(seed, name, bound, out);
}

/// Uniform in [-bound, bound].
pub fn uniform<T: Real>(seed: u64, name: &str, bound: f64, out: &mut [T]) {
    let stream = Stream::new(seed, name);
    for (index, value) in (0_u64..).zip(out) {
        *value = T::from_f64((2.0 * stream.fraction(index) - 1.0) * bound);
    }
}

/// Normal with mean 0 and standard deviation `std`.
pub fn normal<T: Real>(seed: u64, name: &str, std: f64, out: &mut [T]) {
    let stream = Stream::new(seed, name);
    for (index, value) in (0_u64..).zip(out) {
        *value = T::from_f64(std * stream.normal(index));
    }
}

/// Normal with mean 0 and standard deviation `std`, drawn again while it lies outside of ±`limit`.
/// After 64 draws, which no sensible limit needs, it is cut to ±`limit`.
pub fn truncated_normal<T: Real>(seed: u64, name: &str, std: f64, limit: f64, out: &mut [T]) {
    // Elements of one parameter are far fewer than 2⁴⁰: draws of one never meet those of another.
    const NEXT_DRAW: u64 = 1 << 40;
    let stream = Stream::new(seed, name);
    for (index, value) in (0_u64..).zip(out) {
        let mut draws = (0..64).map(|draw| std * stream.normal(index + draw * NEXT_DRAW));
        let first = draws.next().unwrap_or(0.0);
        let kept =
            if first.abs() <= limit { Some(first) } else { draws.find(|x| x.abs() <= limit) };
        *value = T::from_f64(kept.unwrap_or(first.clamp(-limit, limit)));
    }
}

/// The random numbers of one parameter, by place.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The stream of a parameter under a job's seed.
    pub fn new(seed: u64, name: &str) -> Self {
        let key = mix(seed.wrapping_add(GAMMA)) ^ fnv1a(name.as_bytes());
        Self { key: mix(key.wrapping_add(GAMMA)) }
    }

    /// 64 random bits.
    pub fn bits(&self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(GAMMA)))
    }

    /// A fraction in [0, 1), a multiple of 2⁻⁵³.
    pub fn fraction(&self, index: u64) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.bits(index) >> 11) as f64 * STEP
    }

    /// Normal with mean 0 and standard deviation 1, made of the fractions 2 · index and 2 · index + 1.
    pub fn normal(&self, index: u64) -> f64 {
        let place = index.wrapping_mul(2);
        // In (0, 1]: its logarithm is finite.
        let radius = 1.0 - self.fraction(place);
        let angle = 2.0 * std::f64::consts::PI * self.fraction(place.wrapping_add(1));
        (-2.0 * libm::log(radius)).sqrt() * libm::cos(angle)
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published first outputs of SplitMix64 from state 0, and of FNV-1a.
    #[test]
    fn the_generator_is_the_published_one() {
        let stream = Stream { key: 0 };
        assert_eq!(stream.bits(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(stream.bits(1), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(stream.bits(2), 0x06c4_5d18_8009_454f);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn numbers_depend_on_seed_name_and_place_alone() {
        let draw = |seed, name, len| {
            let mut out = vec![0.0_f32; len];
            kaiming_uniform(seed, name, 64, &mut out);
            out
        };
        let whole = draw(7, "fc1.weight", 1000);
        assert_eq!(whole[..10], draw(7, "fc1.weight", 10));
        assert_ne!(whole[..10], draw(8, "fc1.weight", 10));
        assert_ne!(whole[..10], draw(7, "fc1.bias", 10));
        let mut none = [1.0_f32];
        kaiming_uniform(7, "fc1.bias", 0, &mut none);
        assert_eq!(none, [0.0]);
    }

    #[test]
    fn numbers_are_uniform_within_the_bound() {
        let mut out = vec![0.0_f64; 100_000];
        kaiming_uniform(1, "w", 16, &mut out);
        assert!(out.iter().all(|x| x.abs() <= 0.25));
        let mean = out.iter().sum::<f64>() / 1e5;
        let variance = out.iter().map(|x| x * x).sum::<f64>() / 1e5;
        // Four standard deviations of either estimate.
        assert!(mean.abs() < 4.0 * 0.25 / 3.0_f64.sqrt() / 1e5_f64.sqrt(), "{mean}");
        assert!((variance - 0.0625 / 3.0).abs() < 4.0 * 0.0187 / 1e5_f64.sqrt(), "{variance}");
    }

    #[test]
    fn normal_numbers_have_their_moments_and_do_not_hang_together() {
        let mut out = vec![0.0_f64; 200_000];
        normal(3, "w", 0.5, &mut out);
        let count = out.len() as f64;
        let moment = |power: i32| out.iter().map(|x| (x / 0.5).powi(power)).sum::<f64>() / count;
        // Four standard deviations of each estimate: of x, x², x³, x⁴ they are 1, √2, √15, √96.
        for (power, expected, deviation) in
            [(1, 0.0, 1.0), (2, 1.0, 1.42), (3, 0.0, 3.9), (4, 3.0, 9.8)]
        {
            let found = moment(power);
            assert!((found - expected).abs() < 4.0 * deviation / count.sqrt(), "{power}: {found}");
        }
        let neighbours = out.windows(2).map(|pair| pair[0] * pair[1] * 4.0).sum::<f64>() / count;
        assert!(neighbours.abs() < 4.0 / count.sqrt(), "{neighbours}");
    }

    #[test]
    fn truncated_normal_numbers_stay_within_and_are_the_plain_ones_where_those_do() {
        let (mut plain, mut cut) = (vec![0.0_f64; 10_000], vec![0.0_f64; 10_000]);
        normal(3, "w", 1.0, &mut plain);
        truncated_normal(3, "w", 1.0, 1.5, &mut cut);
        assert!(cut.iter().all(|x| x.abs() <= 1.5));
        let (mut same, mut changed) = (0, 0);
        for (plain, cut) in plain.iter().zip(&cut) {
            if plain.abs() <= 1.5 { same += usize::from(plain == cut) } else { changed += 1 }
        }
        assert_eq!(same + changed, 10_000);
        // 13.4 % of a normal distribution lie outside of ±1.5.
        assert!((1_200..1_480).contains(&changed), "{changed}");
        assert_eq!(plain[..100].to_vec(), {
            let mut few = vec![0.0; 100];
            normal(3, "w", 1.0, &mut few);
            few
        });
    }
}
