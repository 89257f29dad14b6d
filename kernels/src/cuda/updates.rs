//! Optimizer steps of many parameters with one launch.

use super::{
    many::{CHUNK, MOST, buffers, grid, thread_elements},
    tensors::{FusionClient, empty_like, kernels, on_cuda},
};
use crate::{
    adam::{Adam, Decay},
    sgd::Sgd,
};
use burn::backend::{Cube, Dispatch, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Tensor;
use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
pub(crate) struct Updates(Vec<(FusionClient, Arc<Mutex<Steps>>)>);

/// The steps of a device that are not launched.
#[derive(Default)]
struct Steps {
    sgd: BySettings<Sgd>,
    adam: BySettings<Adam>,
}

/// Steps with equal settings; each has the kernel's tensors, inputs first.
type BySettings<W> = Vec<(W, Vec<Vec<CubeTensor>>)>;

impl Updates {
    /// Parameter and velocity after a step, from parameter, velocity and gradient.
    ///
    /// They must not be read before [`finish`](Self::finish). `None` for tensors that are not on a CUDA device, or not in f32.
    pub fn sgd(
        &mut self,
        with: Sgd,
        inputs: [FloatTensor<Dispatch>; 3],
    ) -> Option<[FloatTensor<Dispatch>; 2]> {
        self.queue("SGD step", with, inputs, |steps| &mut steps.sgd)
    }

    /// As [`sgd`](Self::sgd): parameter and both moments after a step, from these before it and the gradient.
    pub fn adam(
        &mut self,
        with: Adam,
        inputs: [FloatTensor<Dispatch>; 4],
    ) -> Option<[FloatTensor<Dispatch>; 3]> {
        self.queue("Adam step", with, inputs, |steps| &mut steps.adam)
    }

    fn queue<W: Copy + PartialEq + Send + Sync + 'static, const I: usize, const O: usize>(
        &mut self,
        name: &'static str,
        with: W,
        tensors: [FloatTensor<Dispatch>; I],
        all: fn(&mut Steps) -> &mut BySettings<W>,
    ) -> Option<[FloatTensor<Dispatch>; O]> {
        let inputs = inputs(tensors)?;
        let steps = self.steps(&inputs[0].client);
        let shapes = [(); O].map(|()| inputs[0].shape());
        let results = kernels(name, inputs, shapes, move |inputs| {
            let new = [(); O].map(|()| empty_like(&inputs[0]));
            add(all(&mut lock(&steps)), with, inputs.into_iter().chain(new.clone()).collect());
            Ok(new)
        });
        Some(results.map(values))
    }

    fn steps(&mut self, client: &FusionClient) -> Arc<Mutex<Steps>> {
        if let Some((_, steps)) = self.0.iter().find(|(other, _)| other.device() == client.device()) {
            return steps.clone();
        }
        self.0.push((client.clone(), Arc::default()));
        self.0[self.0.len() - 1].1.clone()
    }

    /// Computes all steps, after the operations queued before.
    pub fn finish(self) {
        for (client, steps) in self.0 {
            // Waits for the thread that fuses operations, so that none that reads a result is ahead of the launch.
            client.sync(move || {
                let Steps { sgd, adam } = std::mem::take(&mut *lock(&steps));
                for (with, steps) in sgd {
                    steps.chunks(MOST).for_each(|steps| launch_sgd(with, steps));
                }
                for (with, steps) in adam {
                    steps.chunks(MOST).for_each(|steps| launch_adam(with, steps));
                }
            });
        }
    }
}

fn lock(steps: &Mutex<Steps>) -> MutexGuard<'_, Steps> {
    steps.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Adds a step to those with the same settings.
fn add<W: PartialEq>(all: &mut BySettings<W>, with: W, step: Vec<CubeTensor>) {
    match all.iter_mut().find(|(other, _)| *other == with) {
        Some((_, steps)) => steps.push(step),
        None => all.push((with, vec![step])),
    }
}

/// Tensors of equal size on one CUDA device, in f32.
fn inputs<const N: usize>(tensors: [FloatTensor<Dispatch>; N]) -> Option<[FloatTensor<Cube>; N]> {
    let tensors = tensors.map(|values| Tensor::<1>::from_dispatch(values).try_into_primitive::<Cube>().ok());
    let tensors: Vec<_> = tensors.into_iter().collect::<Option<_>>()?;
    on_cuda(&tensors).then(|| tensors.try_into().ok())?
}

fn values(tensor: FloatTensor<Cube>) -> FloatTensor<Dispatch> {
    Tensor::<1>::from_primitive::<Cube>(tensor).into_dispatch()
}
