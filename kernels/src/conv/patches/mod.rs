//! Convolution with any stride, dilation and padding, as products with a matrix of patches (im2col).
//!
//! The patches of a tile, some output rows of an image or some small images, are the columns of a matrix with a row for each
//! tap, which stays in the cache for its product.

mod tile;

use super::{
    bias::{add_sums, finish},
    shape::{POSITIONS, Shape},
    source::Whole,
};
use crate::{
    parallel::{self, write_parts},
    product::{Matrix, add_product, product_to, writable},
};
use std::ops::Range;
use tile::{Tile, spread};

/// Output positions below which a product spends more time on its other matrix.
const FEW: usize = 128;

/// Maximum number of parts of a batch, and of values of the gradients of weights that they add up to.
const PARTS: usize = 16;
const SUMS: usize = 1 << 23;

/// The output; `bias` is empty for none.
///
/// # Panics
/// If a slice does not have the length of its shape.
pub fn forward(shape: &Shape, images: &[f32], weights: &[f32], bias: &[f32], relu: bool) -> Vec<f32> {
    let (filters, taps, plane) = (shape.filters, shape.taps(), shape.output_plane());
    assert_eq!([images.len(), weights.len()], [shape.batch * shape.image(), filters * taps], "shapes");
    let mut output = vec![0.0; shape.batch * filters * plane];
    let weights = Matrix::new(weights, [filters, taps]);
    in_parts(shape, &mut output, filters * plane, |workspace, range, output| {
        let Workspace { patches, values } = workspace;
        for tile in tiles(shape, range.clone()) {
            let patches = tile.patches(images, patches);
            let count = tile.positions();
            let first = tile.images.start - range.start;
            if tile.images.len() == 1 {
                let to = &mut output[first * filters * plane + tile.start()..];
                product_to(weights, patches, 1.0, writable(to), plane);
                continue;
            }
            let to = &mut values[..filters * count];
            product_to(weights, patches, 1.0, writable(to), count);
            for (image, output) in output[first * filters * plane..][..filters * count]
                .chunks_exact_mut(filters * plane)
                .enumerate()
            {
                for (filter, output) in output.chunks_exact_mut(plane).enumerate() {
                    output.copy_from_slice(&to[filter * count + image * plane..][..plane]);
                }
            }
        }
        finish(output, bias, plane, relu);
    });
    output
}

/// Gradients of weights and bias, from that of the output.
///
/// # Panics
/// If a slice does not have the length of its shape.
pub fn gradients(shape: &Shape, images: &[f32], gradient: Whole) -> (Vec<f32>, Vec<f32>) {
    let (batch, filters, taps) = (shape.batch, shape.filters, shape.taps());
    let len = filters * taps + filters;
    // Independent of the number of threads, as is the order of sums.
    let parts = (SUMS / (filters * taps)).min(batch * shape.output_plane() / FEW).clamp(2, PARTS);
    let at_once = batch.div_ceil(parts);
    let each = parallel::each(
        batch.div_ceil(at_once),
        || Workspace::new(shape),
        |workspace, part| {
            let mut sums = vec![0.0; len];
            let (weights, bias) = sums.split_at_mut(filters * taps);
            let Workspace { patches, values } = workspace;
            for tile in tiles(shape, part * at_once..batch.min((part + 1) * at_once)) {
                let count = tile.positions();
                tile.gather(gradient, values);
                let patches = tile.patches(images, patches);
                let gradients = Matrix::new(&values[..filters * count], [filters, count]);
                add_product(gradients, patches.transpose(), weights, taps);
                add_sums(&values[..filters * count], filters, count, 0, bias);
            }
            sums
        },
    );
    let mut sums = vec![0.0; len];
    for part in &each {
        parallel::parts(&mut sums, 1 << 14, |start, sums| {
            sums.iter_mut().zip(&part[start..]).for_each(|(sum, value)| *sum += value);
        });
    }
    let bias = sums.split_off(filters * taps);
    (sums, bias)
}

/// Gradient of the images, from that of the output.
///
/// # Panics
/// If a slice does not have the length of its shape.
pub fn input_gradient(shape: &Shape, weights: &[f32], gradient: Whole) -> Vec<f32> {
    let (image, filters, taps) = (shape.image(), shape.filters, shape.taps());
    let weights = Matrix::new(weights, [filters, taps]);
    let mut result = vec![0.0; shape.batch * image];
    in_parts(shape, &mut result, image, |workspace, range, result| {
        for tile in tiles(shape, range.clone()) {
            let count = tile.positions();
            tile.gather(gradient, &mut workspace.values);
            let gradients = Matrix::new(&workspace.values[..filters * count], [filters, count]);
            let patches = &mut workspace.patches[..taps * count];
            product_to(weights.transpose(), gradients, 1.0, writable(patches), count);
            let to = &mut result[(tile.images.start - range.start) * image..][..tile.images.len() * image];
            spread(&tile, patches, to);
        }
    });
    result
}

/// Calls `work` on the values of some images, `len` each.
fn in_parts(
    shape: &Shape,
    values: &mut [f32],
    len: usize,
    work: impl Fn(&mut Workspace, Range<usize>, &mut [f32]) + Sync + Send,
) {
    let at_once = (POSITIONS / shape.output_plane()).clamp(1, shape.batch.div_ceil(8));
    let (rows, none) = ([shape.batch, at_once], (&mut [(); 0], &mut [(); 0]));
    write_parts(
        rows,
        [len, 0, 0],
        (values, none.0, none.1),
        || Workspace::new(shape),
        |w, range, values, _, _| {
            work(w, range, values);
        },
    );
}

/// The tiles of some images.
fn tiles(shape: &Shape, images: Range<usize>) -> impl Iterator<Item = Tile<'_>> {
    let [height, width] = shape.output;
    let (rows, at_once) = match POSITIONS / shape.output_plane() {
        0 => ((POSITIONS / width).max(1), 1),
        images => (height, images),
    };
    let end = images.end;
    images.step_by(at_once).flat_map(move |image| {
        (0..height).step_by(rows).map(move |row| Tile {
            shape,
            images: image..end.min(image + at_once),
            rows: row..height.min(row + rows),
        })
    })
}

/// Room for the patches of a tile and for values of its outputs.
struct Workspace {
    patches: Vec<f32>,
    values: Vec<f32>,
}

impl Workspace {
    fn new(shape: &Shape) -> Self {
        let most = shape.output[1].max(POSITIONS);
        Self { patches: vec![0.0; shape.taps() * most], values: vec![0.0; shape.filters * most] }
    }
}
