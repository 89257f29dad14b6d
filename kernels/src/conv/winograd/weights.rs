//! Gradients of weights and bias.
//!
//! Products of transformed gradients, with filters in the vector lanes, and transformed images are summed
//! over images and tiles, then transformed back.

use super::{MIDDLE, POINTS, Tiles, input::Input, transposed::Transposed};
use crate::{
    conv::{
        Gradient,
        geometry::Geometry,
        weights::{Area, Layout, Sums, VECTORS, add_products, bias},
    },
    parallel::{self, Room},
    simd::{Aligned, load, multiversion, store},
};
use pulp::Simd;
use std::ops::Range;

/// Channels whose sums, two vectors of filters each, fit in 32 and in 16 registers.
const WIDE: usize = 8;
const NARROW: usize = 4;

multiversion!(
    /// Gradients for 3 × 3 kernels.
    pub fn gradients<S: Simd>(
        simd: S,
        geometry: Geometry,
        images: &[f32],
        gradient: Gradient<'_>,
    ) -> (Vec<f32>, Vec<f32>) {
        if S::REGISTER_COUNT >= 32 {
            blocked::<S, WIDE>(simd, geometry, images, gradient)
        } else {
            blocked::<S, NARROW>(simd, geometry, images, gradient)
        }
    }
);

#[inline(always)]
fn blocked<S: Simd, const C: usize>(
    _: S,
    geometry: Geometry,
    images: &[f32],
    gradient: Gradient,
) -> (Vec<f32>, Vec<f32>) {
    let tiles = Tiles::of_image(&geometry, S::F32_LANES);
    let layout = Layout::new::<S, VECTORS>(&geometry);
    let room = geometry.channels.next_multiple_of(C);
    let new = || Workspace {
        input: Input::new::<S>(&tiles),
        transposed: Transposed::default(),
        point: Aligned::new(tiles.count() * layout.lanes),
    };
    let size = [POINTS * room, layout.stride()];
    let total = Sums::of_images(geometry.batch, size, new, |workspace, number, sums| {
        let image = &images[number * geometry.image()..][..geometry.image()];
        let gradient = gradient.image(number, geometry.filters, geometry.output);
        let (layout, tiles) = (&layout, &tiles);
        image_gradients::<C>(layout, tiles, room, image, gradient, workspace, sums);
    });
    let one = |(): &mut (), filters: Range<usize>, to: Room| {
        back(&geometry, &total.weights, [room, layout.stride()], filters, to);
    };
    // SAFETY: all weights of the filters are written.
    let weights = unsafe { parallel::build([geometry.filters, S::F32_LANES], geometry.taps(), || (), one) };
    (weights, total.bias[..geometry.filters].to_vec())
}

multiversion!(
    /// Transforms the sums, `[points, room, stride]`, of at most a vector of filters back.
    fn back<S: Simd>(
        simd: S,
        geometry: &Geometry,
        sums: &[f32],
        size: [usize; 2],
        filters: Range<usize>,
        to: Room<'_>,
    ) {
        let ([room, stride], mut taps) = (size, [0.0; 9 * 16]);
        for channel in 0..geometry.channels {
            let mut columns = [[simd.splat_f32s(0.0); 3]; 4];
            for row in 0..4 {
                let mut points = [simd.splat_f32s(0.0); 4];
                for column in 0..4 {
                    let from = ((row * 4 + column) * room + channel) * stride + filters.start;
                    // SAFETY: the slice is a vector long.
                    points[column] = unsafe { load::<S>(sums[from..][..S::F32_LANES].as_ptr()) };
                }
                columns[row] = line::<S>(simd, points);
            }
            for column in 0..3 {
                let points = [columns[0][column], columns[1][column], columns[2][column], columns[3][column]];
                let values = line::<S>(simd, points);
                for row in 0..3 {
                    let at = (row * 3 + column) * S::F32_LANES;
                    // SAFETY: the slice is a vector long.
                    unsafe { store::<S>(taps[at..][..S::F32_LANES].as_mut_ptr(), values[row]) };
                }
            }
            for at in 0..filters.len() {
                let to = &mut to[(at * geometry.channels + channel) * 9..][..9];
                for tap in 0..9 {
                    to[tap].write(taps[tap * S::F32_LANES + at]);
                }
            }
        }
    }
);

/// Transforms the gradients of one row or column back.
#[inline(always)]
fn line<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> [S::f32s; 3] {
    let half = simd.splat_f32s(0.5);
    let sum = simd.mul_f32s(simd.add_f32s(b, c), half);
    let difference = simd.mul_f32s(simd.sub_f32s(b, c), half);
    [simd.add_f32s(a, sum), difference, simd.add_f32s(sum, d)]
}

struct Workspace {
    input: Input,
    /// One image's gradient.
    transposed: Transposed,
    /// One transformed point of a block, `[tiles, lanes]`.
    point: Aligned,
}

multiversion!(
    /// One image's contribution to the sums, `[points, channels, stride]`, which have `room` channels.
    fn image_gradients<S: Simd, const C: usize>(
        simd: S,
        layout: &Layout<'_>,
        tiles: &Tiles,
        room: usize,
        image: &[f32],
        gradient: Gradient<'_>,
        workspace: &mut Workspace,
        sums: &mut Sums,
    ) {
        let Workspace { input, transposed, point } = workspace;
        let (geometry, lanes, stride) = (layout.geometry, layout.lanes, layout.stride());
        input.fill(simd, geometry, tiles, image.into(), 0..1);
        transposed.fill(layout, gradient);
        let area = Area { rows: 1, width: tiles.count(), row_len: 0 };
        for block in 0..stride / lanes {
            for number in 0..POINTS {
                transposed.transform::<S>(simd, geometry, tiles, [block, number], point.values_mut());
                let gradient = &point.values()[..tiles.count() * lanes];
                if number == MIDDLE {
                    bias::<S, VECTORS>(simd, gradient, &mut sums.bias[block * lanes..][..lanes]);
                }
                let image = input.point(tiles, 0, number);
                for channel in (0..geometry.channels).step_by(C) {
                    // The surplus channels of the last block are added to the room after the sums.
                    let mut near = [image.as_ptr(); C];
                    for at in 0..C {
                        near[at] = image[(channel + at).min(geometry.channels - 1) * tiles.room..].as_ptr();
                    }
                    let to = (number * room + channel) * stride + block * lanes;
                    let to = sums.weights[to..][..(C - 1) * stride + lanes].as_mut_ptr();
                    // SAFETY: each channel has as many tiles as the gradient has vector pairs.
                    unsafe {
                        add_products::<S, C, VECTORS>(simd, &near, gradient.as_ptr(), area, to, stride);
                    }
                }
            }
        }
    }
);
