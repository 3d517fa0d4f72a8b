//! A job from submit to its end, and what its curve was.

use std::time::Duration;

use lockstep_api::{JobId, JobState, JobView, MetricSeries};

use crate::{Service, wait_for_job};

/// Longest wait for a whole job.
pub const WHOLE_JOB: Duration = Duration::from_secs(120);

impl Service {
    /// Waits until a job has succeeded.
    ///
    /// # Errors
    /// When it ends otherwise, or does not end.
    pub async fn until_succeeded(&self, id: JobId) -> anyhow::Result<JobView> {
        let over = |job: &JobView| job.summary.state == JobState::Succeeded;
        wait_for_job(&self.client, id, "the job succeeds", WHOLE_JOB, over).await
    }

    /// Submits a job and waits until it has succeeded.
    ///
    /// # Errors
    /// As [`Service::submit`] and [`Service::until_succeeded`].
    pub async fn train(&self, job: &str, settings: &[&str]) -> anyhow::Result<JobView> {
        let id = self.submit(job, settings)?.summary.id;
        self.until_succeeded(id).await
    }

    /// The training curve: step and loss. A loss that is none is not a number.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn losses(&self, id: JobId) -> anyhow::Result<Vec<(i64, f64)>> {
        let series = self.client.metrics(id, Some("train/loss"), None).await?;
        let points = series.into_iter().flat_map(|MetricSeries { name: _, points }| points);
        Ok(points.map(|point| (point.step.0, point.value.unwrap_or(f64::NAN))).collect())
    }

    /// The training curve, bit for bit.
    ///
    /// # Errors
    /// As [`Service::losses`].
    pub async fn curve(&self, id: JobId) -> anyhow::Result<Vec<(i64, u64)>> {
        let bits = |(step, loss): (i64, f64)| (step, loss.to_bits());
        Ok(self.losses(id).await?.into_iter().map(bits).collect())
    }
}
