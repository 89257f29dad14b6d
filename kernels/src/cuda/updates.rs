//! Optimizer steps of many parameters with one launch.

use super::{
    many::{CHUNK, MOST, buffers, grid, thread_elements},
    queue::after_queued,
    tensors::{FusionClient, empty_like, exact, on_cuda, queue},
};
use crate::{
    adam::{Adam, Decay},
    sgd::Sgd,
};
use burn::backend::{
    Cube, StreamId, TensorMetadata,
    ir::{TensorIr, TensorStatus},
    ops::FloatTensorOps,
    tensor::FloatTensor,
};
use burn::tensor::Tensor;
use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

/// SGD with momentum. CubeCL fuses a product and a sum, which are rounded once.
#[cube(launch_unchecked)]
fn sgd_all(
    parameters: Sequence<Box<[f32]>>,
    velocities: Sequence<Box<[f32]>>,
    gradients: Sequence<Box<[f32]>>,
    mut new_parameters: Sequence<Box<[f32]>>,
    mut new_velocities: Sequence<Box<[f32]>>,
    rate: f32,
    momentum: f32,
    weight_decay: f32,
    #[comptime] nesterov: bool,
    #[comptime] decays: bool,
    #[comptime] chunk: usize,
) {
    let mut begin = 0;
    #[unroll]
    for i in 0..parameters.len() {
        let parameter = parameters.index(i);
        let length = parameter.len();
        let own = thread_elements(begin, length, chunk);
        let velocity = velocities.index(i);
        let gradient = gradients.index(i);
        let new_parameter = new_parameters.index_mut(i);
        let new_velocity = new_velocities.index_mut(i);
        let mut at = own.first;
        while at < own.end {
            let value = parameter[at];
            let mut decayed = gradient[at];
            if comptime![decays] {
                decayed += value * weight_decay;
            }
            let moved = decayed + velocity[at] * momentum;
            let mut along = moved;
            if comptime![nesterov] {
                along = moved * momentum + decayed;
            }
            new_velocity[at] = moved;
            new_parameter[at] = value - along * rate;
            at += CUBE_DIM as usize;
        }
        begin += length.div_ceil(chunk);
    }
}

/// AdamW and Adam. CubeCL fuses a product and a sum, which are rounded once.
#[cube(launch_unchecked)]
fn adam_all(
    parameters: Sequence<Box<[f32]>>,
    firsts: Sequence<Box<[f32]>>,
    seconds: Sequence<Box<[f32]>>,
    gradients: Sequence<Box<[f32]>>,
    mut new_parameters: Sequence<Box<[f32]>>,
    mut new_firsts: Sequence<Box<[f32]>>,
    mut new_seconds: Sequence<Box<[f32]>>,
    rate: f32,
    beta_1: f32,
    beta_2: f32,
    rest_1: f32,
    rest_2: f32,
    correction_1: f32,
    correction_2: f32,
    epsilon: f32,
    decay: f32,
    penalty: f32,
    #[comptime] penalises: bool,
    #[comptime] chunk: usize,
) {
    let mut begin = 0;
    #[unroll]
    for i in 0..parameters.len() {
        let parameter = parameters.index(i);
        let length = parameter.len();
        let own = thread_elements(begin, length, chunk);
        let first = firsts.index(i);
        let second = seconds.index(i);
        let gradient = gradients.index(i);
        let new_parameter = new_parameters.index_mut(i);
        let new_first = new_firsts.index_mut(i);
        let new_second = new_seconds.index_mut(i);
        let mut at = own.first;
        while at < own.end {
            let mut slope = gradient[at];
            if comptime![penalises] {
                slope += parameter[at] * penalty;
            }
            let mean = first[at] * beta_1 + slope * rest_1;
            let square = second[at] * beta_2 + slope * slope * rest_2;
            let along = (mean / correction_1) / ((square / correction_2).sqrt() + epsilon);
            new_first[at] = mean;
            new_second[at] = square;
            new_parameter[at] = parameter[at] * decay - along * rate;
            at += CUBE_DIM as usize;
        }
        begin += length.div_ceil(chunk);
    }
}

