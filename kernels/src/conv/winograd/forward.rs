//! Outputs of a convolution, unpooled or pooled.

use super::{
    MIDDLE, POINTS, Tiles,
    input::Input,
    outputs::{place, pool, sums},
    products::{NARROW, Packed, SPAN, VECTORS, WIDE, multiply},
};
use crate::{
    conv::{
        Gradient,
        forward::{Filters, relu},
        geometry::Geometry,
    },
    parallel::{self, Room},
    simd::arch,
};
use pulp::{Simd, WithSimd};

/// Outputs for 3 × 3 kernels.
pub fn forward(geometry: Geometry, images: Gradient, filters: Filters) -> Vec<f32> {
    arch().dispatch(Forward { geometry, images, filters, pooled: false }).0
}

/// Outputs for 3 × 3 kernels after pooling; see [`super::super::Shape::forward_pooled`].
pub fn forward_pooled(geometry: Geometry, images: Gradient, filters: Filters) -> (Vec<f32>, Vec<u8>) {
    arch().dispatch(Forward { geometry, images, filters, pooled: true })
}

struct Forward<'a> {
    geometry: Geometry,
    images: Gradient<'a>,
    filters: Filters<'a>,
    pooled: bool,
}

impl WithSimd for Forward<'_> {
    type Output = (Vec<f32>, Vec<u8>);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        if S::REGISTER_COUNT >= 32 { self.run::<S, WIDE>(simd) } else { self.run::<S, NARROW>(simd) }
    }
}

impl Forward<'_> {
    #[inline(always)]
    fn run<S: Simd, const F: usize>(self, simd: S) -> (Vec<f32>, Vec<u8>) {
        let Self { geometry, pooled, .. } = self;
        let lens = match pooled {
            true => [geometry.filters * geometry.pooled_plane(); 2],
            false => [geometry.output_image(), 0],
        };
        let shared = SharedState::<F>::new(simd, self);
        let one = |workspace: &mut Workspace, number: usize, values: Room, taken: Room<u8>, _: Room<()>| {
            arch().dispatch(Image { shared: &shared, number, workspace, values, taken, pooled });
        };
        // SAFETY: every filter's plane is written.
        let (values, taken, _) = unsafe {
            parallel::build_three(geometry.batch, [lens[0], lens[1], 0], || shared.workspace(simd), one)
        };
        (values, taken)
    }
}

/// State that all images share.
struct SharedState<'a, const F: usize> {
    geometry: Geometry,
    images: Gradient<'a>,
    tiles: Tiles,
    packed: Packed,
}

impl<'a, const F: usize> SharedState<'a, F> {
    #[inline(always)]
    fn new<S: Simd>(_: S, Forward { geometry, images, filters, .. }: Forward<'a>) -> Self {
        let tiles = Tiles::new(&geometry, S::F32_LANES, Some(VECTORS));
        Self { geometry, images, tiles, packed: Packed::new::<F>(&geometry, &filters) }
    }

    fn workspace<S: Simd>(&self, _: S) -> Workspace {
        let room = self.tiles.room;
        Workspace {
            input: Input::new::<S>(&self.tiles),
            products: vec![0.0; F * POINTS * SPAN],
            outputs: vec![0.0; F * 4 * room],
            lines: [0, 1].map(|_| vec![[0.0; 2]; room]),
            best: (vec![0.0; room], vec![0; room]),
        }
    }
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

/// The outputs of one image.
struct Image<'a, const F: usize> {
    shared: &'a SharedState<'a, F>,
    number: usize,
    workspace: &'a mut Workspace,
    values: Room<'a>,
    /// Empty unless pooled.
    taken: Room<'a, u8>,
    pooled: bool,
}

impl<const F: usize> WithSimd for Image<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { shared, number, workspace, values, taken, pooled } = self;
        let SharedState { geometry, images, tiles, packed } = shared;
        let Workspace { input, products, outputs, lines, best } = workspace;
        input.fill(simd, geometry, tiles, images.image(number, geometry.channels, geometry.size));
        for (block, filters) in packed.points.chunks_exact(POINTS * geometry.channels * F).enumerate() {
            let first = block * F;
            let bias: &[f32; F] = packed.bias[first..].first_chunk().expect("one for each filter");
            for at in (0..tiles.room).step_by(tiles.span) {
                let span = tiles.span.min(tiles.room - at);
                for point in 0..POINTS {
                    let filters = &filters[point * geometry.channels * F..][..geometry.channels * F];
                    let image = &input.point(tiles, at, point)[..geometry.channels * span];
                    let bias = if point == MIDDLE { *bias } else { [0.0; F] };
                    let to = &mut products[point * SPAN..][..(F - 1) * POINTS * SPAN + SPAN];
                    // SAFETY: both have this many vectors in each row.
                    unsafe {
                        let (image, to) = (image.as_ptr(), to.as_mut_ptr());
                        match span / S::F32_LANES {
                            1 => multiply::<S, F, 1>(simd, filters, image, bias, to),
                            2 => multiply::<S, F, 2>(simd, filters, image, bias, to),
                            _ => multiply::<S, F, VECTORS>(simd, filters, image, bias, to),
                        }
                    }
                }
                for filter in 0..F {
                    let products = &products[filter * POINTS * SPAN..][..POINTS * SPAN];
                    let outputs = &mut outputs[filter * 4 * tiles.room + at..][..3 * tiles.room + span];
                    sums::<S>(simd, products, tiles.room, span, outputs);
                }
            }
            for filter in first..(first + F).min(geometry.filters) {
                let outputs = &mut outputs[(filter - first) * 4 * tiles.room..][..4 * tiles.room];
                if pooled {
                    let len = geometry.pooled_plane();
                    let scratch = (&mut best.0[..], &mut best.1[..]);
                    let (values, taken) =
                        (&mut values[filter * len..][..len], &mut taken[filter * len..][..len]);
                    pool::<S>(simd, geometry, tiles, outputs, scratch, values, taken);
                    continue;
                }
                if packed.relu {
                    relu(outputs);
                }
                let len = geometry.output_plane();
                place(geometry, tiles, outputs, lines, &mut values[filter * len..][..len]);
            }
        }
    }
}
