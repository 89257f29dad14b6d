//! `--augment`: random affine and elastic transforms of training images.
//!
//! The transform of an image depends only on seed, epoch and index, so that it is the same at every world size and
//! after a resume.

mod on_device;

pub use on_device::DeviceTransform;

use crate::data::{PIXELS, SIDE};
use collective::sampler::mix;
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

/// Limits of the random transforms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Augment {
    /// Maximum translation along each axis, in pixels.
    pub shift: f32,
    /// Maximum rotation about the centre, in degrees.
    pub rotate: f32,
    /// Maximum change of scale, in percent.
    pub zoom: f32,
    /// Maximum displacement of the nodes of the elastic grid along each axis, in pixels.
    ///
    /// A coarse version of the elastic distortions of Simard et al. 2003 ("Best practices for convolutional neural
    /// networks applied to visual document analysis", section 2).
    pub elastic: f32,
}

/// Displacements (x, y) in pixels of the nodes of a grid over the image.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ElasticGrid([[[f32; 2]; ElasticGrid::NODES]; ElasticGrid::NODES]);

/// Transform of one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transform {
    grid: Option<ElasticGrid>,
    /// Translation to the right, in pixels.
    right: f32,
    /// Translation downwards, in pixels.
    down: f32,
    /// Source offset of one pixel to the right: (cos, sin) / zoom.
    step: (f32, f32),
}

impl Augment {
    const EXPECTED: &str =
        "expected none, or some of shift:PIXELS, rotate:DEGREES, zoom:PERCENT, elastic:PIXELS";
    const SHIFT: f32 = 2.0;
    const ROTATE: f32 = 10.0;
    const ZOOM: f32 = 10.0;
    const ELASTIC: f32 = 2.0;

    /// Whether images are unchanged.
    pub fn is_none(&self) -> bool {
        *self == Augment::default()
    }

    /// Samples the transform of image `index` in `epoch`.
    pub fn sample(&self, seed: u64, epoch: usize, index: usize) -> Transform {
        let mut rng = ChaCha8Rng::seed_from_u64(mix(mix(seed, epoch as u64), index as u64));
        // Translation, rotation and scale are always drawn, so that one limit does not affect the other values.
        let mut within = |limit: f32| limit * (2.0 * rng.random::<f32>() - 1.0);
        let (right, down) = (within(self.shift), within(self.shift));
        let (angle, zoom) = (within(self.rotate).to_radians(), 1.0 + within(self.zoom) / 100.0);
        let step = (angle.cos() / zoom, angle.sin() / zoom);
        let grid = (self.elastic > 0.0).then(|| {
            let mut grid = ElasticGrid([[[0.0; 2]; ElasticGrid::NODES]; ElasticGrid::NODES]);
            grid.0.iter_mut().flatten().flatten().for_each(|offset| *offset = within(self.elastic));
            grid
        });
        Transform { grid, right, down, step }
    }
}

impl ElasticGrid {
    /// Side of a grid cell, in pixels.
    const SIDE: usize = 7;
    /// Number of grid nodes per axis.
    const NODES: usize = SIDE / Self::SIDE + 1;

    /// Displacement of a pixel, interpolated bilinearly between the nodes of its cell.
    fn at(&self, x: usize, y: usize) -> [f32; 2] {
        let (column, row) = (x / Self::SIDE, y / Self::SIDE);
        let part = |place: usize| (place % Self::SIDE) as f32 / Self::SIDE as f32;
        let parts = (part(x), part(y));
        [0, 1].map(|axis| blend(parts, |right, down| self.0[row + down][column + right][axis]))
    }
}

impl Transform {
    /// Transforms an image with bilinear interpolation; pixels are 0 to 255, 0 outside the image.
    pub fn apply(&self, image: &[u8]) -> [f32; PIXELS] {
        let centre = (SIDE as f32 - 1.0) / 2.0;
        let (cos, sin) = self.step;
        let mut transformed = [0.0; PIXELS];
        for (at, pixel) in transformed.iter_mut().enumerate() {
            let displacement = self.grid.map_or([0.0; 2], |grid| grid.at(at % SIDE, at / SIDE));
            let x = (at % SIDE) as f32 - centre - self.right - displacement[0];
            let y = (at / SIDE) as f32 - centre - self.down - displacement[1];
            *pixel = interpolate(image, cos * x + sin * y + centre, cos * y - sin * x + centre);
        }
        transformed
    }
}

