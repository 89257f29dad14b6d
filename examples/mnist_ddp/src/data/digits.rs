//! Generated handwritten digits in MNIST's format, for machines that cannot download MNIST.
//!
//! Each image has a random stream that depends only on seed, split and index. Only `+ − × ÷ √` on `f32` are used,
//! whose results IEEE 754 defines exactly. Every machine therefore generates the same bytes.

// rustfmt would put each number of the table on its own line.
#[rustfmt::skip]
mod glyphs;
mod pen;
mod rng;

use super::{CLASSES, Images, PIXELS, SIDE};
use glyphs::{GLYPHS, Point, Style};
use pen::{Ink, Sample, Sheet};
use rng::Rng;

/// Split of a data set. Each split has separate random streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Train,
    Test,
}

/// Generates `count` images of one split. The first n images do not depend on `count`.
pub fn generate(count: usize, split: Split, seed: u64) -> Images {
    let mut pixels = vec![0; count * PIXELS];
    let mut labels = Vec::with_capacity(count);
    let mut writer = Writer::default();
    for (index, image) in pixels.chunks_exact_mut(PIXELS).enumerate() {
        let mut rng = Rng::stream(seed, split, index as u64);
        let digit = rng.below(CLASSES as u32) as usize;
        writer.write(digit, &mut rng, image);
        labels.push(digit as u8);
    }
    Images::new(pixels, labels)
}

/// Renderer of digits that reuses its buffers.
#[derive(Default)]
struct Writer {
    points: Vec<Point>,
    samples: Vec<Sample>,
    /// End of each stroke in `samples`.
    ends: Vec<usize>,
}

impl Writer {
    fn write(&mut self, digit: usize, rng: &mut Rng, image: &mut [u8]) {
        self.trace(pick(GLYPHS[digit], rng), rng);
        self.slant(digit, rng);
        self.frame(rng);
        let mut sheet = Sheet::blank();
        for pair in self.segments() {
            sheet.line(pair[0], pair[1]);
        }
        let ink = Ink {
            softness: rng.between(0.8, 1.5),
            roughness: rng.between(0.0, 0.12),
            brightness: rng.between(235.0, 255.9),
        };
        sheet.expose(&ink, rng, image);
    }

