//! Conversion of a picture to MNIST's format.
//!
//! Ink is bright on black and fitted into 20×20 pixels, with its centre of mass in the middle of 28×28 pixels
//! (LeCun, Cortes and Burges, "The MNIST database").

use super::{lighting, picture::Picture, sample::Plane};
use crate::data::{PIXELS, SIDE};
use thiserror::Error;

/// Longer side of a digit in pixels.
const FIT: f32 = 20.0;
/// Minimum ink intensity; lower values are paper.
const MIN_INK: f32 = 0.02;
/// Maximum noise of the paper, relative to the ink; above it, the picture is blank.
const MAX_NOISE: f32 = 0.4;
/// Minimum difference between ink and paper, on a scale of 0 (black) to 1 (white).
const MIN_CONTRAST: f32 = 0.08;
/// Minimum stroke width in pixels of the result; thinner strokes are thickened, as MNIST's are wider.
const MIN_STROKE: f32 = 2.0;
/// Minimum ink of a connected component, relative to the largest one; smaller ones are dirt.
const MIN_COMPONENT: f32 = 0.05;

/// Error for a picture without a digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotADigit {
    /// The picture is blank or shows only the paper's texture.
    #[error("nothing is drawn on this picture, or it is fainter than the paper's texture")]
    Empty,
}

/// Converts a picture to 28×28 pixels in MNIST's format; 0 is background.
///
/// # Errors
/// If the picture is blank.
pub fn digit(picture: &Picture) -> Result<[u8; PIXELS], NotADigit> {
    let ink = ink(picture)?;
    let ([x, y], size) = bounds(&ink).ok_or(NotADigit::Empty)?;
    let ink = ink.part([x, y], size);
    let scale = FIT / size[0].max(size[1]) as f32;
    let ink = thicken_strokes(ink, scale);
    let scale = FIT / ink.width().max(ink.height()) as f32;
    let ink = ink.scaled(scale);
    let most = ink.values().iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    Ok(centred(&ink.map(|value| value / most)))
}

/// Computes the ink intensity of each pixel, 0 to 1, for any colours.
fn ink(Picture { luma, alpha }: &Picture) -> Result<Plane, NotADigit> {
    let pixels = luma.values().len() as f32;
    let opaque: f32 = alpha.values().iter().sum::<f32>() / pixels;
    if opaque < 0.5 {
        // On a transparent background, opacity is the ink.
        let most = alpha.values().iter().copied().fold(0.0, f32::max);
        return if most < MIN_CONTRAST {
            Err(NotADigit::Empty)
        } else {
            Ok(cleaned(&alpha.map(|a| a / most), MIN_INK))
        };
    }
    let paper = median(luma.values().iter().zip(alpha.values()).filter(|(_, a)| **a > 0.5).map(|(l, _)| *l));
    let shown = luma.values().iter().zip(alpha.values()).map(|(l, a)| l * a + paper * (1.0 - a));
    let shown = Plane::new(luma.width(), shown.collect());
    let threshold = otsu(&shown);
    // The border of the picture is paper.
    let (right, bottom) = (shown.width() - 1, shown.height() - 1);
    let sides = (0..=bottom).flat_map(|y| [shown.at(0, y), shown.at(right, y)]);
    let ends = (0..=right).flat_map(|x| [shown.at(x, 0), shown.at(x, bottom)]);
    let bright_paper = median(sides.chain(ends)) > threshold;
    let shown = if bright_paper { shown.map(|value| 1.0 - value) } else { shown };
    let lit = lighting::flattened(&shown);
    let threshold = otsu(&lit);
    let paper = median(lit.values().iter().copied().filter(|value| *value <= threshold));
    let ink = median(lit.values().iter().copied().filter(|value| *value > threshold));
    // NaN if there is no paper or no ink.
    if (ink - paper).is_nan() || ink - paper < MIN_CONTRAST {
        return Err(NotADigit::Empty);
    }
    // Texture and noise are symmetric around the paper, so they are measured on the side without ink.
    let below = lit.values().iter().copied().filter(|value| *value < paper).map(|value| paper - value);
    let noise = quantile(below, 0.99).max(0.0) / (ink - paper);
    if noise > MAX_NOISE {
        return Err(NotADigit::Empty);
    }
    let inked = lit.map(|value| ((value - paper) / (ink - paper)).clamp(0.0, 1.0));
    Ok(cleaned(&inked, (1.5 * noise).max(MIN_INK)))
}