/// Interpolates the image at (x, y).
fn interpolate(image: &[u8], x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let (right, down) = (x - left, y - top);
    let pixel = |x: f32, y: f32| {
        let inside = 0.0..SIDE as f32;
        if inside.contains(&x) && inside.contains(&y) {
            f32::from(image[y as usize * SIDE + x as usize])
        } else {
            0.0
        }
    };
    blend((right, down), |right, down| pixel(left + right as f32, top + down as f32))
}

/// Interpolates bilinearly between the corners `corner(right, down)` of a cell.
///
/// The position is relative to the side of the cell.
fn blend((right, down): (f32, f32), corner: impl Fn(usize, usize) -> f32) -> f32 {
    let row = |y| corner(0, y) * (1.0 - right) + corner(1, y) * right;
    row(0) * (1.0 - down) + row(1) * down
}

impl FromStr for Augment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut augment = Augment::default();
        if text == "none" {
            return Ok(augment);
        }
        for part in text.split(',') {
            let (name, limit) =
                part.split_once(':').map_or((part, None), |(name, limit)| (name, Some(limit)));
            let (own, usual, most) = match name {
                "shift" => (&mut augment.shift, Self::SHIFT, SIDE as f32),
                "rotate" => (&mut augment.rotate, Self::ROTATE, 180.0),
                "zoom" => (&mut augment.zoom, Self::ZOOM, 90.0),
                "elastic" => (&mut augment.elastic, Self::ELASTIC, SIDE as f32),
                _ => {
                    return Err(Self::EXPECTED.into());
                }
            };
            *own = limit.map_or(Ok(usual), |limit| {
                let limit = limit.parse().ok().filter(|limit| (0.0..=most).contains(limit));
                limit.ok_or_else(|| format!("the limit of {name} is a number from 0 to {most}"))
            })?;
        }
        Ok(augment)
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Augment { shift, rotate, zoom, elastic } = *self;
        let parts = [("shift", shift), ("rotate", rotate), ("zoom", zoom), ("elastic", elastic)];
        let named = parts.iter().filter(|(_, limit)| *limit > 0.0);
        let named: Vec<String> = named.map(|(name, limit)| format!("{name}:{limit}")).collect();
        if named.is_empty() { f.write_str("none") } else { f.write_str(&named.join(",")) }
    }
}