    /// Returns the line segments of all strokes.
    fn segments(&self) -> impl Iterator<Item = &[Sample]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).flat_map(|(start, &end)| self.samples[start..end].windows(2))
    }

    /// Traces the strokes through jittered and elastically distorted control points.
    ///
    /// The distortion follows Simard, Steinkraus and Platt 2003.
    fn trace(&mut self, style: &Style, rng: &mut Rng) {
        let elastic = Elastic::random(rng.between(0.3, 1.8), rng);
        let sloppiness = rng.between(0.05, 0.28);
        // Position of the digit's middle: handwriting varies in the proportion of upper and lower half.
        let waist = 0.7 * rng.normal();
        self.samples.clear();
        self.ends.clear();
        for stroke in style.strokes {
            self.points.clear();
            for (i, &point) in stroke.iter().enumerate() {
                // A corner is a repeated point; both copies must remain equal.
                let moved = if i > 0 && stroke[i - 1] == point {
                    self.points[i - 1]
                } else {
                    let lifted = point[1] + waist * point[1] * (10.0 - point[1]) / 25.0;
                    [point[0] + sloppiness * rng.normal(), lifted + sloppiness * rng.normal()]
                };
                self.points.push(moved);
            }
            let start = self.samples.len();
            pen::curve(&self.points, &mut self.samples);
            // Pen pressure, and thus width, changes linearly along a stroke.
            let (from, to) = (rng.between(0.8, 1.2), rng.between(0.8, 1.2));
            let last = (self.samples.len() - start - 1).max(1) as f32;
            for (i, sample) in self.samples[start..].iter_mut().enumerate() {
                sample.at = elastic.apply(sample.at);
                sample.radius = from + (to - from) * i as f32 / last;
            }
            self.ends.push(self.samples.len());
        }
    }

    /// Applies random width, slant and rotation.
    fn slant(&mut self, digit: usize, rng: &mut Rng) {
        // The slant of handwritten ones varies more than that of other digits.
        let lean = if digit == 1 { 0.28 } else { 0.2 };
        let width = 1.1 + 0.24 * rng.normal();
        let shear = -0.12 + lean * rng.normal();
        // cos and sin are computed from the tangent of the half angle, which is exact on every machine.
        let half = (0.055 * rng.normal()).clamp(-0.15, 0.15);
        let (cos, sin) = ((1.0 - half * half) / (1.0 + half * half), 2.0 * half / (1.0 + half * half));
        for sample in &mut self.samples {
            let y = sample.at[1] - 5.0;
            let x = (sample.at[0] - 3.0) * width + shear * y;
            sample.at = [cos * x - sin * y, sin * x + cos * y];
        }
    }

    /// Fits the digit into 20×20 pixels and centres its mass in 28×28, as in MNIST.
    fn frame(&mut self, rng: &mut Rng) {
        let radius = rng.between(0.9, 1.8);
        let (mut low, mut high) = ([f32::INFINITY; 2], [f32::NEG_INFINITY; 2]);
        for sample in &self.samples {
            for k in 0..2 {
                low[k] = low[k].min(sample.at[k]);
                high[k] = high[k].max(sample.at[k]);
            }
        }
        let size = rng.between(18.5, 20.5) - 2.0 * radius;
        let scale = size / (high[0] - low[0]).max(high[1] - low[1]).max(1.0);
        let (mut mass, mut moment) = (1e-6, [0.0; 2]);
        for pair in self.segments() {
            let [dx, dy] = [pair[1].at[0] - pair[0].at[0], pair[1].at[1] - pair[0].at[1]];
            let weight = (dx * dx + dy * dy).sqrt();
            mass += weight;
            moment[0] += weight * 0.5 * (pair[0].at[0] + pair[1].at[0]);
            moment[1] += weight * 0.5 * (pair[0].at[1] + pair[1].at[1]);
        }
        // In MNIST, the centre of mass is at pixel index 14, counted from 0.
        let middle = SIDE as f32 / 2.0;
        let shift: Point = std::array::from_fn(|k| {
            let centred = middle + 0.3 * rng.normal() - scale * moment[k] / mass;
            // Ink keeps a margin of one pixel, which has precedence over centring.
            let ink = 1.2 * radius;
            centred.clamp(1.0 + ink - scale * low[k], SIDE as f32 - 2.0 - ink - scale * high[k])
        });
        for sample in &mut self.samples {
            sample.at = std::array::from_fn(|k| scale * sample.at[k] + shift[k]);
            sample.radius *= radius;
        }
    }
}

fn pick<'a>(styles: &'a [Style], rng: &mut Rng) -> &'a Style {
    let total = styles.iter().map(|style| style.weight).sum();
    let mut ticket = rng.below(total);
    styles
        .iter()
        .find(|style| {
            let hit = ticket < style.weight;
            ticket = ticket.saturating_sub(style.weight);
            hit
        })
        .unwrap_or(&styles[0])
}

/// Smooth random displacement field of the plane.
///
/// A coarse grid of random vectors is interpolated with the uniform cubic B-spline, which approximates the Gaussian
/// of the paper.
struct Elastic {
    grid: [[Point; Self::KNOTS]; Self::KNOTS],
}

impl Elastic {
    /// Number of grid points per axis, including the spline's margin of one at each end.
    const KNOTS: usize = 6;
    /// Distance of grid points in glyph units.
    const CELL: f32 = 4.0;

    fn random(strength: f32, rng: &mut Rng) -> Self {
        let mut knot = || [strength * rng.normal(), strength * rng.normal()];
        Elastic { grid: std::array::from_fn(|_| std::array::from_fn(|_| knot())) }
    }

    fn apply(&self, at: Point) -> Point {
        let (column, across) = Self::weights(at[0]);
        let (row, down) = Self::weights(at[1]);
        let mut moved = at;
        for (i, wy) in down.iter().enumerate() {
            for (j, wx) in across.iter().enumerate() {
                let knot = self.grid[row + i][column + j];
                moved[0] += wx * wy * knot[0];
                moved[1] += wx * wy * knot[1];
            }
        }
        moved
    }

