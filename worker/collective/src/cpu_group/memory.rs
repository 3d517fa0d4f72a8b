//! The memory of groups: how their pages lie one after the other, who makes them, who compares.

use std::{io, ops::Range, os::fd::AsFd};

use lockstep_shm::{ArenaShape, CONTROL_BYTES, Mapping, page_aligned, size_group_memory};

use crate::{
    Board, GroupError, Plan,
    control::{Control, Extent},
    verdict::{Report, Verdict, mismatch},
};

/// Largest plan that is written into a group's memory.
const PLAN_BYTES_CAP: usize = 16 << 20;

/// Of a lane that works in the arenas of another.
pub(super) fn without_numbers(plan: &Plan) -> Plan {
    Plan { nodes: plan.nodes.clone(), slots: 1, ..Plan::default() }
}

/// Once, for all groups in it: one after the other.
pub(super) fn size_memory(
    fd: impl AsFd,
    ranks: &Range<usize>,
    plans: &[Plan],
) -> Result<(), GroupError> {
    let bytes = |plan: &Plan| extent_of(plan, ranks, plan.to_text().len()).total_bytes;
    size_group_memory(&fd, plans.iter().map(bytes).sum())
        .map_err(|error| GroupError::io("giving the group's memory its size", error))
}

/// The leader: writes the plan into the memory, lets the others in.
pub(super) fn lead(
    fd: impl AsFd,
    first_byte: usize,
    early: &Control,
    ranks: &Range<usize>,
    plan: &Plan,
) -> Result<Mapping, GroupError> {
    let text = plan.to_text();
    if PLAN_BYTES_CAP < text.len() {
        let error = io::Error::other(format!("{} bytes, at most {PLAN_BYTES_CAP}", text.len()));
        return Err(GroupError::io("writing the plan", error));
    }
    let extent = extent_of(plan, ranks, text.len());
    let map = Mapping::of_part(&fd, first_byte, extent.total_bytes, extent.words_bytes)
        .map_err(|error| GroupError::io("mapping the group's memory", error))?;
    map.store_octets(CONTROL_BYTES, &text);
    early.publish(extent);
    Ok(map)
}

/// The others: map what the leader made and compare the plans.
pub(super) fn follow(
    fd: impl AsFd,
    first_byte: usize,
    early: &Control,
    rank: usize,
    plan: &Plan,
    extent: Extent,
) -> Result<Mapping, GroupError> {
    let map = Mapping::of_part(&fd, first_byte, extent.total_bytes, extent.words_bytes)
        .map_err(|error| GroupError::io("mapping the group's memory", error))?;
    let text = map.load_octets(CONTROL_BYTES, extent.plan_bytes);
    let leader: Plan = serde_json::from_slice(&text)
        .map_err(|error| GroupError::io("reading the plan of rank 0", error.into()))?;
    let Some(difference) = leader.first_difference(plan) else { return Ok(map) };
    let report =
        Report { what: difference.what, rank_zero: difference.ours, other: difference.theirs };
    early.give_up(&Verdict::PlanMismatch { rank, report: report.clone() });
    Err(mismatch(rank, report))
}

fn extent_of(plan: &Plan, ranks: &Range<usize>, plan_bytes: usize) -> Extent {
    let board_end =
        board_offset_for(plan_bytes) + Board::bytes(plan.grain_rows, plan.grain_columns);
    let words_bytes = page_aligned(board_end);
    Extent { plan_bytes, words_bytes, total_bytes: words_bytes + shape(plan, ranks).bytes() }
}

pub(super) fn shape(plan: &Plan, ranks: &Range<usize>) -> ArenaShape {
    ArenaShape { ranks: ranks.len(), slots: plan.slots, len: plan.arena_len }
}

pub(super) fn board_offset(plan: &Plan) -> usize {
    board_offset_for(plan.to_text().len())
}

fn board_offset_for(plan_bytes: usize) -> usize {
    page_aligned(CONTROL_BYTES + plan_bytes)
}
