//! Maximum and mean of windows that may overlap, forward and backward.
//!
//! Both reduce the rows of a window first, for all columns at once, and then its columns.

use crate::{
    parallel,
    simd::{multiversion, sum},
};
use std::ops::Range;

/// Index of a window that is all padding.
const NONE: u32 = u32::MAX;

/// Windows of any size, stride and padding in planes.
#[derive(Clone, Debug)]
pub struct Spans {
    /// Number of images and channels.
    planes: [usize; 2],
    size: [usize; 2],
    /// The rows, and the columns, of each window without padding.
    axes: [Vec<Range<usize>>; 2],
    /// Number by which sums are divided, if it is not the number of values.
    divisor: Option<usize>,
}

impl Spans {
    /// Windows of `kernel` rows and columns in images `[batch, channels, height, width]`, with padding before and after
    /// each axis.
    ///
    /// `None` if there is no value or no window, the kernel or the stride is zero, or sizes exceed the address space.
    pub fn new(
        images: [usize; 4],
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [[usize; 2]; 2],
    ) -> Option<Self> {
        let mut axes = [Vec::new(), Vec::new()];
        for (axis, spans) in axes.iter_mut().enumerate() {
            let (length, kernel, [before, after]) = (images[2 + axis], kernel[axis], padding[axis]);
            let padded = length.checked_add(before)?.checked_add(after)?;
            let last = padded.checked_sub(kernel).filter(|_| kernel > 0 && stride[axis] > 0)?;
            let inside = |at: usize| at.saturating_sub(before).min(length);
            *spans = (0..=last).step_by(stride[axis]).map(|at| inside(at)..inside(at + kernel)).collect();
        }
        Self::of(images, axes)
    }

    /// `output` rows and columns of windows that cover images `[batch, channels, height, width]`, as in PyTorch's
    /// `adaptive_avg_pool2d`.
    ///
    /// `None` as for [`Spans::new`].
    pub fn adaptive(images: [usize; 4], output: [usize; 2]) -> Option<Self> {
        parallel::values(&[output[0].max(images[2]), output[1].max(images[3])])?;
        let spans = |length: usize, count: usize| {
            (0..count).map(|at| at * length / count..((at + 1) * length).div_ceil(count)).collect()
        };
        Self::of(images, [spans(images[2], output[0]), spans(images[3], output[1])])
    }

    fn of(images: [usize; 4], axes: [Vec<Range<usize>>; 2]) -> Option<Self> {
        let [batch, channels, height, width] = images;
        let spans = Self { planes: [batch, channels], size: [height, width], axes, divisor: None };
        let some = |shape: [usize; 4]| parallel::values(&shape).is_some_and(|values| values > 0);
        // Positions within a plane are stored in 32 bits.
        let fits = height.checked_mul(width).is_some_and(|values| values < NONE as usize);
        (some(images) && some(spans.output()) && fits).then_some(spans)
    }

    /// The same windows with a mean that is the sum divided by `divisor`.
    pub fn divided_by(self, divisor: usize) -> Self {
        Self { divisor: Some(divisor), ..self }
    }

    /// Input shape, `[batch, channels, height, width]`.
    pub fn input(&self) -> [usize; 4] {
        [self.planes[0], self.planes[1], self.size[0], self.size[1]]
    }

    /// Output shape, `[batch, channels, height, width]`.
    pub fn output(&self) -> [usize; 4] {
        [self.planes[0], self.planes[1], self.axes[0].len(), self.axes[1].len()]
    }

    /// The largest value of each window and its position in the plane.
    ///
    /// Of equal values, the first counts; NaN is propagated. A window that is all padding has the maximum −∞.
    ///
    /// # Panics
    /// If there are fewer values than the input shape requires.
    pub fn max(&self, values: &[f32]) -> (Vec<f32>, Vec<u32>) {
        let [inputs, outputs] = self.lens();
        self.build([outputs, outputs], |planes, out, taken| {
            let values = &values[planes.start * inputs..planes.end * inputs];
            maxima(self, values, out, taken);
        })
    }

    /// Adds each gradient of [`max`](Self::max) to the position of its window's largest value.
    ///
    /// # Panics
    /// If there are fewer gradients or positions than the output shape requires.
    pub fn max_gradient(&self, gradients: &[f32], taken: &[u32]) -> Vec<f32> {
        let [inputs, outputs] = self.lens();
        let add = |planes: Range<usize>, to: &mut [f32], _: &mut [()]| {
            for (plane, to) in planes.zip(to.chunks_exact_mut(inputs)) {
                let windows = plane * outputs..(plane + 1) * outputs;
                for (gradient, &taken) in gradients[windows.clone()].iter().zip(&taken[windows]) {
                    if taken != NONE {
                        to[taken as usize] += gradient;
                    }
                }
            }
        };
        self.build([inputs, 0], add).0
    }

    /// The mean of each window, without padding or of [`divided_by`](Self::divided_by) values.
    ///
    /// # Panics
    /// If there are fewer values than the input shape requires.
    pub fn mean(&self, values: &[f32]) -> Vec<f32> {
        let [inputs, outputs] = self.lens();
        let write = |planes: Range<usize>, out: &mut [f32], _: &mut [()]| {
            let values = &values[planes.start * inputs..planes.end * inputs];
            means(self, values, out);
        };
        self.build([outputs, 0], write).0
    }

