//! Convolution with any stride, dilation and padding, as products with a matrix of patches (im2col).
//!
//! The patches of a tile, some output rows of an image or some small images, are the columns of a matrix with a row for each
//! tap, which stays in the cache for its product.

mod tile;

use super::{
    bias::{add_channel_sums, finish},
    source::Whole,
};
use crate::{
    parallel::{self, values, write_parts},
    product::{Matrix, add_product, product_to, writable},
};
use std::ops::Range;
use tile::{Tile, spread};

/// Number of output positions of a tile, unless a row or an image has more.
const POSITIONS: usize = 256;

/// Maximum number of parts of a batch, and of values of the gradients of weights that they add up to.
const PARTS: usize = 16;
const SUMS: usize = 1 << 23;

/// A convolution of images `[batch, channels, height, width]`, with zeros around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patches {
    pub(super) images: [usize; 4],
    /// `[filters, channels, rows, columns]`
    pub(super) weights: [usize; 4],
    /// Zeros before the first row and the first column.
    padding: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    /// Height and width of the output.
    output: [usize; 2],
}

impl Patches {
    /// Validates shapes; `padding` is the zeros before and after, by axis.
    ///
    /// `None` if a dimension is zero, the shapes do not match, the kernel exceeds the padded image, or a tensor would not
    /// fit in the address space.
    pub fn new(
        images: [usize; 4],
        weights: [usize; 4],
        padding: [[usize; 2]; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
    ) -> Option<Self> {
        let ([batch, channels, ..], [filters, expected, ..]) = (images, weights);
        let sized = images.iter().chain(&weights).chain(&stride).chain(&dilation).all(|&length| length > 0);
        if !sized || channels != expected {
            return None;
        }
        let mut output = [0; 2];
        for axis in 0..2 {
            let reach = dilation[axis].checked_mul(weights[2 + axis] - 1)?;
            let padded = images[2 + axis].checked_add(padding[axis][0])?.checked_add(padding[axis][1])?;
            output[axis] = padded.checked_sub(reach + 1)? / stride[axis] + 1;
        }
        let patches =
            Self { images, weights, padding: padding.map(|[before, _]| before), stride, dilation, output };
        values(&images)?;
        values(&weights)?;
        values(&[batch, filters, output[0], output[1]])?;
        values(&[patches.taps(), output[1].max(POSITIONS)])?;
        Some(patches)
    }

    /// Shape of the output, `[batch, filters, height, width]`.
    pub fn outputs(&self) -> [usize; 4] {
        [self.images[0], self.filters(), self.output[0], self.output[1]]
    }

    /// The output; `bias` is empty for none.
    ///
    /// # Panics
    /// If a slice does not have the length of its shape.
    pub fn forward(&self, images: &[f32], weights: &[f32], bias: &[f32], relu: bool) -> Vec<f32> {
        let (filters, taps, plane) = (self.filters(), self.taps(), self.plane());
        assert_eq!([images.len(), weights.len()], [self.images.iter().product(), filters * taps], "shapes");
        let mut output = vec![0.0; self.outputs().iter().product()];
        let weights = Matrix::new(weights, [filters, taps]);
        self.parts(&mut output, filters * plane, |workspace, range, output| {
            let Workspace { patches, values } = workspace;
            for tile in self.tiles(range.clone()) {
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
    pub fn gradients(&self, images: &[f32], gradient: Whole) -> (Vec<f32>, Vec<f32>) {
        let (filters, taps) = (self.filters(), self.taps());
        let len = filters * taps + filters;
        let (batch, at_once) = (self.images[0], self.at_once());
        let each = parallel::each(
            batch.div_ceil(at_once),
            || Workspace::new(self),
            |workspace, part| {
                let mut sums = vec![0.0; len];
                let (weights, bias) = sums.split_at_mut(filters * taps);
                let Workspace { patches, values } = workspace;
                for tile in self.tiles(part * at_once..batch.min((part + 1) * at_once)) {
                    let count = tile.positions();
                    tile.gather(gradient, values);
                    let patches = tile.patches(images, patches);
                    let gradients = Matrix::new(&values[..filters * count], [filters, count]);
                    add_product(gradients, patches.transpose(), weights, taps);
                    add_channel_sums(&values[..filters * count], count, bias);
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
    pub fn input_gradient(&self, weights: &[f32], gradient: Whole) -> Vec<f32> {
        let ([_, channels, height, width], filters, taps) = (self.images, self.filters(), self.taps());
        let image = channels * height * width;
        let weights = Matrix::new(weights, [filters, taps]);
        let mut result = vec![0.0; self.images.iter().product()];
        self.parts(&mut result, image, |workspace, range, result| {
            for tile in self.tiles(range.clone()) {
                let count = tile.positions();
                tile.gather(gradient, &mut workspace.values);
                let gradients = Matrix::new(&workspace.values[..filters * count], [filters, count]);
                let patches = &mut workspace.patches[..taps * count];
                product_to(weights.transpose(), gradients, 1.0, writable(patches), count);
                let to =
                    &mut result[(tile.images.start - range.start) * image..][..tile.images.len() * image];
                spread(&tile, patches, to);
            }
        });
        result
    }

    /// Calls `work` on the values of some images, `len` each.
    fn parts(
        &self,
        values: &mut [f32],
        len: usize,
        work: impl Fn(&mut Workspace, Range<usize>, &mut [f32]) + Sync + Send,
    ) {
        let (rows, none) = ([self.images[0], self.at_once()], (&mut [(); 0], &mut [(); 0]));
        write_parts(
            rows,
            [len, 0, 0],
            (values, none.0, none.1),
            || Workspace::new(self),
            |w, range, values, _, _| {
                work(w, range, values);
            },
        );
    }

    /// Images of a part of the work.
    fn at_once(&self) -> usize {
        let parts = (SUMS / (self.filters() * self.taps())).clamp(2, PARTS);
        self.images[0].div_ceil(parts)
    }

    /// The tiles of some images.
    fn tiles(&self, images: Range<usize>) -> impl Iterator<Item = Tile<'_>> {
        let [height, width] = self.output;
        let (rows, at_once) = match POSITIONS / self.plane() {
            0 => ((POSITIONS / width).max(1), 1),
            images => (height, images),
        };
        let end = images.end;
        images.step_by(at_once).flat_map(move |image| {
            (0..height).step_by(rows).map(move |row| Tile {
                of: self,
                images: image..end.min(image + at_once),
                rows: row..height.min(row + rows),
            })
        })
    }

    fn filters(&self) -> usize {
        self.weights[0]
    }

    fn taps(&self) -> usize {
        self.weights[1..].iter().product()
    }

    /// Positions of an output.
    fn plane(&self) -> usize {
        self.output[0] * self.output[1]
    }
}

/// Room for the patches of a tile and for values of its outputs.
struct Workspace {
    patches: Vec<f32>,
    values: Vec<f32>,
}

impl Workspace {
    fn new(of: &Patches) -> Self {
        let most = of.output[1].max(POSITIONS);
        Self { patches: vec![0.0; of.taps() * most], values: vec![0.0; of.filters() * most] }
    }
}
