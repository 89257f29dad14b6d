//! Gradients of weights and bias: sums over images and tiles of products of transformed gradients, with
//! filters in the lanes, and transformed images, then transformed back.

use super::{POINTS, Tiles, input::Input};
use crate::{
    conv::{
        Geometry, Gradient,
        weights::{IMAGES, Layout, VECTORS},
    },
    parallel,
    simd::{arch, load, store},
};
use pulp::{Simd, WithSimd};

/// Channels whose sums are in registers at a time, beside two vectors of filters each, if there are 32
/// registers and if there are 16.
const WIDE: usize = 8;
const NARROW: usize = 4;
/// The point that is the sum of a tile's gradients.
const MIDDLE: usize = 5;

/// As [`super::super::gradients`].
pub fn gradients(geometry: Geometry, images: &[f32], gradient: Gradient) -> (Vec<f32>, Vec<f32>) {
    arch().dispatch(Gradients { geometry, images, gradient })
}

struct Gradients<'a> {
    geometry: Geometry,
    images: &'a [f32],
    gradient: Gradient<'a>,
}

impl WithSimd for Gradients<'_> {
    type Output = (Vec<f32>, Vec<f32>);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        if S::REGISTER_COUNT >= 32 { self.blocked::<S, WIDE>(simd) } else { self.blocked::<S, NARROW>(simd) }
    }
}

impl Gradients<'_> {
    #[inline(always)]
    fn blocked<S: Simd, const C: usize>(self, _: S) -> (Vec<f32>, Vec<f32>) {
        let Self { geometry, images, gradient } = self;
        let tiles = Tiles::new(&geometry, S::F32_LANES, None);
        let layout = Layout::new::<S>(&geometry);
        let room = geometry.channels.next_multiple_of(C);
        let new = || Workspace {
            input: Input::new::<S>(&tiles),
            turned: vec![0.0; layout.stride() * geometry.output_plane()],
            points: vec![0.0; POINTS * tiles.count() * layout.lanes],
        };
        let parts = parallel::each(geometry.batch.div_ceil(IMAGES), new, |workspace, part| {
            let mut sums = Sums::new(&layout, room);
            for number in part * IMAGES..((part + 1) * IMAGES).min(geometry.batch) {
                let image = &images[number * geometry.image()..][..geometry.image()];
                let gradient = gradient.part(number * geometry.output_image(), geometry.output_image());
                let (layout, tiles, sums) = (&layout, &tiles, &mut sums);
                arch().dispatch(Image::<C> { layout, tiles, room, image, gradient, workspace, sums });
            }
            sums
        });
        let total = parts.into_iter().reduce(Sums::add).unwrap_or_else(|| Sums::new(&layout, room));
        let mut weights = vec![0.0; geometry.filters * geometry.taps()];
        for (at, kernel) in weights.as_chunks_mut::<9>().0.iter_mut().enumerate() {
            let (filter, channel) = (at / geometry.channels, at % geometry.channels);
            let of = |point| total.points[(point * room + channel) * layout.stride() + filter];
            *kernel = back(std::array::from_fn(of));
        }
        (weights, total.bias[..geometry.filters].to_vec())
    }
}

/// The gradient of a kernel of 3 × 3 from that of what it was transformed to.
fn back(points: [f32; POINTS]) -> [f32; 9] {
    let line = |[a, b, c, d]: [f32; 4]| [a + (b + c) / 2.0, (b - c) / 2.0, (b + c) / 2.0 + d];
    let columns = [0, 1, 2, 3].map(|row| line([0, 1, 2, 3].map(|column| points[row * 4 + column])));
    let lines = [0, 1, 2].map(|tap| line(columns.map(|row| row[tap])));
    std::array::from_fn(|tap| lines[tap % 3][tap / 3])
}

struct Workspace {
    input: Input,
    /// An image's gradient, `[blocks, positions, lanes]`.
    turned: Vec<f32>,
    /// A block of it transformed, `[points, tiles, lanes]`.
    points: Vec<f32>,
}

/// Of some images.
struct Sums {
    /// `[points, channels, stride]`, with room for a block of channels that hangs over.
    points: Vec<f32>,
    bias: Vec<f32>,
}

impl Sums {
    fn new(layout: &Layout, room: usize) -> Self {
        Self { points: vec![0.0; POINTS * room * layout.stride()], bias: vec![0.0; layout.stride()] }
    }

    fn add(mut self, other: Self) -> Self {
        self.points.iter_mut().zip(&other.points).for_each(|(sum, value)| *sum += value);
        self.bias.iter_mut().zip(&other.bias).for_each(|(sum, value)| *sum += value);
        self
    }
}

/// One image's part of the sums.
struct Image<'a, const C: usize> {
    layout: &'a Layout<'a>,
    tiles: &'a Tiles,
    /// Channels in the sums.
    room: usize,
    image: &'a [f32],
    gradient: Gradient<'a>,
    workspace: &'a mut Workspace,
    sums: &'a mut Sums,
}

