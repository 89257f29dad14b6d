//! Gradients of weights and bias: sums over images and positions, with filters in the vector lanes.

use super::{padded::PaddedImage, shape::Shape, source::Whole};
use crate::{
    parallel,
    simd::{load, multiversion, store},
};
use pulp::Simd;

/// Images per part of the sum. Independent of the number of threads, so that the sums are, too.
const IMAGES: usize = 8;

/// Values of a sum up to which a batch of fewer images has two parts: adding them costs less than a second thread gains.
const FEW: usize = 1 << 18;
/// Vectors of filters in a tile, unless one vector has room for all filters; taps in a tile with 32 and with 16
/// registers.
pub(super) const VECTORS: usize = 2;
const WIDE: usize = 12;
const NARROW: usize = 6;
/// Filters and positions that are transposed at a time.
const FILTERS_AT_ONCE: usize = 4;
const POSITIONS_AT_ONCE: usize = 64;
/// Positions whose gradients, for two vectors, fit in the L1 cache together with the image's values.
const POSITIONS: usize = 96;

multiversion!(
    /// Gradients for all kernel sizes.
    pub fn gradients<S: Simd>(
        simd: S,
        shape: Shape,
        images: &[f32],
        gradient: Whole<'_>,
    ) -> (Vec<f32>, Vec<f32>) {
        match (S::REGISTER_COUNT >= 32, shape.filters <= S::F32_LANES) {
            (true, true) => tiled::<S, WIDE, 1>(simd, shape, images, gradient),
            (true, false) => tiled::<S, WIDE, VECTORS>(simd, shape, images, gradient),
            (false, true) => tiled::<S, NARROW, 1>(simd, shape, images, gradient),
            (false, false) => tiled::<S, NARROW, VECTORS>(simd, shape, images, gradient),
        }
    }
);

#[inline(always)]
fn tiled<S: Simd, const T: usize, const V: usize>(
    _: S,
    shape: Shape,
    images: &[f32],
    gradient: Whole,
) -> (Vec<f32>, Vec<f32>) {
    let offsets = shape.offsets();
    let layout = Layout::new::<S, V>(&shape);
    let new = || Workspace {
        stage: (shape.is_padded() || shape.stride != [1, 1]).then(|| PaddedImage::new(&shape, 0)),
        gradient: vec![0.0; layout.stride() * shape.output_plane()],
    };
    let room = shape.taps().next_multiple_of(T);
    let total = Sums::of_images(shape.batch, [room, layout.stride()], new, |workspace, number, sums| {
        let image = &images[number * shape.image()..][..shape.image()];
        let gradient = gradient.part(number * shape.output_image(), shape.output_image());
        let Workspace { stage, gradient: transposed } = workspace;
        let image = match stage {
            Some(stage) => stage.fill(&shape, image.into()),
            None => image,
        };
        let (layout, offsets) = (&layout, &offsets);
        image_gradients::<T, V>(layout, offsets, image, gradient, transposed, sums);
    });
    let stride = layout.stride();
    let taps = shape.taps();
    let weights = (0..shape.filters * taps).map(|at| total.weights[at % taps * stride + at / taps]).collect();
    (weights, total.bias[..shape.filters].to_vec())
}

/// Filters in blocks of some vectors.
pub(super) struct Layout<'a> {
    pub shape: &'a Shape,
    pub lanes: usize,
    blocks: usize,
}

impl<'a> Layout<'a> {
    /// Blocks of `V` vectors.
    pub fn new<S: Simd, const V: usize>(shape: &'a Shape) -> Self {
        let lanes = V * S::F32_LANES;
        Self { lanes, blocks: shape.filters.div_ceil(lanes), shape }
    }

    pub fn stride(&self) -> usize {
        self.blocks * self.lanes
    }

