//! What this machine offers.

use lockstep_api::{CpuSlot, Inventory};

/// Used when the machine does not say.
const FALLBACK_MEMORY_MIB: u32 = 1024;

/// `slots` ranks, or one a core; cores and memory are shared out evenly, a core at least.
pub(crate) fn inventory(slots: Option<u32>) -> Inventory {
    let cores =
        std::thread::available_parallelism().map_or(1, |it| u32::try_from(it.get()).unwrap_or(1));
    let slots = slots.unwrap_or(cores);
    let memory_mib = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total_mib(&text))
        .unwrap_or(FALLBACK_MEMORY_MIB);
    let (share, slot_cores) = (memory_mib / slots.max(1), (cores / slots.max(1)).max(1));
    let cpu_slots = (0..i32::try_from(slots).unwrap_or(0))
        .map(|index| CpuSlot { index, cores: slot_cores, memory_mib: share })
        .collect();
    Inventory { cpu_slots, cuda_devices: Vec::new(), memory_mib }
}

fn total_mib(meminfo: &str) -> Option<u32> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    u32::try_from(kib / 1024).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_and_shared_out() {
        assert_eq!(total_mib("MemTotal:       16384256 kB\nMemFree: 1 kB\n"), Some(16000));
        assert_eq!(total_mib("MemFree: 1 kB\n"), None);
        let offer = inventory(Some(4));
        assert_eq!(offer.cpu_slots.len(), 4);
        assert_eq!(offer.cpu_slots[3].index, 3);
        assert_eq!(offer.cpu_slots[0].memory_mib, offer.memory_mib / 4);
        // More slots than cores: one each. One slot: all of them.
        let cores = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
        assert_eq!(inventory(Some(2 * cores)).cpu_slots[0].cores, 1);
        assert_eq!(inventory(Some(1)).cpu_slots[0].cores, cores);
        assert_eq!(inventory(None).cpu_slots.len(), cores as usize);
    }
}
