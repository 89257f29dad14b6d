//! Softmax of the scores of a head, and its gradient.

use super::head::Head;
use crate::{
    exp::exp,
    simd::{largest, sum},
};
use pulp::{Simd, WithSimd};

/// Attention weights in place of the scores.
pub struct Forward<'a> {
    pub head: &'a Head<'a>,
    pub rows: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { head, rows } = self;
        for (query, row) in rows.chunks_exact_mut(head.keys.max(1)).enumerate() {
            let seen = &mut row[..head.seen(query)];
            if let Some(mask) = head.mask {
                for (score, masked) in seen.iter_mut().zip(mask.row(query, head.keys)) {
                    *score = if *masked { mask.fill } else { *score };
                }
            }
            let most = largest(seen);
            seen.iter_mut().for_each(|score| *score = exp(*score - most));
            let factor = 1.0 / sum(seen.len(), |at| seen[at]);
            seen.iter_mut().for_each(|score| *score *= factor);
        }
    }
}

/// Gradients of the scores in place of those of the weights.
pub struct Backward<'a> {
    pub head: &'a Head<'a>,
    /// With dropout, weights before it, negative where they are dropped.
    pub weights: &'a [f32],
    /// Further gradient of the weights.
    pub for_weights: Option<&'a [f32]>,
    pub scores: &'a mut [f32],
    /// Receives the weights after dropout.
    pub dropped: &'a mut [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { head, weights, for_weights, scores, dropped } = self;
        let keys = head.keys.max(1);
        if let Some(for_weights) = for_weights {
            scores.iter_mut().zip(for_weights).for_each(|(score, gradient)| *score += gradient);
        }
        if let Some((dropout, _)) = head.dropout {
            let factor = dropout.factor();
            for ((score, weight), dropped) in scores.iter_mut().zip(weights).zip(dropped) {
                let kept = weight.is_sign_positive();
                *dropped = if kept { weight * factor } else { 0.0 };
                *score = if kept { *score * factor } else { 0.0 };
            }
        }
        for (query, (weights, scores)) in
            weights.chunks_exact(keys).zip(scores.chunks_exact_mut(keys)).enumerate()
        {
            let (seen, later) = scores.split_at_mut(head.seen(query));
            let weights = &weights[..seen.len()];
            let mean = sum(seen.len(), |at| weights[at].abs() * seen[at]);
            for (score, weight) in seen.iter_mut().zip(weights) {
                *score = weight.abs() * (*score - mean);
            }
            if let Some(mask) = head.mask {
                for (score, masked) in seen.iter_mut().zip(mask.row(query, head.keys)) {
                    *score = if *masked { 0.0 } else { *score };
                }
            }
            // Products include them.
            let multiplied = head.multiplied(query) - seen.len();
            later[..multiplied].fill(0.0);
        }
    }
}
