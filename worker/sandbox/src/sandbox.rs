//! The engine that all guests of a process share, and what each kind of guest can reach.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use sha2::{Digest as _, Sha256};
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Config, Engine};

use crate::bindings::{dataset, graph, log, types};
use crate::cache::Cache;
use crate::component::{GuestComponent, World};
use crate::error::SandboxError;
use crate::host::{self, GuestState};
use crate::limits::STACK_BYTES;

/// How often a running guest's deadline is looked at.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Bytes of a component file.
const COMPONENT_BYTES_CAP: u64 = 64 << 20;

/// Compiles components and lets guests run. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox {
    pub(crate) parts: Arc<Parts>,
}

pub(crate) struct Parts {
    pub(crate) engine: Engine,
    loader: Linker<GuestState>,
    loss: Linker<GuestState>,
    loss_raw: Linker<GuestState>,
    cache: Option<Cache>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("cache", &self.parts.cache).finish_non_exhaustive()
    }
}

impl Parts {
    pub(crate) fn linker(&self, world: World) -> &Linker<GuestState> {
        match world {
            World::Loader => &self.loader,
            World::Loss => &self.loss,
            World::LossRaw => &self.loss_raw,
        }
    }
}

impl Sandbox {
    /// An engine, the clock that stops its guests, and the folder where compiled components are kept.
    pub fn new(cache_dir: Option<&Utf8Path>) -> Result<Self, SandboxError> {
        let made = Engine::new(&config()).and_then(|engine| {
            let [loader, loss, loss_raw] = linkers(&engine)?;
            Ok((engine, loader, loss, loss_raw))
        });
        let (engine, loader, loss, loss_raw) =
            made.map_err(|error| SandboxError::Engine { message: format!("{error:#}") })?;
        start_clock(&engine)
            .map_err(|error| SandboxError::Engine { message: format!("no thread: {error}") })?;
        let cache = cache_dir.map(|dir| Cache::open(dir, &engine)).transpose()?;
        Ok(Self { parts: Arc::new(Parts { engine, loader, loss, loss_raw, cache }) })
    }

    /// Makes a component ready: from the cache, otherwise by compiling it.
    pub fn component(&self, path: &Utf8Path) -> Result<GuestComponent, SandboxError> {
        let failed = |source| SandboxError::Read { path: path.to_owned(), source };
        let size = path.metadata().map_err(failed)?.len();
        if COMPONENT_BYTES_CAP < size {
            return Err(SandboxError::TooLarge { bytes: size, limit: COMPONENT_BYTES_CAP });
        }
        let bytes = std::fs::read(path).map_err(failed)?;
        let digest = hex(&Sha256::digest(&bytes));
        let engine = &self.parts.engine;
        let cached = self.parts.cache.as_ref().and_then(|cache| cache.load(engine, &digest));
        let component = match cached {
            Some(component) => component,
            None => {
                let component = Component::new(engine, &bytes)
                    .map_err(|error| SandboxError::Invalid { message: format!("{error:#}") })?;
                if let Some(cache) = &self.parts.cache {
                    cache.store(&component, &digest);
                }
                component
            }
        };
        Ok(GuestComponent::new(Arc::clone(&self.parts), component, digest))
    }
}

/// What is off is off because guests do not need it and because most faults found in this version of
/// wasmtime were there: asynchronous components, garbage collection, threads. Without the first, calls
/// are also three times as fast.
fn config() -> Config {
    let mut config = Config::new();
    config
        .concurrency_support(false)
        .epoch_interruption(true)
        .relaxed_simd_deterministic(true)
        .wasm_gc(false)
        .wasm_memory64(false)
        .wasm_tail_call(false)
        .max_wasm_stack(STACK_BYTES);
    config
}

/// One line an interface: the whole of each guest's reach can be read here.
fn linkers(engine: &Engine) -> wasmtime::Result<[Linker<GuestState>; 3]> {
    let mut base = Linker::new(engine);
    types::add_to_linker::<_, HasSelf<_>>(&mut base, |state| state)?;
    log::add_to_linker::<_, HasSelf<_>>(&mut base, |state| state)?;

    let mut loader = base.clone();
    dataset::add_to_linker::<_, HasSelf<_>>(&mut loader, |state| state)?;
    loader.allow_shadowing(true);
    host::dataset::lend_reads(loader.instance("lockstep:guest/dataset@0.1.0")?)?;
    loader.allow_shadowing(false);
    host::batch::add_to_linker(loader.instance("lockstep:guest/batch@0.1.0")?)?;

    let mut loss = base.clone();
    graph::add_to_linker::<_, HasSelf<_>>(&mut loss, |state| state)?;

    Ok([loader, loss, base])
}

/// Bumps the engine's epoch every [`TICK`], for as long as anything uses the engine. An OS thread: it
/// must run while a guest keeps every other thread busy.
fn start_clock(engine: &Engine) -> std::io::Result<()> {
    let engine = engine.weak();
    std::thread::Builder::new().name("guest-clock".to_owned()).spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    })?;
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}