/// Removes values below `min_ink` and small connected components.
fn cleaned(ink: &Plane, min_ink: f32) -> Plane {
    let width = ink.width();
    let mut values: Vec<f32> = ink.values().iter().map(|v| if *v < min_ink { 0.0 } else { *v }).collect();
    // 8-connected components with their total ink.
    let mut components: Vec<(f32, Vec<usize>)> = Vec::new();
    let mut seen: Vec<bool> = values.iter().map(|value| *value == 0.0).collect();
    for start in 0..values.len() {
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let (mut component, mut next) = (vec![start], 0);
        while let Some(&at) = component.get(next) {
            next += 1;
            let (x, y) = (at % width, at / width);
            for y in y.saturating_sub(1)..=(y + 1).min(ink.height() - 1) {
                for x in x.saturating_sub(1)..=(x + 1).min(width - 1) {
                    if !std::mem::replace(&mut seen[y * width + x], true) {
                        component.push(y * width + x);
                    }
                }
            }
        }
        components.push((component.iter().map(|at| values[*at]).sum(), component));
    }
    let most = components.iter().map(|(mass, _)| *mass).fold(0.0, f32::max);
    for (_, component) in components.iter().filter(|(mass, _)| *mass < MIN_COMPONENT * most) {
        component.iter().for_each(|at| values[*at] = 0.0);
    }
    Plane::new(width, values)
}

/// Returns the upper left corner and the size of the bounding box of the ink.
fn bounds(ink: &Plane) -> Option<([usize; 2], [usize; 2])> {
    let inked = || ink.values().iter().enumerate().filter(|(_, value)| **value > 0.0).map(|(at, _)| at);
    let (columns, rows) = (|| inked().map(|at| at % ink.width()), || inked().map(|at| at / ink.width()));
    let (left, top) = (columns().min()?, rows().min()?);
    Some(([left, top], [columns().max()? + 1 - left, rows().max()? + 1 - top]))
}

/// Thickens strokes to at least [`MIN_STROKE`] after scaling by `scale`.
fn thicken_strokes(ink: Plane, scale: f32) -> Plane {
    let (width, height) = (ink.width(), ink.height());
    let is_ink = |x: usize, y: usize| x < width && y < height && ink.at(x, y) > 0.5;
    let (mut area, mut edges) = (0, 0);
    for y in 0..=height {
        for x in 0..=width {
            let here = is_ink(x, y);
            area += usize::from(here);
            edges += usize::from(here != (x > 0 && is_ink(x - 1, y)));
            edges += usize::from(here != (y > 0 && is_ink(x, y - 1)));
        }
    }
    // A long stroke has an edge on each side, so its width is twice the area per edge length.
    let stroke = 2.0 * area as f32 / edges.max(1) as f32;
    let radius = ((MIN_STROKE / scale - stroke) / 2.0).round();
    if radius < 1.0 { ink } else { ink.framed(radius as usize).thickened(radius as usize) }
}

/// Centres the ink's mass in 28×28 pixels, as far as it fits.
fn centred(ink: &Plane) -> [u8; PIXELS] {
    let mass: f32 = ink.values().iter().sum();
    let (mut x, mut y) = (0.0, 0.0);
    for (at, value) in ink.values().iter().enumerate() {
        x += value * ((at % ink.width()) as f32 + 0.5);
        y += value * ((at / ink.width()) as f32 + 0.5);
    }
    let start = |sum: f32, length: usize| {
        // In 9,999 of MNIST's 10,000 test images, it is in the pixel right of and below the middle.
        let wanted = (SIDE as f32 / 2.0 + 0.5 - sum / mass.max(f32::MIN_POSITIVE)).round();
        wanted.clamp(0.0, SIDE.saturating_sub(length) as f32) as usize
    };
    let (left, top) = (start(x, ink.width()), start(y, ink.height()));
    let mut pixels = [0; PIXELS];
    for (at, value) in ink.values().iter().enumerate() {
        let (x, y) = (left + at % ink.width(), top + at / ink.width());
        if x < SIDE && y < SIDE {
            pixels[y * SIDE + x] = (value * 255.0).round() as u8;
        }
    }
    pixels
}

fn median(values: impl Iterator<Item = f32>) -> f32 {
    quantile(values, 0.5)
}

/// Returns the quantile `part`; NaN if there are no values.
fn quantile(values: impl Iterator<Item = f32>, part: f32) -> f32 {
    let mut values: Vec<f32> = values.collect();
    if values.is_empty() {
        return f32::NAN;
    }
    let at = (part * values.len() as f32) as usize;
    let at = at.min(values.len() - 1);
    *values.select_nth_unstable_by(at, f32::total_cmp).1
}

