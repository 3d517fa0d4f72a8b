//! Guests: wasmtime engine, limits, host interfaces, loaders and losses.
