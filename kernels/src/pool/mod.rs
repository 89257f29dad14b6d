//! Pooling: maxima and means of windows, forward and backward.
//!
//! [`Windows`] are adjacent; their maximum can include a ReLU or a channel's affine map. An initial maximum of zero
//! includes the ReLU, one of −∞ does not. One byte per window stores the index of its largest value. [`Spans`] are any
//! windows.

mod spans;

use crate::{
    affine::{Affine, Centred},
    parallel::{self, Room},
    simd::multiversion,
};
use std::{mem::MaybeUninit, ops::Range};

pub use spans::Spans;

/// Index of a window without a positive value.
pub const NONE: u8 = u8::MAX;

/// Maximum number of columns of a window, for which the compiler vectorises the loops.
const WIDEST: usize = 4;

/// Adjacent windows in planes of `size`; incomplete windows at the ends are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Number of images and channels.
    planes: [usize; 2],
    size: [usize; 2],
    kernel: [usize; 2],
    /// Maximum of no values, and its index.
    least: (f32, u8),
}

impl Windows {
    /// Windows of `kernel` rows and columns in images `[batch, channels, height, width]`.
    ///
    /// `None` if there is no window, a window is wider than 4 or has more than 254 values, or the images would
    /// not fit in the address space.
    pub fn new(images: [usize; 4], kernel: [usize; 2]) -> Option<Self> {
        let [batch, channels, height, width] = images;
        let [rows, columns] = kernel;
        let fits = (1..=height).contains(&rows)
            && (1..=width.min(WIDEST)).contains(&columns)
            && parallel::values(&images).is_some_and(|values| values > 0);
        let windows = Self { planes: [batch, channels], size: [height, width], kernel, least: (0.0, NONE) };
        (fits && rows * columns < usize::from(NONE)).then_some(windows)
    }

    /// The same windows without the ReLU. In a window of −∞, the first value counts as the largest.
    pub fn without_relu(self) -> Self {
        Self { least: (f32::NEG_INFINITY, 0), ..self }
    }

    /// Input shape, `[batch, channels, height, width]`.
    pub fn input(&self) -> [usize; 4] {
        [self.planes[0], self.planes[1], self.size[0], self.size[1]]
    }

    /// Output shape, `[batch, channels, height, width]`.
    pub fn output(&self) -> [usize; 4] {
        let [rows, columns] = self.counts();
        [self.planes[0], self.planes[1], rows, columns]
    }

    /// Rows and columns of a window.
    pub fn kernel(&self) -> [usize; 2] {
        self.kernel
    }

    fn counts(&self) -> [usize; 2] {
        [self.size[0] / self.kernel[0], self.size[1] / self.kernel[1]]
    }
}

/// The largest of each window's values, and of zero with a ReLU, and their indices within the windows.
///
/// # Panics
/// If there are fewer values than `windows` requires.
pub fn forward(values: &[f32], windows: &Windows) -> (Vec<f32>, Vec<u8>) {
    let same = vec![Affine { factors: [1.0, 0.0], constant: 0.0 }; windows.planes[1]];
    let Mapped { values, taken, .. } = pool(&same, Centred { values, centres: None }, windows, false);
    (values, taken)
}

/// Result of [`forward_mapped`], with a value for each window.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapped {
    /// The largest of zero and the window's maps.
    pub values: Vec<f32>,
    /// Its index within the window, or [`NONE`].
    pub taken: Vec<u8>,
    /// The input there, without its centre; 0 without an index.
    pub inputs: Vec<f32>,
}

/// [`forward`] of each channel's map of `x`, whose result is not stored.
///
/// # Panics
/// If there are fewer values than `windows` requires or fewer maps than channels.
pub fn forward_mapped(maps: &[Affine], x: Centred, windows: &Windows) -> Mapped {
    pool(&maps[..windows.planes[1]], x, windows, true)
}

fn pool(maps: &[Affine], x: Centred, windows: &Windows, inputs_wanted: bool) -> Mapped {
    let [batch, channels, rows, columns] = windows.output();
    let one = |(): &mut (), images: Range<usize>, out: Room, taken: Room<u8>, inputs: Room| {
        pool_image(windows, maps, x, images.start, out, taken, inputs)
    };
    let len = channels * rows * columns;
    let lens = [len, len, if inputs_wanted { len } else { 0 }];
    // SAFETY: every row of every plane is written.
    let (values, taken, inputs) = unsafe { parallel::build_three([batch, 1], lens, || (), one) };
    Mapped { values, taken, inputs }
}

