//! Small models against figures recorded with PyTorch: forward, loss, gradients, five steps.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod golden_training;
mod recording;

use golden_training::{
    case::{CASES_OF_FIVE_STEPS, Case},
    nets::{Cnn, Gpt, Mlp, Net},
    run::{Mode, Run},
    tolerance::{Golden, REMAINDER, no_floor},
};
use lockstep_tensor::{Accumulate, Real, StepFactors};

fn first_batch_agrees<N: Net, T: Real>() {
    let golden = Golden::read::<N>();
    let mut run = Run::<N, T>::new(&golden);
    let (batch, losses) = (golden.batch(), golden.losses());
    let grain = run.grain(0, 0..batch, Accumulate::Overwrite);
    golden.check::<T>("out.0", grain.out, no_floor);
    golden.check::<T>("loss.0", [grain.loss / losses], no_floor);
    for (name, activation) in grain.activations {
        golden.check::<T>(&format!("act.{name}"), activation, no_floor);
    }
    for id in run.layout().ids() {
        let gradient = run.gradients.of(id).unwrap();
        let mean = gradient.iter().map(|g| g.to_f64() / losses);
        let name = &run.layout().param(id).unwrap().name;
        let floor = |place| if N::is_free(name, place) { REMAINDER } else { 0.0 };
        golden.check::<T>(&format!("grad.{name}"), mean, floor);
    }
    for (name, statistics) in &run.graph.buffers {
        let name = format!("buf_after_1_forward.{name}");
        golden.check::<T>(&name, statistics.iter().map(|x| x.to_f64()), no_floor);
    }
    let eval = run.forward(0, 0..batch, Mode::Eval);
    golden.check::<T>("eval_out.0", run.graph.values(eval), no_floor);
}

fn five_steps_agree<N: Net, T: Real>() {
    let golden = Golden::read::<N>();
    for name in CASES_OF_FIVE_STEPS {
        case_agrees::<N, T>(&golden, name);
    }
}

fn case_agrees<N: Net, T: Real>(golden: &Golden, name: &'static str) {
    let case = Case::read::<N>(name);
    let mut run = Run::<N, T>::new(golden);
    run.label_smoothing = case.record["label_smoothing"].as_f64();
    let (plan, schedule) = (case.plan(run.layout()), case.schedule());
    let mut state = plan.state::<T>();
    let micro = case.record["micro"].as_u64().map_or(1, |micro| micro as usize);
    let grain_len = golden.batch() / micro;
    let (mut losses, mut norms, mut lrs) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..5 {
        let mut loss = 0.0;
        for start in (0..golden.batch()).step_by(grain_len) {
            let write = if start == 0 { Accumulate::Overwrite } else { Accumulate::Add };
            loss += run.grain(step, start..start + grain_len, write).loss;
        }
        losses.push(loss / golden.losses());
        let lr_factor = schedule.factor(step as u64);
        let factors = StepFactors { lr_factor, grad_scale: 1.0 / golden.losses() };
        let grads = run.gradients.values();
        let norm = plan.grad_norm(grads, factors.grad_scale).unwrap();
        let report = plan.step(&mut run.graph.weights, grads, factors, &mut state).unwrap();
        assert_eq!(report.grad_norm, case.record["clip_norm"].as_f64().map(|_| norm));
        norms.push(norm);
        lrs.push(case.arg("lr", f64::NAN) * lr_factor);
    }
    assert_eq!(state.step, 5);
    case.check::<T>("loss", &losses);
    case.check::<T>("grad_norm", &norms);
    case.check::<f64>("lr", &lrs);
    let reach = case.reach(REMAINDER);
    let check = |kept: &str, ours: &[T]| {
        let is_single = T::DTYPE == f32::DTYPE;
        let floor = |place| match N::is_free(kept, place) {
            true if !is_single => reach,
            _ => 0.0,
        };
        let ours = ours.iter().map(|x| x.to_f64());
        golden.check::<T>(&format!("case.{name}.{kept}"), ours, floor);
    };
    for param in run.layout().params() {
        check(&param.name, &run.graph.weights[param.range.clone()]);
    }
    for (name, statistics) in &run.graph.buffers {
        check(name, statistics);
    }
}

#[test]
fn a_perceptrons_outputs_loss_and_gradients_agree_in_f32() {
    first_batch_agrees::<Mlp, f32>();
}

#[test]
fn a_perceptrons_outputs_loss_and_gradients_agree_in_f64() {
    first_batch_agrees::<Mlp, f64>();
}

#[test]
fn a_perceptrons_weights_after_five_steps_agree_in_f32() {
    five_steps_agree::<Mlp, f32>();
}

#[test]
fn a_perceptrons_weights_after_five_steps_agree_in_f64() {
    five_steps_agree::<Mlp, f64>();
}

#[test]
fn a_convolutional_nets_outputs_loss_gradients_and_statistics_agree_in_f32() {
    first_batch_agrees::<Cnn, f32>();
}

#[test]
fn a_convolutional_nets_outputs_loss_gradients_and_statistics_agree_in_f64() {
    first_batch_agrees::<Cnn, f64>();
}

#[test]
fn a_convolutional_nets_weights_and_statistics_after_five_steps_agree_in_f32() {
    five_steps_agree::<Cnn, f32>();
}

#[test]
fn a_convolutional_nets_weights_and_statistics_after_five_steps_agree_in_f64() {
    five_steps_agree::<Cnn, f64>();
}

#[test]
fn a_transformers_outputs_loss_gradients_and_activations_agree_in_f32() {
    first_batch_agrees::<Gpt, f32>();
}

#[test]
fn a_transformers_outputs_loss_gradients_and_activations_agree_in_f64() {
    first_batch_agrees::<Gpt, f64>();
}

#[test]
fn a_transformers_weights_after_five_steps_agree_in_f32() {
    five_steps_agree::<Gpt, f32>();
}

#[test]
fn a_transformers_weights_after_five_steps_agree_in_f64() {
    five_steps_agree::<Gpt, f64>();
}
