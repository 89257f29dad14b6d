//! Outputs of a convolution: tiles of some filters by some positions, kept in registers while all taps
//! go by.

use super::{geometry::Geometry, padded::PaddedImage, source::Whole};
use crate::{
    parallel,
    simd::{arch, copy, load, store},
};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// Vectors of positions in a tile.
const VECTORS: usize = 3;
/// Filters in a tile, if there are 32 registers and if there are 16: as many sums as fit beside one
/// weight and the loaded positions.
const WIDE: usize = 8;
const NARROW: usize = 4;
/// The most values in a tile, with the widest vectors there are.
const TILE: usize = WIDE * VECTORS * 16;

/// What the filters of a convolution are, beside its geometry.
pub struct Filters<'a> {
    /// The weight of a filter's tap, counted through channels, rows and columns.
    pub weight: &'a (dyn Fn(usize, usize) -> f32 + Sync),
    /// One a filter, or zeros.
    pub bias: Option<&'a [f32]>,
    /// Whether outputs below zero become zero.
    pub relu: bool,
}

/// As [`super::forward`].
pub fn forward(geometry: Geometry, images: Whole, filters: Filters) -> Vec<f32> {
    arch().dispatch(Forward { geometry, images, filters })
}

struct Forward<'a> {
    geometry: Geometry,
    images: Whole<'a>,
    filters: Filters<'a>,
}

impl WithSimd for Forward<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Vec<f32> {
        if S::REGISTER_COUNT >= 32 { self.tiled::<S, WIDE>(simd) } else { self.tiled::<S, NARROW>(simd) }
    }
}

impl Forward<'_> {
    #[inline(always)]
    fn tiled<S: Simd, const F: usize>(self, _: S) -> Vec<f32> {
        let Self { geometry, images, filters } = self;
        let packed = Packed::new::<F>(&geometry, &filters);
        let span = VECTORS * S::F32_LANES;
        let small = positions(&geometry) < span;
        let staged = geometry.is_padded() || images.output.is_some() || small;
        let new = || staged.then(|| PaddedImage::new(&geometry, if small { span } else { 0 }));
        let one = |stage: &mut Option<PaddedImage>, number: usize, out: &mut [MaybeUninit<f32>]| {
            let image = images.part(number * geometry.image(), geometry.image());
            let image = match stage {
                Some(stage) => stage.fill(&geometry, image),
                None => image.values,
            };
            arch().dispatch(Image::<F> { geometry: &geometry, image, packed: &packed, out });
        };
        // SAFETY: every output position lies in a tile.
        unsafe { parallel::build(geometry.batch, geometry.output_image(), new, one) }
    }
}

/// Positions from an output's first value to its last, in rows as long as the padded image's.
fn positions(geometry: &Geometry) -> usize {
    let [height, width] = geometry.output();
    (height - 1) * geometry.padded()[1] + width
}

/// Weights in the order in which the tiles take them.
struct Packed {
    /// `[filters / F, taps, F]`
    weights: Vec<f32>,
    bias: Vec<f32>,
    offsets: Vec<usize>,
    relu: bool,
}

impl Packed {
    fn new<const F: usize>(geometry: &Geometry, filters: &Filters) -> Self {
        let (taps, blocks) = (geometry.taps(), geometry.filters.div_ceil(F));
        let mut weights = vec![0.0; blocks * taps * F];
        for filter in 0..geometry.filters {
            for tap in 0..taps {
                weights[(filter / F * taps + tap) * F + filter % F] = (filters.weight)(filter, tap);
            }
        }
        let mut bias = vec![0.0; blocks * F];
        if let Some(values) = filters.bias {
            bias[..values.len()].copy_from_slice(values);
        }
        Self { weights, bias, offsets: geometry.offsets(), relu: filters.relu }
    }
}

/// One image's outputs.
struct Image<'a, const F: usize> {
    geometry: &'a Geometry,
    image: &'a [f32],
    packed: &'a Packed,
    out: &'a mut [MaybeUninit<f32>],
}

