//! Causal multi-head self-attention for short sequences (Vaswani et al. 2017, arXiv 1706.03762).
//!
//! Queries, keys and values are read from one matrix `[batch × time, 3 × width]`, the output of a linear layer, and
//! their gradients are written to one. A position sees itself and earlier ones.

use crate::{
    exp::exp,
    parallel,
    product::{View, product, product_of_transposed, writable},
    simd::{arch, largest, sum},
};
use pulp::{Simd, WithSimd};
use std::{mem::MaybeUninit, ops::Range};

/// Sizes of the layer.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Positions of a sequence.
    pub time: usize,
    /// Attention heads.
    pub heads: usize,
    /// Values of a position, a multiple of `heads`.
    pub width: usize,
}

/// Rows of the attention weights that are computed at once. Products skip later positions in steps of this size.
const ROWS: usize = 32;

impl Attention {
    /// Output `[batch × time, width]`, and the attention weights `[batch, heads, time, time]` for
    /// [`backward`](Self::backward).
    ///
    /// # Panics
    /// If `all` does not have the shape `[batch × time, 3 × width]`.
    pub fn forward(&self, all: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let Self { batch, time, heads, .. } = *self;
        let sizes = self.sizes(all);
        let work =
            |(): &mut (), sequence: usize, to: &mut [MaybeUninit<f32>], weights: &mut [MaybeUninit<f32>]| {
                for head in 0..heads {
                    let [query, key, value] = self.parts(all, sequence, head);
                    let weights = &mut weights[head * time * time..][..time * time];
                    for Rows { rows, seen } in self.rows() {
                        let to = &mut weights[rows.start * time..];
                        product(query.rows(rows), key.rows(0..seen), true, self.scale(), to, time);
                    }
                    // SAFETY: the products wrote all positions up to the diagonal.
                    let weights = unsafe { causal_softmax(weights, time) };
                    let weights = View { values: weights, shape: [time; 2], stride: time };
                    for Rows { rows, seen } in self.rows() {
                        let to = &mut to[rows.start * self.width + head * self.head_width()..];
                        let weights = weights.part([rows.start, 0], [rows.len(), seen]);
                        product(weights, value.rows(0..seen), false, 1.0, to, self.width);
                    }
                }
            };
        // SAFETY: the products of all heads and rows write all values, as does `causal_softmax`.
        unsafe { parallel::build_two(batch, sizes, || (), work) }
    }

    /// Gradient of `all`, from that of the output.
    ///
    /// # Panics
    /// If the slices do not have the lengths of [`forward`](Self::forward).
    pub fn backward(&self, all: &[f32], weights: &[f32], gradient: &[f32]) -> Vec<f32> {
        let Self { batch, time, heads, width } = *self;
        let [output, square] = self.sizes(all);
        assert_eq!(
            [gradient.len(), weights.len()],
            [batch * output, batch * square],
            "lengths of the output"
        );
        let (across, head_width) = (3 * width, self.head_width());
        let workspace = || vec![0.0; time * time];
        let work = |scores: &mut Vec<f32>, sequence: usize, to: &mut [MaybeUninit<f32>]| {
            for head in 0..heads {
                let [query, key, value] = self.parts(all, sequence, head);
                let weights = &weights[(sequence * heads + head) * time * time..][..time * time];
                let from = &gradient[sequence * output + head * head_width..];
                let gradient = View { values: from, shape: [time, head_width], stride: width };
                for Rows { rows, seen } in self.rows() {
                    let to = writable(&mut scores[rows.start * time..]);
                    product(gradient.rows(rows), value.rows(0..seen), true, 1.0, to, time);
                }
                arch().dispatch(SoftmaxGradient { weights, gradients: scores, time });
                let square = |values| View { values, shape: [time; 2], stride: time };
                let (weights, scores) = (square(weights), square(scores));
                for Rows { rows, seen } in self.rows() {
                    let to = &mut to[rows.start * across + head * head_width..];
                    let scores = scores.part([rows.start, 0], [rows.len(), seen]);
                    product(scores, key.rows(0..seen), false, self.scale(), to, across);
                }
                // Keys and values of these positions are seen from them and from later positions.
                for Rows { rows, .. } in self.rows() {
                    let seeing = [time - rows.start, rows.len()];
                    let [query, gradient] = [query, gradient].map(|m| m.rows(rows.start..time));
                    let [weights, scores] = [weights, scores].map(|m| m.part([rows.start; 2], seeing));
                    let [for_key, for_value] =
                        [1, 2].map(|part| rows.start * across + part * width + head * head_width);
                    product_of_transposed(scores, query, self.scale(), &mut to[for_key..], across);
                    product_of_transposed(weights, gradient, 1.0, &mut to[for_value..], across);
                }
            }
        };
        // SAFETY: the products of all heads and rows write queries, keys and values.
        unsafe { parallel::build(batch, time * across, workspace, work) }
    }

