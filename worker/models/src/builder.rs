//! Collects a model's parameters and buffers in the order of their first use.

use std::sync::Arc;

use lockstep_tensor::{Layout, LayoutError, ParamId};

use crate::init::Init;

/// A parameter, by its place in the order of first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weight(usize);

/// A buffer, likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer(usize);

impl Weight {
    /// A layout lies in reverse order of use.
    pub(crate) fn id(self, layout: &Layout) -> ParamId {
        ParamId(layout.params().len() - 1 - self.0)
    }
}

impl Buffer {
    pub(crate) fn id(self, layout: &Layout) -> ParamId {
        ParamId(layout.params().len() - 1 - self.0)
    }
}

/// The running statistics of one batch norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Running {
    /// Its place among the model's batch norms.
    pub(crate) place: usize,
    pub(crate) mean: Buffer,
    pub(crate) variance: Buffer,
    pub(crate) tracked: Buffer,
    pub(crate) channels: usize,
    pub(crate) momentum: f64,
}

/// Declarations, in order of first use.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    params: Vec<(String, Vec<usize>)>,
    inits: Vec<Init>,
    buffers: Vec<(String, Vec<usize>)>,
    running: Vec<Running>,
    dropouts: u64,
}

/// What was declared.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) layout: Arc<Layout>,
    /// In arena order.
    pub(crate) inits: Vec<Init>,
    pub(crate) buffers: Arc<Layout>,
    pub(crate) running: Vec<Running>,
}

impl Builder {
    pub(crate) fn weight(&mut self, name: String, shape: Vec<usize>, init: Init) -> Weight {
        self.params.push((name, shape));
        self.inits.push(init);
        Weight(self.params.len() - 1)
    }

    /// `NAME.running_mean`, `NAME.running_var` and `NAME.num_batches_tracked`.
    pub(crate) fn running(&mut self, name: &str, channels: usize, momentum: f64) -> Running {
        let mut buffer = |part: &str, shape: &[usize]| {
            self.buffers.push((format!("{name}.{part}"), shape.to_vec()));
            Buffer(self.buffers.len() - 1)
        };
        let running = Running {
            mean: buffer("running_mean", &[channels]),
            variance: buffer("running_var", &[channels]),
            tracked: buffer(TRACKED, &[]),
            place: self.running.len(),
            channels,
            momentum,
        };
        self.running.push(running);
        running
    }

    /// A number of its own for each dropout: with the step's key it makes the mask.
    pub(crate) fn dropout(&mut self) -> u64 {
        self.dropouts += 1;
        self.dropouts
    }

    pub(crate) fn finish(self) -> Result<Declared, LayoutError> {
        let Self { params, mut inits, buffers, running, dropouts: _ } = self;
        inits.reverse();
        Ok(Declared {
            layout: Arc::new(Layout::new(params)?),
            inits,
            buffers: Arc::new(Layout::new(buffers)?),
            running,
        })
    }
}

/// The last part of the name of what PyTorch keeps as an i64.
pub(crate) const TRACKED: &str = "num_batches_tracked";
/// The last part of the name of a running variance.
pub(crate) const VARIANCE: &str = "running_var";

/// Whether a buffer is a batch norm's counter.
pub(crate) fn is_counter(name: &str) -> bool {
    name.rsplit('.').next() == Some(TRACKED)
}
