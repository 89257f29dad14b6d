//! Conversion of an image to MNIST's format.
//!
//! The ink is bright on black, fitted into 20×20 pixels, with its centre of mass in the middle of 28×28 (LeCun, Cortes
//! and Burges, "The MNIST database").

use super::{
    lighting,
    picture::{Picture, Plane},
};
use crate::data::{PIXELS, SIDE};

/// Longer side of a digit in pixels.
const FIT: f32 = 20.0;
/// Values below this fraction of the ink are paper.
const FAINT: f32 = 0.02;
/// Texture of the paper, as a fraction of the ink, above which there is only noise.
const TEXTURE: f32 = 0.4;
/// Minimum difference between ink and paper, as a fraction of that between black and white.
const CONTRAST: f32 = 0.08;
/// Minimum width of strokes in the final image, in pixels; thinner ones are thickened.
const PEN: f32 = 2.0;
/// Specks with less than this fraction of the largest one's ink are dirt.
const DIRT: f32 = 0.05;

/// Converts an image to 28×28 pixels with 0 for background; `None` if there is no digit.
pub fn digit(picture: &Picture) -> Option<[u8; PIXELS]> {
    let ink = ink(picture)?;
    let ([x, y], size) = bounds(&ink)?;
    let ink = ink.part([x, y], size);
    let scale = FIT / size[0].max(size[1]) as f32;
    let ink = with_pen(ink, scale);
    let scale = FIT / ink.width.max(ink.height()) as f32;
    let ink = ink.scaled(scale);
    let most = ink.values.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    Some(centred(&ink.map(|value| value / most)))
}

/// Amount of ink in each pixel, 0 to 1, independent of colours; `None` for one shade or only the paper's texture.
fn ink(Picture { luma, alpha }: &Picture) -> Option<Plane> {
    let pixels = luma.values.len() as f32;
    let opaque: f32 = alpha.values.iter().sum::<f32>() / pixels;
    if opaque < 0.5 {
        // Drawn on a transparent background: all opaque pixels are ink.
        let most = alpha.values.iter().copied().fold(0.0, f32::max);
        return (most >= CONTRAST).then(|| cleaned(&alpha.map(|a| a / most), FAINT));
    }
    let paper = median(luma.values.iter().zip(&alpha.values).filter(|(_, a)| **a > 0.5).map(|(l, _)| *l));
    let shown = luma.values.iter().zip(&alpha.values).map(|(l, a)| l * a + paper * (1.0 - a));
    let shown = Plane::new(luma.width, shown.collect());
    let threshold = otsu(&shown);
    // The border is paper.
    let (right, bottom) = (shown.width - 1, shown.height() - 1);
    let sides = (0..=bottom).flat_map(|y| [shown.at(0, y), shown.at(right, y)]);
    let ends = (0..=right).flat_map(|x| [shown.at(x, 0), shown.at(x, bottom)]);
    let bright_paper = median(sides.chain(ends)) > threshold;
    let shown = if bright_paper { shown.map(|value| 1.0 - value) } else { shown };
    let lit = lighting::evened(&shown);
    let threshold = otsu(&lit);
    let paper = median(lit.values.iter().copied().filter(|value| *value <= threshold));
    let ink = median(lit.values.iter().copied().filter(|value| *value > threshold));
    // NaN without paper or ink.
    if (ink - paper).is_nan() || ink - paper < CONTRAST {
        return None;
    }
    // Texture and noise are on both sides of the paper's shade, ink only on one.
    let below = lit.values.iter().copied().filter(|value| *value < paper).map(|value| paper - value);
    let noise = quantile(below, 0.99).max(0.0) / (ink - paper);
    if noise > TEXTURE {
        return None;
    }
    let inked = lit.map(|value| ((value - paper) / (ink - paper)).clamp(0.0, 1.0));
    Some(cleaned(&inked, (1.5 * noise).max(FAINT)))
}

