//! Labelled greyscale images in memory.

use std::{fmt, sync::Arc};

/// Square greyscale images of one size and their classes. Clones share the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct GreyImages {
    /// Side of an image in pixels.
    pub side: usize,
    /// Pixels of all images, row by row from the top; 0 is black.
    pub pixels: Arc<[u8]>,
    /// Class of each image.
    pub labels: Arc<[u8]>,
}

impl GreyImages {
    /// Number of images.
    #[expect(clippy::len_without_is_empty)] // data sets have samples
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The first `count` images, or all if there are fewer.
    pub fn first(self, count: Option<usize>) -> Self {
        let Some(count) = count.filter(|count| *count < self.len()) else { return self };
        let pixels = self.pixels[..count * self.side * self.side].into();
        GreyImages { side: self.side, pixels, labels: self.labels[..count].into() }
    }

    /// Pixels of image `index`.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn image(&self, index: usize) -> &[u8] {
        let size = self.side * self.side;
        &self.pixels[index * size..(index + 1) * size]
    }
}

impl fmt::Debug for GreyImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GreyImages({})", self.len())
    }
}
