//! One running guest: a store, the limits of each call, and what a failure means.

use std::fmt;

use wasmtime::{Store, Trap, WasmBacktrace};

use crate::error::GuestError;
use crate::host::GuestState;
use crate::host::log::LogSink;
use crate::limits::{HANDLES_CAP, Limits, MemoryDenied};
use crate::sandbox::{Sandbox, TICK};

/// Bytes that one call of the host may carry besides the output: names, shapes, messages.
const CALL_OVERHEAD_BYTES: u64 = 64 << 10;

pub(crate) struct Guest {
    store: Store<GuestState>,
    /// wasmtime refuses to enter a guest that trapped; this remembers why.
    spent: Option<String>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("spent", &self.spent).finish_non_exhaustive()
    }
}

impl Guest {
    pub(crate) fn new(sandbox: &Sandbox, limits: Limits, log: LogSink) -> Self {
        let mut store = Store::new(&sandbox.parts.engine, GuestState::new(limits, log));
        store.limiter(|state| &mut state.limiter);
        store.set_max_component_handles(HANDLES_CAP);
        let fuel = limits.output_bytes.saturating_add(CALL_OVERHEAD_BYTES);
        store.set_hostcall_fuel(usize::try_from(fuel).unwrap_or(usize::MAX));
        Self { store, spent: None }
    }

    pub(crate) fn state(&mut self) -> &mut GuestState {
        self.store.data_mut()
    }

    /// Enters the guest. `what` names the call in messages.
    pub(crate) fn call<R>(
        &mut self,
        what: &'static str,
        enter: impl FnOnce(&mut Store<GuestState>) -> wasmtime::Result<R>,
    ) -> Result<R, GuestError> {
        if let Some(why) = &self.spent {
            return Err(GuestError::Host(format!("{what}: the guest is spent since {why}")));
        }
        let state = self.store.data_mut();
        state.what = what;
        state.log.begin_call();
        // One tick more than the limit: the current one has begun.
        let ticks = state.limits.call_time.as_nanos().div_ceil(TICK.as_nanos()) + 1;
        self.store.set_epoch_deadline(u64::try_from(ticks).unwrap_or(u64::MAX / 2));
        enter(&mut self.store).map_err(|error| {
            let error = self.explain(what, &error);
            self.spent = Some(error.to_string());
            error
        })
    }

    fn explain(&mut self, what: &'static str, error: &wasmtime::Error) -> GuestError {
        let limits = self.store.data().limits;
        let what = what.to_owned();
        if let Some(error) = error.downcast_ref::<GuestError>() {
            return error.clone();
        }
        if let Some(&MemoryDenied { asked, limit }) = error.downcast_ref() {
            return GuestError::MemoryLimit { what, asked, limit };
        }
        // wasmtime has no public type for this one; a test notices if the words change.
        if error.root_cause().to_string().contains("fuel allocated for hostcalls") {
            return GuestError::OutputLimit { what, asked: None, limit: limits.output_bytes };
        }
        match error.downcast_ref::<Trap>() {
            Some(Trap::Interrupt) => {
                return GuestError::TimeLimit { what, limit: limits.call_time };
            }
            Some(Trap::StackOverflow) => return GuestError::StackOverflow { what },
            Some(_) | None => {}
        }
        let message = self.store.data_mut().log.last_words().unwrap_or_else(|| describe(error));
        GuestError::Trap { what, message }
    }
}

/// The kind of trap, and the innermost functions that have a name.
fn describe(error: &wasmtime::Error) -> String {
    let mut text = error.root_cause().to_string();
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return text };
    let names: Vec<&str> =
        backtrace.frames().iter().filter_map(|frame| frame.func_name()).take(3).collect();
    if !names.is_empty() {
        text.push_str(&format!(" in {}", names.join(", called by ")));
    }
    text
}
