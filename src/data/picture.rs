//! Pictures in PNG and JPEG files: decoding, colours and size.

use super::exif;
use anyhow::{Context, Result, anyhow, bail};
use kernels::pictures::{Filter, resample_pixels, window};
use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
use zune_jpeg::{JpegDecoder, errors::DecodeErrors};
use zune_png::PngDecoder;

/// Largest number of pixels that is decoded, as in Pillow: 256 MiB of red, green and blue.
const MAX_PIXELS: usize = 89_478_485;

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub width: usize,
    pub height: usize,
    /// 1 (grey), 2 (grey, opacity), 3 (red, green, blue) or 4 (red, green, blue, opacity).
    pub channels: usize,
    /// `[height, width, channels]`.
    pub pixels: Vec<u8>,
}

/// Rejects pictures whose pixels could exceed the memory of a rank.
fn check_size(width: usize, height: usize) -> Result<()> {
    if width.saturating_mul(height) > MAX_PIXELS {
        bail!("{width}x{height} pixels, more than {MAX_PIXELS}; scale the picture down");
    }
    Ok(())
}

/// Luma of ITU-R BT.601, from 0 to 255.
pub fn luma(red: u8, green: u8, blue: u8) -> f32 {
    0.299 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue)
}

/// The words of a decoder's message, which may have several lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Picture {
    /// Decodes a PNG or JPEG file, whose type is detected from its content, upright and with the channels of the file.
    ///
    /// # Errors
    /// If `bytes` are not a complete picture of these types, or have more than 89,478,485 pixels.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        let picture = if bytes.starts_with(b"\x89PNG") {
            Self::png(bytes)
        } else if bytes.starts_with(&[0xff, 0xd8, 0xff]) {
            Self::jpeg(bytes)
        } else {
            bail!("neither a PNG nor a JPEG image")
        }?;
        let Self { width, height, channels, pixels } = &picture;
        if *width == 0 || *height == 0 || pixels.len() != width * height * channels {
            bail!("{} bytes of pixels for {width}x{height}", pixels.len());
        }
        Ok(picture)
    }

    fn png(bytes: &[u8]) -> Result<Self> {
        let options = DecoderOptions::default().png_set_strip_to_8bit(true);
        let mut decoder = PngDecoder::new_with_options(ZCursor::new(bytes), options);
        let damaged = |error| anyhow!("damaged PNG image: {}", one_line(&format!("{error:?}")));
        decoder.decode_headers().map_err(damaged)?;
        let (width, height) = decoder.dimensions().context("a PNG without a size")?;
        check_size(width, height)?;
        let pixels = decoder.decode().map_err(damaged)?;
        let pixels = pixels.u8().context("a PNG with more than 8 bits per channel")?;
        let channels = match decoder.colorspace().context("a PNG without a colour type")? {
            ColorSpace::Luma => 1,
            ColorSpace::LumaA => 2,
            ColorSpace::RGB => 3,
            ColorSpace::RGBA => 4,
            other => bail!("a PNG with the unsupported colour type {other:?}"),
        };
        Ok(Self { width, height, channels, pixels })
    }

    fn jpeg(bytes: &[u8]) -> Result<Self> {
        let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        let damaged = |error: DecodeErrors| anyhow!("damaged JPEG image: {}", one_line(&error.to_string()));
        decoder.decode_headers().map_err(damaged)?;
        let (width, height) = decoder.dimensions().context("a JPEG without a size")?;
        check_size(width, height)?;
        let pixels = decoder.decode().map_err(damaged)?;
        let orientation = decoder.exif().and_then(|exif| exif::orientation(exif));
        let whole = pixels.len() == width * height * 3;
        let picture = Self { width, height, channels: 3, pixels };
        Ok(if whole { picture.upright(orientation.unwrap_or(1)) } else { picture })
    }

    /// Whether an opacity follows the colours of each pixel.
    pub fn has_opacity(&self) -> bool {
        self.channels.is_multiple_of(2)
    }

    /// Decodes a PNG or JPEG file, upright, with 1 or 3 `channels`. Opacity is dropped, as by torchvision's loader.
    ///
    /// # Errors
    /// As for [`from_file`](Self::from_file).
    pub fn decode(bytes: &[u8], channels: usize) -> Result<Self> {
        let file = Self::from_file(bytes)?;
        if file.channels == channels {
            return Ok(file);
        }
        let colours = |pixel: &[u8]| match (pixel, channels) {
            ([r, g, b, ..], 1) => [luma(*r, *g, *b).round() as u8; 3],
            ([r, g, b, ..], _) => [*r, *g, *b],
            ([grey, ..], _) => [*grey; 3],
            ([], _) => [0; 3],
        };
        let pixels = file.pixels.chunks_exact(file.channels);
        let pixels = pixels.flat_map(|pixel| colours(pixel).into_iter().take(channels)).collect();
        Ok(Self { channels, pixels, ..file })
    }

    /// Undoes the `orientation` of Exif: exchanges rows and columns, then left and right, then top and bottom.
    fn upright(self, orientation: u16) -> Self {
        if !(2..=8).contains(&orientation) {
            return self;
        }
        let transposed = orientation >= 5;
        let (mirrored, flipped) =
            (matches!(orientation, 2 | 3 | 6 | 7), matches!(orientation, 3 | 4 | 7 | 8));
        let (width, height) = if transposed { (self.height, self.width) } else { (self.width, self.height) };
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let x = if mirrored { width - 1 - x } else { x };
            let y = if flipped { height - 1 - y } else { y };
            let (x, y) = if transposed { (y, x) } else { (x, y) };
            pixels.extend(&self.pixels[(y * self.width + x) * self.channels..][..self.channels]);
        }
        Self { width, height, channels: self.channels, pixels }
    }

    /// A picture of `size` [columns, rows] from column `start[0]` and row `start[1]` on, black outside this picture.
    /// `mirrored` exchanges left and right.
    pub(super) fn window(&self, start: [isize; 2], size: [usize; 2], mirrored: bool) -> Self {
        let pixels = window(&self.pixels, [self.width, self.channels], start, size, mirrored);
        Self { width: size[0], height: size[1], channels: self.channels, pixels }
    }

    /// Scales the shorter side to `side` and crops the longer one around its centre.
    pub fn square(self, side: usize) -> Self {
        let shorter = self.width.min(self.height);
        let scaled = match shorter == side {
            true => self,
            false => {
                let to = |length: usize| ((length * side) as f64 / shorter as f64).round().max(1.0) as usize;
                let size = [to(self.width), to(self.height)];
                self.resized(size)
            }
        };
        let start = [scaled.width, scaled.height].map(|length| ((length - side) / 2) as isize);
        if scaled.width == side && scaled.height == side {
            return scaled;
        }
        scaled.window(start, [side, side], false)
    }

    fn resized(self, size: [usize; 2]) -> Self {
        let pixels = resample_pixels(&self.pixels, [self.width, self.channels], size, Filter::Triangle);
        Self { width: size[0], height: size[1], channels: self.channels, pixels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::png;

    fn grey(width: usize, pixels: &[u8]) -> Picture {
        Picture { width, height: pixels.len() / width, channels: 1, pixels: pixels.to_vec() }
    }

    #[test]
    fn grey_pictures_are_decoded_with_either_number_of_channels() {
        let file = png::grey(2, &[0, 255, 51, 7]);
        assert_eq!(Picture::decode(&file, 1).expect("a picture"), grey(2, &[0, 255, 51, 7]));
        let colours = Picture::decode(&file, 3).expect("a picture");
        assert_eq!(colours.pixels, [0, 0, 0, 255, 255, 255, 51, 51, 51, 7, 7, 7]);
    }

    #[test]
    fn invalid_pictures_are_rejected() {
        let cut = &png::grey(28, &[7; 28 * 28])[..60];
        for (bytes, words) in [
            (&b"GIF89a"[..], "neither a PNG nor a JPEG"),
            (b"", "neither a PNG nor a JPEG"),
            (b"\x89PNG\r\n\x1a\n", "damaged PNG image"),
            (b"\xff\xd8\xff\xe0\0\x10JFIF", "damaged JPEG image"),
            (cut, "damaged PNG image"),
        ] {
            let error = format!("{:#}", Picture::decode(bytes, 3).expect_err(words));
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_size_is_checked_before_pixels_are_decoded() {
        let mut file = png::grey(2, &[0; 4]);
        // IHDR: length, name, width, height, five bytes, checksum.
        file[16..24].copy_from_slice(&[16_000_u32.to_be_bytes(); 2].concat());
        let checksum = crc32fast::hash(&file[12..29]);
        file[29..33].copy_from_slice(&checksum.to_be_bytes());
        let error = format!("{:#}", Picture::from_file(&file).expect_err("too large"));
        assert!(error.contains("16000x16000 pixels, more than 89478485"), "{error}");
    }

    #[test]
    fn the_orientation_turns_a_picture() {
        // Rotated clockwise by a quarter.
        assert_eq!(grey(3, &[1, 2, 3, 4, 5, 6]).upright(6), grey(2, &[4, 1, 5, 2, 6, 3]));
    }

    #[test]
    fn pictures_are_scaled_and_cropped_to_a_square() {
        assert_eq!(grey(4, &[1, 2, 3, 4, 5, 6, 7, 8]).square(2), grey(2, &[2, 3, 6, 7]));
        // A mean over each half, with a triangle filter over its neighbours.
        let even = grey(4, &[10; 16]).square(2);
        assert_eq!(even, grey(2, &[10; 4]));
        assert_eq!(grey(1, &[9]).square(3), grey(3, &[9; 9]));
    }

    /// Reference values from Pillow 12's `resize(…, Image.BILINEAR)`, which rounds between rows and columns.
    #[test]
    fn resampling_equals_pillows() {
        let ramp = |width: usize, count: u8| grey(width, &(0..count).map(|i| 10 * i).collect::<Vec<_>>());
        let wide = [
            8, 9, 14, 18, 22, 27, 28, 43, 44, 49, 53, 57, 62, 63, 77, 78, 83, 87, 91, 96, 97, 113, 114, 119,
            123, 127, 132, 133,
        ];
        for (picture, size, wanted) in
            [(ramp(4, 16), [2, 2], &[36, 52, 98, 114][..]), (ramp(3, 15), [7, 4], &wide[..])]
        {
            let resized = picture.resized(size);
            let close = resized.pixels.iter().zip(wanted).all(|(ours, theirs)| ours.abs_diff(*theirs) <= 1);
            assert!(close && resized.pixels.len() == wanted.len(), "{resized:?}");
        }
    }
}
