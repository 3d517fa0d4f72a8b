//! What wasmtime makes of `sdk/guest/wit`: one module a world, sharing the interfaces that all import.

pub(crate) mod loader {
    wasmtime::component::bindgen!({
        path: "../../sdk/guest/wit",
        world: "loader-guest",
        imports: { default: trappable },
        with: { "lockstep:guest/dataset.object": crate::host::dataset::Object },
    });
}

pub(crate) mod loss {
    wasmtime::component::bindgen!({
        path: "../../sdk/guest/wit",
        world: "loss-guest",
        imports: { default: trappable },
        with: {
            "lockstep:guest/types": super::loader::lockstep::guest::types,
            "lockstep:guest/log": super::loader::lockstep::guest::log,
            "lockstep:guest/graph.tensor": crate::host::graph::Tensor,
        },
    });
}

pub(crate) mod loss_raw {
    wasmtime::component::bindgen!({
        path: "../../sdk/guest/wit",
        world: "loss-raw-guest",
        imports: { default: trappable },
        with: {
            "lockstep:guest/types": super::loader::lockstep::guest::types,
            "lockstep:guest/log": super::loader::lockstep::guest::log,
        },
    });
}

pub(crate) use loader::lockstep::guest::{dataset, log, types};
pub(crate) use loss::lockstep::guest::graph;