impl Serialize for Augment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Image with one bright pixel.
    fn dot(x: usize, y: usize) -> [u8; PIXELS] {
        let mut image = [0; PIXELS];
        image[y * SIDE + x] = 200;
        image
    }

    fn transform(right: f32, down: f32, degrees: f32, zoom: f32) -> Transform {
        let (sin, cos) = degrees.to_radians().sin_cos();
        Transform { grid: None, right, down, step: (cos / zoom, sin / zoom) }
    }

    fn brightest(image: &[f32]) -> (usize, usize) {
        let at = (0..PIXELS).max_by(|a, b| image[*a].total_cmp(&image[*b])).expect("pixels");
        (at % SIDE, at / SIDE)
    }

    #[test]
    fn the_identity_transform_changes_nothing() {
        let image = dot(5, 9);
        assert_eq!(transform(0.0, 0.0, 0.0, 1.0).apply(&image), image.map(f32::from));
        let none = Augment::default().sample(1, 2, 3);
        assert_eq!(none.apply(&image), image.map(f32::from));
    }

    #[test]
    fn affine_transforms_move_pixels_as_expected() {
        let image = dot(10, 10);
        assert_eq!(transform(2.0, -3.0, 0.0, 1.0).apply(&image), dot(12, 7).map(f32::from));
        let half = transform(0.5, 0.0, 0.0, 1.0).apply(&image);
        assert_eq!((half[10 * SIDE + 10], half[10 * SIDE + 11]), (100.0, 100.0));
        // Rotated clockwise by 90 degrees, about (13.5, 13.5).
        assert_eq!(brightest(&transform(0.0, 0.0, 90.0, 1.0).apply(&image)), (17, 10));
        let larger = transform(0.0, 0.0, 0.0, 1.5).apply(&dot(11, 15));
        assert!([9, 10].contains(&brightest(&larger).0) && [15, 16].contains(&brightest(&larger).1));
        assert_eq!(transform(28.0, 0.0, 0.0, 1.0).apply(&image), [0.0; PIXELS]);
    }

    #[test]
    fn displaced_nodes_move_their_surroundings() {
        let mut grid = ElasticGrid([[[0.0; 2]; ElasticGrid::NODES]; ElasticGrid::NODES]);
        grid.0[1][2] = [2.0, -1.0];
        let displaced = Transform { grid: Some(grid), ..transform(0.0, 0.0, 0.0, 1.0) };
        assert_eq!(grid.at(14, 7), [2.0, -1.0]);
        assert_eq!(grid.at(14 + 7, 7), [0.0, 0.0]);
        let half = grid.at(14, 7 + 3).map(|offset| offset * 7.0 / 4.0);
        assert!((half[0] - 2.0).abs() < 1e-6 && (half[1] + 1.0).abs() < 1e-6, "{half:?}");
        // The source of the pixel at the node is above and to the left of it.
        assert_eq!(displaced.apply(&dot(12, 8))[7 * SIDE + 14], 200.0);
        assert_eq!(displaced.apply(&dot(3, 20)), dot(3, 20).map(f32::from));
        let drawn: Augment = "elastic:3".parse().expect("good");
        let all: Vec<f32> = (0..100)
            .flat_map(|index| {
                drawn.sample(1, 1, index).grid.expect("a grid").0.into_iter().flatten().flatten()
            })
            .collect();
        let widest = all.iter().fold(0f32, |widest, offset| widest.max(offset.abs()));
        assert!((2.9..=3.0).contains(&widest), "{widest}");
    }

    #[test]
    fn samples_keep_their_limits_and_depend_on_seed_epoch_and_image() {
        let augment: Augment = "shift:2,rotate:10".parse().expect("good");
        let of = |seed, epoch, index| augment.sample(seed, epoch, index);
        assert_eq!(of(1, 2, 3), of(1, 2, 3));
        for other in [of(2, 2, 3), of(1, 3, 3), of(1, 2, 4), of(1, 3, 2)] {
            assert_ne!(of(1, 2, 3), other);
        }
        let all: Vec<Transform> = (0..1000).map(|index| of(7, 1, index)).collect();
        let widest =
            |value: fn(&Transform) -> f32| all.iter().map(value).fold(0.0, |a: f32, b| a.max(b.abs()));
        assert!((1.9..=2.0).contains(&widest(|m| m.right)) && (1.9..=2.0).contains(&widest(|m| m.down)));
        let sine = 10f32.to_radians().sin();
        assert!((0.97 * sine..=sine * 1.0001).contains(&widest(|m| m.step.1)));
        let mean = all.iter().map(|m| m.right).sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.15, "{mean}");
    }

    #[test]
    fn augmentations_are_named_as_documented() {
        let parsed = |text: &str| text.parse::<Augment>();
        assert_eq!(parsed("shift,rotate"), Ok(Augment { shift: 2.0, rotate: 10.0, ..Augment::default() }));
        assert_eq!(parsed("none"), Ok(Augment::default()));
        for text in ["none", "shift:1", "shift:2,rotate:7.5,zoom:10", "zoom:5,elastic:1.5"] {
            assert_eq!(parsed(text).expect(text).to_string(), text);
        }
        for bad in ["", "flip", "shift:-1", "shift:29", "rotate:x", "shift,,", "none,shift", "rotate:NaN"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
