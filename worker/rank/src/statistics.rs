//! Running statistics over the ranks.
//!
//! Each grain is a batch of its own. With the fixed tree the statistics of all grains go to all ranks, which take them in in the order
//! of grains: the running ones have the same bits for any number of ranks. With the fast reduction each rank takes in
//! those of its own grains, and rank 0's are everybody's before they are evaluated or saved, as is usual.

use lockstep_api::Reduction;

use crate::failure::Failure;
use crate::train::Trainer;

/// What a step's grains brought.
#[derive(Debug)]
pub(crate) struct Statistics {
    reduction: Reduction,
    /// One row a grain with the fixed tree; one row that is used again and again without.
    table: Vec<f64>,
    /// Of one grain: as many as there are running ones.
    width: usize,
    /// The running ones before the step in work, which may have to be done again.
    before: Option<Vec<f32>>,
}

impl Statistics {
    /// `width`: how many running statistics the model has. `grains`: of the largest step.
    pub(crate) fn new(reduction: Reduction, width: usize, grains: usize) -> Self {
        let rows = match reduction {
            Reduction::Fast => 1,
            Reduction::FixedTree => grains,
        };
        Self { reduction, table: vec![0.0; rows * width], width, before: None }
    }
}

impl Trainer {
    /// Before a step's first grain.
    pub(crate) fn begin_statistics(&mut self) {
        self.statistics.table.fill(0.0);
        let before = self.statistics.before.get_or_insert_default();
        before.clone_from(&self.ready.engine.buffers);
    }

    /// After a step that was applied.
    pub(crate) fn keep_statistics(&mut self) {
        self.statistics.before = None;
    }

    /// After a grain's forward pass.
    pub(crate) fn take_statistics(&mut self, grain: usize) {
        let Statistics { reduction, table, width, .. } = &mut self.statistics;
        let engine = &mut self.ready.engine;
        match reduction {
            Reduction::Fast => {
                engine.batch_statistics(table);
                engine.update_buffers(table);
            }
            Reduction::FixedTree => engine.batch_statistics(&mut table[grain * *width..][..*width]),
        }
    }

    /// After a step of so many grains.
    pub(crate) fn finish_statistics(&mut self, grains: usize) -> Result<(), Failure> {
        let Statistics { reduction, table, width, .. } = &mut self.statistics;
        if *width == 0 || *reduction == Reduction::Fast {
            return Ok(());
        }
        let rows = &mut table[..grains * *width];
        self.ready.reducer.all_reduce_f64(rows).map_err(|error| Failure::of_group(&error))?;
        for row in rows.chunks_exact(*width) {
            self.ready.engine.update_buffers(row);
        }
        Ok(())
    }

    /// Before the running statistics are evaluated or saved.
    pub(crate) fn share_statistics(&mut self) -> Result<(), Failure> {
        let buffers = &mut self.ready.engine.buffers;
        if buffers.is_empty() || self.statistics.reduction == Reduction::FixedTree {
            return Ok(());
        }
        let reducer = &mut self.ready.reducer;
        let shared = self.position.timeline().wait(|| reducer.broadcast(0, buffers));
        shared.map_err(|error| Failure::of_group(&error))
    }
}

impl<G> Trainer<G> {
    /// A step that was not applied leaves no trace.
    pub(crate) fn take_back_statistics(&mut self) {
        if let Some(before) = self.statistics.before.take() {
            self.ready.engine.buffers = before;
        }
    }
}