/// Steps of parameters on CUDA devices, with a launch for each device, for equal settings and 32 parameters.
#[derive(Default)]
pub(crate) struct Updates(Vec<Steps>);

/// The steps of a device, those with equal settings together.
struct Steps {
    client: FusionClient,
    all: Vec<(Settings, Vec<Step>)>,
}

/// Settings of a step.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Settings {
    /// Inputs are parameter, velocity and gradient.
    Sgd(Sgd),
    /// Inputs are parameter, both moments and gradient.
    Adam(Adam),
}

/// A parameter's step, which replaces the parameter, the optimizer's state and the gradient.
struct Step {
    /// Kept until the step is queued: by then the module before the step may have released it, so that the step frees it.
    parameter: FloatTensor<Cube>,
    /// State and gradient before the step.
    inputs: Vec<TensorIr>,
    /// Parameter and state after the step.
    outputs: Vec<TensorIr>,
}

impl Updates {
    /// Whether it takes the step of a parameter from these tensors: they are on one CUDA device, in f32 and of one size.
    pub fn takes<const D: usize, const N: usize>(tensors: [&Tensor<D>; N]) -> bool {
        let on_cube = |tensor: &Tensor<D>| tensor.clone().try_into_primitive::<Cube>().ok();
        let tensors: Option<Vec<_>> = tensors.into_iter().map(on_cube).collect();
        tensors.is_some_and(|tensors| {
            on_cuda(&tensors) && tensors.iter().all(|tensor| tensor.shape == tensors[0].shape)
        })
    }

    /// Parameter and state after a step, from inputs that it [takes](Self::takes).
    ///
    /// They must not be read before [`finish`](Self::finish).
    pub fn add<const D: usize, const I: usize, const O: usize>(
        &mut self,
        with: Settings,
        tensors: [Tensor<D>; I],
    ) -> [Tensor<D>; O] {
        let on_cube =
            |tensor: Tensor<D>| tensor.try_into_primitive::<Cube>().expect("a tensor that it takes");
        let mut tensors = tensors.map(on_cube).into_iter();
        let parameter = tensors.next().expect("a parameter");
        let (inputs, mut new): (_, Vec<_>) = tensors.map(replace).unzip();
        // The parameter takes the place of the gradient.
        new.rotate_right(1);
        let outputs = new.iter().map(|tensor| tensor.to_ir_out()).collect();
        let all = self.steps(&parameter.client);
        let step = Step { parameter, inputs, outputs };
        match all.iter_mut().find(|(other, _)| *other == with) {
            Some((_, steps)) => steps.push(step),
            None => all.push((with, vec![step])),
        }
        let new: Vec<_> = new.into_iter().map(Tensor::from_primitive::<Cube>).collect();
        new.try_into().expect("a result for each state and the parameter")
    }

    fn steps(&mut self, client: &FusionClient) -> &mut Vec<(Settings, Vec<Step>)> {
        let place = self.0.iter().position(|steps| steps.client.device() == client.device());
        let place = place.unwrap_or_else(|| {
            self.0.push(Steps { client: client.clone(), all: Vec::new() });
            self.0.len() - 1
        });
        &mut self.0[place].all
    }

    /// Queues all steps.
    pub fn finish(self) {
        for Steps { client, all } in self.0 {
            all.into_iter().for_each(|(with, steps)| queue_all(&client, with, steps));
            // Operations after the steps, such as those that free the gradients of other tensors, whose order differs
            // from process to process, are not fused with operations before.
            after_queued(&client, || ());
        }
    }
}

