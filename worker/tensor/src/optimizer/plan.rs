//! What a step does to which part of the arenas, found out once.

use std::ops::Range;

use super::{Clip, GroupUpdate, Optimizer, OptimizerState, ParamGroup, StateError};
use crate::{
    glob,
    layout::{Layout, Param},
    real::Real,
    setting::SettingError,
};

/// An optimizer for one layout: the part of the arenas that each setting holds for. It does the
/// steps: [`UpdatePlan::step`].
///
/// ```
/// use lockstep_tensor::{
///     Clip, GroupUpdate, Layout, LrCurve, LrSchedule, Optimizer, ParamGroup, StepFactors, UpdatePlan,
/// };
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layout = Layout::new(vec![
///     ("fc.weight".to_owned(), vec![2, 3]),
///     ("fc.bias".to_owned(), vec![2]),
/// ])?;
/// let adamw = Optimizer::AdamW { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.1 };
/// let biases = ParamGroup { pattern: "*.bias".to_owned(), update: GroupUpdate::Frozen };
/// let plan = UpdatePlan::new(adamw, Clip::GlobalNorm { max: 1.0 }, &[biases], &layout)?;
/// let schedule = LrSchedule::new(None, LrCurve::Cosine { steps: 100, min_factor: 0.0 })?;
///
/// let (mut weights, gradients) = (vec![0.5_f32; 8], vec![1.0; 8]);
/// let mut state = plan.state();
/// for step in 0..3 {
///     let factors = StepFactors { lr_factor: schedule.factor(step), grad_scale: 1.0 / 32.0 };
///     plan.step(&mut weights, &gradients, factors, &mut state)?;
/// }
/// assert_eq!(weights[..2], [0.5, 0.5]); // the biases: used last, they lie first
/// assert!(weights[2..].iter().all(|&w| w < 0.5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct UpdatePlan {
    pub(super) optimizer: Optimizer,
    pub(super) clip: Clip,
    pub(super) segments: Vec<Segment>,
    pub(super) len: usize,
}

/// A range of the arenas that is updated with the same settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// In every arena. Not empty.
    pub range: Range<usize>,
    /// Factor of the learning rate.
    pub lr_scale: f64,
    /// The decay in force here.
    pub weight_decay: f64,
}

/// Settings that do not make sense, or not for this model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("pattern {pattern:?} of group {group} fits no parameter; there are {names}")]
    NoMatch { group: usize, pattern: String, names: String },
    #[error("all parameters that pattern {pattern:?} of group {group} fits are in earlier groups")]
    Shadowed { group: usize, pattern: String },
}

impl UpdatePlan {
    /// Checks all settings; groups are counted from 0 in what is said of them.
    pub fn new(
        optimizer: Optimizer,
        clip: Clip,
        groups: &[ParamGroup],
        layout: &Layout,
    ) -> Result<Self, PlanError> {
        optimizer.check().map_err(|error| error.of("optimizer"))?;
        clip.check()?;
        for (index, group) in groups.iter().enumerate() {
            group.update.check().map_err(|error| error.of(&format!("groups[{index}]")))?;
        }
        check_patterns(groups, layout)?;
        let mut segments: Vec<Segment> = Vec::new();
        for param in layout.params() {
            let Some(next) = segment(&optimizer, groups, param) else { continue };
            // LAMB's norms are over one parameter.
            let may_merge = !matches!(optimizer, Optimizer::Lamb { .. });
            match segments.last_mut() {
                Some(last) if may_merge && last.goes_on_in(&next) => {
                    last.range.end = next.range.end;
                }
                _ => segments.push(next),
            }
        }
        Ok(Self { optimizer, clip, segments, len: layout.len() })
    }

    /// The same updates of some `parts` of the arenas alone, in order and packed one behind the other: what
    /// one of several holders of a part each does. A norm that is clipped is of the whole, which is not seen
    /// here: this plan does not clip it.
    ///
    /// `None` for LAMB, whose norms are of whole parameters.
    pub fn within(&self, parts: &[Range<usize>]) -> Option<Self> {
        if matches!(self.optimizer, Optimizer::Lamb { .. }) {
            return None;
        }
        let mut segments = Vec::new();
        let mut packed = 0;
        for part in parts {
            for segment in &self.segments {
                let (start, end) =
                    (segment.range.start.max(part.start), segment.range.end.min(part.end));
                if start < end {
                    let range = packed + start - part.start..packed + end - part.start;
                    segments.push(Segment { range, ..segment.clone() });
                }
            }
            packed += part.len();
        }
        let clip = match self.clip {
            Clip::GlobalNorm { .. } => Clip::None,
            clip @ (Clip::None | Clip::Value { .. }) => clip,
        };
        Some(Self { optimizer: self.optimizer, clip, segments, len: packed })
    }

    /// The greatest norm of all gradients together, if it is clipped.
    pub fn max_norm(&self) -> Option<f64> {
        match self.clip {
            Clip::GlobalNorm { max } => Some(max),
            Clip::None | Clip::Value { .. } => None,
        }
    }

    /// The rule.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// In arena order. Neighbours with the same settings are one segment, but for LAMB, which has one
    /// for each parameter. What is frozen is in none.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The state before the first step.
    pub fn state<T: Real>(&self) -> OptimizerState<T> {
        self.optimizer.state(self.len)
    }

    /// Whether a state, from a checkpoint for example, is one that [`UpdatePlan::step`] accepts.
    pub fn check_state<T>(&self, state: &OptimizerState<T>) -> Result<(), StateError> {
        self.optimizer.check_state(state, self.len)
    }
}

impl Segment {
    fn goes_on_in(&self, next: &Self) -> bool {
        self.range.end == next.range.start
            && self.lr_scale == next.lr_scale
            && self.weight_decay == next.weight_decay
    }
}

/// How a parameter is updated; `None` if it is not.
fn segment(optimizer: &Optimizer, groups: &[ParamGroup], param: &Param) -> Option<Segment> {
    let group = groups.iter().find(|group| glob::matches(&group.pattern, &param.name));
    let default = GroupUpdate::Train { lr_scale: 1.0, weight_decay: None };
    match group.map_or(default, |group| group.update) {
        GroupUpdate::Train { lr_scale, weight_decay } if !param.range.is_empty() => {
            let weight_decay =
                weight_decay.unwrap_or_else(|| optimizer.default_decay(param.shape.len()));
            Some(Segment { range: param.range.clone(), lr_scale, weight_decay })
        }
        GroupUpdate::Train { .. } | GroupUpdate::Frozen => None,
    }
}

/// A group without parameters is a mistake in its pattern.
fn check_patterns(groups: &[ParamGroup], layout: &Layout) -> Result<(), PlanError> {
    for (group, ParamGroup { pattern, .. }) in groups.iter().enumerate() {
        let fits = |param: &&Param| glob::matches(pattern, &param.name);
        let is_earlier = |param: &Param| {
            groups[..group].iter().any(|earlier| glob::matches(&earlier.pattern, &param.name))
        };
        let mut fitting = layout.params().iter().filter(fits).peekable();
        let pattern = pattern.clone();
        if fitting.peek().is_none() {
            return Err(PlanError::NoMatch { group, pattern, names: some_names(layout) });
        }
        if fitting.all(is_earlier) {
            return Err(PlanError::Shadowed { group, pattern });
        }
    }
    Ok(())
}

/// The first few names, in the order of use.
fn some_names(layout: &Layout) -> String {
    const SHOWN: usize = 8;
    let params = layout.params();
    let names: Vec<_> = params.iter().rev().take(SHOWN).map(|param| param.name.as_str()).collect();
    match params.len().saturating_sub(SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
