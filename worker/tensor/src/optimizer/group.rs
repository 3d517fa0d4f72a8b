//! Parameters that are updated in another way than the rest.

use super::{MAX_LR, check_decay};
use crate::setting::{SettingError, within};

/// Parameters by name, and what is different for them. In a list of groups the first whose pattern
/// fits a parameter has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamGroup {
    /// Fits a whole name. `*` stands for any characters, dots included, and for none:
    /// `*.bias`, `layers.0.*`.
    pub pattern: String,
    /// What is done with them.
    pub update: GroupUpdate,
}

/// What is done with a group's parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GroupUpdate {
    /// They stay as they are, and do not count in the gradient's norm.
    Frozen,
    /// They are trained.
    Train {
        /// Factor of the learning rate.
        lr_scale: f64,
        /// In the place of the optimizer's. `None`: as if they were in no group.
        weight_decay: Option<f64>,
    },
}

impl GroupUpdate {
    pub(super) fn check(&self) -> Result<(), SettingError> {
        match *self {
            Self::Frozen => Ok(()),
            Self::Train { lr_scale, weight_decay } => {
                within("lr_scale", lr_scale, 0.0..=MAX_LR)?;
                check_decay(weight_decay.unwrap_or(0.0))
            }
        }
    }
}
