//! What every rank must see alike before the first step, compared once: a loader that counts differently on
//! another rank, or a checkpoint that is another file there, would otherwise show as a wrong curve.

use lockstep_api::{FailureCode, Rank};
use lockstep_ddp::Reducer;
use serde_json::json;

use crate::failure::Failure;

/// Facts are compared through f64, which holds so many bits exactly.
const FACT_BITS: u32 = 52;

/// Compares `facts` over all ranks.
///
/// # Errors
/// `PlanMismatch`, naming the first fact that differs, the first rank that differs from rank 0, and both values.
pub(crate) fn agree(reducer: &mut Reducer, facts: &[(&str, u64)]) -> Result<(), Failure> {
    let (rank, world) = (reducer.rank(), reducer.world_size());
    let mut seen = vec![0.0; facts.len() * world];
    for (index, (_, value)) in facts.iter().enumerate() {
        seen[index * world + rank] = exact(*value);
    }
    reducer.all_reduce_f64(&mut seen).map_err(|error| Failure::of_group(&error))?;
    for ((name, _), values) in facts.iter().zip(seen.chunks(world)) {
        if let Some(other) = values.iter().position(|value| *value != values[0]) {
            let message = format!(
                "ranks disagree on the {name}: {} on rank 0, {} on rank {other}",
                values[0], values[other]
            );
            let rank = i32::try_from(other).unwrap_or(i32::MAX);
            return Err(Failure::new(FailureCode::PlanMismatch, message)
                .of_rank(Rank(rank))
                .with_evidence(json!({ "fact": name, "values": values })));
        }
    }
    Ok(())
}

/// Folds the upper bits in, so that no fact loses any by rounding.
fn exact(value: u64) -> f64 {
    let mask = (1u64 << FACT_BITS) - 1;
    ((value ^ (value >> FACT_BITS)) & mask) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_facts_stay_themselves() {
        assert_eq!(exact(1437), 1437.0);
        assert_ne!(exact(1437), exact(1437 | 1 << 63));
    }
}
