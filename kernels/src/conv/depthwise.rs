//! Convolution of each channel on its own (depthwise).
//!
//! A plane is copied with its padding and divided by the stride. Outputs are computed over whole rows of such a phase; those
//! between the rows of the output are discarded, and their gradients are zero.

use super::shape::{Phases, Shape};
use crate::{
    parallel::{self, values, write_parts},
    simd::{copy_strided, load, multiversion, store},
};
use std::ops::Range;

/// Vectors that are computed together, and their values if they are as wide as possible.
const VECTORS: usize = 4;
const CHUNK: usize = VECTORS * 16;

/// A convolution of images `[batch, channels, height, width]` with weights `[filters, 1, rows, columns]`, of which filter
/// `f` reads channel `f / (filters / channels)`.
#[derive(Clone, Copy, Debug)]
pub struct Depthwise {
    /// The same convolution of one channel.
    one: Shape,
    channels: usize,
    phases: Phases,
}

/// Buffers of a thread.
struct Workspace {
    /// A plane of an image, divided by the stride.
    divided: Vec<f32>,
    /// A plane of the output, with the columns of `divided`; of a gradient, after [`Depthwise::before`] zeros.
    wide: Vec<f32>,
}

impl Depthwise {
    /// Validates shapes; `padding` is the zeros before and after, by axis.
    ///
    /// `None` if the filters are no multiple of the channels, or for the reasons of [`Shape::new`](super::Shape::new).
    pub fn new(
        images @ [batch, channels, height, width]: [usize; 4],
        weights: [usize; 4],
        padding: [[usize; 2]; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
    ) -> Option<Self> {
        let one = Shape::new([batch, 1, height, width], weights, padding, stride, dilation)?;
        let phases = Phases::new(&one, CHUNK);
        let plane = phases.plane;
        values(&images)?;
        // Rounded up, with zeros before and after.
        values(&[4, stride[0], stride[1], plane[0].checked_add(CHUNK)?, plane[1].checked_add(CHUNK)?])?;
        let whole = channels > 0 && one.filters.is_multiple_of(channels);
        whole.then_some(Self { one, channels, phases })
    }

    /// Shape of the images, `[batch, channels, height, width]`.
    pub fn inputs(&self) -> [usize; 4] {
        let [height, width] = self.one.size;
        [self.one.batch, self.channels, height, width]
    }

    /// Shape of the weights, `[filters, 1, rows, columns]`.
    pub fn weights(&self) -> [usize; 4] {
        self.one.weights()
    }

    /// Shape of the output, `[batch, filters, height, width]`.
    pub fn outputs(&self) -> [usize; 4] {
        self.one.outputs()
    }

    /// The output; `bias` is empty for none.
    ///
    /// # Panics
    /// If a slice does not have the length of its shape.
    pub fn forward(&self, images: &[f32], weights: &[f32], bias: &[f32]) -> Vec<f32> {
        let ([_, filters, _, width], starts) = (self.outputs(), self.phases.starts(&self.one));
        self.planes(self.outputs(), |Workspace { divided, wide }, number, output| {
            let (filter, image) = (number % filters, number / filters);
            self.divide(&images[self.image(image, filter)..], divided);
            let weights = &weights[filter * starts.len()..];
            let taps: Vec<_> = starts.iter().copied().zip(weights.iter().copied()).collect();
            wide.fill(bias.get(filter).copied().unwrap_or_default());
            add_shifted(divided, &taps, &mut wide[..self.wide()]);
            for (row, output) in output.chunks_exact_mut(width).enumerate() {
                output.copy_from_slice(&wide[row * self.phases.plane[1]..][..width]);
            }
        })
    }

    /// Gradient of the weights, from that of the output.
    ///
    /// # Panics
    /// If a slice does not have the length of its shape.
    pub fn weight_gradient(&self, images: &[f32], gradient: &[f32]) -> Vec<f32> {
        let ([batch, filters, ..], starts) = (self.outputs(), self.phases.starts(&self.one));
        let of_filter = |Workspace { divided, wide }: &mut Workspace, filter: usize| {
            let mut sums = vec![0.0; starts.len()];
            for image in 0..batch {
                self.divide(&images[self.image(image, filter)..], divided);
                self.widen(gradient, image * filters + filter, wide);
                add_products(divided, &starts, &wide[self.before()..][..self.wide()], &mut sums);
            }
            sums
        };
        parallel::each(filters, || self.workspace(), of_filter).concat()
    }

    /// Gradient of the images, from that of the output.
    ///
    /// # Panics
    /// If a slice does not have the length of its shape.
    pub fn input_gradient(&self, weights: &[f32], gradient: &[f32]) -> Vec<f32> {
        let ([_, filters, ..], starts) = (self.outputs(), self.phases.starts(&self.one));
        self.planes(self.inputs(), |Workspace { divided, wide }, number, to| {
            divided.fill(0.0);
            let (image, channel) = (number / self.channels, number % self.channels);
            let each = self.filters_of_a_channel();
            for filter in channel * each..(channel + 1) * each {
                self.widen(gradient, image * filters + filter, wide);
                let weights = &weights[filter * starts.len()..];
                for (phase, divided) in divided.chunks_exact_mut(self.phases.area()).enumerate() {
                    let taps =
                        starts.iter().zip(weights).filter(|(start, _)| *start / self.phases.area() == phase);
                    let back = |(start, weight): (&usize, &f32)| {
                        (self.before() - start % self.phases.area(), *weight)
                    };
                    add_shifted(wide, &taps.map(back).collect::<Vec<_>>(), divided);
                }
            }
            self.phases.lines(&self.one, |at, from, count| {
                let values = divided[from..][..count].iter();
                to[at..]
                    .iter_mut()
                    .step_by(self.one.stride[1])
                    .zip(values)
                    .for_each(|(to, value)| *to = *value);
            });
        })
    }

    /// Planes of a tensor of this shape, which are zero before `write(workspace, number, plane)`.
    fn planes(
        &self,
        shape @ [batch, planes, height, width]: [usize; 4],
        write: impl Fn(&mut Workspace, usize, &mut [f32]) + Sync + Send,
    ) -> Vec<f32> {
        let mut all = vec![0.0; shape.iter().product()];
        let matrices = (&mut all[..], &mut [(); 0][..], &mut [(); 0][..]);
        let write = |workspace: &mut _, number: Range<usize>, plane: &mut _, _: &mut _, _: &mut _| {
            write(workspace, number.start, plane);
        };
        write_parts([batch * planes, 1], [height * width, 0, 0], matrices, || self.workspace(), write);
        all
    }

    fn workspace(&self) -> Workspace {
        let divided = vec![0.0; self.phases.len() + CHUNK];
        Workspace { divided, wide: vec![0.0; self.before() + self.phases.area() + CHUNK] }
    }

    /// Number of values of a plane of the output with the columns of a phase, and of those with which it ends with
    /// a chunk.
    fn wide(&self) -> usize {
        let [height, width] = self.one.output;
        ((height - 1) * self.phases.plane[1] + width).next_multiple_of(CHUNK)
    }

    /// The largest distance between two taps in a phase.
    fn before(&self) -> usize {
        let [rows, columns] = self.one.kernel;
        (rows - 1) * self.one.dilation[0] / self.one.stride[0] * self.phases.plane[1]
            + (columns - 1) * self.one.dilation[1] / self.one.stride[1]
    }

    fn filters_of_a_channel(&self) -> usize {
        self.one.filters / self.channels
    }

    /// Index of the first value that a filter reads of an image.
    fn image(&self, image: usize, filter: usize) -> usize {
        let [height, width] = self.one.size;
        (image * self.channels + filter / self.filters_of_a_channel()) * height * width
    }

    /// Copies the first plane of `image`.
    fn divide(&self, image: &[f32], divided: &mut [f32]) {
        self.phases.lines(&self.one, |at, to, count| {
            copy_strided(&image[at..], self.one.stride[1], &mut divided[to..][..count])
        });
    }

    /// Copies a plane of the gradient.
    fn widen(&self, gradient: &[f32], number: usize, wide: &mut [f32]) {
        let [height, width] = self.one.output;
        let rows = gradient[number * height * width..][..height * width].chunks_exact(width);
        for (row, from) in rows.enumerate() {
            wide[self.before() + row * self.phases.plane[1]..][..width].copy_from_slice(from);
        }
    }
}

multiversion!(
    /// Adds to each value of `to`, whole chunks, the sum of the values at its index after the starts of `taps`, times their
    /// weights.
    fn add_shifted<S: Simd>(simd: S, from: &[f32], taps: &[(usize, f32)], to: &mut [f32]) {
        let last = taps.iter().map(|(start, _)| *start).max().unwrap_or(0);
        assert!(to.len().is_multiple_of(CHUNK) && from.len() >= last + to.len(), "room for whole chunks");
        for at in (0..to.len()).step_by(VECTORS * S::F32_LANES) {
            // SAFETY: `to` ends with a whole number of these vectors, and `from` has as many values after each start.
            unsafe {
                let place = |vector: usize| at + vector * S::F32_LANES;
                let mut sums: [_; VECTORS] =
                    std::array::from_fn(|vector| load::<S>(to.as_ptr().add(place(vector))));
                for (start, weight) in taps {
                    let weight = simd.splat_f32s(*weight);
                    for vector in 0..VECTORS {
                        let values = load::<S>(from.as_ptr().add(start + place(vector)));
                        sums[vector] = simd.mul_add_f32s(values, weight, sums[vector]);
                    }
                }
                for vector in 0..VECTORS {
                    store::<S>(to.as_mut_ptr().add(place(vector)), sums[vector]);
                }
            }
        }
    }
);

multiversion!(
    /// Adds to each of `sums` the products of `by`, whole chunks, with the values of `from` after its start.
    fn add_products<S: Simd>(simd: S, from: &[f32], starts: &[usize], by: &[f32], sums: &mut [f32]) {
        let last = starts.iter().copied().max().unwrap_or(0);
        assert!(by.len().is_multiple_of(CHUNK) && from.len() >= last + by.len(), "room for whole chunks");
        for (start, sum) in starts.iter().zip(sums) {
            let mut parts = [simd.splat_f32s(0.0); VECTORS];
            for at in (0..by.len()).step_by(VECTORS * S::F32_LANES) {
                for (vector, part) in parts.iter_mut().enumerate() {
                    let at = at + vector * S::F32_LANES;
                    // SAFETY: `by` ends with a whole number of these vectors, and `from` has as many values after the start.
                    let [values, by] =
                        unsafe { [load::<S>(from.as_ptr().add(start + at)), load::<S>(by.as_ptr().add(at))] };
                    *part = simd.mul_add_f32s(values, by, *part);
                }
            }
            let [a, b, c, d] = parts;
            *sum += simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)));
        }
    }
);
