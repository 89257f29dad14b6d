//! Outputs: products of transformed filters and images, transformed back.

use super::{POINTS, Tiles, input::Input};
use crate::{
    conv::{Filters, Geometry, Gradient, forward::relu},
    parallel,
    simd::{arch, copy, load, store},
};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// Vectors of tiles whose sums are in registers at a time.
const VECTORS: usize = 3;
/// As many tiles, with the widest vectors there are.
const SPAN: usize = VECTORS * 16;
/// Filters at a time, if there are 32 registers and if there are 16.
const WIDE: usize = 8;
const NARROW: usize = 4;
/// The point that counts in all outputs of a tile, and with one: a bias goes in there.
const MIDDLE: usize = 5;

/// As [`super::super::forward`].
pub fn forward(geometry: Geometry, images: Gradient, filters: Filters) -> Vec<f32> {
    arch().dispatch(Forward { geometry, images, filters })
}

struct Forward<'a> {
    geometry: Geometry,
    images: Gradient<'a>,
    filters: Filters<'a>,
}

impl WithSimd for Forward<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Vec<f32> {
        if S::REGISTER_COUNT >= 32 { self.blocked::<S, WIDE>(simd) } else { self.blocked::<S, NARROW>(simd) }
    }
}

impl Forward<'_> {
    #[inline(always)]
    fn blocked<S: Simd, const F: usize>(self, _: S) -> Vec<f32> {
        let Self { geometry, images, filters } = self;
        let tiles = Tiles::new(&geometry, S::F32_LANES, Some(VECTORS));
        let packed = Packed::new::<F>(&geometry, &filters);
        let new = || Workspace {
            input: Input::new::<S>(&tiles),
            products: vec![0.0; F * POINTS * SPAN],
            outputs: vec![0.0; F * 4 * tiles.room],
            lines: [0, 1].map(|_| vec![[0.0; 2]; tiles.room]),
        };
        let one = |workspace: &mut Workspace, number: usize, out: &mut [MaybeUninit<f32>]| {
            let image = images.part(number * geometry.image(), geometry.image());
            let (geometry, tiles, packed) = (&geometry, &tiles, &packed);
            arch().dispatch(Image::<F> { geometry, tiles, packed, image, workspace, out });
        };
        // SAFETY: every filter's plane is written.
        unsafe { parallel::build(geometry.batch, geometry.output_image(), new, one) }
    }
}

/// Transformed filters in the order in which they are taken.
struct Packed {
    /// `[filters / F, points, channels, F]`
    points: Vec<f32>,
    bias: Vec<f32>,
    relu: bool,
}

impl Packed {
    fn new<const F: usize>(geometry: &Geometry, filters: &Filters) -> Self {
        let (channels, blocks) = (geometry.channels, geometry.filters.div_ceil(F));
        let mut points = vec![0.0; blocks * POINTS * channels * F];
        for filter in 0..geometry.filters {
            for channel in 0..channels {
                let weights = std::array::from_fn(|tap| (filters.weight)(filter, channel * 9 + tap));
                let to = &mut points[(filter / F * POINTS * channels + channel) * F + filter % F..];
                for (point, value) in transformed(weights).into_iter().enumerate() {
                    to[point * channels * F] = value;
                }
            }
        }
        let mut bias = vec![0.0; blocks * F];
        if let Some(values) = filters.bias {
            bias[..values.len()].copy_from_slice(values);
        }
        Self { points, bias, relu: filters.relu }
    }
}

/// Of a kernel of 3 × 3.
fn transformed(weights: [f32; 9]) -> [f32; POINTS] {
    let line = |[a, b, c]: [f32; 3]| [a, (a + b + c) / 2.0, (a - b + c) / 2.0, c];
    let columns = [0, 1, 2].map(|row| line([0, 1, 2].map(|column| weights[row * 3 + column])));
    let lines = [0, 1, 2, 3].map(|point| line(columns.map(|row| row[point])));
    std::array::from_fn(|point| lines[point % 4][point / 4])
}

struct Workspace {
    input: Input,
    /// Of some filters and tiles, `[F, points, SPAN]`.
    products: Vec<f32>,
    /// Of some filters, `[F, 2 × 2, room]`.
    outputs: Vec<f32>,
    /// The same in rows, the even rows and the odd.
    lines: [Vec<[f32; 2]>; 2],
}

/// One image's outputs.
struct Image<'a, const F: usize> {
    geometry: &'a Geometry,
    tiles: &'a Tiles,
    packed: &'a Packed,
    image: Gradient<'a>,
    workspace: &'a mut Workspace,
    out: &'a mut [MaybeUninit<f32>],
}

