//! A compiled component, and which kind of guest it is.

use std::fmt;
use std::sync::Arc;

use wasmtime::component::{Component, InstancePre};

use crate::bindings::{loader, loss, loss_raw};
use crate::error::{GuestError, SandboxError};
use crate::host::GuestState;
use crate::sandbox::Parts;

/// Kinds of guest. A component's exports say which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum World {
    /// Makes tensors of samples.
    Loader,
    /// A loss as an expression that is recorded once.
    Loss,
    /// A loss as numbers: bytes in, gradients out.
    LossRaw,
}

impl World {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Loader, Self::Loss, Self::LossRaw];

    /// The interface that a guest of this kind exports.
    pub fn export(self) -> &'static str {
        match self {
            Self::Loader => "lockstep:guest/loader@0.1.0",
            Self::Loss => "lockstep:guest/loss@0.1.0",
            Self::LossRaw => "lockstep:guest/loss-raw@0.1.0",
        }
    }

    /// The interfaces that it may import.
    pub fn imports(self) -> &'static [&'static str] {
        match self {
            Self::Loader => &[
                "lockstep:guest/types@0.1.0",
                "lockstep:guest/log@0.1.0",
                "lockstep:guest/dataset@0.1.0",
                "lockstep:guest/batch@0.1.0",
            ],
            Self::Loss => &[
                "lockstep:guest/types@0.1.0",
                "lockstep:guest/log@0.1.0",
                "lockstep:guest/graph@0.1.0",
            ],
            Self::LossRaw => &["lockstep:guest/types@0.1.0", "lockstep:guest/log@0.1.0"],
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loader => "loader",
            Self::Loss => "loss",
            Self::LossRaw => "raw loss",
        })
    }
}

/// A component ready to run. Cheap to clone.
#[derive(Clone)]
pub struct GuestComponent {
    parts: Arc<Parts>,
    component: Component,
    digest: String,
}

impl fmt::Debug for GuestComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestComponent").field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl GuestComponent {
    pub(crate) fn new(parts: Arc<Parts>, component: Component, digest: String) -> Self {
        Self { parts, component, digest }
    }

    /// SHA-256 of the component's file, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Which kind of guest it is, all of its imports and exports checked against that kind.
    pub fn world(&self) -> Result<World, SandboxError> {
        let engine = &self.parts.engine;
        let ty = self.component.component_type();
        let exports: Vec<&str> = ty.exports(engine).map(|(name, _)| name).collect();
        let worlds = World::ALL.iter().filter(|world| exports.contains(&world.export()));
        let [&world] = worlds.collect::<Vec<_>>()[..] else {
            return Err(SandboxError::NoWorld {
                found: exports.into_iter().map(str::to_owned).collect(),
                expected: World::ALL.iter().map(|world| world.export()).collect(),
            });
        };
        for (import, _) in ty.imports(engine) {
            if !world.imports().contains(&import) {
                let (import, allowed) = (import.to_owned(), world.imports());
                return Err(SandboxError::UnknownImport { world, import, allowed });
            }
        }
        let fits = self.prepare(world).and_then(|pre| match world {
            World::Loader => loader::LoaderGuestPre::new(pre).map(drop),
            World::Loss => loss::LossGuestPre::new(pre).map(drop),
            World::LossRaw => loss_raw::LossRawGuestPre::new(pre).map(drop),
        });
        match fits {
            Ok(()) => Ok(world),
            Err(error) => Err(SandboxError::Mismatch { world, message: format!("{error:#}") }),
        }
    }

    /// The component with its imports resolved, if it is of that kind.
    pub(crate) fn expect(&self, expected: World) -> Result<InstancePre<GuestState>, GuestError> {
        let world = self.world().map_err(|error| GuestError::Host(error.to_string()))?;
        if world != expected {
            return Err(GuestError::Host(format!("the component is a {world}, not a {expected}")));
        }
        self.prepare(world).map_err(|error| GuestError::Host(format!("{error:#}")))
    }

    fn prepare(&self, world: World) -> wasmtime::Result<InstancePre<GuestState>> {
        self.parts.linker(world).instantiate_pre(&self.component)
    }
}
