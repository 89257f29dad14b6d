//! Products of bf16 matrices with the instruction VDPBF16PS of AVX-512 BF16, which takes pairs of values.
//!
//! Products of two values are exact, and sums are f32, rounded to nearest after every summand. The instruction takes
//! subnormal values (below 1.2e-38) for zero and flushes subnormal sums to zero. Sums are added in blocks of [`DEPTH`]
//! summands, in an order that depends on neither the shape nor the number of threads.

use crate::{parallel, product::Matrix, simd::Aligned};
use half::bf16;
use std::arch::x86_64::*;

/// Rows and columns of a tile, whose sums are in registers.
const ROWS: usize = 12;
const COLUMNS: usize = 32;

/// Summands per block: a tile's values of the right matrix are in the first-level cache.
const DEPTH: usize = 256;

/// Rows per part.
const PART: usize = 4 * ROWS;

/// Row-major product of whole matrices; `None` if the processor lacks the instruction.
///
/// # Panics
/// If the shapes do not match, or the result does not fit in memory.
pub fn product(left: Matrix<bf16>, right: Matrix<bf16>) -> Option<Vec<f32>> {
    if !is_x86_feature_detected!("avx512bf16") || !is_x86_feature_detected!("avx512bw") {
        return None;
    }
    let ([rows, inner], [right_inner, columns]) = (left.shape, right.shape);
    assert_eq!(inner, right_inner, "shapes of a product");
    assert!(left.is_whole() && right.is_whole(), "adjacent values");
    let len = parallel::values(&[rows, columns]).expect("a result that fits in memory");
    let mut result = vec![0.0; len];
    if len == 0 {
        return Some(result);
    }
    let mut packed = Aligned::new(columns.div_ceil(COLUMNS) * COLUMNS * DEPTH.min(inner).div_ceil(2));
    for start in (0..inner).step_by(DEPTH) {
        let depth = DEPTH.min(inner - start);
        let panel = COLUMNS * depth.div_ceil(2);
        let panels = &mut packed.values_mut()[..columns.div_ceil(COLUMNS) * panel];
        parallel::parts(panels, panel, |at, panels| {
            for (number, to) in panels.chunks_exact_mut(panel).enumerate() {
                let column = (at / panel + number) * COLUMNS;
                // SAFETY: the processor has AVX-512 BW.
                unsafe { pack::<COLUMNS>(right.transpose(), [column, start], [columns - column, depth], to) };
            }
        });
        let panels = &*panels;
        parallel::parts(&mut result, PART * columns, |at, result| {
            for (number, result) in result.chunks_mut(PART * columns).enumerate() {
                let row = at / columns + number * PART;
                // SAFETY: the processor has AVX-512 BF16.
                unsafe { add_rows(left, [row, start], depth, panels, (result, columns)) };
            }
        });
    }
    Some(result)
}

/// Writes `[depth / 2, N]` pairs of the first `N` of `count` rows from `[row, column]`, in the bits of f32.
///
/// Zeros where there is no value.
#[target_feature(enable = "avx512f,avx512bw")]
fn pack<const N: usize>(
    matrix: Matrix<bf16>,
    [row, column]: [usize; 2],
    [count, depth]: [usize; 2],
    to: &mut [f32],
) {
    let pair =
        |low: bf16, high: bf16| f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16);
    let [stride, next] = matrix.strides;
    let (values, count) = (&matrix.values[row * stride + column * next..], count.min(N));
    let to = to.as_chunks_mut::<N>().0;
    if count < N {
        to.fill([0.0; N]);
    }
    if next != 1 {
        let zeros = [bf16::ZERO; N];
        for (at, to) in to.iter_mut().enumerate() {
            let low = &values[2 * at * next..][..count];
            let high =
                if 2 * at + 1 < depth { &values[(2 * at + 1) * next..][..count] } else { &zeros[..count] };
            if let (Ok(low), Ok(high)) = (<&[bf16; N]>::try_from(low), <&[bf16; N]>::try_from(high)) {
                *to = std::array::from_fn(|row| pair(low[row], high[row]));
            } else {
                to.iter_mut().zip(low.iter().zip(high)).for_each(|(to, (low, high))| *to = pair(*low, *high));
            }
        }
        return;
    }
    for row in 0..count {
        let (pairs, rest) = values[row * stride..][..depth].as_chunks::<2>();
        for (to, [low, high]) in to.iter_mut().zip(pairs) {
            to[row] = pair(*low, *high);
        }
        if let [last] = rest {
            to[depth / 2][row] = pair(*last, bf16::ZERO);
        }
    }
}

