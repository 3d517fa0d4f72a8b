//! The optimizer's state in parts: each rank keeps and updates its own, then all ranks get all weights.

use std::ops::Range;

use lockstep_api::FailureCode;
use lockstep_collective::GroupError;
use lockstep_ddp::Reducer;
use lockstep_service::chain;
use lockstep_tensor::{OptimizerState, StepFactors, UpdatePlan};

use crate::failure::Failure;

/// This rank's part of the arenas: a piece of each bucket, packed one behind the other.
#[derive(Debug)]
pub(crate) struct OwnShard {
    parts: Vec<Range<usize>>,
    plan: UpdatePlan,
    /// Of the whole gradient, if it is clipped.
    max_norm: Option<f64>,
    weights: Vec<f32>,
    gradients: Vec<f32>,
}

impl OwnShard {
    /// The part of `plan` that `reducer` leaves this rank the gradients of.
    pub(crate) fn new(reducer: &Reducer, plan: &UpdatePlan) -> Result<Self, Failure> {
        let parts = reducer.own_parts();
        let own = plan.within(&parts).ok_or_else(|| {
            let message = "an optimizer whose norms are of whole parameters cannot work in parts";
            Failure::new(FailureCode::RankError, message)
        })?;
        let (weights, gradients) = (Vec::new(), Vec::new());
        Ok(Self { parts, plan: own, max_norm: plan.max_norm(), weights, gradients })
    }

    /// Of a state of the whole model, this rank's part.
    pub(crate) fn keep_own(&self, state: &mut OptimizerState) {
        for (_, moment) in &mut state.moments {
            let mut own = Vec::new();
            self.pack(moment, &mut own);
            *moment = own;
        }
    }

    /// One update of the weights on all ranks. Says how long the gradient was, if that was measured.
    pub(crate) fn step(
        &mut self,
        reducer: &mut Reducer,
        weights: &mut [f32],
        factors: StepFactors,
        state: &mut OptimizerState,
    ) -> Result<Option<f64>, Failure> {
        let rank_error =
            |error: &dyn std::error::Error| Failure::new(FailureCode::RankError, chain(error));
        let (mut own, mut gradients) =
            (std::mem::take(&mut self.weights), std::mem::take(&mut self.gradients));
        self.pack(weights, &mut own);
        self.pack(reducer.gradients(), &mut gradients);
        let mut grad_scale = factors.grad_scale;
        let mut norm = None;
        if let Some(max) = self.max_norm {
            let part = self.plan.grad_norm(&gradients, grad_scale);
            let part = part.map_err(|error| rank_error(&error))?;
            let mut squares = [part * part];
            reducer.all_reduce_f64(&mut squares).map_err(|error| Failure::of_group(&error))?;
            let whole = squares[0].sqrt();
            grad_scale *= (max / (whole + 1e-6)).min(1.0);
            norm = Some(whole);
        }
        let factors = StepFactors { grad_scale, ..factors };
        self.plan.step(&mut own, &gradients, factors, state).map_err(|error| rank_error(&error))?;
        self.unpack(&own, weights);
        (self.weights, self.gradients) = (own, gradients);
        reducer.all_gather(weights).map_err(|error| Failure::of_group(&error))?;
        Ok(norm)
    }

    /// The state of the whole model, for a checkpoint; all ranks call it.
    pub(crate) fn whole_state(
        &self,
        reducer: &mut Reducer,
        state: &OptimizerState,
        len: usize,
    ) -> Result<OptimizerState, GroupError> {
        let mut moments = Vec::with_capacity(state.moments.len());
        for (name, own) in &state.moments {
            let mut whole = vec![0.0; len];
            self.unpack(own, &mut whole);
            reducer.all_gather(&mut whole)?;
            moments.push((name.clone(), whole));
        }
        Ok(OptimizerState { step: state.step, moments })
    }

    fn pack(&self, whole: &[f32], own: &mut Vec<f32>) {
        own.clear();
        self.parts.iter().for_each(|part| own.extend_from_slice(&whole[part.clone()]));
    }

    fn unpack(&self, own: &[f32], whole: &mut [f32]) {
        let mut rest = own;
        for part in &self.parts {
            let (piece, behind) = rest.split_at(part.len());
            whole[part.clone()].copy_from_slice(piece);
            rest = behind;
        }
    }
}