/// Describes a tensor for the operation that replaces it, and returns the tensor that this computes.
fn replace(mut tensor: FloatTensor<Cube>) -> (TensorIr, FloatTensor<Cube>) {
    // The operation frees it, and other owners keep their values.
    if !tensor.can_mut() || tensor.stream != StreamId::current() {
        tensor = Cube::float_mul_scalar(tensor, 1.0.into());
    }
    let before = TensorIr { status: TensorStatus::ReadWrite, ..tensor.to_ir_out() };
    tensor.id = tensor.client.create_empty_handle();
    (before, tensor)
}

/// Queues one operation for each launch.
fn queue_all(client: &FusionClient, with: Settings, mut steps: Vec<Step>) {
    while !steps.is_empty() {
        let launched: Vec<Step> = steps.drain(..steps.len().min(MOST)).collect();
        let (mut inputs, mut outputs, per_step) = (Vec::new(), Vec::new(), launched[0].inputs.len() + 1);
        for step in launched {
            inputs.push(step.parameter.into_ir());
            inputs.extend(step.inputs);
            outputs.extend(step.outputs);
        }
        let run = move |tensors: Vec<CubeTensor>| {
            let tensors: Vec<_> = tensors.into_iter().map(exact).collect();
            let with_results = |inputs: &[CubeTensor]| {
                let results = (1..per_step).map(|_| empty_like(&inputs[0]));
                inputs.iter().cloned().chain(results).collect::<Vec<_>>()
            };
            let steps: Vec<_> = tensors.chunks(per_step).map(with_results).collect();
            match with {
                Settings::Sgd(with) => launch_sgd(with, &steps),
                Settings::Adam(with) => launch_adam(with, &steps),
            }
            Ok(steps.into_iter().flat_map(|step| step.into_iter().skip(per_step)).collect())
        };
        // The results exist already.
        queue(client, "optimizer steps", inputs, outputs, run)
            .into_iter()
            .for_each(|result| drop(result.into_ir()));
    }
}

fn launch_sgd(with: Sgd, steps: &[Vec<CubeTensor>]) {
    let Sgd { rate, momentum, nesterov, weight_decay, .. } = with;
    let tensors = |which: usize| steps.iter().map(move |step| &step[which]);
    let (count, dim) = grid(tensors(0));
    // SAFETY: every index is below the length of the tensors of a step, which are equally long.
    unsafe {
        sgd_all::launch_unchecked(
            &steps[0][0].client,
            count,
            dim,
            buffers(tensors(0)),
            buffers(tensors(1)),
            buffers(tensors(2)),
            buffers(tensors(3)),
            buffers(tensors(4)),
            rate,
            momentum,
            weight_decay,
            nesterov,
            weight_decay != 0.0,
            CHUNK,
        );
    }
}

fn launch_adam(with: Adam, steps: &[Vec<CubeTensor>]) {
    let Adam { rate, betas: [beta_1, beta_2], epsilon, decay, time } = with;
    // Factors of the parameter in the step and in the gradient.
    let (decay, penalty) = match decay {
        Decay::Gradient(penalty) => (1.0, penalty.unwrap_or_default()),
        Decay::Parameter(decay) => (decay, 0.0),
    };
    let tensors = |which: usize| steps.iter().map(move |step| &step[which]);
    let (count, dim) = grid(tensors(0));
    // SAFETY: every index is below the length of the tensors of a step, which are equally long.
    unsafe {
        adam_all::launch_unchecked(
            &steps[0][0].client,
            count,
            dim,
            buffers(tensors(0)),
            buffers(tensors(1)),
            buffers(tensors(2)),
            buffers(tensors(3)),
            buffers(tensors(4)),
            buffers(tensors(5)),
            buffers(tensors(6)),
            rate,
            beta_1,
            beta_2,
            1.0 - beta_1,
            1.0 - beta_2,
            1.0 - beta_1.powi(time),
            1.0 - beta_2.powi(time),
            epsilon,
            decay,
            penalty,
            penalty != 0.0,
            CHUNK,
        );
    }
}
