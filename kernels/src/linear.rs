//! Linear layer: matrix products by the crate `gemm` into uninitialised memory.

use crate::{parallel, simd::arch};
use gemm::Parallelism;
use pulp::{Simd, WithSimd};
use std::{mem::MaybeUninit, ops::Range};

/// Minimum number of multiplications for several threads.
const PARALLEL: usize = 1 << 18;

/// Rows per part of an addition of the bias.
const ROWS: usize = 64;

/// Columns per part of the gradient of the bias.
const COLUMNS: usize = 128;

/// Largest batch and fewest outputs for which [`input_gradient`] reads the weights where they are.
const SMALL_BATCH: usize = 128;
const MANY_OUTPUTS: usize = 256;

/// Multiplies `x`, `[batch, inputs]`, by `weight`, `[inputs, outputs]`, and adds `bias`, `[outputs]` or empty.
///
/// # Panics
/// If the slices do not have these shapes, or the result does not fit in memory.
pub fn forward(x: &[f32], weight: &[f32], bias: &[f32], outputs: usize) -> Vec<f32> {
    let [batch, inputs, outputs] = shape(x, weight, outputs);
    let mut y = product([batch, inputs, outputs], Matrix::rows(x, inputs), Matrix::rows(weight, outputs));
    if bias.is_empty() {
        return y;
    }
    assert_eq!(bias.len(), outputs, "a bias for every output");
    parallel::parts(&mut y, ROWS * outputs, |_, rows| arch().dispatch(AddBias { rows, bias }));
    y
}

/// Gradient of `x`, from that of the output, `[batch, outputs]`.
///
/// # Panics
/// If the slices do not have these shapes, or the result does not fit in memory.
pub fn input_gradient(weight: &[f32], gradient: &[f32], outputs: usize) -> Vec<f32> {
    let [batch, outputs, inputs] = shape(gradient, weight, weight.len() / outputs.max(1));
    let [gradient, weight] = [gradient, weight].map(|matrix| Matrix::rows(matrix, outputs));
    if batch > SMALL_BATCH || outputs < MANY_OUTPUTS {
        return product([batch, outputs, inputs], gradient, weight.transpose());
    }
    // `gemm` copies a transposed matrix on its right side on one thread, at one value per cache line. For a few rows,
    // that takes longer than the product.
    transpose(&product([inputs, outputs, batch], weight, gradient.transpose()), batch)
}

/// Transposes `[rows, columns]`.
fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    const SIDE: usize = 16;
    let rows = values.len() / columns.max(1);
    let write = |range: Range<usize>, to: &mut [MaybeUninit<f32>]| {
        for start in (0..rows).step_by(SIDE) {
            for (column, to) in range.clone().zip(to.chunks_exact_mut(rows)) {
                let to = to[start..].iter_mut().take(SIDE);
                let from = values[start * columns + column..].iter().step_by(columns);
                to.zip(from).for_each(|(to, value)| _ = to.write(*value));
            }
        }
    };
    // SAFETY: all values of the columns are written.
    unsafe { parallel::build_rows([columns, SIDE], rows, write) }
}

/// Gradients of weight and bias, from `x` and the gradient of the output, `[batch, outputs]`.
///
/// An empty batch gives zeros.
///
/// # Panics
/// If the slices do not have these shapes, or the result does not fit in memory.
pub fn gradients(x: &[f32], gradient: &[f32], [batch, inputs, outputs]: [usize; 3]) -> (Vec<f32>, Vec<f32>) {
    let x = Matrix::rows(x, inputs).transpose();
    let weight = product([inputs, batch, outputs], x, Matrix::rows(gradient, outputs));
    let mut bias = vec![0.0; outputs];
    // Each column is summed by one thread, in the order of the rows.
    let columns = if gradient.len() < 1 << 16 { outputs } else { COLUMNS };
    parallel::parts(&mut bias, columns, |start, sums| {
        arch().dispatch(ColumnSums { gradient, outputs, start, sums });
    });
    (weight, bias)
}

struct AddBias<'a> {
    rows: &'a mut [f32],
    bias: &'a [f32],
}

impl WithSimd for AddBias<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.rows.chunks_exact_mut(self.bias.len().max(1)) {
            row.iter_mut().zip(self.bias).for_each(|(y, bias)| *y += bias);
        }
    }
}

/// Adds the columns of `gradient` from `start` on to `sums`.
struct ColumnSums<'a> {
    gradient: &'a [f32],
    outputs: usize,
    start: usize,
    sums: &'a mut [f32],
}

impl WithSimd for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.gradient.chunks_exact(self.outputs.max(1)) {
            self.sums.iter_mut().zip(&row[self.start..]).for_each(|(sum, gradient)| *sum += gradient);
        }
    }
}

/// Dimensions `[rows, inner, columns]` of a product whose right side has `columns` columns, or rows.
fn shape(left: &[f32], right: &[f32], columns: usize) -> [usize; 3] {
    let inner = right.len() / columns.max(1);
    [left.len() / inner.max(1), inner, columns]
}

/// A matrix with its strides.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    strides: [isize; 2],
}

impl<'a> Matrix<'a> {
    /// A row-major matrix.
    pub fn rows(values: &'a [f32], width: usize) -> Self {
        Self { values, strides: [width as isize, 1] }
    }

    pub fn transpose(self) -> Self {
        Self { strides: [self.strides[1], self.strides[0]], ..self }
    }
}

/// Row-major product of `[rows, inner]` and `[inner, columns]`.
pub(crate) fn product([rows, inner, columns]: [usize; 3], left: Matrix, right: Matrix) -> Vec<f32> {
    for (matrix, [rows, columns]) in [(left, [rows, inner]), (right, [inner, columns])] {
        assert_eq!(matrix.values.len(), rows * columns, "whole rows");
    }
    let len = parallel::values(&[rows, columns]).expect("a result that fits in memory");
    let mut result = Vec::with_capacity(len);
    let many = rows.saturating_mul(inner).saturating_mul(columns) >= PARALLEL;
    let parallelism = if many { Parallelism::Rayon(0) } else { Parallelism::None };
    // SAFETY: both matrices have the number of values and the strides of their shapes. The result has room for
    // all values, is not read, and is written completely.
    unsafe {
        gemm::gemm::<f32>(
            rows,
            columns,
            inner,
            result.as_mut_ptr(),
            1,
            columns as isize,
            false,
            left.values.as_ptr(),
            left.strides[1],
            left.strides[0],
            right.values.as_ptr(),
            right.strides[1],
            right.strides[0],
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
        result.set_len(len);
    }
    result
}