    /// Transposes a gradient `[filters, plane]` to `[blocks, plane, lanes]`.
    ///
    /// Four filters at a time, over as many positions as fit in the L1 cache.
    #[inline(always)]
    pub fn transpose(&self, gradient: Whole, plane: usize, to: &mut [f32]) {
        let filters = self.shape.filters;
        let few = FILTERS_AT_ONCE.min(self.lanes);
        let (mut rows, mut transposed) =
            ([[0.0; POSITIONS_AT_ONCE]; FILTERS_AT_ONCE], [[0.0; FILTERS_AT_ONCE]; POSITIONS_AT_ONCE]);
        for start in (0..plane).step_by(POSITIONS_AT_ONCE) {
            let len = POSITIONS_AT_ONCE.min(plane - start);
            for first in (0..filters).step_by(few) {
                let count = few.min(filters - first);
                let row = |filter: usize| gradient.part((first + filter) * plane + start, len);
                let at_once =
                    gradient.output.is_none() && count == FILTERS_AT_ONCE && len == POSITIONS_AT_ONCE;
                if !at_once {
                    for filter in 0..count {
                        row(filter).copy_to(&mut rows[filter][..len]);
                    }
                }
                let to = &mut to[(first / self.lanes * plane + start) * self.lanes + first % self.lanes..];
                if count < FILTERS_AT_ONCE {
                    for at in 0..len {
                        for filter in 0..count {
                            to[at * self.lanes + filter] = rows[filter][at];
                        }
                    }
                    continue;
                }
                let mut from = rows.each_ref();
                if at_once {
                    for filter in 0..FILTERS_AT_ONCE {
                        from[filter] = row(filter).values.first_chunk().unwrap_or(from[filter]);
                    }
                }
                let [a, b, c, d] = from;
                for at in 0..POSITIONS_AT_ONCE {
                    transposed[at] = [a[at], b[at], c[at], d[at]];
                }
                let to = &mut to[..(len - 1) * self.lanes + FILTERS_AT_ONCE];
                for at in 0..len {
                    // SAFETY: the slice has room for all of them. One array write, because the compiler would call
                    // `memcpy` for a slice.
                    unsafe {
                        to.as_mut_ptr()
                            .add(at * self.lanes)
                            .cast::<[f32; FILTERS_AT_ONCE]>()
                            .write(transposed[at])
                    };
                }
            }
        }
    }
}

struct Workspace {
    stage: Option<PaddedImage>,
    /// `[blocks, positions, lanes]`
    gradient: Vec<f32>,
}

/// Sums over images.
pub(super) struct Sums {
    /// `[taps, stride]`, or the transformed taps, with room for an incomplete tile.
    pub weights: Vec<f32>,
    pub bias: Vec<f32>,
}

impl Sums {
    fn new([room, stride]: [usize; 2]) -> Self {
        Self { weights: vec![0.0; room * stride], bias: vec![0.0; stride] }
    }

    fn add(mut self, other: Self) -> Self {
        self.weights.iter_mut().zip(&other.weights).for_each(|(sum, value)| *sum += value);
        self.bias.iter_mut().zip(&other.bias).for_each(|(sum, value)| *sum += value);
        self
    }

    /// Sums, `[room, stride]`, of what `add(image, sums)` adds for each of `batch` images.
    ///
    /// `new` creates a thread's workspace.
    pub fn of_images<W>(
        batch: usize,
        size: [usize; 2],
        new: impl Fn() -> W + Sync + Send,
        add: impl Fn(&mut W, usize, &mut Sums) + Sync + Send,
    ) -> Sums {
        let is_small = size[0] * size[1] <= FEW;
        let at_once = if is_small { batch.div_ceil(2).clamp(1, IMAGES) } else { IMAGES };
        let parts = parallel::each(batch.div_ceil(at_once), new, |workspace, part| {
            let mut sums = Sums::new(size);
            for number in part * at_once..((part + 1) * at_once).min(batch) {
                add(workspace, number, &mut sums);
            }
            sums
        });
        parts.into_iter().reduce(Sums::add).unwrap_or_else(|| Sums::new(size))
    }
}

