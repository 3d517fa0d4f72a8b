//! Where backward writes a grain's gradients.

use lockstep_tensor::{GradSink, ParamId};

use crate::Reducer;

/// The sink of one grain. Of the last one of a rank, buckets are launched while backward runs.
#[derive(Debug)]
pub struct ReducerSink<'a> {
    reducer: &'a mut Reducer,
}

impl<'a> ReducerSink<'a> {
    pub(crate) fn new(reducer: &'a mut Reducer) -> Self {
        Self { reducer }
    }
}

impl GradSink<f32> for ReducerSink<'_> {
    fn grad(&mut self, param: ParamId) -> &mut [f32] {
        self.reducer.grad(param)
    }

    fn unused(&mut self, param: ParamId) {
        self.reducer.note_unused(param);
    }

    fn ready(&mut self, param: ParamId) {
        self.reducer.ready(param);
    }
}
