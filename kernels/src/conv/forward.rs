//! Outputs of a convolution, in tiles of filters × positions that stay in registers for all taps.

use super::{padded::PaddedImage, shape::Shape, source::Whole};
use crate::{
    parallel,
    simd::{copy, load, multiversion, store},
};
use pulp::Simd;
use std::{mem::MaybeUninit, ops::Range};

/// Filters and vectors of positions in a tile with 32 and with 16 registers.
///
/// The sums leave registers for a weight and the loaded positions.
pub const WIDE: (usize, usize) = (8, 3);
pub const NARROW: (usize, usize) = (6, 2);
/// Maximum number of values in a tile, with the widest vectors.
const TILE: usize = WIDE.0 * WIDE.1 * 16;

/// Weights, bias and activation of a convolution.
pub struct Filters<'a> {
    /// `[filters, channels, rows, columns]`; if `rotated`, `[channels, filters, rows, columns]`.
    pub weights: &'a [f32],
    /// Whether filters and channels have changed places and each kernel is rotated by 180°, as for the gradient of the
    /// input.
    pub rotated: bool,
    /// One bias per filter; empty for zeros.
    pub bias: &'a [f32],
    /// Whether ReLU is applied.
    pub relu: bool,
}

impl Filters<'_> {
    /// Weights of `F` filters from `first` at a channel's `tap`, numbered by row and column. Zeros for filters that do not
    /// exist.
    #[inline(always)]
    pub fn weights_of<const F: usize>(
        &self,
        shape: &Shape,
        first: usize,
        channel: usize,
        tap: usize,
    ) -> [f32; F] {
        let Shape { channels, filters, kernel: [rows, columns], .. } = *shape;
        let area = rows * columns;
        let mut weights = [0.0; F];
        for (filter, weight) in (first..filters).zip(&mut weights) {
            *weight = match self.rotated {
                false => self.weights[(filter * channels + channel) * area + tap],
                true => self.weights[(channel * filters + filter + 1) * area - 1 - tap],
            };
        }
        weights
    }

    /// The bias, with zeros up to `length`.
    pub fn padded_bias(&self, length: usize) -> Vec<f32> {
        let mut bias = self.bias.to_vec();
        bias.resize(length, 0.0);
        bias
    }
}

multiversion!(
    /// Outputs for all kernel sizes.
    pub fn forward<S: Simd>(simd: S, shape: Shape, images: Whole<'_>, filters: Filters<'_>) -> Vec<f32> {
        if S::REGISTER_COUNT >= 32 {
            tiled::<S, { WIDE.0 }, { WIDE.1 }>(simd, shape, images, filters)
        } else {
            tiled::<S, { NARROW.0 }, { NARROW.1 }>(simd, shape, images, filters)
        }
    }
);

#[inline(always)]
fn tiled<S: Simd, const F: usize, const V: usize>(
    _: S,
    shape: Shape,
    images: Whole,
    filters: Filters,
) -> Vec<f32> {
    let packed = Packed::new::<F>(&shape, &filters);
    let span = V * S::F32_LANES;
    let small = positions(&shape) < span;
    let staged = shape.is_padded() || images.output.is_some() || small;
    let new = || staged.then(|| PaddedImage::new(&shape, if small { span } else { 0 }));
    let one = |stage: &mut Option<PaddedImage>, number: Range<usize>, out: &mut [MaybeUninit<f32>]| {
        let image = images.part(number.start * shape.image(), shape.image());
        let image = match stage {
            Some(stage) => stage.fill(&shape, image),
            None => image.values,
        };
        image_outputs::<F, V>(&shape, image, &packed, out);
    };
    // SAFETY: every output position lies in a tile.
    unsafe { parallel::build([shape.batch, 1], shape.output_image(), new, one) }
}

/// Number of positions between an output's first and last value, in rows of the padded image.
fn positions(shape: &Shape) -> usize {
    let [height, width] = shape.output;
    (height - 1) * shape.padded()[1] + width
}

/// Weights in the order in which tiles read them.
struct Packed {
    /// `[filters / F, taps, F]`
    weights: Vec<f32>,
    bias: Vec<f32>,
    offsets: Vec<usize>,
    relu: bool,
}

