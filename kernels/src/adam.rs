//! One step of Adam or AdamW, in one pass over the values.
//!
//! Each value is rounded as often as in separate tensor operations, so that the results are bit-identical to them.

use crate::elementwise::update;

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

impl Adam {
    /// Updates both moments and returns the parameter after the step.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step(&self, parameter: &[f32], moments: [&mut [f32]; 2], gradient: &[f32]) -> Vec<f32> {
        let Self { rate, betas: [beta_1, beta_2], weight_decay, .. } = *self;
        let [first, second] = self.betas.map(|beta| 1.0 - beta.powi(self.time));
        // Factor of the first moment, and epsilon beside the second.
        let (factor, epsilon) = (second.sqrt() / first, self.epsilon * second.sqrt());
        let [first, second] = moments;
        update((parameter, gradient), first, second, move |parameter, gradient, first, second| {
            let gradient = match weight_decay {
                Some(decay) => parameter * decay + gradient,
                None => gradient,
            };
            *first = *first * beta_1 + gradient * (1.0 - beta_1);
            *second = *second * beta_2 + gradient * gradient * (1.0 - beta_2);
            parameter - *first * factor / (second.sqrt() + epsilon) * rate
        })
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

impl AdamW {
    /// Updates both moments and returns the parameter after the step.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step(&self, parameter: &[f32], moments: [&mut [f32]; 2], gradient: &[f32]) -> Vec<f32> {
        let Self { rate, betas: [beta_1, beta_2], epsilon, decay, time } = *self;
        let [correction_1, correction_2] = self.betas.map(|beta| 1.0 - beta.powi(time));
        let [first, second] = moments;
        update((parameter, gradient), first, second, move |parameter, gradient, first, second| {
            *first = *first * beta_1 + gradient * (1.0 - beta_1);
            *second = *second * beta_2 + gradient * gradient * (1.0 - beta_2);
            let along = (*first / correction_1) / ((*second / correction_2).sqrt() + epsilon);
            parameter * decay - along * rate
        })
    }
}
