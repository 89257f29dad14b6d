//! Linear layer in f32, bf16 or f16: matrix products by the crate `gemm` into uninitialised memory.
//!
//! 16-bit values are converted to f32, and results are rounded once. Products of bf16 use AVX-512 BF16 if the processor
//! has it; subnormal values (below 1.2e-38) then count as zero.

use crate::{parallel, simd::arch};
use gemm::Parallelism;
use half::{
    bf16, f16,
    slice::{HalfBitsSliceExt, HalfFloatSliceExt},
    vec::HalfBitsVecExt,
};
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

/// Values per part of a conversion.
const CONVERTED: usize = 1 << 14;

/// A type of values, whose sums are kept in f32.
pub trait Value: Copy + Send + Sync {
    /// Converts values to f32.
    fn widen(values: &[Self], to: &mut [f32]);

    /// Rounds values to this type.
    fn narrow(values: Vec<f32>) -> Vec<Self>;

    /// Computes the row-major product of `[rows, inner]` and `[inner, columns]`.
    ///
    /// # Panics
    /// If the matrices do not have these shapes, or the result does not fit in memory.
    fn product(shape: [usize; 3], left: Matrix<Self>, right: Matrix<Self>) -> Vec<f32> {
        widened_product(shape, left, right)
    }
}

impl Value for f32 {
    fn widen(values: &[f32], to: &mut [f32]) {
        to.copy_from_slice(values);
    }

    fn narrow(values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn product(shape: [usize; 3], left: Matrix, right: Matrix) -> Vec<f32> {
        product(shape, left, right)
    }
}

impl Value for f16 {
    fn widen(values: &[f16], to: &mut [f32]) {
        values.convert_to_f32_slice(to);
    }

    fn narrow(values: Vec<f32>) -> Vec<f16> {
        let round = |values: &[f32], to: &mut [u16]| {
            to.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values);
        };
        convert(&values, round).reinterpret_into()
    }
}

impl Value for bf16 {
    #[inline(always)]
    fn widen(values: &[bf16], to: &mut [f32]) {
        values.convert_to_f32_slice(to);
    }

    fn narrow(values: Vec<f32>) -> Vec<bf16> {
        let round = |values: &[f32], to: &mut [u16]| {
            to.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(values);
        };
        convert(&values, round).reinterpret_into()
    }

    fn product(shape: [usize; 3], left: Matrix<bf16>, right: Matrix<bf16>) -> Vec<f32> {
        #[cfg(target_arch = "x86_64")]
        if let Some(product) = crate::bf16::product(shape, left, right) {
            return product;
        }
        widened_product(shape, left, right)
    }
}

/// Values converted by `work`.
fn convert<A: Sync, B: Clone + Default + Send>(
    values: &[A],
    work: impl Fn(&[A], &mut [B]) + Sync + Send,
) -> Vec<B> {
    let mut result = vec![B::default(); values.len()];
    parallel::parts(&mut result, CONVERTED, |start, to| {
        let values = &values[start..][..to.len()];
        arch().dispatch(|| work(values, to));
    });
    result
}

/// The product of matrices converted to f32.
fn widened_product<T: Value>(shape: [usize; 3], left: Matrix<T>, right: Matrix<T>) -> Vec<f32> {
    let [left_values, right_values] = [left, right].map(|matrix| convert(matrix.values, T::widen));
    product(
        shape,
        Matrix { values: &left_values, strides: left.strides },
        Matrix { values: &right_values, strides: right.strides },
    )
}

/// Multiplies `x`, `[batch, inputs]`, by `weight`, `[inputs, outputs]`, and adds `bias`, `[outputs]` or empty.
///
/// # Panics
/// If the slices do not have these shapes, or the result does not fit in memory.
pub fn forward<T: Value>(x: &[T], weight: &[T], bias: &[T], outputs: usize) -> Vec<T> {
    let [batch, inputs, outputs] = shape(x, weight, outputs);
    let mut y = T::product([batch, inputs, outputs], Matrix::rows(x, inputs), Matrix::rows(weight, outputs));
    if bias.is_empty() {
        return T::narrow(y);
    }
    assert_eq!(bias.len(), outputs, "a bias for every output");
    let bias = &convert(bias, T::widen);
    parallel::parts(&mut y, ROWS * outputs, |_, rows| arch().dispatch(AddBias { rows, bias }));
    T::narrow(y)
}

