//! A step of stochastic gradient descent with momentum, in one pass over its values.

use crate::{parallel, simd::arch};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// What a step is made with: that of PyTorch's `torch.optim.SGD` without dampening.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// The learning rate of this step.
    pub rate: f32,
    /// What is left of the velocity at each step.
    pub momentum: f32,
    /// Nesterov's momentum: along the velocity as it will be after one more step of this gradient.
    pub nesterov: bool,
    /// Times the parameter, to be added to its gradient.
    pub weight_decay: f32,
}

impl Sgd {
    /// `velocity = momentum × velocity + gradient`, and then `parameter - rate × velocity`; all of one length,
    /// the velocity zeros at first. Each value is rounded as often as in operations on whole tensors, one
    /// after another, so that the results are the same bits.
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
            |[parameter, gradient], velocity, moved| {
                arch().dispatch(Step { with: *self, parameter, gradient, velocity, moved });
            },
        );
        // SAFETY: each step writes all of its part.
        unsafe { moved.set_len(len) };
        moved
    }
}

struct Step<'a> {
    with: Sgd,
    parameter: &'a [f32],
    gradient: &'a [f32],
    velocity: &'a mut [f32],
    moved: &'a mut [MaybeUninit<f32>],
}

impl Step<'_> {
    #[inline(always)]
    fn pass<const DECAY: bool, const NESTEROV: bool>(self) {
        let Sgd { rate, momentum, weight_decay, .. } = self.with;
        let from = self.parameter.iter().zip(self.gradient);
        for ((parameter, gradient), (velocity, moved)) in from.zip(self.velocity.iter_mut().zip(self.moved)) {
            let gradient = if DECAY { parameter * weight_decay + gradient } else { *gradient };
            *velocity = gradient + *velocity * momentum;
            let along = if NESTEROV { *velocity * momentum + gradient } else { *velocity };
            moved.write(parameter - along * rate);
        }
    }
}

impl WithSimd for Step<'_> {
    type Output = ();

    // A loop for each case, which the compiler makes vectors of.
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
