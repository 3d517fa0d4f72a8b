//! Loaders: the service says which samples, the guest makes tensors of them.

use std::fmt;

use camino::Utf8Path;
use wasmtime::component::ResourceAny;

use crate::bindings::loader::LoaderGuest;
use crate::bindings::loader::exports::lockstep::guest::loader::Request;
use crate::error::GuestError;
use crate::guest::Guest;
use crate::host::batch::{Batch, BatchBuilder};
use crate::host::dataset::Dataset;
use crate::host::guest_error;
use crate::host::log::LogSink;
use crate::limits::Limits;
use crate::{GuestComponent, Sandbox, World};

/// A loader open on one split of one dataset.
pub struct Loader {
    guest: Guest,
    bindings: LoaderGuest,
    reader: ResourceAny,
    limits: Limits,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("guest", &self.guest).finish_non_exhaustive()
    }
}

impl Loader {
    /// Starts the guest and opens the split. `data_dir` holds the dataset's files under their dataset paths.
    pub fn open(
        sandbox: &Sandbox,
        component: &GuestComponent,
        limits: Limits,
        config_json: &str,
        split: &str,
        data_dir: &Utf8Path,
        log: LogSink,
    ) -> Result<Self, GuestError> {
        let what = "loader.open";
        let pre = component.expect(World::Loader)?;
        let mut guest = Guest::new(sandbox, limits, log);
        guest.state().dataset = Dataset::open(data_dir)?;
        let (bindings, opened) = guest.call(what, |store| {
            let instance = pre.instantiate(&mut *store)?;
            let bindings = LoaderGuest::new(&mut *store, &instance)?;
            let opened =
                bindings.lockstep_guest_loader().call_open(&mut *store, config_json, split)?;
            Ok((bindings, opened))
        })?;
        let reader = opened.map_err(|error| guest_error(what, error))?;
        Ok(Self { guest, bindings, reader, limits })
    }

    /// Number of samples of the split.
    #[expect(clippy::len_without_is_empty, reason = "a call of the guest, not a collection")]
    pub fn len(&mut self) -> Result<u64, GuestError> {
        let what = "loader.len";
        let len = self.guest.call(what, |store| {
            self.bindings.lockstep_guest_loader().reader().call_len(store, self.reader)
        })?;
        if i64::try_from(len).is_err() {
            return Err(GuestError::Shape {
                what: what.to_owned(),
                subject: "the number of samples".to_owned(),
                expected: "below 2^63".to_owned(),
                got: len.to_string(),
            });
        }
        Ok(len)
    }

    /// Makes a batch of some samples. `seeds` has one for each index; `training` is false in evaluation.
    pub fn load(
        &mut self,
        indices: &[u64],
        seeds: &[u64],
        training: bool,
    ) -> Result<Batch, GuestError> {
        let what = "loader.load";
        if indices.len() != seeds.len() {
            let (indices, seeds) = (indices.len(), seeds.len());
            return Err(GuestError::Host(format!("{indices} indices with {seeds} seeds")));
        }
        let request = Request { indices: indices.to_vec(), seeds: seeds.to_vec(), training };
        self.guest.state().batch = Some(BatchBuilder::new(what, indices.len(), &self.limits));
        let loaded = self.guest.call(what, |store| {
            self.bindings.lockstep_guest_loader().reader().call_load(store, self.reader, &request)
        });
        let batch = self.guest.state().batch.take();
        loaded?.map_err(|error| guest_error(what, error))?;
        batch.ok_or_else(|| GuestError::Host(format!("{what} lost its batch")))?.finish()
    }
}