/// Removes values below `faint`, and dirt.
fn cleaned(ink: &Plane, faint: f32) -> Plane {
    let width = ink.width;
    let mut values: Vec<f32> = ink.values.iter().map(|v| if *v < faint { 0.0 } else { *v }).collect();
    // Specks: connected pixels, including diagonal neighbours.
    let mut specks: Vec<(f32, Vec<usize>)> = Vec::new();
    let mut seen: Vec<bool> = values.iter().map(|value| *value == 0.0).collect();
    for start in 0..values.len() {
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let (mut speck, mut next) = (vec![start], 0);
        while let Some(&at) = speck.get(next) {
            next += 1;
            let (x, y) = (at % width, at / width);
            for y in y.saturating_sub(1)..=(y + 1).min(ink.height() - 1) {
                for x in x.saturating_sub(1)..=(x + 1).min(width - 1) {
                    if !std::mem::replace(&mut seen[y * width + x], true) {
                        speck.push(y * width + x);
                    }
                }
            }
        }
        specks.push((speck.iter().map(|at| values[*at]).sum(), speck));
    }
    let most = specks.iter().map(|(mass, _)| *mass).fold(0.0, f32::max);
    for (_, speck) in specks.iter().filter(|(mass, _)| *mass < DIRT * most) {
        speck.iter().for_each(|at| values[*at] = 0.0);
    }
    Plane::new(width, values)
}

/// Upper left corner and size of the non-zero region.
fn bounds(ink: &Plane) -> Option<([usize; 2], [usize; 2])> {
    let inked = || ink.values.iter().enumerate().filter(|(_, value)| **value > 0.0).map(|(at, _)| at);
    let (columns, rows) = (|| inked().map(|at| at % ink.width), || inked().map(|at| at / ink.width));
    let (left, top) = (columns().min()?, rows().min()?);
    Some(([left, top], [columns().max()? + 1 - left, rows().max()? + 1 - top]))
}

/// Thickens strokes that would be too thin at `scale` times the size.
fn with_pen(ink: Plane, scale: f32) -> Plane {
    let (width, height) = (ink.width, ink.height());
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
    // A long stroke has two edges.
    let stroke = 2.0 * area as f32 / edges.max(1) as f32;
    let radius = ((PEN / scale - stroke) / 2.0).round();
    if radius < 1.0 { ink } else { ink.thickened(radius as usize) }
}

/// Centres the ink in 28×28 by its centre of mass, as far as it fits.
fn centred(ink: &Plane) -> [u8; PIXELS] {
    let mass: f32 = ink.values.iter().sum();
    let (mut x, mut y) = (0.0, 0.0);
    for (at, value) in ink.values.iter().enumerate() {
        x += value * ((at % ink.width) as f32 + 0.5);
        y += value * ((at / ink.width) as f32 + 0.5);
    }
    let start = |sum: f32, length: usize| {
        // In 9,999 of MNIST's 10,000 test images it is in the pixel to the lower right of the middle.
        let wanted = (SIDE as f32 / 2.0 + 0.5 - sum / mass.max(f32::MIN_POSITIVE)).round();
        wanted.clamp(0.0, SIDE.saturating_sub(length) as f32) as usize
    };
    let (left, top) = (start(x, ink.width), start(y, ink.height()));
    let mut pixels = [0; PIXELS];
    for (at, value) in ink.values.iter().enumerate() {
        let (x, y) = (left + at % ink.width, top + at / ink.width);
        if x < SIDE && y < SIDE {
            pixels[y * SIDE + x] = (value * 255.0).round() as u8;
        }
    }
    pixels
}

fn median(values: impl Iterator<Item = f32>) -> f32 {
    quantile(values, 0.5)
}

/// Quantile of the values at the fraction `part`; NaN if there are none.
fn quantile(values: impl Iterator<Item = f32>, part: f32) -> f32 {
    let mut values: Vec<f32> = values.collect();
    if values.is_empty() {
        return f32::NAN;
    }
    let at = (part * values.len() as f32) as usize;
    let at = at.min(values.len() - 1);
    *values.select_nth_unstable_by(at, f32::total_cmp).1
}

/// Threshold that best separates bright from dark.
///
/// Source: Otsu, "A Threshold Selection Method from Gray-Level Histograms", 1979.
fn otsu(plane: &Plane) -> f32 {
    let mut counts = [0.0_f64; 256];
    plane.values.iter().for_each(|value| counts[(value.clamp(0.0, 1.0) * 255.0) as usize] += 1.0);
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
