//! The job's components: found, compiled or from the cache, and of the right kind.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use lockstep_api::{GuestLimits, GuestSpec, JobSpec};
use lockstep_sandbox::{
    GuestComponent, GuestError, Limits, Loader, LogSink, Sandbox, SandboxError, World,
};

use crate::loss::Loss;

/// Both components, ready to be opened.
#[derive(Debug)]
pub(crate) struct Guests {
    sandbox: Arc<Sandbox>,
    loader: GuestComponent,
    loss: GuestComponent,
    loss_world: World,
}

/// One of the two cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the {guest} component cannot be used")]
pub(crate) struct ComponentError {
    /// `loader` or `loss`.
    pub(crate) guest: &'static str,
    /// Why.
    pub(crate) source: WrongComponent,
}

/// Why a component cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrongComponent {
    /// It cannot be read or compiled, or its imports or exports are none of ours.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// It is a guest of another kind.
    #[error("it is a {found}, expected a {expected}")]
    World {
        /// What it is.
        found: World,
        /// What is wanted.
        expected: &'static str,
    },
}

/// A dataset's split and the folder that holds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split<'a> {
    /// `train` or `eval`.
    pub(crate) name: &'a str,
    /// Its files under their dataset paths.
    pub(crate) dir: &'a Utf8Path,
}

impl Guests {
    /// Compiles both, or takes them from the cache.
    ///
    /// # Errors
    /// Names the component at fault.
    pub(crate) fn prepare(
        loader: &Utf8Path,
        loss: &Utf8Path,
        cache_dir: &Utf8Path,
    ) -> Result<Self, ComponentError> {
        let of =
            |guest| move |source: SandboxError| ComponentError { guest, source: source.into() };
        let sandbox = Arc::new(Sandbox::new(Some(cache_dir)).map_err(of("loader"))?);
        let loader = sandbox.component(loader).map_err(of("loader"))?;
        let loss = sandbox.component(loss).map_err(of("loss"))?;
        let wrong = |guest, found, expected| {
            Err(ComponentError { guest, source: WrongComponent::World { found, expected } })
        };
        match loader.world().map_err(of("loader"))? {
            World::Loader => {}
            found @ (World::Loss | World::LossRaw) => return wrong("loader", found, "loader"),
        }
        let loss_world = loss.world().map_err(of("loss"))?;
        match loss_world {
            World::Loss | World::LossRaw => {}
            World::Loader => return wrong("loss", loss_world, "loss"),
        }
        Ok(Self { sandbox, loader, loss, loss_world })
    }

    /// Opens a reader of `split`.
    ///
    /// # Errors
    /// As the guest answers.
    pub(crate) fn open_loader(
        &self,
        spec: &GuestSpec,
        split: Split<'_>,
        log: LogSink,
    ) -> Result<Loader, GuestError> {
        let config_json = spec.config.to_string();
        let limits = limits(&spec.limits);
        Loader::open(&self.sandbox, &self.loader, limits, &config_json, split.name, split.dir, log)
    }

    /// Opens the loss.
    ///
    /// # Errors
    /// As the guest answers.
    pub(crate) fn open_loss(self, spec: &JobSpec, log: LogSink) -> Result<Loss, GuestError> {
        let slot_bytes = u64::from(spec.gang.slot.memory_mib) << 20;
        Loss::open(&self.sandbox, self.loss, self.loss_world, &spec.loss, slot_bytes, log)
    }
}

/// The job's ceilings in the sandbox's terms.
pub(crate) fn limits(limits: &GuestLimits) -> Limits {
    const MIB: u64 = 1 << 20;
    Limits {
        memory_bytes: u64::from(limits.memory_mib) * MIB,
        call_time: Duration::from_millis(limits.call_ms),
        output_bytes: u64::from(limits.output_mib) * MIB,
    }
}