/// Computes Otsu's threshold ("A Threshold Selection Method from Gray-Level Histograms", 1979).
fn otsu(plane: &Plane) -> f32 {
    let mut counts = [0.0_f64; 256];
    plane.values().iter().for_each(|value| counts[(value.clamp(0.0, 1.0) * 255.0) as usize] += 1.0);
    let total: f64 = counts.iter().sum();
    let sum: f64 = counts.iter().enumerate().map(|(shade, count)| shade as f64 * count).sum();
    let (mut below, mut below_sum, mut best, mut threshold) = (0.0, 0.0, -1.0, 0);
    for (shade, count) in counts.iter().enumerate() {
        below += count;
        below_sum += shade as f64 * count;
        let above = total - below;
        if below == 0.0 || above == 0.0 {
            continue;
        }
        let apart = below_sum / below - (sum - below_sum) / above;
        let between = below * above * apart * apart;
        if between > best {
            (best, threshold) = (between, shade);
        }
    }
    (threshold as f32 + 0.5) / 255.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws an L-shaped stroke, ink 1 on paper 0, with grey values from `shade(ink, index)`.
    fn bent(shade: impl Fn(f32, usize) -> f32) -> Picture {
        let on = |x: usize, y: usize| {
            (x / 6 == 5 && (12..90).contains(&y)) || (y / 6 == 14 && (30..70).contains(&x))
        };
        let ink = (0..120 * 100).map(|at| f32::from(on(at % 120, at / 120)));
        let luma = Plane::new(120, ink.enumerate().map(|(at, ink)| shade(ink, at)).collect());
        Picture { alpha: luma.map(|_| 1.0), luma }
    }

    /// Pseudorandom noise from −0.5 to 0.5.
    fn noise(at: usize) -> f32 {
        ((at as u32).wrapping_mul(2_654_435_761) >> 16 & 0xff) as f32 / 255.0 - 0.5
    }

    #[test]
    fn a_digit_is_20_pixels_high_centred_and_of_full_brightness() {
        let pixels = digit(&bent(|ink, _| 0.9 - 0.6 * ink)).expect("a digit");
        let rows: Vec<usize> =
            (0..SIDE).filter(|y| pixels[y * SIDE..][..SIDE].iter().any(|p| *p > 0)).collect();
        let columns: Vec<usize> = (0..SIDE).filter(|x| (0..SIDE).any(|y| pixels[y * SIDE + x] > 0)).collect();
        assert_eq!(rows.len(), 20);
        assert!((10..=11).contains(&columns.len()), "78 by 40, to scale: {}", columns.len());
        assert_eq!(pixels.iter().max(), Some(&255));
        let mass: f32 = pixels.iter().map(|p| f32::from(*p)).sum();
        let middle = |part: &dyn Fn(usize) -> usize| {
            let sum: f32 =
                pixels.iter().enumerate().map(|(at, p)| f32::from(*p) * (part(at) as f32 + 0.5)).sum();
            sum / mass
        };
        for middle in [middle(&|at| at % SIDE), middle(&|at| at / SIDE)] {
            assert!((14.0..=15.0).contains(&middle), "{middle}");
        }
    }

    #[test]
    fn colours_light_and_texture_do_not_matter() {
        let plain = digit(&bent(|ink, _| 1.0 - ink)).expect("a digit");
        let light = |at: usize| 0.3 * (at % 120 + at / 120) as f32 / 220.0;
        let looks: [(&str, Picture); 4] = [
            ("light on dark", bent(|ink, _| 0.2 + 0.5 * ink)),
            ("faint", bent(|ink, _| 0.9 - 0.1 * ink)),
            ("slanting light", bent(|ink, at| 0.6 - 0.4 * ink + light(at))),
            ("texture", bent(|ink, at| 0.7 - 0.5 * ink + 0.1 * noise(at))),
        ];
        for (name, picture) in looks {
            let pixels = digit(&picture).expect(name);
            let apart = pixels.iter().zip(&plain).map(|(a, b)| u32::from(a.abs_diff(*b))).sum::<u32>();
            assert!(apart < 255 * 4, "{name}: {apart}");
        }
        let clear = bent(|ink, _| ink);
        let clear = Picture { luma: clear.luma.map(|_| 0.4), alpha: clear.luma };
        assert_eq!(digit(&clear), Ok(plain));
    }

    #[test]
    fn paper_alone_is_no_digit() {
        assert_eq!(digit(&bent(|_, _| 0.8)), Err(NotADigit::Empty));
        assert_eq!(digit(&bent(|_, at| 0.5 + 0.4 * noise(at))), Err(NotADigit::Empty));
        assert_eq!(digit(&bent(|_, at| 0.2 + (at % 120) as f32 / 200.0)), Err(NotADigit::Empty));
        let dot = Plane::new(1, vec![0.5]);
        assert_eq!(digit(&Picture { alpha: dot.map(|_| 1.0), luma: dot }), Err(NotADigit::Empty));
    }
}
