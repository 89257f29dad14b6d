//! Transform of gradients: each tile's 2 × 2 values to 4 × 4, with filters in the vector lanes.

use super::Tiles;
use crate::{
    conv::{
        Gradient,
        shape::Shape,
        weights::{Layout, VECTORS},
    },
    simd::{load, store},
};
use pulp::Simd;

/// One image's gradient, `[blocks, positions, lanes]`.
#[derive(Default)]
pub struct Transposed {
    values: Vec<f32>,
    /// Index of each pooled value within its window, as f32, so that it is compared in the same lanes.
    taken: Vec<f32>,
    scratch: Vec<f32>,
}

impl Transposed {
    #[inline(always)]
    pub fn fill(&mut self, layout: &Layout, gradient: Gradient) {
        match gradient {
            Gradient::Whole(gradient) => {
                self.values.resize(layout.stride() * layout.shape.output_plane(), 0.0);
                layout.transpose(gradient, layout.shape.output_plane(), &mut self.values);
            }
            Gradient::Pooled(gradient) => {
                let plane = layout.shape.pooled_plane();
                self.values.resize(layout.stride() * plane, 0.0);
                self.taken.resize(layout.stride() * plane, 0.0);
                self.scratch.clear();
                self.scratch.extend(gradient.taken.iter().map(|&taken| f32::from(taken)));
                layout.transpose(gradient.values.into(), plane, &mut self.values);
                layout.transpose(self.scratch[..].into(), plane, &mut self.taken);
            }
        }
    }

    /// Transforms one point of a block, `[tiles, lanes]`.
    ///
    /// One point at a time fits in the L1 cache together with the values it is multiplied with.
    #[inline(always)]
    pub fn transform<S: Simd>(
        &self,
        simd: S,
        shape: &Shape,
        tiles: &Tiles,
        [block, point]: [usize; 2],
        to: &mut [f32],
    ) {
        let lanes = VECTORS * S::F32_LANES;
        if self.taken.is_empty() {
            let len = shape.output_plane() * lanes;
            let values = &self.values[block * len..][..len];
            let corners = WholeTiles { values, size: shape.output };
            transform::<S, _>(simd, tiles, corners, point, to);
        } else {
            let len = shape.pooled_plane() * lanes;
            let [values, taken] = [&self.values, &self.taken].map(|values| &values[block * len..][..len]);
            let corners = PooledTiles { values, taken, size: shape.pooled() };
            transform::<S, _>(simd, tiles, corners, point, to);
        }
    }
}

/// The four gradients of a tile, for a vector of filters.
trait Corners {
    fn of<S: Simd>(&self, simd: S, row: usize, column: usize, vector: usize) -> [S::f32s; 4];
}

/// Gradients of unpooled outputs; zero where a tile exceeds the output.
struct WholeTiles<'a> {
    values: &'a [f32],
    size: [usize; 2],
}

impl Corners for WholeTiles<'_> {
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, row: usize, column: usize, vector: usize) -> [S::f32s; 4] {
        let ([height, width], lanes) = (self.size, VECTORS * S::F32_LANES);
        let (row, column) = (2 * row, 2 * column);
        let [below, beside] = [row + 1 < height, column + 1 < width];
        let mut values = [simd.splat_f32s(0.0); 4];
        let from = self.values[(row * width + column) * lanes + vector * S::F32_LANES..].as_ptr();
        // SAFETY: only existing positions are read, each of which has all lanes.
        unsafe {
            values[0] = load::<S>(from);
            if beside {
                values[1] = load::<S>(from.add(lanes));
            }
            if below {
                values[2] = load::<S>(from.add(width * lanes));
            }
            if below && beside {
                values[3] = load::<S>(from.add((width + 1) * lanes));
            }
        }
        values
    }
}

/// Gradients of pooled outputs: all but one of a tile's four are zero.
struct PooledTiles<'a> {
    values: &'a [f32],
    taken: &'a [f32],
    size: [usize; 2],
}

impl Corners for PooledTiles<'_> {
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, row: usize, column: usize, vector: usize) -> [S::f32s; 4] {
        let ([height, width], lanes) = (self.size, VECTORS * S::F32_LANES);
        let zero = simd.splat_f32s(0.0);
        let mut values = [zero; 4];
        if row < height && column < width {
            let at = (row * width + column) * lanes + vector * S::F32_LANES;
            let (from, taken) = (&self.values[at..][..S::F32_LANES], &self.taken[at..][..S::F32_LANES]);
            // SAFETY: the slices are a vector long.
            let (value, taken) = unsafe { (load::<S>(from.as_ptr()), load::<S>(taken.as_ptr())) };
            for corner in 0..4 {
                let here = simd.equal_f32s(taken, simd.splat_f32s(corner as f32));
                values[corner] = simd.select_f32s(here, value, zero);
            }
        }
        values
    }
}

#[inline(always)]
fn transform<S: Simd, C: Corners>(simd: S, tiles: &Tiles, corners: C, point: usize, to: &mut [f32]) {
    macro_rules! one_of {
        ($($number:literal)*) => {
            match point {
                $($number => transform_to::<S, C, $number>(simd, tiles, corners, to),)*
                _ => unreachable!("there are 16 points"),
            }
        };
    }
    one_of!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
}

#[inline(always)]
fn transform_to<S: Simd, C: Corners, const POINT: usize>(simd: S, tiles: &Tiles, corners: C, to: &mut [f32]) {
    let lanes = VECTORS * S::F32_LANES;
    assert!(to.len() >= tiles.count() * lanes);
    for row in 0..tiles.rows {
        for column in 0..tiles.columns {
            for vector in 0..VECTORS {
                let [a, b, c, d] = corners.of::<S>(simd, row, column, vector);
                let (above, below) = (four::<S>(simd, [a, b]), four::<S>(simd, [c, d]));
                let value = four::<S>(simd, [above[POINT % 4], below[POINT % 4]])[POINT / 4];
                let at = (row * tiles.columns + column) * lanes + vector * S::F32_LANES;
                // SAFETY: there is room for all tiles.
                unsafe { store::<S>(to.as_mut_ptr().add(at), value) };
            }
        }
    }
}

/// The contributions of two gradients to four products.
#[inline(always)]
fn four<S: Simd>(simd: S, [a, b]: [S::f32s; 2]) -> [S::f32s; 4] {
    [a, simd.add_f32s(a, b), simd.sub_f32s(a, b), b]
}
