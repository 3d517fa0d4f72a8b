//! Goes on with a text: a language model's weights from a checkpoint, forward, one token drawn, and again.
//!
//! The model sees the last `n_positions` tokens, at positions from 0. Each token costs a forward pass over them;
//! nothing is kept from one to the next.

mod draw;

use std::io;
use std::sync::Arc;
use std::thread;

use lockstep_api::{ArchSpec, FieldError, SampleEvent, SampleRequest, SampleWeights};
use lockstep_checkpoint::{CheckpointError, WeightsMut, WeightsOf, load_weights};
use lockstep_models::{IDS, Mode, Model, ModelError, Workspace};
use lockstep_service::chain;
use lockstep_tensor::init::Stream;
use lockstep_tensor::{OpError, Tape, Threads, ThreadsError};

use draw::Draw;

/// The stream of random numbers that tokens are drawn by, apart from those of the weights.
const STREAM: &str = "sample";

/// Why a text does not go on.
#[derive(Debug, thiserror::Error)]
enum SampleError {
    /// Some of what was asked for does not hold.
    #[error("the request does not hold")]
    Refused(Vec<FieldError>),
    /// There is no such model.
    #[error("there is no such model")]
    Model(#[from] ModelError),
    /// Its weights cannot be read.
    #[error("the checkpoint cannot be used")]
    Checkpoint(#[from] CheckpointError),
    /// Threads.
    #[error("there are no threads to compute with")]
    Threads(#[from] ThreadsError),
    /// An operation failed.
    #[error("the model's forward pass failed")]
    Forward(#[from] OpError),
    /// The model has diverged.
    #[error("token {number}: the model puts out numbers that are not finite")]
    NonFinite {
        /// Which token of those to make, from 1.
        number: u64,
    },
    /// Nobody listens any more.
    #[error("writing what was made")]
    Write(#[from] io::Error),
}

/// Makes the tokens and hands each to `tell` as it is made, or why there are no more.
///
/// The same request makes the same tokens on the same kind of machine.
///
/// # Errors
/// Those of `tell`.
pub fn sample(
    request: &SampleRequest,
    mut tell: impl FnMut(&SampleEvent) -> io::Result<()>,
) -> io::Result<()> {
    let last_words = match make(request, &mut tell) {
        Ok(()) => return Ok(()),
        Err(SampleError::Write(error)) => return Err(error),
        Err(SampleError::Refused(errors)) => SampleEvent::Refused { errors },
        Err(error) => SampleEvent::Failed { message: chain(&error) },
    };
    tell(&last_words)
}

fn make(
    request: &SampleRequest,
    tell: &mut impl FnMut(&SampleEvent) -> io::Result<()>,
) -> Result<(), SampleError> {
    let errors = request.check();
    if !errors.is_empty() {
        return Err(SampleError::Refused(errors));
    }
    let top_k = request.top_k.map(|count| count as usize);
    let draw = Draw { temperature: request.temperature, top_k };
    let stream = Stream::new(request.seed, STREAM);
    let mut text = Text::open(request)?;
    for index in 0..u64::from(request.tokens) {
        let logits = text.next_logits()?;
        let drawn = draw.from(logits, stream.fraction(index));
        let token = drawn.ok_or(SampleError::NonFinite { number: index + 1 })?;
        text.push(token);
        tell(&SampleEvent::Token { id: u32::try_from(token).unwrap_or(u32::MAX) })?;
    }
    Ok(())
}

/// A model and the end of the text that it goes on with.
struct Text {
    model: Model,
    weights: Vec<f32>,
    buffers: Vec<f32>,
    tape: Tape<f32>,
    workspace: Workspace<f32>,
    /// Most tokens that the model sees.
    longest: usize,
    /// The last `longest` tokens, or all.
    window: Vec<i64>,
}

impl Text {
    fn open(request: &SampleRequest) -> Result<Self, SampleError> {
        let model = Model::new(&request.model)?;
        let (mut weights, mut buffers) =
            (vec![0.0; model.layout().len()], vec![0.0; model.buffers().len()]);
        let which = match request.weights {
            SampleWeights::Last => WeightsOf::LastStep,
            SampleWeights::Ema => WeightsOf::Average,
        };
        let mut state = WeightsMut {
            layout: model.layout(),
            weights: &mut weights,
            buffer_layout: model.buffers(),
            buffers: &mut buffers,
        };
        let path = request.checkpoint_path.as_str();
        load_weights(path.as_ref(), &request.model, which, &mut state)?;
        // Results do not depend on their number.
        let threads = Threads::new(thread::available_parallelism().map_or(1, usize::from))?;
        let tape = Tape::with_threads(Arc::clone(model.layout()), threads);
        let longest = match &request.model.arch {
            ArchSpec::Gpt2(spec) => spec.n_positions as usize,
            _ => 0,
        };
        let window = request.prompt_ids.iter().map(|id| i64::from(*id)).collect();
        let workspace = model.workspace();
        Ok(Self { model, weights, buffers, tape, workspace, longest, window })
    }

    /// What the model puts out behind the last token: `[vocab_size]`.
    fn next_logits(&mut self) -> Result<&[f32], OpError> {
        let Self { model, weights, buffers, tape, workspace, window, .. } = self;
        tape.clear();
        let ids = tape.index(&[1, window.len()], window)?;
        let output = model.forward(tape, &[(IDS, ids)], weights, buffers, Mode::Eval, workspace)?;
        let vocabulary = tape.meta(output)?.shape.last().copied().unwrap_or(0);
        let values = self.tape.values(output)?;
        Ok(&values[values.len() - vocabulary..])
    }

    fn push(&mut self, token: usize) {
        if self.window.len() == self.longest {
            self.window.remove(0);
        }
        self.window.push(token as i64);
    }
}