impl<const C: usize> WithSimd for Image<'_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { layout, tiles, room, image, gradient, workspace, sums } = self;
        let Workspace { input, turned, points } = workspace;
        let (geometry, lanes, stride) = (layout.geometry, layout.lanes, layout.stride());
        input.fill(simd, geometry, tiles, Gradient { values: image, output: None });
        layout.turn(gradient, turned);
        let area = tiles.count() * lanes;
        for (block, gradient) in turned.chunks_exact(geometry.output_plane() * lanes).enumerate() {
            transform::<S>(simd, geometry, tiles, gradient, points);
            let bias = &mut sums.bias[block * lanes..][..lanes];
            crate::conv::weights::bias::<S>(simd, &points[MIDDLE * area..][..area], bias);
            for point in 0..POINTS {
                let gradient = &points[point * area..][..area];
                let image = input.point(tiles, 0, point);
                for channel in (0..geometry.channels).step_by(C) {
                    // Channels beyond the end go to the room after the sums.
                    let mut near = [image.as_ptr(); C];
                    for at in 0..C {
                        near[at] = image[(channel + at).min(geometry.channels - 1) * tiles.room..].as_ptr();
                    }
                    let to = (point * room + channel) * stride + block * lanes;
                    let to = sums.points[to..][..(C - 1) * stride + lanes].as_mut_ptr();
                    // SAFETY: each channel has as many tiles as the gradient has vector pairs.
                    unsafe { multiply::<S, C>(simd, &near, gradient, to, stride) };
                }
            }
        }
    }
}

/// Transforms a block's gradient, `[positions, lanes]`, to `[points, tiles, lanes]`.
#[inline(always)]
fn transform<S: Simd>(simd: S, geometry: &Geometry, tiles: &Tiles, gradient: &[f32], to: &mut [f32]) {
    let ([height, width], lanes) = (geometry.output(), VECTORS * S::F32_LANES);
    let area = tiles.count() * lanes;
    assert!(gradient.len() >= height * width * lanes && to.len() >= POINTS * area);
    for tile in 0..tiles.count() {
        let (row, column) = (tile / tiles.columns * 2, tile % tiles.columns * 2);
        let [below, beside] = [row + 1 < height, column + 1 < width];
        for vector in 0..VECTORS {
            let at = (row * width + column) * lanes + vector * S::F32_LANES;
            let zero = simd.splat_f32s(0.0);
            // SAFETY: a position is read only where there is one; a point has an area, of which a tile has
            // `lanes`.
            unsafe {
                let from = gradient.as_ptr().add(at);
                let (mut right, mut down, mut both) = (zero, zero, zero);
                if beside {
                    right = load::<S>(from.add(lanes));
                }
                if below {
                    down = load::<S>(from.add(width * lanes));
                }
                if below && beside {
                    both = load::<S>(from.add((width + 1) * lanes));
                }
                let (above, under) =
                    (four::<S>(simd, [load::<S>(from), right]), four::<S>(simd, [down, both]));
                let to = to.as_mut_ptr().add(tile * lanes + vector * S::F32_LANES);
                for point in 0..4 {
                    let values = four::<S>(simd, [above[point], under[point]]);
                    let to = to.add(point * area);
                    store::<S>(to, values[0]);
                    store::<S>(to.add(4 * area), values[1]);
                    store::<S>(to.add(8 * area), values[2]);
                    store::<S>(to.add(12 * area), values[3]);
                }
            }
        }
    }
}

/// What two gradients count in four products.
#[inline(always)]
fn four<S: Simd>(simd: S, [a, b]: [S::f32s; 2]) -> [S::f32s; 4] {
    [a, simd.add_f32s(a, b), simd.sub_f32s(a, b), b]
}

/// Adds one point's products of `gradient`, `[tiles, lanes]`, and `C` channels of an image to sums that
/// are `stride` apart.
///
/// # Safety
/// `image` must each hold as many values as `gradient` has tiles, and `to` two vectors for each channel.
#[inline(always)]
unsafe fn multiply<S: Simd, const C: usize>(
    simd: S,
    image: &[*const f32; C],
    gradient: &[f32],
    to: *mut f32,
    stride: usize,
) {
    // Plain loops and pointers, as in the plain kernel.
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; C];
    let mut from = gradient.as_ptr();
    for tile in 0..gradient.len() / (VECTORS * S::F32_LANES) {
        let mut values = [simd.splat_f32s(0.0); VECTORS];
        for vector in 0..VECTORS {
            // SAFETY: the gradient is a number of tiles, of `VECTORS` vectors each.
            values[vector] = unsafe { load::<S>(from.add(vector * S::F32_LANES)) };
        }
        for channel in 0..C {
            // SAFETY: the caller's promise.
            let met = simd.splat_f32s(unsafe { *image[channel].add(tile) });
            for vector in 0..VECTORS {
                sums[channel][vector] = simd.mul_add_e_f32s(met, values[vector], sums[channel][vector]);
            }
        }
        from = from.wrapping_add(VECTORS * S::F32_LANES);
    }
    for channel in 0..C {
        for vector in 0..VECTORS {
            // SAFETY: the caller's promise.
            unsafe {
                let to = to.add(channel * stride + vector * S::F32_LANES);
                store::<S>(to, simd.add_f32s(load::<S>(to), sums[channel][vector]));
            }
        }
    }
}
