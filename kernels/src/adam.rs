//! One step of Adam or AdamW, in one pass over the values.
//!
//! Each value is rounded as often as in separate tensor operations, so that the results are bit-identical to them.

use crate::elementwise::update;

/// Settings of a step of Adam (Kingma and Ba 2015, arXiv 1412.6980) or AdamW (Loshchilov and Hutter 2019, arXiv
/// 1711.05101).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// The learning rate of this step.
    pub rate: f32,
    /// Decay rates of the first and the second moment.
    pub betas: [f32; 2],
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Weight decay.
    pub decay: Decay,
    /// Number of this step, from 1.
    pub time: i32,
}

/// Weight decay, which distinguishes the two optimizers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// Adam (L2): this factor times the parameter is added to the gradient.
    Gradient(Option<f32>),
    /// AdamW: factor of the parameter, 1 − learning rate × weight decay.
    Parameter(f32),
}

impl Adam {
    /// Updates both moments and returns the parameter after the step.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step(&self, parameter: &[f32], moments: [&mut [f32]; 2], gradient: &[f32]) -> Vec<f32> {
        let Self { rate, betas: [beta_1, beta_2], epsilon, time, .. } = *self;
        let [correction_1, correction_2] = self.betas.map(|beta| 1.0 - beta.powi(time));
        let (values, [first, second]) = ((parameter, gradient), moments);
        match self.decay {
            Decay::Gradient(decay) => {
                // Factor of the first moment, and epsilon beside the second.
                let (factor, epsilon) = (correction_2.sqrt() / correction_1, epsilon * correction_2.sqrt());
                update(values, first, second, move |parameter, gradient, first, second| {
                    let gradient = match decay {
                        Some(decay) => parameter * decay + gradient,
                        None => gradient,
                    };
                    *first = *first * beta_1 + gradient * (1.0 - beta_1);
                    *second = *second * beta_2 + gradient * gradient * (1.0 - beta_2);
                    parameter - *first * factor / (second.sqrt() + epsilon) * rate
                })
            }
            Decay::Parameter(decay) => {
                update(values, first, second, move |parameter, gradient, first, second| {
                    *first = *first * beta_1 + gradient * (1.0 - beta_1);
                    *second = *second * beta_2 + gradient * gradient * (1.0 - beta_2);
                    let along = (*first / correction_1) / ((*second / correction_2).sqrt() + epsilon);
                    parameter * decay - along * rate
                })
            }
        }
    }
}