    /// Rows of the attention weights, and the number of positions that they see.
    fn rows(&self) -> impl Iterator<Item = Rows> + use<> {
        let time = self.time;
        (0..time).step_by(ROWS).map(move |start| {
            let seen = time.min(start + ROWS);
            Rows { rows: start..seen, seen }
        })
    }

    fn head_width(&self) -> usize {
        self.width / self.heads.max(1)
    }

    fn scale(&self) -> f32 {
        (self.head_width() as f32).powf(-0.5)
    }

    /// Lengths of a sequence's output and weights.
    fn sizes(&self, all: &[f32]) -> [usize; 2] {
        let Self { batch, time, heads, width } = *self;
        assert!(heads > 0 && width.is_multiple_of(heads), "width is a multiple of heads");
        let wanted = parallel::values(&[batch, time, width, 3]).expect("values that fit in memory");
        assert_eq!(all.len(), wanted, "[batch × time, 3 × width]");
        [time * width, parallel::values(&[heads, time, time]).expect("weights that fit in memory")]
    }

    /// Queries, keys and values of a head, `[time, head width]`.
    fn parts<'a>(&self, all: &'a [f32], sequence: usize, head: usize) -> [View<'a>; 3] {
        let stride = 3 * self.width;
        [0, 1, 2].map(|part| {
            let start = sequence * self.time * stride + part * self.width + head * self.head_width();
            View { values: &all[start.min(all.len())..], shape: [self.time, self.head_width()], stride }
        })
    }
}

/// Adjacent rows of the attention weights.
struct Rows {
    rows: Range<usize>,
    /// Positions that the last row sees.
    seen: usize,
}

/// Softmax of the part of each row up to the diagonal; zero after it.
///
/// # Safety
/// Each row must be initialised up to the diagonal.
unsafe fn causal_softmax(rows: &mut [MaybeUninit<f32>], time: usize) -> &mut [f32] {
    for (at, row) in rows.chunks_exact_mut(time.max(1)).enumerate() {
        row[at + 1..].fill(MaybeUninit::new(0.0));
    }
    // SAFETY: the caller's contract; later positions were written.
    let rows = unsafe { &mut *(std::ptr::from_mut(rows) as *mut [f32]) };
    arch().dispatch(CausalSoftmax { rows, time });
    rows
}

struct CausalSoftmax<'a> {
    rows: &'a mut [f32],
    time: usize,
}

impl WithSimd for CausalSoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (at, row) in self.rows.chunks_exact_mut(self.time.max(1)).enumerate() {
            let seen = &mut row[..=at];
            let most = largest(seen);
            seen.iter_mut().for_each(|score| *score = exp(*score - most));
            let factor = 1.0 / sum(seen.len(), |at| seen[at]);
            seen.iter_mut().for_each(|score| *score *= factor);
        }
    }
}

/// Gradients of the scores in place of those of the weights.
struct SoftmaxGradient<'a> {
    weights: &'a [f32],
    gradients: &'a mut [f32],
    time: usize,
}

impl WithSimd for SoftmaxGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let time = self.time.max(1);
        let rows = self.weights.chunks_exact(time).zip(self.gradients.chunks_exact_mut(time));
        for (at, (weights, gradients)) in rows.enumerate() {
            let (seen, later) = gradients.split_at_mut(at + 1);
            let weights = &weights[..=at];
            let mean = sum(seen.len(), |at| weights[at] * seen[at]);
            for (gradient, weight) in seen.iter_mut().zip(weights) {
                *gradient = weight * (*gradient - mean);
            }
            // Products include them up to the next multiple of `ROWS`.
            let until = (at + 1).next_multiple_of(ROWS).min(time);
            later[..until - at - 1].fill(0.0);
        }
    }
}