impl<const F: usize> WithSimd for Image<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { geometry, tiles, packed, image, workspace, out } = self;
        let Workspace { input, products, outputs, lines } = workspace;
        input.fill(simd, geometry, tiles, image);
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
                    // SAFETY: both hold that many vectors in each row.
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
                if packed.relu {
                    relu(outputs);
                }
                let plane = &mut out[filter * geometry.output_plane()..][..geometry.output_plane()];
                place(geometry, tiles, outputs, lines, plane);
            }
        }
    }
}

/// One point's products of `filters`, `[channels, F]`, and `V` vectors of tiles of `image`, with `bias`.
///
/// # Safety
/// `image` must hold `V` vectors for each channel, and `to` for each filter, `POINTS * SPAN` apart.
#[inline(always)]
unsafe fn multiply<S: Simd, const F: usize, const V: usize>(
    simd: S,
    filters: &[f32],
    mut image: *const f32,
    bias: [f32; F],
    to: *mut f32,
) {
    // Plain loops and pointers, as in the plain kernel.
    let mut sums = [[simd.splat_f32s(0.0); V]; F];
    for filter in 0..F {
        sums[filter] = [simd.splat_f32s(bias[filter]); V];
    }
    let mut weights = filters.as_ptr();
    for _ in 0..filters.len() / F {
        let mut values = [simd.splat_f32s(0.0); V];
        for vector in 0..V {
            // SAFETY: the caller's promise.
            values[vector] = unsafe { load::<S>(image.add(vector * S::F32_LANES)) };
        }
        for filter in 0..F {
            // SAFETY: there are `F` for each channel.
            let weight = simd.splat_f32s(unsafe { *weights.add(filter) });
            for vector in 0..V {
                sums[filter][vector] = simd.mul_add_e_f32s(weight, values[vector], sums[filter][vector]);
            }
        }
        (weights, image) = (weights.wrapping_add(F), image.wrapping_add(V * S::F32_LANES));
    }
    for filter in 0..F {
        for vector in 0..V {
            // SAFETY: the caller's promise.
            unsafe {
                store::<S>(to.add(filter * POINTS * SPAN + vector * S::F32_LANES), sums[filter][vector])
            };
        }
    }
}

/// Transforms `span` of one filter's `products`, `[points, SPAN]`, to its outputs, `[2 × 2, room]`.
#[inline(always)]
fn sums<S: Simd>(simd: S, products: &[f32], room: usize, span: usize, outputs: &mut [f32]) {
    let zero = simd.splat_f32s(0.0);
    for at in (0..span).step_by(S::F32_LANES) {
        let mut lines = [[zero; 2]; 4];
        for line in 0..4 {
            let mut values = [zero; 4];
            for point in 0..4 {
                let from = &products[(line * 4 + point) * SPAN + at..][..S::F32_LANES];
                // SAFETY: the slice is a vector long.
                values[point] = unsafe { load::<S>(from.as_ptr()) };
            }
            lines[line] = pair::<S>(simd, values);
        }
        for column in 0..2 {
            let line = [lines[0][column], lines[1][column], lines[2][column], lines[3][column]];
            let values = pair::<S>(simd, line);
            for row in 0..2 {
                let to = &mut outputs[(row * 2 + column) * room + at..][..S::F32_LANES];
                // SAFETY: as above.
                unsafe { store::<S>(to.as_mut_ptr(), values[row]) };
            }
        }
    }
}

/// Two outputs of four products.
#[inline(always)]
fn pair<S: Simd>(simd: S, [m0, m1, m2, m3]: [S::f32s; 4]) -> [S::f32s; 2] {
    [simd.add_f32s(simd.add_f32s(m0, m1), m2), simd.add_f32s(simd.sub_f32s(m1, m2), m3)]
}

/// Puts a filter's outputs, `[2 × 2, room]`, where they are in its plane. `lines` is room for them in
/// rows, the even rows and the odd.
#[inline(always)]
fn place(
    geometry: &Geometry,
    tiles: &Tiles,
    outputs: &[f32],
    lines: &mut [Vec<[f32; 2]>; 2],
    plane: &mut [MaybeUninit<f32>],
) {
    for (line, outputs) in lines.iter_mut().zip(outputs.chunks_exact(2 * tiles.room)) {
        let (left, right) = outputs.split_at(tiles.room);
        let (line, right) = (&mut line[..tiles.room], &right[..tiles.room]);
        for at in 0..tiles.room {
            line[at] = [left[at], right[at]];
        }
    }
    let [height, width] = geometry.output();
    for row in 0..height {
        let from = &lines[row % 2][row / 2 * tiles.columns..][..tiles.columns].as_flattened()[..width];
        let to = &mut plane[row * width..][..width];
        // SAFETY: both are so long.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr().cast(), width) };
    }
}
