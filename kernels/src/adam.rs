//! One step of Adam or AdamW, in one pass over the values.

use crate::{parallel, simd::arch};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// How a parameter and its moments follow a gradient.
///
/// Each value is rounded as often as in separate tensor operations, so that the results are bit-identical to them.
pub trait Update: Copy + Send + Sync {
    /// What is computed once for all values.
    type Step: Copy + Send + Sync;

    /// Prepares the step.
    fn prepare(&self) -> Self::Step;

    /// Moves the moments on and returns the parameter after the step.
    fn update(&self, step: Self::Step, parameter: f32, gradient: f32, moments: [&mut f32; 2]) -> f32;
}

/// Settings of a step of Adam (Kingma and Ba 2015, arXiv 1412.6980).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// The learning rate of this step.
    pub rate: f32,
    /// Decay rates of the first and the second moment.
    pub betas: [f32; 2],
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Weight decay (L2): this factor times the parameter is added to the gradient.
    pub weight_decay: Option<f32>,
    /// Number of this step, from 1.
    pub time: i32,
}

impl Update for Adam {
    /// Factor of the first moment, and epsilon beside the second.
    type Step = [f32; 2];

    fn prepare(&self) -> [f32; 2] {
        let [first, second] = self.betas.map(|beta| 1.0 - beta.powi(self.time));
        [second.sqrt() / first, self.epsilon * second.sqrt()]
    }

    #[inline(always)]
    fn update(&self, step: [f32; 2], parameter: f32, gradient: f32, moments: [&mut f32; 2]) -> f32 {
        let ([beta_1, beta_2], [factor, epsilon], [first, second]) = (self.betas, step, moments);
        let gradient = match self.weight_decay {
            Some(decay) => parameter * decay + gradient,
            None => gradient,
        };
        *first = *first * beta_1 + gradient * (1.0 - beta_1);
        *second = *second * beta_2 + gradient * gradient * (1.0 - beta_2);
        parameter - *first * factor / (second.sqrt() + epsilon) * self.rate
    }
}

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

impl Update for AdamW {
    /// 1 − beta ^ time.
    type Step = [f32; 2];

    fn prepare(&self) -> [f32; 2] {
        self.betas.map(|beta| 1.0 - beta.powi(self.time))
    }

    #[inline(always)]
    fn update(&self, step: [f32; 2], parameter: f32, gradient: f32, moments: [&mut f32; 2]) -> f32 {
        let ([beta_1, beta_2], [correction_1, correction_2], [first, second]) = (self.betas, step, moments);
        *first = *first * beta_1 + gradient * (1.0 - beta_1);
        *second = *second * beta_2 + gradient * gradient * (1.0 - beta_2);
        let along = (*first / correction_1) / ((*second / correction_2).sqrt() + self.epsilon);
        parameter * self.decay - along * self.rate
    }
}

/// Updates both moments and returns the parameter after the step.
///
/// # Panics
/// If the lengths differ.
pub fn step(with: impl Update, parameter: &[f32], moments: [&mut [f32]; 2], gradient: &[f32]) -> Vec<f32> {
    let len = parameter.len();
    let [first, second] = moments;
    assert_eq!([gradient.len(), first.len(), second.len()], [len; 3], "one length for all");
    let mut moved = Vec::with_capacity(len);
    let room = &mut moved.spare_capacity_mut()[..len];
    let step = with.prepare();
    let pass = |[parameter, gradient]: [&[f32]; 2], first: &mut [f32], second: &mut [f32], moved: &mut _| {
        arch().dispatch(Pass { with, step, parameter, gradient, first, second, moved });
    };
    parallel::side_by_side([parameter, gradient], first, second, room, pass);
    // SAFETY: each pass writes all of its part.
    unsafe { moved.set_len(len) };
    moved
}

struct Pass<'a, U: Update> {
    with: U,
    step: U::Step,
    parameter: &'a [f32],
    gradient: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    moved: &'a mut [MaybeUninit<f32>],
}

impl<U: Update> WithSimd for Pass<'_, U> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let from = self.parameter.iter().zip(self.gradient);
        let moments = self.first.iter_mut().zip(self.second);
        for (((parameter, gradient), (first, second)), moved) in from.zip(moments).zip(self.moved) {
            moved.write(self.with.update(self.step, *parameter, *gradient, [first, second]));
        }
    }
}