impl<const F: usize> WithSimd for Image<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { geometry, image, packed, out } = self;
        let (total, span) = (positions(geometry), VECTORS * S::F32_LANES);
        let (taps, plane) = (geometry.taps(), geometry.output_plane());
        let mut tile = [0.0; TILE];
        let mut done = 0;
        while done < total {
            // The last tile overlaps the one before it rather than the end of the image.
            let start = done.min(total.saturating_sub(span));
            for (block, weights) in packed.weights.chunks_exact(taps * F).enumerate() {
                let first = block * F;
                let bias = &packed.bias[first..first + F];
                // SAFETY: the image reaches to the last tap of the last position, or has slack after it.
                unsafe {
                    sums::<S, F>(simd, image[start..].as_ptr(), &packed.offsets, weights, bias, &mut tile)
                };
                if packed.relu {
                    relu(&mut tile[..F * span]);
                }
                for filter in first..(first + F).min(geometry.filters) {
                    let values = &tile[(filter - first) * span..][..span];
                    let plane = &mut out[filter * plane..][..plane];
                    write_rows(geometry, values, start, done, total, plane);
                }
            }
            done = start + span;
        }
    }
}

/// The sums of a tile, `[F, span]`, for the positions from `image` on.
///
/// # Safety
/// `image` must hold the farthest offset and a tile's positions after it, and `weights` `F` values for
/// each offset.
#[inline(always)]
unsafe fn sums<S: Simd, const F: usize>(
    simd: S,
    image: *const f32,
    offsets: &[usize],
    weights: &[f32],
    bias: &[f32],
    tile: &mut [f32; TILE],
) {
    // Plain loops and pointers: what an iterator adds must be optimised away again, and in a debug
    // profile not all of it is.
    let zero = simd.splat_f32s(0.0);
    let mut sums = [[zero; VECTORS]; F];
    for filter in 0..F {
        sums[filter] = [simd.splat_f32s(bias[filter]); VECTORS];
    }
    let mut weights = weights.as_ptr();
    for &offset in offsets {
        let mut values = [zero; VECTORS];
        for vector in 0..VECTORS {
            // SAFETY: the caller's promise.
            values[vector] = unsafe { load::<S>(image.add(offset + vector * S::F32_LANES)) };
        }
        for filter in 0..F {
            // SAFETY: the caller's promise.
            let weight = simd.splat_f32s(unsafe { *weights.add(filter) });
            for vector in 0..VECTORS {
                sums[filter][vector] = simd.mul_add_e_f32s(weight, values[vector], sums[filter][vector]);
            }
        }
        // SAFETY: at most one past the end, after the last offset.
        weights = unsafe { weights.add(F) };
    }
    for filter in 0..F {
        for vector in 0..VECTORS {
            let at = (filter * VECTORS + vector) * S::F32_LANES;
            // SAFETY: TILE is F tiles' worth of the widest vectors.
            unsafe { store::<S>(tile.as_mut_ptr().add(at), sums[filter][vector]) };
        }
    }
}

/// NaN stays NaN.
#[inline(always)]
pub(super) fn relu(values: &mut [f32]) {
    for value in values {
        *value = if *value < 0.0 { 0.0 } else { *value };
    }
}

/// Puts the `values` of positions from `start` into their rows of `plane`, but those before `done` and
/// those between rows.
#[inline(always)]
fn write_rows(
    geometry: &Geometry,
    values: &[f32],
    start: usize,
    done: usize,
    total: usize,
    plane: &mut [MaybeUninit<f32>],
) {
    let (width, row_len) = (geometry.output()[1], geometry.padded()[1]);
    let end = (start + values.len()).min(total);
    let (mut row, mut column) = (done / row_len, done % row_len);
    let mut at = done;
    while at < end {
        let len = width.saturating_sub(column).min(end - at);
        let (from, to) = (&values[at - start..][..len], &mut plane[row * width + column.min(width)..][..len]);
        // SAFETY: both are so long.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr().cast(), len) };
        at += row_len - column;
        (row, column) = (row + 1, 0);
    }
}