impl Packed {
    fn new<const F: usize>(shape: &Shape, filters: &Filters) -> Self {
        let blocks = shape.filters.div_ceil(F);
        let mut weights = vec![0.0; blocks * shape.taps() * F];
        let area = shape.kernel[0] * shape.kernel[1];
        for (at, weights) in weights.as_chunks_mut::<F>().0.iter_mut().enumerate() {
            let (block, tap) = (at / shape.taps(), at % shape.taps());
            *weights = filters.weights_of(shape, block * F, tap / area, tap % area);
        }
        let bias = filters.padded_bias(blocks * F);
        Self { weights, bias, offsets: shape.offsets(), relu: filters.relu }
    }
}

multiversion!(
    /// The outputs of one image.
    fn image_outputs<S: Simd, const F: usize, const V: usize>(
        simd: S,
        shape: &Shape,
        image: &[f32],
        packed: &Packed,
        out: &mut [MaybeUninit<f32>],
    ) {
        let (total, span) = (positions(shape), V * S::F32_LANES);
        let (taps, plane) = (shape.taps(), shape.output_plane());
        let mut tile = [0.0; TILE];
        let mut done = 0;
        while done < total {
            // The last tile overlaps the one before it, so that it does not reach beyond the image.
            let start = done.min(total.saturating_sub(span));
            for (block, weights) in packed.weights.chunks_exact(taps * F).enumerate() {
                let first = block * F;
                let bias = &packed.bias[first..first + F];
                // SAFETY: the image reaches to the last tap of the last position, or has slack after it.
                unsafe {
                    sums::<S, F, V>(simd, image[start..].as_ptr(), &packed.offsets, weights, bias, &mut tile)
                };
                if packed.relu {
                    relu(&mut tile[..F * span]);
                }
                for filter in first..(first + F).min(shape.filters) {
                    let values = &tile[(filter - first) * span..][..span];
                    let plane = &mut out[filter * plane..][..plane];
                    write_rows(shape, values, start, done, total, plane);
                }
            }
            done = start + span;
        }
    }
);

/// Sums of a tile, `[F, span]`, for the positions from `image`.
///
/// # Safety
/// `image` must be readable up to the largest offset plus the tile's positions, and `weights` must have `F`
/// values for each offset.
#[inline(always)]
unsafe fn sums<S: Simd, const F: usize, const V: usize>(
    simd: S,
    image: *const f32,
    offsets: &[usize],
    weights: &[f32],
    bias: &[f32],
    tile: &mut [f32; TILE],
) {
    // Plain loops and pointers: debug profiles do not optimise all iterator code away.
    let zero = simd.splat_f32s(0.0);
    let mut sums = [[zero; V]; F];
    for filter in 0..F {
        sums[filter] = [simd.splat_f32s(bias[filter]); V];
    }
    let mut weights = weights.as_ptr();
    for &offset in offsets {
        let mut values = [zero; V];
        for vector in 0..V {
            // SAFETY: the caller's contract.
            values[vector] = unsafe { load::<S>(image.add(offset + vector * S::F32_LANES)) };
        }
        for filter in 0..F {
            // SAFETY: the caller's contract.
            let weight = simd.splat_f32s(unsafe { *weights.add(filter) });
            for vector in 0..V {
                sums[filter][vector] = simd.mul_add_e_f32s(weight, values[vector], sums[filter][vector]);
            }
        }
        // SAFETY: at most one past the end, after the last offset.
        weights = unsafe { weights.add(F) };
    }
    for filter in 0..F {
        for vector in 0..V {
            let at = (filter * V + vector) * S::F32_LANES;
            // SAFETY: TILE is F tiles' worth of the widest vectors.
            unsafe { store::<S>(tile.as_mut_ptr().add(at), sums[filter][vector]) };
        }
    }
}

/// Replaces negative values with zero; NaN stays NaN.
#[inline(always)]
pub(super) fn relu(values: &mut [f32]) {
    for value in values {
        *value = if *value < 0.0 { 0.0 } else { *value };
    }
}

/// Copies the `values` of the positions from `start` to their rows of `plane`.
///
/// Positions before `done`, and those between rows, are skipped.
#[inline(always)]
fn write_rows(
    shape: &Shape,
    values: &[f32],
    start: usize,
    done: usize,
    total: usize,
    plane: &mut [MaybeUninit<f32>],
) {
    let (width, row_len) = (shape.output[1], shape.padded()[1]);
    let end = (start + values.len()).min(total);
    let (mut row, mut column) = (done / row_len, done % row_len);
    let mut at = done;
    while at < end {
        let len = width.saturating_sub(column).min(end - at);
        let (from, to) = (&values[at - start..][..len], &mut plane[row * width + column.min(width)..][..len]);
        // SAFETY: both have this length.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr().cast(), len) };
        at += row_len - column;
        (row, column) = (row + 1, 0);
    }
}
