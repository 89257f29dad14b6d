//! Gradients of weights and bias.
//!
//! Products of transformed gradients, with filters in the vector lanes, and transformed images are summed
//! over images and tiles, then transformed back.

use super::{MIDDLE, POINTS, Tiles, input::Input, transposed::Transposed};
use crate::{
    conv::{
        Gradient,
        shape::Shape,
        weights::{Area, Layout, Sums, VECTORS, add_products, bias},
    },
    simd::{Aligned, multiversion},
};
use pulp::Simd;

/// Channels whose sums, two vectors of filters each, fit in 32 and in 16 registers.
const WIDE: usize = 8;
const NARROW: usize = 4;

multiversion!(
    /// Gradients for 3 × 3 kernels.
    pub fn gradients<S: Simd>(
        simd: S,
        shape: Shape,
        images: &[f32],
        gradient: Gradient<'_>,
    ) -> (Vec<f32>, Vec<f32>) {
        if S::REGISTER_COUNT >= 32 {
            blocked::<S, WIDE>(simd, shape, images, gradient)
        } else {
            blocked::<S, NARROW>(simd, shape, images, gradient)
        }
    }
);

#[inline(always)]
fn blocked<S: Simd, const C: usize>(
    _: S,
    shape: Shape,
    images: &[f32],
    gradient: Gradient,
) -> (Vec<f32>, Vec<f32>) {
    let tiles = Tiles::new(&shape, S::F32_LANES, None);
    let layout = Layout::new::<S, VECTORS>(&shape);
    let room = shape.channels.next_multiple_of(C);
    let new = || Workspace {
        input: Input::new::<S>(&tiles),
        transposed: Transposed::default(),
        point: Aligned::new(tiles.count() * layout.lanes),
    };
    let size = [POINTS * room, layout.stride()];
    let total = Sums::of_images(shape.batch, size, new, |workspace, number, sums| {
        let image = &images[number * shape.image()..][..shape.image()];
        let gradient = gradient.image(number, shape.filters, shape.output);
        let (layout, tiles) = (&layout, &tiles);
        image_gradients::<C>(layout, tiles, room, image, gradient, workspace, sums);
    });
    let mut weights = vec![0.0; shape.filters * shape.taps()];
    for (at, kernel) in weights.as_chunks_mut::<9>().0.iter_mut().enumerate() {
        let (filter, channel) = (at / shape.channels, at % shape.channels);
        let of = |point| total.weights[(point * room + channel) * layout.stride() + filter];
        *kernel = back(std::array::from_fn(of));
    }
    (weights, total.bias[..shape.filters].to_vec())
}

/// Transforms the gradient of a kernel back.
fn back(points: [f32; POINTS]) -> [f32; 9] {
    let line = |[a, b, c, d]: [f32; 4]| [a + (b + c) / 2.0, (b - c) / 2.0, (b + c) / 2.0 + d];
    let columns = [0, 1, 2, 3].map(|row| line([0, 1, 2, 3].map(|column| points[row * 4 + column])));
    let lines = [0, 1, 2].map(|tap| line(columns.map(|row| row[tap])));
    std::array::from_fn(|tap| lines[tap % 3][tap / 3])
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
        let (shape, lanes, stride) = (layout.shape, layout.lanes, layout.stride());
        input.fill(simd, shape, tiles, image.into());
        transposed.fill(layout, gradient);
        let area = Area { rows: 1, width: tiles.count(), row_len: 0 };
        for block in 0..stride / lanes {
            for number in 0..POINTS {
                transposed.transform::<S>(simd, shape, tiles, [block, number], point.values_mut());
                let gradient = &point.values()[..tiles.count() * lanes];
                if number == MIDDLE {
                    bias::<S, VECTORS>(simd, gradient, &mut sums.bias[block * lanes..][..lanes]);
                }
                let image = input.point(tiles, 0, number);
                for channel in (0..shape.channels).step_by(C) {
                    // The surplus channels of the last block are added to the room after the sums.
                    let mut near = [image.as_ptr(); C];
                    for at in 0..C {
                        near[at] = image[(channel + at).min(shape.channels - 1) * tiles.room..].as_ptr();
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