    /// Returns the first of the four grid lines around a coordinate, and their weights.
    fn weights(x: f32) -> (usize, [f32; 4]) {
        let x = (x / Self::CELL).clamp(0.0, (Self::KNOTS - 4) as f32 + 0.999);
        let cell = x as usize;
        let t = x - cell as f32;
        let u = 1.0 - t;
        let weights = [
            u * u * u / 6.0,
            (3.0 * t * t * t - 6.0 * t * t + 4.0) / 6.0,
            (3.0 * u * u * u - 6.0 * u * u + 4.0) / 6.0,
            t * t * t / 6.0,
        ];
        (cell, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    fn sum(images: &Images) -> String {
        let hash = Sha256::new().chain_update(images.pixels()).chain_update(images.labels());
        hex::encode(&hash.finalize()[..8])
    }

    #[test]
    fn every_machine_generates_the_same_bytes() {
        // Changes of the rendering change these digests.
        assert_eq!(sum(&generate(500, Split::Train, 0)), "74d553db80cd7767");
        assert_eq!(sum(&generate(500, Split::Test, 0)), "8e5abc69bd2333e5");
    }

    #[test]
    fn seeds_and_splits_have_separate_streams() {
        let train = generate(40, Split::Train, 1);
        assert_eq!(train.pixels()[..20 * PIXELS], *generate(20, Split::Train, 1).pixels());
        for other in [generate(40, Split::Test, 1), generate(40, Split::Train, 2)] {
            assert!((0..40).all(|i| train.image(i) != other.image(i)));
        }
        assert!((1..40).all(|i| train.image(0) != train.image(i)));
    }

    #[test]
    fn pixels_are_distributed_as_in_mnist() {
        let images = generate(4000, Split::Train, 3);
        let values = || images.pixels().iter().map(|&pixel| f64::from(pixel) / 255.0);
        let count = values().count() as f64;
        let mean = values().sum::<f64>() / count;
        let deviation = (values().map(|value| value * value).sum::<f64>() / count - mean * mean).sqrt();
        // MNIST's values, 0.1307 and 0.3081, are constants of the normalisation.
        assert!((mean - 0.1307).abs() < 0.01, "{mean}");
        assert!((deviation - 0.3081).abs() < 0.015, "{deviation}");
        for digit in 0..10 {
            let share = images.labels().iter().filter(|&&label| label == digit).count();
            assert!((300..500).contains(&share), "{share} of 4000 are {digit}");
        }
    }

    #[test]
    fn digits_lie_near_the_middle_within_the_edge() {
        let images = generate(2000, Split::Train, 4);
        for i in 0..images.len() {
            let image = images.image(i);
            let edge = |k: usize| [k, (SIDE - 1) * SIDE + k, k * SIDE, k * SIDE + SIDE - 1];
            assert!((0..SIDE).all(|k| edge(k).iter().all(|&pixel| image[pixel] < 128)), "image {i}");
            let (mut mass, mut x, mut y) = (0.0, 0.0, 0.0);
            for (pixel, &value) in image.iter().enumerate() {
                mass += f32::from(value);
                x += f32::from(value) * (pixel % SIDE) as f32;
                y += f32::from(value) * (pixel / SIDE) as f32;
            }
            assert!(mass > 20.0 * 255.0, "image {i} is nearly empty");
            assert!((x / mass - 14.0).abs() < 3.5 && (y / mass - 14.0).abs() < 3.5, "image {i}");
        }
    }

    /// The digits are learnable but not trivial: nearest-neighbour classification is mostly correct.
    #[test]
    fn the_nearest_image_mostly_has_the_same_label() {
        let (known, asked) = (generate(3000, Split::Train, 5), generate(300, Split::Test, 5));
        let distance = |a: &[u8], b: &[u8]| -> u32 {
            a.iter().zip(b).map(|(&a, &b)| u32::from(a.abs_diff(b)).pow(2)).sum()
        };
        let right = (0..asked.len())
            .filter(|&i| {
                let nearest = (0..known.len()).min_by_key(|&k| distance(known.image(k), asked.image(i)));
                nearest.is_some_and(|k| known.label(k) == asked.label(i))
            })
            .count();
        assert!((250..300).contains(&right), "{right} of 300");
    }
}
