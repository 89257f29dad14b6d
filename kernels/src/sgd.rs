//! One step of SGD with momentum, in one pass over the values.

use crate::elementwise::update;

/// Settings of a step of PyTorch's `torch.optim.SGD`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The learning rate of this step.
    pub rate: f32,
    /// Momentum factor.
    pub momentum: f32,
    /// Part of the gradient that the velocity does not take in.
    pub dampening: f32,
    /// Whether Nesterov momentum is used.
    pub nesterov: bool,
    /// Weight decay: this factor times the parameter is added to the gradient.
    pub weight_decay: f32,
}

impl Sgd {
    /// Computes `velocity = momentum × velocity + (1 − dampening) × gradient` and returns `parameter − rate × velocity`.
    ///
    /// All slices have the same length. The initial velocity is zero. Each value is rounded as often as in
    /// separate tensor operations, so that the results are bit-identical to them.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step(&self, parameter: &[f32], velocity: &mut [f32], gradient: &[f32]) -> Vec<f32> {
        let Sgd { rate, momentum, weight_decay, dampening, nesterov } = *self;
        let taken = 1.0 - dampening;
        let none = &mut vec![(); velocity.len()];
        update((parameter, gradient), velocity, none, move |parameter, gradient, velocity, ()| {
            let gradient = if weight_decay != 0.0 { parameter * weight_decay + gradient } else { gradient };
            *velocity = gradient * taken + *velocity * momentum;
            let along = if nesterov { *velocity * momentum + gradient } else { *velocity };
            parameter - along * rate
        })
    }
}
