//! What a forward pass is for.

use lockstep_api::Precision;
use lockstep_tensor::Half;

/// Training or evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Batch norms use the batch's own statistics, dropout is on.
    Train {
        /// Makes the masks of dropout: another one for each grain of each step, the same for the same grain.
        key: u64,
        /// What products compute in. Norms, softmax, losses and residual sums are f32 in any case.
        precision: Precision,
        /// Keep the inputs of blocks only and compute the rest again in backward. Blocks are those of a ResNet or a
        /// transformer, and in a list of layers each convolution or linear layer with what follows it; a perceptron
        /// has none.
        checkpointing: bool,
    },
    /// Batch norms use the running statistics, dropout is off, everything is f32.
    Eval,
}

impl Mode {
    /// Plain training in f32.
    pub fn train(key: u64) -> Self {
        Self::Train { key, precision: Precision::F32, checkpointing: false }
    }

    pub(crate) fn half(self) -> Option<Half> {
        match self {
            Self::Train { precision: Precision::Bf16, .. } => Some(Half::Bf16),
            Self::Train { precision: Precision::F16, .. } => Some(Half::F16),
            Self::Train { precision: Precision::F32, .. } | Self::Eval => None,
        }
    }

    /// The key, in training.
    pub(crate) fn key(self) -> Option<u64> {
        match self {
            Self::Train { key, .. } => Some(key),
            Self::Eval => None,
        }
    }

    pub(crate) fn is_checkpointing(self) -> bool {
        matches!(self, Self::Train { checkpointing: true, .. })
    }
}