multiversion!(
    /// Pools an image; `inputs` is empty unless wanted.
    fn pool_image(
        windows: &Windows,
        maps: &[Affine],
        x: Centred<'_>,
        image: usize,
        out: Room<'_>,
        taken: Room<'_, u8>,
        inputs: Room<'_>,
    ) {
        match windows.kernel[1] {
            1 => pool_to::<1>(windows, maps, x, image, [out, inputs], taken),
            2 => pool_to::<2>(windows, maps, x, image, [out, inputs], taken),
            3 => pool_to::<3>(windows, maps, x, image, [out, inputs], taken),
            _ => pool_to::<WIDEST>(windows, maps, x, image, [out, inputs], taken),
        }
    }
);

/// [`pool_image`] for windows of `K` columns.
#[inline(always)]
fn pool_to<const K: usize>(
    windows: &Windows,
    maps: &[Affine],
    x: Centred,
    image: usize,
    [out, inputs]: [Room; 2],
    taken: Room<u8>,
) {
    let ([height, width], kernel_rows, [rows, wide]) = (windows.size, windows.kernel[0], windows.counts());
    // The same width for both, so that they use the same vectors.
    let (mut best, mut which, mut from) = (vec![0.0f32; wide], vec![0u32; wide], vec![0.0f32; wide]);
    let (least, none) = windows.least;
    for (channel, map) in maps.iter().enumerate() {
        let (values, centre) = x.plane(image * maps.len() + channel, maps.len(), height * width);
        for row in 0..rows {
            best.fill(least);
            which.fill(u32::from(none));
            from.fill(0.0);
            for y in 0..kernel_rows {
                let (values, _) = values[(row * kernel_rows + y) * width..][..width].as_chunks::<K>();
                let best = best.iter_mut().zip(&mut which).zip(&mut from);
                for (((best, which), from), window) in best.zip(values) {
                    for x in 0..K {
                        let input = window[x] - centre;
                        let value = map.of(input);
                        // NaN is propagated, as in Burn.
                        let better = value > *best || value.is_nan();
                        *which = if better { (y * K + x) as u32 } else { *which };
                        *from = if better { input } else { *from };
                        *best = if better { value } else { *best };
                    }
                }
            }
            let at = (channel * rows + row) * wide;
            out[at..at + wide].write_copy_of_slice(&best);
            for (taken, &which) in taken[at..at + wide].iter_mut().zip(&which) {
                taken.write(which as u8);
            }
            if !inputs.is_empty() {
                inputs[at..at + wide].write_copy_of_slice(&from);
            }
        }
    }
}

/// Spreads each gradient to the position of its window's largest value.
///
/// # Panics
/// If there are fewer gradients than `windows` requires.
pub fn backward(gradients: &[f32], taken: &[u8], windows: &Windows) -> Vec<f32> {
    let ([batch, channels, rows, columns], [height, width]) = (windows.output(), windows.size);
    let len = channels * rows * columns;
    let one = |(): &mut (), image: Range<usize>, to: Room| {
        let start = image.start * len;
        let (gradients, taken) = (&gradients[start..][..len], &taken[start..][..len]);
        spread_image(windows, gradients, taken, to);
    };
    // SAFETY: every value of every row is written.
    unsafe { parallel::build([batch, 1], channels * height * width, || (), one) }
}

multiversion!(
    fn spread_image(windows: &Windows, gradients: &[f32], taken: &[u8], to: Room<'_>) {
        match windows.kernel[1] {
            1 => spread::<1>(windows, gradients, taken, to),
            2 => spread::<2>(windows, gradients, taken, to),
            3 => spread::<3>(windows, gradients, taken, to),
            _ => spread::<WIDEST>(windows, gradients, taken, to),
        }
    }
);

#[inline(always)]
fn spread<const K: usize>(windows: &Windows, gradients: &[f32], taken: &[u8], to: Room) {
    let ([height, width], kernel_rows, [rows, wide]) = (windows.size, windows.kernel[0], windows.counts());
    for (number, to) in to.chunks_exact_mut(width).enumerate() {
        let (plane, row) = (number / height, number % height);
        let (windows, rest) = to.as_chunks_mut::<K>();
        rest.fill(MaybeUninit::new(0.0));
        if row >= rows * kernel_rows {
            windows.fill([MaybeUninit::new(0.0); K]);
            continue;
        }
        let at = (plane * rows + row / kernel_rows) * wide;
        let first = (row % kernel_rows * K) as u8;
        let (gradients, taken) = (&gradients[at..at + wide], &taken[at..at + wide]);
        for ((window, &gradient), &taken) in windows.iter_mut().zip(gradients).zip(taken) {
            for x in 0..K {
                window[x].write(if taken == first + x as u8 { gradient } else { 0.0 });
            }
        }
    }
}
