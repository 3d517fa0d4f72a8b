//! What tensors of a checkpoint are named besides the model's own.

/// What the optimizer's moments begin with: `optimizer.<moment>.<parameter>`.
pub const OPTIMIZER_PREFIX: &str = "optimizer.";

/// What the running mean of the weights begins with: `ema.<parameter>`.
pub const EMA_PREFIX: &str = "ema.";

/// What the state of a communication hook begins with: `hook.<part>`.
pub const HOOK_PREFIX: &str = "hook.";

/// Whether a tensor is of the training and not of the model. No model has parameters of such names.
pub fn is_training_state(name: &str) -> bool {
    [OPTIMIZER_PREFIX, EMA_PREFIX, HOOK_PREFIX].iter().any(|prefix| name.starts_with(prefix))
}