/// Gradient of `x`, from that of the output, `[batch, outputs]`.
///
/// # Panics
/// If the slices do not have these shapes, or the result does not fit in memory.
pub fn input_gradient<T: Value>(weight: &[T], gradient: &[T], outputs: usize) -> Vec<T> {
    let [batch, outputs, inputs] = shape(gradient, weight, weight.len() / outputs.max(1));
    let [gradient, weight] = [gradient, weight].map(|matrix| Matrix::rows(matrix, outputs));
    if batch > SMALL_BATCH || outputs < MANY_OUTPUTS {
        return T::narrow(T::product([batch, outputs, inputs], gradient, weight.transpose()));
    }
    // `gemm` copies a transposed matrix on its right side on one thread, at one value per cache line. For a few rows,
    // that takes longer than the product.
    T::narrow(transpose(&T::product([inputs, outputs, batch], weight, gradient.transpose()), batch))
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
pub fn gradients<T: Value>(
    x: &[T],
    gradient: &[T],
    [batch, inputs, outputs]: [usize; 3],
) -> (Vec<T>, Vec<T>) {
    let x = Matrix::rows(x, inputs).transpose();
    let weight = T::product([inputs, batch, outputs], x, Matrix::rows(gradient, outputs));
    let mut bias = vec![0.0; outputs];
    // Each column is summed by one thread, in the order of the rows.
    let columns = if gradient.len() < 1 << 16 { outputs } else { COLUMNS };
    parallel::parts(&mut bias, columns, |start, sums| {
        arch().dispatch(ColumnSums { gradient, outputs, start, sums });
    });
    (T::narrow(weight), T::narrow(bias))
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
struct ColumnSums<'a, T> {
    gradient: &'a [T],
    outputs: usize,
    start: usize,
    sums: &'a mut [f32],
}

impl<T: Value> WithSimd for ColumnSums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.gradient.chunks_exact(self.outputs.max(1)) {
            let row = &row[self.start..][..self.sums.len()];
            for (sums, values) in self.sums.chunks_mut(COLUMNS).zip(row.chunks(COLUMNS)) {
                let mut wide = [0.0; COLUMNS];
                let wide = &mut wide[..values.len()];
                T::widen(values, wide);
                sums.iter_mut().zip(wide).for_each(|(sum, value)| *sum += *value);
            }
        }
    }
}

/// Dimensions `[rows, inner, columns]` of a product whose right side has `columns` columns, or rows.
fn shape<T>(left: &[T], right: &[T], columns: usize) -> [usize; 3] {
    let inner = right.len() / columns.max(1);
    [left.len() / inner.max(1), inner, columns]
}

/// A matrix with its strides.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T = f32> {
    pub(crate) values: &'a [T],
    pub(crate) strides: [usize; 2],
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// A row-major matrix.
    pub fn rows(values: &'a [T], width: usize) -> Self {
        Self { values, strides: [width, 1] }
    }

    /// Exchanges rows and columns, without a copy.
    pub fn transpose(self) -> Self {
        Self { strides: [self.strides[1], self.strides[0]], ..self }
    }

    /// The matrix, if it has this shape.
    pub(crate) fn checked(self, [rows, columns]: [usize; 2]) -> Self {
        assert_eq!(self.values.len(), rows * columns, "whole rows");
        assert!([[columns, 1], [1, rows]].contains(&self.strides), "adjacent values");
        self
    }
}

/// Row-major product of `[rows, inner]` and `[inner, columns]`.
pub(crate) fn product([rows, inner, columns]: [usize; 3], left: Matrix, right: Matrix) -> Vec<f32> {
    let (left, right) = (left.checked([rows, inner]), right.checked([inner, columns]));
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
            left.strides[1] as isize,
            left.strides[0] as isize,
            right.values.as_ptr(),
            right.strides[1] as isize,
            right.strides[0] as isize,
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
