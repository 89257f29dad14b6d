//! Images with their labels, as bytes in memory, and the normalisation of a pixel.

use burn_ddp::run::misclassified::GreyImages;
use std::{fmt, sync::Arc};

/// Number of pixels per side.
pub const SIDE: usize = 28;
/// Number of pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;
/// Number of classes; labels are below it.
pub const CLASSES: usize = 10;

/// Mean of MNIST's training pixels, 0 to 1, as in pytorch/examples.
pub const MEAN: f32 = 0.1307;
/// Standard deviation of MNIST's training pixels, as in pytorch/examples.
pub const STD: f32 = 0.3081;

/// Normalises a pixel: (pixel/255 − [`MEAN`]) / [`STD`], in `f32`.
pub const fn normalise(pixel: f32) -> f32 {
    (pixel / 255.0 - MEAN) / STD
}

static NORMALISED: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut pixel = 0;
    while pixel < 256 {
        table[pixel] = normalise(pixel as f32);
        pixel += 1;
    }
    table
};

/// Images of 28×28 pixels and their labels. Clones share the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Images {
    pixels: Arc<[u8]>,
    labels: Arc<[u8]>,
}

impl Images {
    /// The caller has verified that the lengths match and that labels are below [`CLASSES`].
    pub(super) fn new(pixels: Vec<u8>, labels: Vec<u8>) -> Self {
        debug_assert_eq!(pixels.len(), labels.len() * PIXELS);
        Images { pixels: pixels.into(), labels: labels.into() }
    }

    /// The first `count` images, or all if there are fewer.
    pub(super) fn first(self, count: Option<usize>) -> Self {
        let Some(count) = count.filter(|count| *count < self.len()) else { return self };
        Images { pixels: self.pixels[..count * PIXELS].into(), labels: self.labels[..count].into() }
    }

    /// Number of images.
    #[expect(clippy::len_without_is_empty)] // there is always one
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Pixels of image `index`, row by row from the top, with 0 for background.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn image(&self, index: usize) -> &[u8] {
        &self.pixels[index * PIXELS..(index + 1) * PIXELS]
    }

    /// Label of image `index`, 0 to 9.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn label(&self, index: usize) -> u8 {
        self.labels[index]
    }

    /// All pixels, image by image.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// All labels.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Appends the normalised pixels of image `index` to a batch.
    pub fn extend_normalised(&self, index: usize, batch: &mut Vec<f32>) {
        batch.extend(self.image(index).iter().map(|&pixel| NORMALISED[usize::from(pixel)]));
    }
}

impl From<Images> for GreyImages {
    fn from(Images { pixels, labels }: Images) -> Self {
        GreyImages { side: SIDE, pixels, labels }
    }
}

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Images({})", self.len())
    }
}
