//! Outputs of a convolution, unpooled or pooled.

use super::{
    MIDDLE, POINTS, Tiles,
    input::Input,
    outputs::{place, pool, sums},
    products::{Packed, SPAN, multiply},
};
use crate::{
    conv::{
        Gradient,
        forward::{Filters, NARROW, WIDE, relu},
        shape::Shape,
    },
    parallel::{self, Room},
    simd::multiversion,
};
use pulp::Simd;
use std::ops::Range;

/// Outputs for 3 × 3 kernels.
pub fn forward(shape: Shape, images: Gradient, filters: Filters) -> Vec<f32> {
    outputs(shape, images, filters, [shape.output_image(), 0]).0
}

/// Outputs for 3 × 3 kernels after pooling; see [`super::super::Shape::forward_pooled`].
pub fn forward_pooled(shape: Shape, images: Gradient, filters: Filters) -> (Vec<f32>, Vec<u8>) {
    outputs(shape, images, filters, [shape.filters * shape.pooled_plane(); 2])
}

multiversion!(
    /// Values, and their indices if pooled, whose numbers for an image are `lens`.
    fn outputs<S: Simd>(
        simd: S,
        shape: Shape,
        images: Gradient<'_>,
        filters: Filters<'_>,
        lens: [usize; 2],
    ) -> (Vec<f32>, Vec<u8>) {
        if S::REGISTER_COUNT >= 32 {
            blocked::<S, { WIDE.0 }, { WIDE.1 }>(simd, shape, images, filters, lens)
        } else {
            blocked::<S, { NARROW.0 }, { NARROW.1 }>(simd, shape, images, filters, lens)
        }
    }
);

#[inline(always)]
fn blocked<S: Simd, const F: usize, const V: usize>(
    _: S,
    shape: Shape,
    images: Gradient,
    filters: Filters,
    lens: [usize; 2],
) -> (Vec<f32>, Vec<u8>) {
    let tiles = Tiles::new(&shape, S::F32_LANES, Some(V));
    let packed = Packed::new::<F>(&shape, &filters);
    let new = || Workspace {
        input: Input::new::<S>(&tiles),
        products: vec![0.0; F * POINTS * SPAN],
        outputs: vec![0.0; F * 4 * tiles.room],
        lines: [0, 1].map(|_| vec![[0.0; 2]; tiles.room]),
        best: (vec![0.0; tiles.room], vec![0; tiles.room]),
    };
    let one = |workspace: &mut Workspace, one: Range<usize>, values: Room, taken: Room<u8>, _: Room<()>| {
        let image = images.image(one.start, shape.channels, shape.size);
        image_outputs::<F, V>(&shape, &tiles, &packed, image, workspace, (values, taken));
    };
    // SAFETY: every filter's plane is written.
    let (values, taken, _) =
        unsafe { parallel::build_three([shape.batch, 1], [lens[0], lens[1], 0], new, one) };
    (values, taken)
}

struct Workspace {
    input: Input,
    /// `[F, points, SPAN]` for some filters and tiles.
    products: Vec<f32>,
    /// `[F, 2 × 2, room]` for some filters.
    outputs: Vec<f32>,
    /// One filter's even and odd rows.
    lines: [Vec<[f32; 2]>; 2],
    /// One filter's pooled values and their indices within the windows.
    best: (Vec<f32>, Vec<u32>),
}

multiversion!(
    /// The outputs of one image, and indices of pooled values, whose room is empty without pooling.
    fn image_outputs<S: Simd, const F: usize, const V: usize>(
        simd: S,
        shape: &Shape,
        tiles: &Tiles,
        packed: &Packed,
        image: Gradient<'_>,
        workspace: &mut Workspace,
        to: (Room<'_>, Room<'_, u8>),
    ) {
        let (values, taken) = to;
        let Workspace { input, products, outputs, lines, best } = workspace;
        input.fill(simd, shape, tiles, image);
        for (block, filters) in packed.points.chunks_exact(POINTS * shape.channels * F).enumerate() {
            let first = block * F;
            let bias: &[f32; F] = packed.bias[first..].first_chunk().expect("one for each filter");
            for at in (0..tiles.room).step_by(tiles.span) {
                let span = tiles.span.min(tiles.room - at);
                for point in 0..POINTS {
                    let filters = &filters[point * shape.channels * F..][..shape.channels * F];
                    let image = &input.point(tiles, at, point)[..shape.channels * span];
                    let bias = if point == MIDDLE { *bias } else { [0.0; F] };
                    let to = &mut products[point * SPAN..][..(F - 1) * POINTS * SPAN + SPAN];
                    // SAFETY: both have this many vectors in each row.
                    unsafe {
                        let (image, to) = (image.as_ptr(), to.as_mut_ptr());
                        match span / S::F32_LANES {
                            1 => multiply::<S, F, 1>(simd, filters, image, bias, to),
                            2 => multiply::<S, F, 2>(simd, filters, image, bias, to),
                            _ => multiply::<S, F, V>(simd, filters, image, bias, to),
                        }
                    }
                }
                for filter in 0..F {
                    let products = &products[filter * POINTS * SPAN..][..POINTS * SPAN];
                    let outputs = &mut outputs[filter * 4 * tiles.room + at..][..3 * tiles.room + span];
                    sums::<S>(simd, products, tiles.room, span, outputs);
                }
            }
            for filter in first..(first + F).min(shape.filters) {
                let outputs = &mut outputs[(filter - first) * 4 * tiles.room..][..4 * tiles.room];
                if !taken.is_empty() {
                    let len = shape.pooled_plane();
                    let scratch = (&mut best.0[..], &mut best.1[..]);
                    let (values, taken) =
                        (&mut values[filter * len..][..len], &mut taken[filter * len..][..len]);
                    pool::<S>(simd, shape, tiles, outputs, scratch, values, taken);
                    continue;
                }
                if packed.relu {
                    relu(outputs);
                }
                let len = shape.output_plane();
                place(shape, tiles, outputs, lines, &mut values[filter * len..][..len]);
            }
        }
    }
);
