//! What hooks carry from step to step, as checkpoints keep it.

/// The state of a hook between two steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HookState {
    /// Steps that were reduced.
    pub steps: u64,
    /// What every rank has alike.
    pub shared: Vec<f32>,
    /// What was not sent. Empty for "nothing left over".
    pub leftovers: Vec<f32>,
}

/// A state of another hook, or of the same one over other buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hook has {expected} {part} floats, the state {found}")]
pub struct HookStateError {
    /// Which part: "shared" or "leftover".
    pub part: &'static str,
    /// What the hook has.
    pub expected: usize,
    /// What the state has.
    pub found: usize,
}

impl HookState {
    /// Whether it has as many floats as the hook; `leftovers` may be empty.
    pub(crate) fn check_lens(&self, shared: usize, leftovers: usize) -> Result<(), HookStateError> {
        let refusal = |part, expected, found| Err(HookStateError { part, expected, found });
        match (self.shared.len(), self.leftovers.len()) {
            (found, _) if found != shared => refusal("shared", shared, found),
            (_, found) if found != 0 && found != leftovers => refusal("leftover", leftovers, found),
            _ => Ok(()),
        }
    }
}
