//! From the job's `model` to parameters and a forward pass.

use std::sync::Arc;

use lockstep_api::{Activation, ArchSpec, MlpSpec, ModelSpec};
use lockstep_tensor::{Layout, LayoutError, Op, OpError, ParamId, Tape, Value, init};

/// The tensor of a batch that models read.
pub(crate) const INPUT: &str = "x";
/// The tensor that models put out.
pub(crate) const OUTPUT: &str = "logits";

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelError {
    #[error("expected an mlp with relu: this engine has no other architecture yet")]
    Arch,
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Linear layers with ReLU between them. Knows names and shapes; owns no numbers.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    layout: Arc<Layout>,
    layers: Vec<Layer>,
    inputs: usize,
    classes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Layer {
    weight: ParamId,
    bias: ParamId,
    inputs: usize,
    outputs: usize,
}

impl Model {
    /// Parameters `layers.0.weight` `[out, in]`, `layers.0.bias` `[out]`, and so on in order of use.
    ///
    /// # Errors
    /// When it is of another architecture, or there are more numbers than any arena may hold.
    pub(crate) fn new(spec: &ModelSpec) -> Result<Self, ModelError> {
        let ArchSpec::Mlp(MlpSpec { inputs, hidden, classes, activation: Activation::Relu }) =
            &spec.arch
        else {
            return Err(ModelError::Arch);
        };
        let widths = [inputs].into_iter().chain(hidden).chain([classes]);
        let widths: Vec<usize> = widths.map(|width| *width as usize).collect();
        let name = |index: usize, part: &str| format!("layers.{index}.{part}");
        let shapes = widths.windows(2).enumerate().flat_map(|(index, pair)| {
            let weight = (name(index, "weight"), vec![pair[1], pair[0]]);
            [weight, (name(index, "bias"), vec![pair[1]])]
        });
        let layout = Layout::new(shapes.collect())?;
        let id = |name: String| layout.id(&name).expect("every name was just laid out");
        let layer = |(index, pair): (usize, &[usize])| Layer {
            weight: id(name(index, "weight")),
            bias: id(name(index, "bias")),
            inputs: pair[0],
            outputs: pair[1],
        };
        let layers = widths.windows(2).enumerate().map(layer).collect();
        let (inputs, classes) = (*inputs as usize, *classes as usize);
        Ok(Self { layout: Arc::new(layout), layers, inputs, classes })
    }

    /// Where its parameters lie.
    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Length of one sample.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Length of one output.
    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    /// Lengths of the input and of each layer's output, activations included.
    pub(crate) fn widths(&self) -> impl Iterator<Item = u64> {
        let outputs = self.layers.iter().map(|layer| 2 * layer.outputs as u64);
        [self.inputs as u64].into_iter().chain(outputs)
    }

    /// The weights that `seed` begins with: the same on every rank, in arena order.
    pub(crate) fn initial_weights(&self, seed: u64) -> Vec<f32> {
        let mut weights = vec![0.0; self.layout.len()];
        for layer in &self.layers {
            for id in [layer.weight, layer.bias] {
                let param = &self.layout.params()[id.0];
                let values = &mut weights[param.range.clone()];
                init::kaiming_uniform(seed, &param.name, layer.inputs, values);
            }
        }
        weights
    }

    /// # Shapes
    /// `x`: f32 `[n, inputs]`; the result `[n, classes]`.
    pub(crate) fn forward(
        &self,
        tape: &mut Tape<f32>,
        x: Value,
        weights: &[f32],
    ) -> Result<Value, OpError> {
        let mut value = x;
        for (index, layer) in self.layers.iter().enumerate() {
            if 0 < index {
                value = tape.apply(Op::Relu, &[value], weights)?;
            }
            let (weight, bias) = (tape.param(layer.weight), tape.param(layer.bias));
            value = tape.apply(
                Op::Linear(lockstep_tensor::Activation::None),
                &[value, weight, bias],
                weights,
            )?;
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mlp(inputs: u32, hidden: Vec<u32>, classes: u32) -> ModelSpec {
        ArchSpec::Mlp(MlpSpec { inputs, hidden, classes, activation: Activation::Relu }).into()
    }

    #[test]
    fn a_perceptron_has_the_documented_names_and_computes_by_hand() {
        let model = Model::new(&mlp(2, vec![2], 1)).unwrap();
        let shapes: Vec<_> =
            model.layout().params().iter().map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
        assert_eq!(
            shapes,
            [
                ("layers.1.bias", &[1][..]),
                ("layers.1.weight", &[1, 2]),
                ("layers.0.bias", &[2]),
                ("layers.0.weight", &[2, 2]),
            ]
        );
        //                b1   w1          b0          w0
        let weights = [0.5, 10.0, 100.0, 1.0, -9.0, 1.0, 2.0, 3.0, 4.0];
        let mut tape = Tape::new(Arc::clone(model.layout()));
        let x = tape.input(&[1, 2], &[1.0, 1.0]).unwrap();
        let y = model.forward(&mut tape, x, &weights).unwrap();
        // Hidden: relu(1 + 2 + 1) = 4, relu(3 + 4 - 9) = 0.
        assert_eq!(tape.values(y).unwrap(), [40.5]);
    }

    #[test]
    fn initial_weights_depend_on_the_seed_and_are_never_left_at_zero() {
        let model = Model::new(&mlp(3, vec![], 4)).unwrap();
        assert_eq!(model.initial_weights(1), model.initial_weights(1));
        assert_ne!(model.initial_weights(1), model.initial_weights(2));
        assert!(model.initial_weights(1).iter().all(|weight| *weight != 0.0));
    }
}
