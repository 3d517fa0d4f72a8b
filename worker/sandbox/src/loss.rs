//! Losses as expressions: the guest is asked once for each set of shapes, its answer is kept.

use lockstep_tensor::{Meta, Node, Recipe};
use wasmtime::Store;
use wasmtime::component::Resource;

use crate::bindings::loss::LossGuest;
use crate::bindings::loss::exports::lockstep::guest::loss::Built;
use crate::error::GuestError;
use crate::guest::Guest;
use crate::host::graph::{Graph, Tensor};
use crate::host::log::LogSink;
use crate::host::{GuestState, check_name, guest_error};
use crate::limits::Limits;
use crate::{GuestComponent, Sandbox, World};

/// The call, in messages.
const BUILD: &str = "loss.build";

/// Metrics of one loss.
pub(crate) const METRICS_CAP: usize = 32;

/// A guest's expression for one set of shapes.
#[derive(Debug, Clone, PartialEq)]
pub struct BuiltLoss {
    /// Inputs: the model's outputs and the batch's tensors by their names. Outputs, all scalars:
    /// `sum`, `weight`, and for each metric `metric/NAME/sum` and `metric/NAME/weight`.
    pub recipe: Recipe,
    /// Names of the metrics, in the guest's order.
    pub metrics: Vec<String>,
}

/// Asks a loss guest for its expression.
#[derive(Debug)]
pub struct LossGraph;

impl LossGraph {
    /// One fresh guest, one call of `build`.
    pub fn build(
        sandbox: &Sandbox,
        component: &GuestComponent,
        limits: Limits,
        config_json: &str,
        outputs: &[(String, Meta)],
        batch: &[(String, Meta)],
        log: LogSink,
    ) -> Result<BuiltLoss, GuestError> {
        let pre = component.expect(World::Loss)?;
        let mut guest = Guest::new(sandbox, limits, log);
        guest.state().what = BUILD;
        guest.state().graph = Some(Graph::new());
        let outputs = inputs(guest.state(), outputs)?;
        let batch = inputs(guest.state(), batch)?;
        let answer = guest.call(BUILD, |store: &mut Store<GuestState>| {
            let instance = pre.instantiate(&mut *store)?;
            let bindings = LossGuest::new(&mut *store, &instance)?;
            bindings.lockstep_guest_loss().call_build(store, config_json, &outputs, &batch)
        })?;
        let built = answer.map_err(|error| guest_error(BUILD, error))?;
        finish(guest.state(), &built)
    }
}

/// Makes tensors of the model's outputs or of the batch; the guest will own the handles.
fn inputs(
    state: &mut GuestState,
    metas: &[(String, Meta)],
) -> Result<Vec<(String, Resource<Tensor>)>, GuestError> {
    let mut tensors = Vec::with_capacity(metas.len());
    for (name, meta) in metas {
        let node = state.graph()?.recipe.input(name, meta.clone());
        let node = node.map_err(|error| state.refused(error))?;
        let handle = state.handles.push(Tensor { node }).map_err(host)?;
        tensors.push((name.clone(), handle));
    }
    Ok(tensors)
}

fn finish(state: &mut GuestState, built: &Built) -> Result<BuiltLoss, GuestError> {
    if METRICS_CAP < built.metrics.len() {
        let got = built.metrics.len().to_string();
        return Err(shape("the number of metrics", &format!("at most {METRICS_CAP}"), got));
    }
    let mut outputs = vec![
        ("sum".to_owned(), scalar(state, "the loss's sum", &built.sum)?),
        ("weight".to_owned(), scalar(state, "the loss's weight", &built.weight)?),
    ];
    let mut metrics: Vec<String> = Vec::with_capacity(built.metrics.len());
    for (name, sum, weight) in &built.metrics {
        check_name(BUILD, "a metric's name", name)?;
        if metrics.contains(name) {
            return Err(shape(&format!("metric {name:?}"), "named once", "named twice".to_owned()));
        }
        for (part, tensor) in [("sum", sum), ("weight", weight)] {
            let node = scalar(state, &format!("metric {name:?}'s {part}"), tensor)?;
            outputs.push((format!("metric/{name}/{part}"), node));
        }
        metrics.push(name.clone());
    }
    let graph = state.graph.take().ok_or_else(|| host("the recorded loss is lost"))?;
    let recipe = graph.recipe.finish(outputs).map_err(|error| state.refused(error))?;
    Ok(BuiltLoss { recipe, metrics })
}

/// The node behind a handle that must be one float.
fn scalar(
    state: &mut GuestState,
    subject: &str,
    tensor: &Resource<Tensor>,
) -> Result<Node, GuestError> {
    let node = state.handles.get(tensor).map_err(host)?.node;
    let meta = state.graph()?.recipe.meta(node).cloned();
    let meta = meta.map_err(|error| state.refused(error))?;
    if !meta.shape.is_empty() || !meta.dtype.is_float() {
        return Err(shape(subject, "a float scalar (shape [])", meta.to_string()));
    }
    Ok(node)
}

fn shape(subject: &str, expected: &str, got: String) -> GuestError {
    GuestError::Shape {
        what: BUILD.to_owned(),
        subject: subject.to_owned(),
        expected: expected.to_owned(),
        got,
    }
}

fn host(error: impl std::fmt::Display) -> GuestError {
    GuestError::Host(format!("{BUILD}: {error}"))
}
