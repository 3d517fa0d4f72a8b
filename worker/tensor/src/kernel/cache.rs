//! How large this processor's caches are: found once per process. What is read here decides in which order things are
//! done, never how a sum is added up.

use std::sync::OnceLock;

/// What is assumed of a second-level cache that does not tell its size.
const USUAL_SECOND_LEVEL: usize = 1 << 20;

/// Bytes of a core's second-level cache.
pub(super) fn second_level() -> usize {
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| detect().unwrap_or(USUAL_SECOND_LEVEL))
}

/// Asks the processor: leaf 4 is Intel's, 0x8000_001d AMD's, and both answer in one form.
#[cfg(target_arch = "x86_64")]
fn detect() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    /// More levels and kinds than any processor has.
    const CACHES: u32 = 16;
    let leaves = [(0, 4), (0x8000_0000, 0x8000_001d)];
    let leaves = leaves.into_iter().filter(|&(first, leaf)| leaf <= __cpuid(first).eax);
    leaves
        .flat_map(|(_, leaf)| (0..CACHES).map(move |index| __cpuid_count(leaf, index)))
        // Level 2, for data (1) or for both data and instructions (3).
        .find(|cache| cache.eax >> 5 & 7 == 2 && matches!(cache.eax & 0x1f, 1 | 3))
        .map(|cache| {
            let [ways, parts, line] = [cache.ebx >> 22, cache.ebx >> 12, cache.ebx];
            let part = |bits: u32, mask: u32| (bits & mask) as usize + 1;
            let sets = cache.ecx as usize + 1;
            part(ways, 0x3ff) * part(parts, 0x3ff) * part(line, 0xfff) * sets
        })
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_level_cache_has_a_likely_size() {
        let bytes = second_level();
        assert!((128 << 10..=64 << 20).contains(&bytes), "{bytes} bytes");
    }
}
