//! One head of one sequence.

use crate::{
    dropout::Dropout,
    exp::exp,
    parallel::Room,
    product::{Matrix, product_to, writable},
    simd::{largest, multiversion, sum},
};
use std::{mem::MaybeUninit, ops::Range};

/// Queries at a time. With a causal mask, products skip later keys in steps of this size.
const ROWS: usize = 32;

pub struct Head<'a> {
    pub queries: usize,
    pub keys: usize,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// Masked scores of the sequence, `[queries, keys]` or `[1, keys]`, and their value.
    pub mask: Option<(&'a [bool], f32)>,
    /// Dropout, and number of the head.
    pub dropout: Option<(Dropout, usize)>,
}

/// Memory for one head at a time.
#[derive(Default)]
pub struct Workspace {
    scores: Vec<f32>,
    dropped: Vec<f32>,
    random: Vec<u8>,
}

/// Writes rows to memory where they are so many values apart.
pub type Write<'a> = &'a dyn Fn(Room, usize);

/// Some of the queries or keys, and the range of the others with which they are multiplied.
struct Block {
    rows: Range<usize>,
    others: Range<usize>,
}

impl Head<'_> {
    /// Writes the context, whose rows are `stride` values apart, and the weights, `[queries, keys]`.
    ///
    /// With dropout, `signed` becomes the weights before it, negative where they are dropped.
    pub fn forward(
        &self,
        [query, key, value]: [Matrix; 3],
        (context, stride): (Room, usize),
        weights: Room,
        signed: Room,
        workspace: &mut Workspace,
    ) {
        let keys = self.keys;
        for Block { rows, others } in self.blocks_of_queries() {
            let to = &mut weights[rows.start * keys..];
            product_to(query.rows(rows), key.rows(others).transpose(), self.scale, to, keys);
        }
        for (query, row) in weights.chunks_exact_mut(keys.max(1)).enumerate() {
            row[self.seen(query)..].fill(MaybeUninit::new(0.0));
        }
        // SAFETY: the products wrote all other values.
        let weights = unsafe { &mut *(std::ptr::from_mut(weights) as *mut [f32]) };
        softmax(self, weights);
        if let Some((dropout, number)) = self.dropout {
            let kept = dropout.row(number, weights.len(), &mut workspace.random);
            for ((kept, weight), signed) in kept.zip(&mut *weights).zip(signed) {
                // The sign of NaN is arbitrary before.
                signed.write(if kept { weight.abs() } else { -weight.abs() });
                *weight = if kept { *weight * dropout.factor() } else { 0.0 };
            }
        }
        let weights = Matrix::new(weights, [self.queries, keys]);
        for Block { rows, others } in self.blocks_of_queries() {
            let to = &mut context[rows.start * stride..];
            let weights = weights.part([rows.start, 0], [rows.len(), others.len()]);
            product_to(weights, value.rows(others), 1.0, to, stride);
        }
    }

    /// Gradients of queries, keys and values, from those of the context and of the weights.
    ///
    /// `weights` are `signed` of [`forward`](Self::forward) with dropout. `to(part, row, write)` calls
    /// `write` with the memory for the rows of a part from `row` on.
    pub fn backward(
        &self,
        [query, key, value]: [Matrix; 3],
        weights: &[f32],
        (gradient, for_weights): (Matrix, Option<&[f32]>),
        workspace: &mut Workspace,
        to: &mut dyn FnMut(usize, usize, Write),
    ) {
        let keys = self.keys;
        let Workspace { scores, dropped, .. } = workspace;
        scores.resize(weights.len(), 0.0);
        for Block { rows, others } in self.blocks_of_queries() {
            let to = writable(&mut scores[rows.start * keys..]);
            product_to(gradient.rows(rows), value.rows(others).transpose(), 1.0, to, keys);
        }
        dropped.resize(if self.dropout.is_some() { weights.len() } else { 0 }, 0.0);
        score_gradients(self, weights, for_weights, scores, dropped);
        let square = |values| Matrix::new(values, [self.queries, keys]);
        let weights = square(if self.dropout.is_some() { dropped } else { weights });
        let scores = square(scores);
        for Block { rows, others } in self.blocks_of_queries() {
            let scores = scores.part([rows.start, 0], [rows.len(), others.len()]);
            to(0, rows.start, &|to, stride| {
                product_to(scores, key.rows(others.clone()), self.scale, to, stride);
            });
        }
        for Block { rows, others } in self.blocks_of_keys() {
            let [query, gradient] = [query, gradient].map(|matrix| matrix.rows(others.clone()));
            let [weights, scores] = [weights, scores]
                .map(|matrix| matrix.part([others.start, rows.start], [others.len(), rows.len()]));
            to(1, rows.start, &|to, stride| {
                product_to(scores.transpose(), query, self.scale, to, stride);
            });
            to(2, rows.start, &|to, stride| product_to(weights.transpose(), gradient, 1.0, to, stride));
        }
    }

    /// The masked scores of a query, and their value.
    fn mask(&self, query: usize) -> Option<(&[bool], f32)> {
        self.mask.map(|(masked, fill)| {
            let start = query * self.keys % masked.len().max(1);
            (&masked[start..][..self.keys], fill)
        })
    }

    /// Number of keys that a query sees.
    fn seen(&self, query: usize) -> usize {
        if self.causal { query + 1 } else { self.keys }
    }

    /// Number of keys with which a query is multiplied.
    fn multiplied(&self, query: usize) -> usize {
        if self.causal { (query + 1).next_multiple_of(ROWS).min(self.keys) } else { self.keys }
    }

    /// Queries with the keys that they see.
    fn blocks_of_queries(&self) -> impl Iterator<Item = Block> {
        self.blocks(self.queries).map(|rows| Block { others: 0..self.multiplied(rows.start), rows })
    }

    /// Keys with the queries that see them.
    fn blocks_of_keys(&self) -> impl Iterator<Item = Block> {
        self.blocks(self.keys)
            .map(|rows| Block { others: if self.causal { rows.start } else { 0 }..self.queries, rows })
    }

    fn blocks(&self, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let at_once = if self.causal { ROWS } else { len.max(1) };
        (0..len).step_by(at_once).map(move |start| start..len.min(start + at_once))
    }
}

