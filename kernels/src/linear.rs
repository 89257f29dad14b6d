//! Linear layer in f32, bf16 or f16: matrix products by the crate `gemm` into uninitialised memory.
//!
//! 16-bit values are converted to f32, and results are rounded once. Products of bf16 use AVX-512 BF16 if the processor
//! has it; subnormal values (below 1.2e-38) then count as zero.

pub use crate::product::Matrix;
use crate::{
    parallel,
    product::product,
    simd::{arch, multiversion},
};
use half::{
    bf16, f16,
    slice::{HalfBitsSliceExt, HalfFloatSliceExt},
    vec::HalfBitsVecExt,
};
use std::{mem::MaybeUninit, ops::Range};

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

    /// Computes the row-major product.
    ///
    /// # Panics
    /// If the shapes do not match, or the result does not fit in memory.
    fn product(left: Matrix<Self>, right: Matrix<Self>) -> Vec<f32> {
        widened_product(left, right)
    }
}

impl Value for f32 {
    fn widen(values: &[f32], to: &mut [f32]) {
        to.copy_from_slice(values);
    }

    fn narrow(values: Vec<f32>) -> Vec<f32> {
        values
    }

    fn product(left: Matrix, right: Matrix) -> Vec<f32> {
        product(left, right)
    }
}

/// Conversions of a 16-bit type.
macro_rules! conversions {
    () => {
        #[inline(always)]
        fn widen(values: &[Self], to: &mut [f32]) {
            values.convert_to_f32_slice(to);
        }

        fn narrow(values: Vec<f32>) -> Vec<Self> {
            let round = |values: &[f32], to: &mut [u16]| {
                to.reinterpret_cast_mut::<Self>().convert_from_f32_slice(values);
            };
            convert(&values, round).reinterpret_into()
        }
    };
}

impl Value for f16 {
    conversions!();
}

impl Value for bf16 {
    conversions!();

    fn product(left: Matrix<bf16>, right: Matrix<bf16>) -> Vec<f32> {
        #[cfg(target_arch = "x86_64")]
        if let Some(product) = crate::bf16::product(left, right) {
            return product;
        }
        widened_product(left, right)
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
fn widened_product<T: Value>(left: Matrix<T>, right: Matrix<T>) -> Vec<f32> {
    let [left_values, right_values] = [left, right].map(|matrix| convert(matrix.values, T::widen));
    let Matrix { shape, strides, .. } = left;
    let left = Matrix { values: &left_values, shape, strides };
    let Matrix { shape, strides, .. } = right;
    product(left, Matrix { values: &right_values, shape, strides })
}

/// Multiplies `x`, `[batch, inputs]`, by `weight`, `[inputs, outputs]`, and adds `bias`, `[outputs]` or empty.
///
/// # Panics
/// If the slices do not have these shapes, or the result does not fit in memory.
pub fn forward<T: Value>(x: &[T], weight: &[T], bias: &[T], outputs: usize) -> Vec<T> {
    let inputs = weight.len() / outputs.max(1);
    let x = Matrix::new(x, [x.len() / inputs.max(1), inputs]);
    let mut y = T::product(x, Matrix::new(weight, [inputs, outputs]));
    if bias.is_empty() {
        return T::narrow(y);
    }
    assert_eq!(bias.len(), outputs, "a bias for every output");
    let bias = &convert(bias, T::widen);
    parallel::parts(&mut y, ROWS * outputs, |_, rows| add_bias(rows, bias));
    T::narrow(y)
}

/// Gradient of `x`, from that of the output, `[batch, outputs]`.
///
/// # Panics
/// If the slices do not have these shapes, or the result does not fit in memory.
pub fn input_gradient<T: Value>(weight: &[T], gradient: &[T], outputs: usize) -> Vec<T> {
    let [gradient, weight] =
        [gradient, weight].map(|values| Matrix::new(values, [values.len() / outputs.max(1), outputs]));
    let batch = gradient.shape[0];
    if batch > SMALL_BATCH || outputs < MANY_OUTPUTS {
        return T::narrow(T::product(gradient, weight.transpose()));
    }
    // `gemm` copies a transposed matrix on its right side on one thread, at one value per cache line. For a few rows,
    // that takes longer than the product.
    T::narrow(transpose(&T::product(weight, gradient.transpose()), batch))
}

/// Transposes `[rows, columns]`.
fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    const SIDE: usize = 16;
    let rows = values.len() / columns.max(1);
    let write = |(): &mut (), range: Range<usize>, to: &mut [MaybeUninit<f32>]| {
        for start in (0..rows).step_by(SIDE) {
            for (column, to) in range.clone().zip(to.chunks_exact_mut(rows)) {
                let to = to[start..].iter_mut().take(SIDE);
                let from = values[start * columns + column..].iter().step_by(columns);
                to.zip(from).for_each(|(to, value)| _ = to.write(*value));
            }
        }
    };
    // SAFETY: all values of the columns are written.
    unsafe { parallel::build([columns, SIDE], rows, || (), write) }
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
    let x = Matrix::new(x, [batch, inputs]).transpose();
    let weight = T::product(x, Matrix::new(gradient, [batch, outputs]));
    let mut bias = vec![0.0; outputs];
    // Each column is summed by one thread, in the order of the rows.
    let columns = if gradient.len() < 1 << 16 { outputs } else { COLUMNS };
    parallel::parts(&mut bias, columns, |start, sums| add_columns(gradient, outputs, start, sums));
    (T::narrow(weight), T::narrow(bias))
}

multiversion!(
    fn add_bias(rows: &mut [f32], bias: &[f32]) {
        for row in rows.chunks_exact_mut(bias.len().max(1)) {
            row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
    }
);

multiversion!(
    /// Adds the columns of `gradient` from `start` on to `sums`.
    fn add_columns<T: Value>(gradient: &[T], outputs: usize, start: usize, sums: &mut [f32]) {
        for row in gradient.chunks_exact(outputs.max(1)) {
            let row = &row[start..][..sums.len()];
            for (sums, values) in sums.chunks_mut(COLUMNS).zip(row.chunks(COLUMNS)) {
                let mut wide = [0.0; COLUMNS];
                let wide = &mut wide[..values.len()];
                T::widen(values, wide);
                sums.iter_mut().zip(wide).for_each(|(sum, value)| *sum += *value);
            }
        }
    }
);
