//! A linear layer: products of matrices by the crate `gemm`, into memory that nobody has cleared before.

use crate::parallel;
use gemm::Parallelism;

/// Multiplications from which on several threads are worth it.
const PARALLEL: usize = 1 << 18;

/// `x`, `[batch, inputs]`, times `weight`, `[inputs, outputs]`, with `bias`, `[outputs]`, added to each row.
///
/// # Panics
/// If the slices are not of these shapes, or the result is more than memory can hold.
pub fn forward(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let [batch, inputs, outputs] = shape(x, weight, bias.len());
    let mut y = product([batch, inputs, outputs], Matrix::rows(x, inputs), Matrix::rows(weight, outputs));
    for row in y.chunks_exact_mut(outputs.max(1)) {
        row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
    }
    y
}

/// The gradient of `x`, from that of the output, `[batch, outputs]`.
///
/// # Panics
/// If the slices are not of these shapes, or the result is more than memory can hold.
pub fn input_gradient(weight: &[f32], gradient: &[f32], outputs: usize) -> Vec<f32> {
    let [batch, outputs, inputs] = shape(gradient, weight, weight.len() / outputs.max(1));
    product(
        [batch, outputs, inputs],
        Matrix::rows(gradient, outputs),
        Matrix::rows(weight, outputs).transpose(),
    )
}

/// The gradients of the weight and of the bias, from `x` and that of the output, `[batch, outputs]`.
///
/// # Panics
/// If the slices are not of these shapes, or the result is more than memory can hold.
pub fn gradients(x: &[f32], gradient: &[f32], batch: usize) -> (Vec<f32>, Vec<f32>) {
    let [inputs, outputs] = [x, gradient].map(|matrix| matrix.len() / batch.max(1));
    let x = Matrix::rows(x, inputs).transpose();
    let weight = product([inputs, batch, outputs], x, Matrix::rows(gradient, outputs));
    let mut bias = vec![0.0; outputs];
    for row in gradient.chunks_exact(outputs.max(1)) {
        bias.iter_mut().zip(row).for_each(|(bias, gradient)| *bias += gradient);
    }
    (weight, bias)
}

/// `[rows, inner, columns]` of a product whose right side has `columns` columns, or as many rows.
fn shape(left: &[f32], right: &[f32], columns: usize) -> [usize; 3] {
    let inner = right.len() / columns.max(1);
    [left.len() / inner.max(1), inner, columns]
}

/// A matrix in memory, and how far its rows and its columns are apart.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    values: &'a [f32],
    strides: [isize; 2],
}

impl<'a> Matrix<'a> {
    /// Row by row.
    fn rows(values: &'a [f32], width: usize) -> Self {
        Self { values, strides: [width as isize, 1] }
    }

    fn transpose(self) -> Self {
        Self { strides: [self.strides[1], self.strides[0]], ..self }
    }
}

/// `[rows, inner]` times `[inner, columns]`, row by row.
fn product([rows, inner, columns]: [usize; 3], left: Matrix, right: Matrix) -> Vec<f32> {
    for (matrix, [rows, columns]) in [(left, [rows, inner]), (right, [inner, columns])] {
        assert_eq!(matrix.values.len(), rows * columns, "whole rows");
    }
    let len = parallel::values(&[rows, columns]).expect("a result that fits in memory");
    let mut result = Vec::with_capacity(len);
    let many = rows.saturating_mul(inner).saturating_mul(columns) >= PARALLEL;
    let parallelism = if many { Parallelism::Rayon(0) } else { Parallelism::None };
    // SAFETY: both matrices have as many values as their shapes say, and their strides are those of their
    // rows; the result, which is not read, has room, and is written whole.
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
