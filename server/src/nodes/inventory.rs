//! What a node says that it offers, checked and put into one shape.

use std::collections::BTreeSet;

use lockstep_api::{CpuSlot, CudaDevice, DeviceKind, FieldError, Inventory};

/// Slots of one kind on one node.
const SLOTS_PER_KIND: usize = 1024;
/// Length of a model or a device's uuid, bytes.
const DEVICE_TEXT_BYTES: usize = 200;

/// One slot as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) device: DeviceKind,
    pub(crate) index: i32,
    pub(crate) cores: i32,
    pub(crate) memory_mib: i32,
    pub(crate) model: Option<String>,
    pub(crate) device_uuid: Option<String>,
}

/// A checked inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) memory_mib: i32,
    /// In order of device and index.
    pub(crate) slots: Vec<Slot>,
}

impl Offer {
    /// Checks `inventory`; an error names its field below `inventory`.
    pub(crate) fn new(inventory: &Inventory) -> Result<Self, FieldError> {
        let Inventory { cpu_slots, cuda_devices, memory_mib } = inventory;
        for (field, count) in [("cpu_slots", cpu_slots.len()), ("cuda_devices", cuda_devices.len())]
        {
            if SLOTS_PER_KIND < count {
                let message = format!("expected at most {SLOTS_PER_KIND}, got {count}");
                return Err(FieldError::new(format!("inventory.{field}"), message));
            }
        }
        let memory_mib = small("inventory.memory_mib", *memory_mib)?;
        let cpu = cpu_slots.iter().enumerate().map(|(i, slot)| cpu(i, slot));
        let cuda = cuda_devices.iter().enumerate().map(|(i, device)| cuda(i, device));
        let mut slots = cpu.chain(cuda).collect::<Result<Vec<_>, _>>()?;
        slots.sort();
        let mut seen = BTreeSet::new();
        for slot in &slots {
            if slot.index < 0 || !seen.insert((slot.device, slot.index)) {
                let message = format!(
                    "index {} of a {} slot is negative or comes twice",
                    slot.index, slot.device
                );
                return Err(FieldError::new("inventory", message));
            }
        }
        Ok(Self { memory_mib, slots })
    }
}

fn cpu(i: usize, slot: &CpuSlot) -> Result<Slot, FieldError> {
    let CpuSlot { index, cores, memory_mib } = slot;
    Ok(Slot {
        device: DeviceKind::Cpu,
        index: *index,
        cores: small(&format!("inventory.cpu_slots[{i}].cores"), *cores)?,
        memory_mib: small(&format!("inventory.cpu_slots[{i}].memory_mib"), *memory_mib)?,
        model: None,
        device_uuid: None,
    })
}

fn cuda(i: usize, device: &CudaDevice) -> Result<Slot, FieldError> {
    let CudaDevice { index, model, memory_mib, uuid } = device;
    for (field, text) in [("model", model), ("uuid", uuid)] {
        if DEVICE_TEXT_BYTES < text.len() || text.contains('\0') {
            let message = format!("expected at most {DEVICE_TEXT_BYTES} bytes without NUL");
            return Err(FieldError::new(format!("inventory.cuda_devices[{i}].{field}"), message));
        }
    }
    Ok(Slot {
        device: DeviceKind::Cuda,
        index: *index,
        cores: 1,
        memory_mib: small(&format!("inventory.cuda_devices[{i}].memory_mib"), *memory_mib)?,
        model: Some(model.clone()),
        device_uuid: Some(uuid.clone()),
    })
}

fn small(field: &str, value: u32) -> Result<i32, FieldError> {
    i32::try_from(value)
        .map_err(|_| FieldError::new(field, format!("expected at most {}, got {value}", i32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(indices: &[i32]) -> Inventory {
        let slot = |&index| CpuSlot { index, cores: 1, memory_mib: 512 };
        Inventory {
            cpu_slots: indices.iter().map(slot).collect(),
            cuda_devices: vec![],
            memory_mib: 4096,
        }
    }

    #[test]
    fn slots_are_ordered_and_an_index_comes_once() {
        let offer = Offer::new(&inventory(&[1, 0])).unwrap();
        assert_eq!(offer.slots.iter().map(|slot| slot.index).collect::<Vec<_>>(), [0, 1]);
        assert!(Offer::new(&inventory(&[0, 0])).unwrap_err().to_string().contains("twice"));
        assert!(Offer::new(&inventory(&[-1])).is_err());
        let mut large = inventory(&[0]);
        large.cpu_slots[0].cores = u32::MAX;
        assert!(
            Offer::new(&large).unwrap_err().to_string().contains("inventory.cpu_slots[0].cores")
        );
    }
}
