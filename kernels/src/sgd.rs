//! One step of SGD with momentum, in one pass over the values.

use crate::{parallel, simd::arch};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

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
        let len = parameter.len();
        assert_eq!([gradient.len(), velocity.len()], [len; 2], "one length for all");
        let mut moved = Vec::with_capacity(len);
        let room = &mut moved.spare_capacity_mut()[..len];
        parallel::side_by_side(
            [parameter, gradient],
            velocity,
            room,
            &mut vec![(); len],
            |[parameter, gradient], velocity, moved, _| {
                arch().dispatch(SgdPass { with: *self, parameter, gradient, velocity, moved });
            },
        );
        // SAFETY: each step writes all of its part.
        unsafe { moved.set_len(len) };
        moved
    }
}

struct SgdPass<'a> {
    with: Sgd,
    parameter: &'a [f32],
    gradient: &'a [f32],
    velocity: &'a mut [f32],
    moved: &'a mut [MaybeUninit<f32>],
}

impl SgdPass<'_> {
    #[inline(always)]
    fn pass<const DECAY: bool, const NESTEROV: bool>(self) {
        let Sgd { rate, momentum, weight_decay, dampening, .. } = self.with;
        let taken = 1.0 - dampening;
        let from = self.parameter.iter().zip(self.gradient);
        for ((parameter, gradient), (velocity, moved)) in from.zip(self.velocity.iter_mut().zip(self.moved)) {
            let gradient = if DECAY { parameter * weight_decay + gradient } else { *gradient };
            *velocity = gradient * taken + *velocity * momentum;
            let along = if NESTEROV { *velocity * momentum + gradient } else { *velocity };
            moved.write(parameter - along * rate);
        }
    }
}

impl WithSimd for SgdPass<'_> {
    type Output = ();

    // One loop for each case, which the compiler vectorises.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match (self.with.weight_decay != 0.0, self.with.nesterov) {
            (false, false) => self.pass::<false, false>(),
            (false, true) => self.pass::<false, true>(),
            (true, false) => self.pass::<true, false>(),
            (true, true) => self.pass::<true, true>(),
        }
    }
}
