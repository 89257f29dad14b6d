//! Random changes of training pictures: crops and reflections.

use super::image_folder::Image;
use collective::sampler::mix;
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

/// Random changes of a picture, which depend on seed, epoch and index only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageAugment {
    /// Pixels of black by which a picture is padded on each side before a random crop of its size.
    pub crop: usize,
    /// Whether left and right are exchanged with a probability of one half.
    pub flip: bool,
}

impl ImageAugment {
    /// Changes a picture. `index` is its position in the data set.
    pub fn apply(self, mut image: Image, seed: u64, epoch: usize) -> Image {
        let stream = mix(mix(seed, epoch as u64), image.index as u64);
        let draw = |number: u64, below: usize| (mix(stream, number) % below.max(1) as u64) as usize;
        let offset = [draw(1, 2 * self.crop + 1), draw(2, 2 * self.crop + 1)];
        let flip = self.flip && draw(3, 2) == 1;
        if flip || offset != [self.crop; 2] {
            let start = offset.map(|at| at as isize - self.crop as isize);
            let size = [image.picture.width, image.picture.height];
            image.picture = image.picture.window(start, size, flip);
        }
        image
    }
}

impl FromStr for ImageAugment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut augment = Self::default();
        for part in text.split(',').filter(|_| text != "none") {
            match part.split_once(':').map_or((part, None), |(name, value)| (name, Some(value))) {
                ("flip", None) => augment.flip = true,
                ("crop", Some(pixels)) => {
                    let pixels = pixels.parse().ok().filter(|pixels| (1..=1024).contains(pixels));
                    augment.crop = pixels.ok_or("crop:PIXELS needs a whole number from 1 to 1024")?;
                }
                _ => return Err("expected none, or some of crop:PIXELS and flip".into()),
            }
        }
        Ok(augment)
    }
}

impl fmt::Display for ImageAugment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.crop, self.flip) {
            (0, false) => f.write_str("none"),
            (0, true) => f.write_str("flip"),
            (crop, false) => write!(f, "crop:{crop}"),
            (crop, true) => write!(f, "crop:{crop},flip"),
        }
    }
}

impl Serialize for ImageAugment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Picture;

    fn picture() -> Picture {
        Picture { width: 3, height: 2, channels: 1, pixels: vec![1, 2, 3, 4, 5, 6] }
    }

    #[test]
    fn changes_depend_on_seed_epoch_and_index() {
        let augment: ImageAugment = "crop:2,flip".parse().expect("valid");
        let changed = |seed, epoch, index| {
            augment.apply(Image { picture: picture(), label: 0, index }, seed, epoch).picture
        };
        let all = |seed, epoch| (0..20).map(|index| changed(seed, epoch, index)).collect::<Vec<_>>();
        assert_eq!(all(1, 1), all(1, 1));
        assert!(all(1, 1) != all(2, 1) && all(1, 1) != all(1, 2));
        let none = ImageAugment::default();
        assert_eq!(none.apply(Image { picture: picture(), label: 0, index: 3 }, 1, 1).picture, picture());
    }

    #[test]
    fn text_round_trips() {
        for text in ["none", "flip", "crop:4", "crop:4,flip"] {
            assert_eq!(text.parse::<ImageAugment>().expect("valid").to_string(), text);
        }
        for bad in ["", "crop", "crop:0", "crop:x", "flip:1", "rotate:3"] {
            assert!(bad.parse::<ImageAugment>().is_err(), "{bad}");
        }
    }
}
