//! One operation on `x`, `t` (floats) and `index` (integers); its result times `w`, summed up.

use lockstep_guest::{Built, Error, Loss, Tensor, Tensors, config, export_loss};

/// Which operation, and its settings in order.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    op: String,
    /// As text: JSON has neither NaN nor infinity.
    numbers: Vec<String>,
    /// Axes, lengths and places.
    axes: Vec<u32>,
    keep: bool,
    ignore: Option<i64>,
}

impl Config {
    fn number(&self, at: usize) -> Result<f64, Error> {
        let number = self.numbers.get(at).and_then(|number| number.parse().ok());
        number.ok_or_else(|| Error::Config(format!("{} wants number {at}", self.op)))
    }

    fn axis(&self, at: usize) -> Result<u32, Error> {
        let axis = self.axes.get(at).copied();
        axis.ok_or_else(|| Error::Config(format!("{} wants axis {at}", self.op)))
    }

    fn apply(&self, x: &Tensor, t: &Tensor, index: &Tensor) -> Result<Tensor, Error> {
        let (axes, keep) = (&self.axes, self.keep);
        Ok(match self.op.as_str() {
            "scale" => x.scale(self.number(0)?),
            "add_scalar" => x.add_scalar(self.number(0)?),
            "sqrt" => x.sqrt(),
            "abs" => x.abs(),
            "pow" => x.pow(self.number(0)?),
            "clamp" => x.clamp(self.number(0)?, self.number(1)?),
            "sigmoid" => x.sigmoid(),
            "tanh" => x.tanh(),
            "gelu" => x.gelu(),
            "gelu_tanh" => x.gelu_tanh(),
            "silu" => x.silu(),
            "softmax" => x.softmax(),
            "cross_entropy" => x.cross_entropy(index, self.number(0)?, self.ignore),
            "mse_loss" => x.mse_loss(t),
            "bce_with_logits" => x.bce_with_logits(t),
            "kl_div" => x.kl_div(t),
            "sum_axes" => x.sum_axes(axes, keep),
            "mean_axes" => x.mean_axes(axes, keep),
            "max_axes" => x.max_axes(axes, keep),
            "gather_axis" => x.gather_axis(index, self.axis(0)?),
            "scatter_add" => x.scatter_add(index, self.axis(0)?, self.axis(1)?),
            "where" => index.where_(x, t),
            "reshape" => x.reshape(axes),
            "permute" => x.permute(axes),
            "transpose" => x.transpose(),
            "slice" => x.slice(self.axis(0)?, self.axis(1)?, self.axis(2)?),
            "concat" => Tensor::concat(&[x, t], self.axis(0)?),
            "concat_copies" => Tensor::concat(&vec![x; self.axis(1)? as usize], self.axis(0)?),
            "constant" => Tensor::constant(axes, &[1.0]),
            other => return Err(Error::Config(format!("no operation {other:?}"))),
        })
    }
}

struct Operation;

impl Loss for Operation {
    fn build(settings: &str, outputs: &Tensors, batch: &Tensors) -> Result<Built, Error> {
        let settings: Config = config(settings)?;
        let (t, index, w) = (batch.get("t")?, batch.get("index")?, batch.get("w")?);
        let result = settings.apply(outputs.get("x")?, t, index)?;
        // `mul` would repeat what is too short.
        let (found, expected) = (result.shape(), w.shape());
        if found != expected {
            return Err(Error::data(format!("the result is {found:?}, w is {expected:?}")));
        }
        Ok(Built::new((&result * w).sum(), Tensor::number(1.0)))
    }
}

export_loss!(Operation);
