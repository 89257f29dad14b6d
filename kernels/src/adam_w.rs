//! One step of AdamW, in one pass over the values.

use crate::{parallel, simd::arch};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// Settings of a step of AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The learning rate of this step.
    pub rate: f32,
    /// Decay rates of the first and the second moment.
    pub betas: [f32; 2],
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Factor of the parameter: 1 − learning rate × weight decay.
    pub decay: f32,
    /// Number of this step, from 1.
    pub time: i32,
}

impl AdamW {
    /// Updates both moments and returns the parameter after the step.
    ///
    /// All slices have the same length. Each value is rounded as often as in separate tensor operations, so that
    /// the results are bit-identical to them.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step(&self, parameter: &[f32], moments: [&mut [f32]; 2], gradient: &[f32]) -> Vec<f32> {
        let len = parameter.len();
        let [first, second] = moments;
        assert_eq!([gradient.len(), first.len(), second.len()], [len; 3], "one length for all");
        let mut moved = Vec::with_capacity(len);
        let room = &mut moved.spare_capacity_mut()[..len];
        let corrections = self.betas.map(|beta| 1.0 - beta.powi(self.time));
        let pass =
            |[parameter, gradient]: [&[f32]; 2], first: &mut [f32], second: &mut [f32], moved: &mut _| {
                let pass = AdamWPass { with: *self, corrections, parameter, gradient, first, second, moved };
                arch().dispatch(pass);
            };
        parallel::side_by_side([parameter, gradient], first, second, room, pass);
        // SAFETY: each pass writes all of its part.
        unsafe { moved.set_len(len) };
        moved
    }
}

struct AdamWPass<'a> {
    with: AdamW,
    /// 1 − beta ^ time.
    corrections: [f32; 2],
    parameter: &'a [f32],
    gradient: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    moved: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for AdamWPass<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let AdamW { rate, betas: [beta_1, beta_2], epsilon, decay, .. } = self.with;
        let [correction_1, correction_2] = self.corrections;
        let from = self.parameter.iter().zip(self.gradient);
        let moments = self.first.iter_mut().zip(self.second);
        for (((parameter, gradient), (first, second)), moved) in from.zip(moments).zip(self.moved) {
            *first = *first * beta_1 + gradient * (1.0 - beta_1);
            *second = *second * beta_2 + gradient * gradient * (1.0 - beta_2);
            let along = (*first / correction_1) / ((*second / correction_2).sqrt() + epsilon);
            moved.write(parameter * decay - along * rate);
        }
    }
}
