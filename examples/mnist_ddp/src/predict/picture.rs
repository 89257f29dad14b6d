//! Image files as luminance and opacity.

use super::sample::Plane;
use anyhow::{Context, Result, bail};
use burn_ddp::data::Decoded;
use std::{fs, path::Path};

/// Maximum side; larger images are reduced.
const LARGEST: usize = 1024;

/// A drawn, photographed or scanned image.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Luminance, from 0 (black) to 1 (white).
    pub(super) luma: Plane,
    /// Opacity, from 0 (transparent) to 1 (opaque).
    pub(super) alpha: Plane,
}

impl Picture {
    /// Reads a PNG or JPEG file, whose type is detected from its content.
    ///
    /// # Errors
    /// If the file cannot be read or is not a complete image of these types. The error names the file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::decode(&bytes).with_context(|| path.display().to_string())
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let Decoded { width, height, colours, has_alpha, pixels, orientation } = Decoded::of(bytes)?;
        let picture = Self::of(&pixels, [width, height], colours, has_alpha)?;
        Ok(Self { luma: picture.luma.upright(orientation), alpha: picture.alpha.upright(orientation) })
    }

    /// Converts rows of pixels with 1 or 3 colours and, with `has_alpha`, opacity.
    fn of(pixels: &[u8], [width, height]: [usize; 2], colours: usize, has_alpha: bool) -> Result<Self> {
        let bytes = colours + usize::from(has_alpha);
        if width == 0 || height == 0 || pixels.len() != width * height * bytes {
            bail!("{} bytes of pixels for {width}x{height}", pixels.len());
        }
        let shade = |pixel: &[u8]| match pixel {
            // Luma of ITU-R BT.601.
            [r, g, b, ..] => (0.299 * f32::from(*r) + 0.587 * f32::from(*g) + 0.114 * f32::from(*b)) / 255.0,
            [grey, ..] => f32::from(*grey) / 255.0,
            [] => 0.0,
        };
        let opacity = |pixel: &[u8]| match pixel {
            [.., alpha] if has_alpha => f32::from(*alpha) / 255.0,
            _ => 1.0,
        };
        let luma = Plane::new(width, pixels.chunks(bytes).map(shade).collect());
        let alpha = Plane::new(width, pixels.chunks(bytes).map(opacity).collect());
        let scale = (LARGEST as f32 / width.max(height) as f32).min(1.0);
        Ok(Self { luma: luma.scaled(scale), alpha: alpha.scaled(scale) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grey_colours_and_opacity_are_read() {
        let grey = Picture::of(&[0, 255, 51, 0], [2, 2], 1, false).expect("a picture");
        assert_eq!(grey.luma.values(), [0.0, 1.0, 0.2, 0.0]);
        assert_eq!(grey.alpha.values(), [1.0; 4]);
        let green = Picture::of(&[0, 255, 0, 51], [1, 1], 3, true).expect("a picture");
        assert!((green.luma.values()[0] - 0.587).abs() < 1e-6);
        assert_eq!(green.alpha.values(), [0.2]);
        assert!(Picture::of(&[0; 5], [2, 2], 1, false).is_err());
    }

    #[test]
    fn invalid_images_are_rejected() {
        for (bytes, words) in [
            (&b"GIF89a"[..], "neither a PNG nor a JPEG"),
            (b"", "neither a PNG nor a JPEG"),
            (b"\x89PNG\r\n\x1a\n", "damaged PNG image"),
            (b"\xff\xd8\xff\xe0\0\x10JFIF", "damaged JPEG image"),
        ] {
            let error = format!("{:#}", Picture::decode(bytes).expect_err(words));
            assert!(error.contains(words), "{error}");
        }
    }
}
