//! Images and labels as bytes in memory, and pixel normalisation.

use std::{fmt, sync::Arc};

/// Width and height of an image in pixels.
pub const SIDE: usize = 28;
/// Number of pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;
/// Number of classes; labels are 0 to `CLASSES` − 1.
pub const CLASSES: usize = 10;

/// Mean of MNIST's training pixels scaled to 0..=1, as in pytorch/examples.
pub const MEAN: f32 = 0.1307;
/// Standard deviation of the same pixels.
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
    /// Creates images; the caller has validated lengths and labels.
    pub(super) fn new(pixels: Vec<u8>, labels: Vec<u8>) -> Self {
        debug_assert_eq!(pixels.len(), labels.len() * PIXELS);
        Images { pixels: pixels.into(), labels: labels.into() }
    }

    /// Returns the first `count` images, or all if there are fewer.
    pub(super) fn first(self, count: usize) -> Self {
        if count >= self.len() {
            return self;
        }
        Images { pixels: self.pixels[..count * PIXELS].into(), labels: self.labels[..count].into() }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Pixels of image `index`, row by row from the top; 0 is background.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn image(&self, index: usize) -> &[u8] {
        &self.pixels[index * PIXELS..(index + 1) * PIXELS]
    }

    /// Label of image `index`, 0 to 9.
    ///
    /// # Panics
    /// If `index` is out of range.
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

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Images({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Images {
        Images::new([[7; PIXELS], [255; PIXELS]].concat(), vec![3, 9])
    }

    #[test]
    fn images_and_labels_are_found_by_index() {
        let images = two();
        assert_eq!((images.len(), images.is_empty()), (2, false));
        assert_eq!((images.image(0), images.label(0)), (&[7; PIXELS][..], 3));
        assert_eq!((images.image(1), images.label(1)), (&[255; PIXELS][..], 9));
        assert_eq!(images.pixels().len(), 2 * PIXELS);
        assert_eq!(images.labels(), [3, 9]);
    }

    #[test]
    fn the_first_images_are_the_first() {
        assert_eq!(two().first(1).labels(), [3]);
        assert_eq!(two().first(1).pixels(), [7; PIXELS]);
        assert_eq!(two().first(3), two());
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn an_index_beyond_the_end_panics() {
        two().image(2);
    }

    #[test]
    fn normalisation_follows_pytorch() {
        // Values of torchvision's ToTensor and Normalize.
        assert!((normalise(0.0) - -0.424_212_93).abs() < 1e-7);
        assert!((normalise(255.0) - 2.821_486_7).abs() < 1e-6);
        let mut batch = vec![];
        two().extend_normalised(1, &mut batch);
        two().extend_normalised(0, &mut batch);
        assert_eq!(batch.len(), 2 * PIXELS);
        assert_eq!((batch[0], batch[PIXELS]), (normalise(255.0), normalise(7.0)));
    }
}
