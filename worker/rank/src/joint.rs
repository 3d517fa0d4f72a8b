//! Batch norms over the micro batches of all ranks (`ddp.sync_batch_norm`).
//!
//! Ranks compute their first grains of a step together, then their second ones, and so on. A rank that has a grain less
//! than others stands in for it with zeros.

use std::sync::Arc;

use lockstep_api::FailureCode;
use lockstep_ddp::{BatchPeers, GroupError};
use lockstep_tensor::{Accumulate, GradBuffer, Peers};

use crate::failure::Failure;
use crate::schedule::Place;
use crate::timeline::Timeline;
use crate::train::Trainer;

/// The other ranks, whom a rank waits for in the middle of a pass.
#[derive(Debug)]
pub(crate) struct TimedPeers {
    pub(crate) peers: Arc<BatchPeers>,
    pub(crate) timeline: Timeline,
}

impl Peers for TimedPeers {
    fn sum(&self, values: &mut [f64]) {
        self.timeline.wait(|| self.peers.sum(values));
    }
}

impl Trainer {
    fn batch_peers(&self) -> Option<Arc<BatchPeers>> {
        self.ready.reducer.batch_peers().cloned()
    }

    /// Before a grain's forward pass.
    pub(crate) fn begin_joint_grain(&self) {
        if let Some(peers) = self.batch_peers() {
            peers.begin_grain();
        }
    }

    /// After forward: what rests on sums that are none is not used.
    pub(crate) fn check_joint_grain(&self) -> Result<(), Failure> {
        let checked = self.batch_peers().map_or(Ok(()), |peers| peers.check());
        checked.map_err(|error| other_norms(&error))
    }

    /// After backward.
    pub(crate) fn end_joint_grain(&self) -> Result<(), Failure> {
        let Some(peers) = self.batch_peers() else { return Ok(()) };
        let ended = self.position.timeline().wait(|| peers.end_grain());
        ended.map_err(|error| other_norms(&error))
    }

    /// After the own grains of a step of `total`: takes part in what others have and this rank has not.
    pub(crate) fn stand_in(
        &mut self,
        step: u64,
        place: Place,
        (own, total): (usize, usize),
    ) -> Result<(), Failure> {
        let Some(peers) = self.batch_peers() else { return Ok(()) };
        if own == total.div_ceil(self.ready.reducer.world_size()) {
            return Ok(());
        }
        if !peers.knows_a_grain() {
            self.rehearse(step, place, &peers)?;
        }
        let done = self.position.timeline().wait(|| peers.stand_in());
        done.map_err(|error| other_norms(&error))
    }

    /// The step's first grain, whose it may be, forward and backward with nobody else: only to see what it sums up.
    fn rehearse(&mut self, step: u64, place: Place, peers: &BatchPeers) -> Result<(), Failure> {
        let samples = self.samples_of(0, place);
        let batch = self.load(&samples, place.data_epoch)?;
        let mode = self.mode(step, 0);
        peers.begin_rehearsal();
        let engine = &mut self.ready.engine;
        let done = engine.forward(&batch, &samples, mode);
        let layout = Arc::clone(engine.model.layout());
        let done = done.map(|mut value| {
            let mut nowhere = GradBuffer::new(layout);
            engine.backward(&mut value, 1.0, Accumulate::Overwrite, &mut nowhere)
        });
        peers.end_rehearsal();
        let done = done.map_err(|error| error.failure(self.call("loss", &samples)))?;
        done.map_err(|error| self.no_gradient(&error))
    }
}

/// Of the sums in a grain. Ranks that do not make the same ones have losses that depend on other batch norms.
fn other_norms(error: &GroupError) -> Failure {
    let (GroupError::Diverged { rank, .. } | GroupError::NumbersMismatch { rank, .. }) = error
    else {
        return Failure::of_group(error);
    };
    let message = format!(
        "with ddp.sync_batch_norm the loss of every micro batch must depend on the same batch norms, that of rank {rank} \
         depends on others: {error}"
    );
    Failure::new(FailureCode::GuestShape, message)
}