multiversion!(
    /// Attention weights in place of the scores.
    fn softmax(head: &Head<'_>, rows: &mut [f32]) {
        for (query, row) in rows.chunks_exact_mut(head.keys.max(1)).enumerate() {
            let seen = &mut row[..head.seen(query)];
            if let Some((masked, fill)) = head.mask(query) {
                for (score, masked) in seen.iter_mut().zip(masked) {
                    *score = if *masked { fill } else { *score };
                }
            }
            let most = largest(seen);
            // Loops, because closures of iterators are not compiled for the processor's vectors.
            for score in &mut *seen {
                *score = exp(*score - most);
            }
            let factor = 1.0 / sum(seen, seen, |weight, _| weight);
            for score in seen {
                *score *= factor;
            }
        }
    }
);

multiversion!(
    /// Gradients of the scores in place of those of the weights, to which `for_weights` are added.
    ///
    /// With dropout, `weights` are those before it, negative where they are dropped, and `dropped` receives those after it.
    fn score_gradients(
        head: &Head<'_>,
        weights: &[f32],
        for_weights: Option<&[f32]>,
        scores: &mut [f32],
        dropped: &mut [f32],
    ) {
        let keys = head.keys.max(1);
        if let Some(for_weights) = for_weights {
            for (score, gradient) in scores.iter_mut().zip(for_weights) {
                *score += gradient;
            }
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
            let mean = sum(weights, seen, |weight, gradient| weight.abs() * gradient);
            for (score, weight) in seen.iter_mut().zip(weights) {
                *score = weight.abs() * (*score - mean);
            }
            if let Some((masked, _)) = head.mask(query) {
                for (score, masked) in seen.iter_mut().zip(masked) {
                    *score = if *masked { 0.0 } else { *score };
                }
            }
            // Products include them.
            let multiplied = head.multiplied(query) - seen.len();
            later[..multiplied].fill(0.0);
        }
    }
);