/// Adds the product of rows from `[row, start]` and the packed `panels` to `result`, whose rows have `columns` values.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn add_rows(
    left: Matrix<bf16>,
    [row, start]: [usize; 2],
    depth: usize,
    panels: &[f32],
    (result, columns): (&mut [f32], usize),
) {
    let pairs = depth.div_ceil(2);
    // Whole tiles of rows with adjacent values need no copy.
    let direct = left.strides[1] == 1 && depth.is_multiple_of(2);
    let count = result.len() / columns;
    let mut packed = Aligned::new(PART * pairs);
    for tile in (0..count).step_by(ROWS).filter(|tile| !direct || count - tile < ROWS) {
        let to = &mut packed.values_mut()[tile * pairs..][..ROWS * pairs];
        pack::<ROWS>(left, [row + tile, start], [count - tile, depth], to);
    }
    for (number, panel) in panels.chunks_exact(COLUMNS * pairs).enumerate() {
        let column = number * COLUMNS;
        let width = COLUMNS.min(columns - column);
        for (tile, result) in (0..count).step_by(ROWS).zip(result.chunks_mut(ROWS * columns)) {
            let (from, strides) = match direct && count - tile >= ROWS {
                true => {
                    let values = &left.values[(row + tile) * left.strides[0] + start..];
                    (values.as_ptr(), [left.strides[0], 2])
                }
                false => (packed.values()[tile * pairs..].as_ptr().cast(), [2, 2 * ROWS]),
            };
            let rows = ROWS.min(count - tile);
            // SAFETY: `from` has `pairs` pairs of each of the tile's rows, or of rows of zeros in their place.
            unsafe { add_tile(from, strides, panel, (&mut result[column..], columns), [rows, width]) };
        }
    }
}

/// Adds the product of a tile's rows and `panel` to `result`, which begins at the tile and has rows of `columns` values.
///
/// # Safety
/// For each of [`ROWS`] rows and each pair of `panel`, a pair must be readable at these distances from `from`.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add_tile(
    from: *const bf16,
    [row_stride, pair_stride]: [usize; 2],
    panel: &[f32],
    (result, columns): (&mut [f32], usize),
    [rows, width]: [usize; 2],
) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (pair, right) in panel.as_chunks::<COLUMNS>().0.iter().enumerate() {
        for row in 0..ROWS {
            // SAFETY: the caller's contract; 16 values are readable in each half of `right`.
            unsafe {
                let left = from.add(row * row_stride + pair * pair_stride).cast::<i32>().read_unaligned();
                let left = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(left));
                for half in 0..2 {
                    let right = right.as_ptr().add(half * 16).cast::<__m512bh>().read_unaligned();
                    sums[row][half] = _mm512_dpbf16_ps(sums[row][half], left, right);
                }
            }
        }
    }
    // Constant bounds keep the sums in registers.
    for row in 0..ROWS {
        for half in 0..2 {
            let lanes = width.saturating_sub(half * 16).min(16);
            if row < rows && lanes > 0 {
                let to = result[row * columns + half * 16..][..lanes].as_mut_ptr();
                let mask = u16::MAX >> (16 - lanes);
                // SAFETY: `lanes` values are at `to`.
                unsafe {
                    let sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sums[row][half]);
                    _mm512_mask_storeu_ps(to, mask, sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{noise, same_for_every_number_of_threads};

    fn at(matrix: Matrix<bf16>, row: usize, column: usize) -> f32 {
        matrix.values[row * matrix.strides[0] + column * matrix.strides[1]].to_f32()
    }

    /// Products in every layout, with 1 and 3 threads, and the sums of the summands and of their magnitudes.
    fn compare(shape: [usize; 3], left: &[bf16], right: &[bf16], check: impl Fn(f32, f64, f64)) {
        let [rows, inner, columns] = shape;
        let layouts = |values, [a, b]: [usize; 2]| {
            [Matrix::new(values, [a, b]), Matrix::new(values, [b, a]).transpose()]
        };
        for left in layouts(left, [rows, inner]) {
            for right in layouts(right, [inner, columns]) {
                let bits = || Some(product(left, right)?.into_iter().map(f32::to_bits).collect::<Vec<_>>());
                // Processors without the instruction use products in f32.
                let Some(ours) = same_for_every_number_of_threads(bits) else { return };
                let ours: Vec<_> = ours.into_iter().map(f32::from_bits).collect();
                assert_eq!(ours.len(), rows * columns);
                for (place, ours) in ours.into_iter().enumerate() {
                    let (row, column) = (place / columns, place % columns);
                    let summands = (0..inner).map(|i| f64::from(at(left, row, i) * at(right, i, column)));
                    let (sum, size) = summands.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                    check(ours, sum, size);
                }
            }
        }
    }

    #[test]
    fn products_equal_plain_sums() {
        let shapes = [
            [0, 3, 2],
            [3, 0, 2],
            [3, 2, 0],
            [1, 1, 1],
            [1, 2, 33],
            [13, 257, 31],
            [97, 600, 3],
            [24, 256, 65],
        ];
        let values = [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY)];
        for (shape @ [rows, inner, columns], value) in shapes.into_iter().flat_map(|s| values.map(|v| (s, v)))
        {
            let [mut left, mut right] = [(1, rows * inner), (2, inner * columns)]
                .map(|(seed, len)| noise(seed, len).into_iter().map(bf16::from_f32).collect::<Vec<_>>());
            if let (Some(value), [_, ..], [.., last]) = (value, &*left, &mut *right) {
                (left[rows * inner / 2], *last) = (bf16::from_f32(value), bf16::from_f32(value));
            }
            compare(shape, &left, &right, |ours, sum, size| {
                let ours = f64::from(ours);
                let same = ours.is_nan() && sum.is_nan() || ours == sum || (ours - sum).abs() <= 1e-6 * size;
                assert!(same && ours.is_finite() == sum.is_finite(), "{ours} is not {sum} of {shape:?}");
            });
        }
    }

    #[test]
    fn subnormal_values_count_as_zero() {
        let (small, large) = ([bf16::from_bits(1)], [bf16::from_f32(1e38)]);
        compare([1, 1, 1], &small, &large, |ours, _, _| assert_eq!(ours, 0.0));
    }
}
