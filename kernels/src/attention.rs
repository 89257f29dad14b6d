//! Causal multi-head self-attention for short sequences (Vaswani et al. 2017, arXiv 1706.03762).
//!
//! Queries, keys and values are read from one matrix `[batch × time, 3 × width]`, the output of a linear layer, and
//! their gradients are written to one. A position sees itself and earlier ones.

use crate::{exp::exp, parallel, simd::arch};
use gemm::Parallelism;
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

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

/// A matrix within a larger one, whose rows are `stride` values apart.
#[derive(Clone, Copy)]
struct View<'a> {
    values: &'a [f32],
    shape: [usize; 2],
    stride: usize,
}

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
                let (to, weights) = (zeroed(to), zeroed(weights));
                for head in 0..heads {
                    let [query, key, value] = self.parts(all, sequence, head);
                    let weights = &mut weights[head * time * time..][..time * time];
                    product(query, key, true, self.scale(), weights, time);
                    arch().dispatch(CausalSoftmax { rows: weights, time });
                    let weights = View { values: weights, shape: [time; 2], stride: time };
                    product(weights, value, false, 1.0, &mut to[head * self.head_width()..], self.width);
                }
            };
        // SAFETY: `zeroed` writes all values.
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
            let to = zeroed(to);
            for head in 0..heads {
                let [query, key, value] = self.parts(all, sequence, head);
                let weights = &weights[(sequence * heads + head) * time * time..][..time * time];
                let from = &gradient[sequence * output + head * head_width..];
                let gradient = View { values: from, shape: [time, head_width], stride: width };
                let square = |values| View { values, shape: [time; 2], stride: time };
                product(gradient, value, true, 1.0, scores, time);
                product_of_transposed(
                    square(weights),
                    gradient,
                    1.0,
                    &mut to[2 * width + head * head_width..],
                    across,
                );
                arch().dispatch(SoftmaxGradient { weights, gradients: scores, time });
                product(square(scores), key, false, self.scale(), &mut to[head * head_width..], across);
                let for_key = &mut to[width + head * head_width..];
                product_of_transposed(square(scores), query, self.scale(), for_key, across);
            }
        };
        // SAFETY: `zeroed` writes all values.
        unsafe { parallel::build(batch, time * across, workspace, work) }
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

/// Writes zeros and returns the values.
fn zeroed(values: &mut [MaybeUninit<f32>]) -> &mut [f32] {
    values.fill(MaybeUninit::new(0.0));
    // SAFETY: all values were written.
    unsafe { &mut *(std::ptr::from_mut(values) as *mut [f32]) }
}

/// `to = factor × left × right`, or with `right` transposed; rows of `to` are `stride` values apart.
fn product(left: View, right: View, transposed: bool, factor: f32, to: &mut [f32], stride: usize) {
    let [rows, inner] = left.shape;
    let (columns, right_strides) = match transposed {
        true => (right.shape[0], [1, right.stride]),
        false => (right.shape[1], [right.stride, 1]),
    };
    let right_inner = right.shape[usize::from(transposed)];
    assert_eq!(inner, right_inner, "shapes of a product");
    multiply([rows, inner, columns], (left, [left.stride, 1]), (right, right_strides), factor, to, stride);
}

/// `to = factor × leftᵀ × right`; rows of `to` are `stride` values apart.
fn product_of_transposed(left: View, right: View, factor: f32, to: &mut [f32], stride: usize) {
    let [inner, rows] = left.shape;
    assert_eq!(inner, right.shape[0], "shapes of a product");
    let columns = right.shape[1];
    multiply(
        [rows, inner, columns],
        (left, [1, left.stride]),
        (right, [right.stride, 1]),
        factor,
        to,
        stride,
    );
}

fn multiply(
    [rows, inner, columns]: [usize; 3],
    (left, left_strides): (View, [usize; 2]),
    (right, right_strides): (View, [usize; 2]),
    factor: f32,
    to: &mut [f32],
    stride: usize,
) {
    for view in [left, right] {
        assert!(fits(view.shape, view.stride, view.values.len()), "views within their matrices");
    }
    assert!(fits([rows, columns], stride, to.len()), "room for the product");
    // SAFETY: all values of both views and of the product are within their slices.
    unsafe {
        gemm::gemm::<f32>(
            rows,
            columns,
            inner,
            to.as_mut_ptr(),
            1,
            stride as isize,
            false,
            left.values.as_ptr(),
            left_strides[1] as isize,
            left_strides[0] as isize,
            right.values.as_ptr(),
            right_strides[1] as isize,
            right_strides[0] as isize,
            0.0,
            factor,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Whether `len` values contain a matrix whose rows are `stride` values apart.
fn fits([rows, columns]: [usize; 2], stride: usize, len: usize) -> bool {
    rows == 0 || columns <= stride && (rows - 1) * stride + columns <= len
}

/// Softmax of the part of each row up to the diagonal; zero after it.
struct CausalSoftmax<'a> {
    rows: &'a mut [f32],
    time: usize,
}

impl WithSimd for CausalSoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (at, row) in self.rows.chunks_exact_mut(self.time.max(1)).enumerate() {
            let (seen, later) = row.split_at_mut(at + 1);
            let most = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            seen.iter_mut().for_each(|score| *score = exp(*score - most));
            let factor = 1.0 / seen.iter().sum::<f32>();
            seen.iter_mut().for_each(|score| *score *= factor);
            later.fill(0.0);
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
        for (weights, gradients) in self.weights.chunks_exact(time).zip(self.gradients.chunks_exact_mut(time))
        {
            let mean: f32 = weights.iter().zip(&*gradients).map(|(weight, gradient)| weight * gradient).sum();
            // The weights of later positions are zero.
            gradients
                .iter_mut()
                .zip(weights)
                .for_each(|(gradient, weight)| *gradient = weight * (*gradient - mean));
        }
    }
}
