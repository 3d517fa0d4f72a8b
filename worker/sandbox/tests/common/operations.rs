//! The guest that uses one operation, asked for a loss.

use lockstep_sandbox::{BuiltLoss, GuestComponent, GuestError, LossGraph, Sandbox};
use lockstep_tensor::Meta;
use serde_json::Value as Json;

use super::{LIMITS, TEST_GUESTS, guest, quiet};

/// The result of `x` and `t`.
pub(crate) type Formula = fn(&[f64], &[f64]) -> Vec<f64>;

/// An operation on tensors of these shapes, and what it computes.
pub(crate) struct Case {
    pub(crate) config: Json,
    pub(crate) x: &'static [usize],
    pub(crate) t: &'static [usize],
    pub(crate) index: (&'static [usize], &'static [i64]),
    pub(crate) result: &'static [usize],
    pub(crate) formula: Formula,
}

/// `x[2, 3]`, `t[2, 3]`, `index[2]` to the shape of `x`.
pub(crate) fn case(config: Json, formula: Formula) -> Case {
    Case { config, x: &[2, 3], t: &[2, 3], index: (&[2], &[2, 0]), result: &[2, 3], formula }
}

/// The guest that uses one operation.
pub(crate) struct Component(Sandbox, GuestComponent);

impl Component {
    pub(crate) fn new() -> Self {
        let sandbox = Sandbox::new(None).unwrap();
        let component = guest(&sandbox, TEST_GUESTS, "operations.wasm");
        Self(sandbox, component)
    }

    pub(crate) fn build(&self, case: &Case) -> Result<BuiltLoss, GuestError> {
        let outputs = [("x".to_owned(), Meta::f32(case.x))];
        let batch = [
            ("t".to_owned(), Meta::f32(case.t)),
            ("index".to_owned(), Meta::i64(case.index.0)),
            ("w".to_owned(), Meta::f32(case.result)),
        ];
        let config = case.config.to_string();
        LossGraph::build(&self.0, &self.1, LIMITS, &config, &outputs, &batch, quiet())
    }
}