    /// Adds each gradient of [`mean`](Self::mean), divided as the sum, to the positions of its window.
    ///
    /// # Panics
    /// If there are fewer gradients than the output shape requires.
    pub fn mean_gradient(&self, gradients: &[f32]) -> Vec<f32> {
        let [inputs, outputs] = self.lens();
        let add = |planes: Range<usize>, to: &mut [f32], _: &mut [()]| {
            let gradients = &gradients[planes.start * outputs..planes.end * outputs];
            add_mean_gradients(self, gradients, to);
        };
        self.build([inputs, 0], add).0
    }

    /// Number of values of a plane of the input and of the output.
    fn lens(&self) -> [usize; 2] {
        [self.size[0] * self.size[1], self.axes[0].len() * self.axes[1].len()]
    }

    /// The number that the sum of a window is divided by.
    fn divisor(&self, rows: &Range<usize>, columns: &Range<usize>) -> f32 {
        self.divisor.unwrap_or(rows.len() * columns.len()).max(1) as f32
    }

    /// Zeros with `lens` values per plane, after `work` on ranges of planes.
    fn build<B: Send + Clone + Default>(
        &self,
        [len_a, len_b]: [usize; 2],
        work: impl Fn(Range<usize>, &mut [f32], &mut [B]) + Sync + Send,
    ) -> (Vec<f32>, Vec<B>) {
        const PART: usize = 1 << 14;
        let planes = self.planes[0] * self.planes[1];
        let (mut a, mut b) = (vec![0.0; planes * len_a], vec![B::default(); planes * len_b]);
        let at_once = (PART / self.lens()[0]).max(1);
        let outputs = (&mut a[..], &mut b[..], &mut [(); 0][..]);
        parallel::write_parts(
            [planes, at_once],
            [len_a, len_b, 0],
            outputs,
            || (),
            |(), planes, a, b, _| {
                work(planes, a, b);
            },
        );
        (a, b)
    }
}

multiversion!(
    /// [`Spans::max`] of some planes.
    fn maxima(spans: &Spans, values: &[f32], out: &mut [f32], taken: &mut [u32]) {
        let (width, [inputs, _]) = (spans.size[1], spans.lens());
        let mut best = vec![0; width];
        let mut windows = out.iter_mut().zip(taken);
        for plane in values.chunks_exact(inputs) {
            for rows in &spans.axes[0] {
                best.fill(i64::MIN);
                for y in rows.clone() {
                    let values = plane[y * width..][..width].iter().zip((y * width) as u32..);
                    for (best, (&value, place)) in best.iter_mut().zip(values) {
                        *best = key(value, place).max(*best);
                    }
                }
                for (columns, (out, taken)) in spans.axes[1].iter().zip(&mut windows) {
                    let most = best[columns.clone()].iter().copied().fold(i64::MIN, i64::max);
                    *taken = place(most);
                    *out = plane.get(*taken as usize).copied().unwrap_or(f32::NEG_INFINITY);
                }
            }
        }
    }
);

/// A number whose order is that of values, with NaN as the largest, and of equal values that of their places: the
/// first is the largest, and the last of NaN.
#[inline(always)]
fn key(value: f32, place: u32) -> i64 {
    // Adding zero makes both zeros equal.
    let bits = (value + 0.0).to_bits() as i32;
    let order = bits ^ ((bits >> 31) & i32::MAX);
    let (order, place) = if value.is_nan() { (i32::MAX, place) } else { (order, !place) };
    (i64::from(order) << 32) | i64::from(place)
}

/// The place of a [`key`]; [`NONE`] for the key below all others.
#[inline(always)]
fn place(key: i64) -> u32 {
    if (key >> 32) as i32 == i32::MAX { key as u32 } else { !(key as u32) }
}

multiversion!(
    /// [`Spans::mean`] of some planes.
    fn means(spans: &Spans, values: &[f32], out: &mut [f32]) {
        let (width, [inputs, _]) = (spans.size[1], spans.lens());
        let whole = spans.axes[1].iter().all(|columns| *columns == (0..width));
        let mut sums = vec![0.0; width];
        let mut windows = out.iter_mut();
        for plane in values.chunks_exact(inputs) {
            for rows in &spans.axes[0] {
                let values = &plane[rows.start * width..rows.end * width];
                sums.fill(0.0);
                // Whole rows are contiguous.
                if !whole {
                    for values in values.chunks_exact(width) {
                        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                    }
                }
                for (columns, out) in spans.axes[1].iter().zip(&mut windows) {
                    let total = match whole {
                        true => sum(values, values, |value, _| value),
                        false => sums[columns.clone()].iter().sum(),
                    };
                    *out = total / spans.divisor(rows, columns);
                }
            }
        }
    }
);

multiversion!(
    /// [`Spans::mean_gradient`] of some planes, added to zeros.
    fn add_mean_gradients(spans: &Spans, gradients: &[f32], to: &mut [f32]) {
        let (width, [inputs, _]) = (spans.size[1], spans.lens());
        let mut sums = vec![0.0; width];
        let mut gradients = gradients.chunks_exact(spans.axes[1].len());
        for plane in to.chunks_exact_mut(inputs) {
            for (rows, gradients) in spans.axes[0].iter().zip(&mut gradients) {
                sums.fill(0.0);
                for (columns, gradient) in spans.axes[1].iter().zip(gradients) {
                    let each = gradient / spans.divisor(rows, columns);
                    sums[columns.clone()].iter_mut().for_each(|sum| *sum += each);
                }
                for to in plane[rows.start * width..rows.end * width].chunks_exact_mut(width) {
                    to.iter_mut().zip(&sums).for_each(|(to, sum)| *to += sum);
                }
            }
        }
    }
);
