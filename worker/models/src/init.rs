//! Numbers to begin with.

use lockstep_tensor::init;

/// How a parameter is drawn. Each architecture says which and whose rule it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Init {
    Zeros,
    Ones,
    /// Uniform between ±1/√inputs: PyTorch's default of linear layers and convolutions, biases included.
    FanIn(usize),
    /// Uniform between ± this.
    Uniform(f64),
    /// Normal with that standard deviation.
    Normal(f64),
    /// Normal but for the first so many elements, which are 0: the row of a padding token.
    NormalAfter {
        std: f64,
        zeros: usize,
    },
    /// Normal, cut at ±2 as PyTorch's `trunc_normal_` does by default: not at two standard deviations.
    TruncatedNormal(f64),
}

impl Init {
    /// Xavier's uniform for `[out, in]`.
    pub(crate) fn xavier(inputs: usize, outputs: usize) -> Self {
        Self::Uniform((6.0 / (inputs + outputs) as f64).sqrt())
    }

    /// The parameter's numbers: a function of seed, name and place alone.
    pub(crate) fn draw(self, seed: u64, name: &str, out: &mut [f32]) {
        match self {
            Self::Zeros => out.fill(0.0),
            Self::Ones => out.fill(1.0),
            Self::FanIn(inputs) => init::kaiming_uniform(seed, name, inputs, out),
            Self::Uniform(bound) => init::uniform(seed, name, bound, out),
            Self::Normal(std) => init::normal(seed, name, std, out),
            Self::NormalAfter { std, zeros } => {
                init::normal(seed, name, std, out);
                let zeros = zeros.min(out.len());
                out[..zeros].fill(0.0);
            }
            Self::TruncatedNormal(std) => init::truncated_normal(seed, name, std, 2.0, out),
        }
    }
}