multiversion!(
    /// One image's contribution to the sums.
    ///
    /// The image has been padded and divided. `transposed` has room for the gradient with filters in the lanes.
    fn image_gradients<S: Simd, const T: usize, const V: usize>(
        simd: S,
        layout: &Layout<'_>,
        offsets: &[usize],
        image: &[f32],
        gradient: Whole<'_>,
        transposed: &mut [f32],
        sums: &mut Sums,
    ) {
        layout.transpose(gradient, layout.shape.output_plane(), transposed);
        let (lanes, stride, shape) = (layout.lanes, layout.stride(), layout.shape);
        let ([height, width], row_len) = (shape.output, shape.phases().plane[1]);
        let rows_at_once = (POSITIONS / width).max(1);
        for first in (0..height).step_by(rows_at_once) {
            let rows = rows_at_once.min(height - first);
            let area = Area { rows, width, row_len };
            for (block, gradient) in transposed.chunks_exact(height * width * lanes).enumerate() {
                let gradient = &gradient[first * width * lanes..][..rows * width * lanes];
                bias::<S, V>(simd, gradient, &mut sums.bias[block * lanes..][..lanes]);
                for tap in (0..offsets.len()).step_by(T) {
                    // The last tile's surplus taps are added to the room after the sums.
                    let mut near = [image.as_ptr(); T];
                    for at in 0..T {
                        near[at] =
                            image[first * row_len + offsets[(tap + at).min(offsets.len() - 1)]..].as_ptr();
                    }
                    let sums =
                        sums.weights[tap * stride + block * lanes..][..(T - 1) * stride + lanes].as_mut_ptr();
                    // SAFETY: every offset plus the area lies within the image.
                    unsafe { add_products::<S, T, V>(simd, &near, gradient.as_ptr(), area, sums, stride) };
                }
            }
        }
    }
);

/// Some whole rows of output positions, in images with rows of `row_len`.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub rows: usize,
    pub width: usize,
    pub row_len: usize,
}

/// Adds a gradient's sum over its positions.
#[inline(always)]
pub(super) fn bias<S: Simd, const V: usize>(simd: S, gradient: &[f32], sums: &mut [f32]) {
    for vector in 0..V {
        let to = sums[vector * S::F32_LANES..][..S::F32_LANES].as_mut_ptr();
        // SAFETY: the slice is a vector long.
        let mut sum = unsafe { load::<S>(to) };
        let mut at = vector * S::F32_LANES;
        while at < gradient.len() {
            // SAFETY: a gradient is a number of positions, of `V` vectors each.
            sum = simd.add_f32s(sum, unsafe { load::<S>(gradient.as_ptr().add(at)) });
            at += V * S::F32_LANES;
        }
        // SAFETY: as above.
        unsafe { store::<S>(to, sum) };
    }
}

/// Adds the products of one area to the sums of `T` taps, `stride` apart.
///
/// # Safety
/// `taps` must be readable for the whole area, `gradient` must have `V` vectors for each position of the area, and `to` for
/// each tap.
#[inline(always)]
pub(super) unsafe fn add_products<S: Simd, const T: usize, const V: usize>(
    simd: S,
    taps: &[*const f32; T],
    mut gradient: *const f32,
    area: Area,
    to: *mut f32,
    stride: usize,
) {
    // Plain loops and pointers, as in `forward`.
    let mut sums = [[simd.splat_f32s(0.0); V]; T];
    for row in 0..area.rows {
        for column in 0..area.width {
            let at = row * area.row_len + column;
            let mut values = [simd.splat_f32s(0.0); V];
            for vector in 0..V {
                // SAFETY: the caller's contract.
                values[vector] = unsafe { load::<S>(gradient.add(vector * S::F32_LANES)) };
            }
            for tap in 0..T {
                // SAFETY: the caller's contract.
                let met = simd.splat_f32s(unsafe { *taps[tap].add(at) });
                for vector in 0..V {
                    sums[tap][vector] = simd.mul_add_e_f32s(met, values[vector], sums[tap][vector]);
                }
            }
            // SAFETY: at most one past the end, after the last position.
            gradient = unsafe { gradient.add(V * S::F32_LANES) };
        }
    }
    for tap in 0..T {
        for vector in 0..V {
            // SAFETY: the caller's contract.
            unsafe {
                let to = to.add(tap * stride + vector * S::F32_LANES);
                store::<S>(to, simd.add_f32s(load::<S>(to), sums[tap][vector]));
            }
        }
    }
}
