//! Sampling of text from the network.

use crate::model::Gpt;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_ddp::run::tensor_io::{softmax, values};
use collective::sampler::mix;

/// How characters are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Number of characters to generate.
    pub length: usize,
    /// Divisor of the logits; 0 takes the most likely character.
    pub temperature: f64,
    /// Number of most likely characters to draw from; `None` for all.
    pub top_k: Option<usize>,
    pub seed: u64,
}

impl Sampling {
    /// Generates characters after `prompt`, which must not be empty.
    ///
    /// # Errors
    /// If the logits cannot be read from the device.
    pub fn generate(&self, net: &Gpt, prompt: &[i32], device: &Device) -> Result<Vec<i32>, String> {
        let mut text = prompt.to_vec();
        for step in 0..self.length {
            let context = &text[text.len().saturating_sub(net.block_size())..];
            let shape = [1, context.len()];
            let input = Tensor::<2, Int>::from_data(TensorData::new(context.to_vec(), shape), device);
            let logits = net.forward(input).narrow(1, shape[1] - 1, 1);
            text.push(self.draw(&values::<f32, 3, _>(logits)?, step as u64));
        }
        Ok(text.split_off(prompt.len()))
    }

    /// Draws a character from its logits with the random number of `step`.
    fn draw(&self, logits: &[f32], step: u64) -> i32 {
        let mut likeliest: Vec<usize> = (0..logits.len()).collect();
        likeliest.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        likeliest.truncate(self.top_k.unwrap_or(logits.len()));
        let first = likeliest.first().map_or(0, |first| *first as i32);
        if self.temperature == 0.0 {
            return first;
        }
        let scaled: Vec<f32> =
            likeliest.iter().map(|at| (f64::from(logits[*at]) / self.temperature) as f32).collect();
        // The upper 53 bits as a number from 0 to below 1.
        let mut left = (mix(self.seed, step) >> 11) as f64 / (1u64 << 53) as f64;
        for (character, probability) in likeliest.iter().zip(softmax(&scaled)) {
            left -= probability;
            if left < 0.0 {
                return *character as i32;
            }
        }
        // Rounding, or a temperature so low that the scaled logits overflow.
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [1.0, 3.0, 2.0, -1.0];

    fn counts(sampling: Sampling) -> [usize; 4] {
        let mut counts = [0; 4];
        (0..20_000).for_each(|step| counts[sampling.draw(&LOGITS, step) as usize] += 1);
        counts
    }

    #[test]
    fn frequencies_are_the_probabilities() {
        let sampling = Sampling { length: 0, temperature: 1.0, top_k: None, seed: 5 };
        for (count, probability) in counts(sampling).into_iter().zip(softmax(&LOGITS)) {
            assert!((count as f64 / 20_000.0 - probability).abs() < 0.01, "{count} {probability}");
        }
        let two = counts(Sampling { top_k: Some(2), ..sampling });
        assert!(two[0] == 0 && two[3] == 0 && two[2] > 0, "{two:?}");
        let cold = counts(Sampling { temperature: 0.0, ..sampling });
        assert_eq!(cold, [0, 20_000, 0, 0]);
        let nearly_cold = counts(Sampling { temperature: 1e-300, ..sampling });
        assert_eq!(nearly_cold, [0, 20_000, 0, 0]);
    }
}
