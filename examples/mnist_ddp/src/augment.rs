//! `--augment`: random translation, rotation, zoom and elastic distortion of training images, per epoch.
//!
//! The transformation of an image depends only on seed, epoch and the image's index, so that neither the world size nor
//! a resume changes it.

use crate::data::{PIXELS, SIDE};
use burn::tensor::{Device, Int, Tensor, TensorData, ops::GridSampleOptions};
use burn_ddp::sampler::mix;
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

/// The transformations with the limit that a flag without a number sets, and the largest limit.
///
/// `shift` is a translation in pixels along each axis, `rotate` a rotation about the centre in degrees, `zoom` an
/// enlargement or reduction in percent, `elastic` a displacement of the corners of 7 × 7 squares in pixels: a coarse
/// form of Simard et al. 2003, "Best practices for convolutional neural networks applied to visual document analysis",
/// section 2.
const TRANSFORMS: [(&str, f32, f32); 4] = [
    ("shift", 2.0, SIDE as f32),
    ("rotate", 10.0, 180.0),
    ("zoom", 10.0, 90.0),
    ("elastic", 2.0, SIDE as f32),
];

/// Limits of the transforms; 0 disables one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Augment([f32; 4]);

/// Displacements of the corners of an image's squares, in pixels across and down.
type Bend = [[[f32; 2]; CORNERS]; CORNERS];
/// Side of a square in pixels.
const SQUARE: usize = 7;
const CORNERS: usize = SIDE / SQUARE + 1;

/// Transformation of one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Movement {
    pub bend: Option<Bend>,
    pub right: f32,
    pub down: f32,
    /// Source vector of a step of one pixel to the right: (cos, sin) / zoom.
    pub step: (f32, f32),
}

impl Augment {
    /// Whether images are unchanged.
    pub fn is_none(&self) -> bool {
        *self == Augment::default()
    }

    /// The transformation of image `index` in `epoch`.
    pub fn draw(&self, seed: u64, epoch: usize, index: usize) -> Movement {
        let mut rng = ChaCha8Rng::seed_from_u64(mix(mix(seed, epoch as u64), index as u64));
        let [shift, rotate, zoom, elastic] = self.0;
        // Always the same number of draws, so that one parameter does not change another's. The last may be omitted.
        let mut within = |limit: f32| limit * (2.0 * rng.random::<f32>() - 1.0);
        let (right, down) = (within(shift), within(shift));
        let (angle, zoom) = (within(rotate).to_radians(), 1.0 + within(zoom) / 100.0);
        let step = (angle.cos() / zoom, angle.sin() / zoom);
        let bend = (elastic > 0.0).then(|| {
            let mut bend = Bend::default();
            bend.iter_mut().flatten().flatten().for_each(|offset| *offset = within(elastic));
            bend
        });
        Movement { bend, right, down, step }
    }
}

impl Movement {
    /// The transformed image with pixels from 0 to 255, interpolated bilinearly, with background outside.
    pub fn apply(&self, image: &[u8]) -> [f32; PIXELS] {
        let (cos, sin) = self.step;
        let mut moved = [0.0; PIXELS];
        for (at, pixel) in moved.iter_mut().enumerate() {
            let bent = self.bend.map_or([0.0; 2], |bend| displacement(&bend, at % SIDE, at / SIDE));
            let x = (at % SIDE) as f32 - CENTRE - self.right - bent[0];
            let y = (at / SIDE) as f32 - CENTRE - self.down - bent[1];
            *pixel = between(image, cos * x + sin * y + CENTRE, cos * y - sin * x + CENTRE);
        }
        moved
    }

    /// Appends the parameters for [`Mover`].
    ///
    /// Translation right and down, cosine and sine of the step, then the displacement of each corner across and down.
    pub fn extend_parameters(&self, parameters: &mut Vec<f32>) {
        parameters.extend([self.right, self.down, self.step.0, self.step.1]);
        for axis in 0..2 {
            parameters.extend(self.bend.iter().flatten().flatten().map(|offset| offset[axis]));
        }
    }
}

/// Displacement of a pixel, interpolated between the corners of its square.
fn displacement(bend: &Bend, x: usize, y: usize) -> [f32; 2] {
    let (column, row) = (x / SQUARE, y / SQUARE);
    let part = |place: usize| (place % SQUARE) as f32 / SQUARE as f32;
    let parts = (part(x), part(y));
    [0, 1].map(|axis| blend(parts, |right, down| bend[row + down][column + right][axis]))
}

/// Bilinear interpolation of the image between its pixels.
fn between(image: &[u8], x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let pixel = |x: f32, y: f32| {
        let inside = 0.0..SIDE as f32;
        if inside.contains(&x) && inside.contains(&y) {
            f32::from(image[y as usize * SIDE + x as usize])
        } else {
            0.0
        }
    };
    blend((x - left, y - top), |right, down| pixel(left + right as f32, top + down as f32))
}

/// Bilinear interpolation within a square; `corner(right, down)` gives its corner values.
///
/// The position is in fractions of the side.
fn blend((right, down): (f32, f32), corner: impl Fn(usize, usize) -> f32) -> f32 {
    let row = |y| corner(0, y) * (1.0 - right) + corner(1, y) * right;
    row(0) * (1.0 - down) + row(1) * down
}

/// Transforms batches of images on a GPU, and keeps the tensors that all batches share.
pub struct Mover {
    /// Distance of each pixel from the centre, across and down, `[1, PIXELS]`.
    from_centre: [Tensor<2>; 2],
    /// The four corners of each pixel's square: indices, `[PIXELS]`, and weights, `[1, PIXELS]`.
    corners: [(Tensor<1, Int>, Tensor<2>); 4],
}

/// Centre of an image, from which coordinates are measured.
const CENTRE: f32 = (SIDE as f32 - 1.0) / 2.0;
/// Number of parameters without the elastic distortion.
const RIGID: usize = 4;

impl Mover {
    /// A mover for images on `device`.
    pub fn new(device: &Device) -> Self {
        let row = |value: &dyn Fn(usize, usize) -> f32| {
            let values: Vec<f32> = (0..PIXELS).map(|at| value(at % SIDE, at / SIDE)).collect();
            Tensor::<2>::from_data(TensorData::new(values, [1, PIXELS]), device)
        };
        let corner = |right: usize, down: usize| {
            let number = |at: usize| (at / SIDE / SQUARE + down) * CORNERS + at % SIDE / SQUARE + right;
            let numbers: Vec<i32> = (0..PIXELS).map(|at| number(at) as i32).collect();
            let part = |place: usize, far: usize| {
                let part = (place % SQUARE) as f32 / SQUARE as f32;
                if far == 1 { part } else { 1.0 - part }
            };
            let weights = row(&|x, y| part(x, right) * part(y, down));
            (Tensor::from_data(TensorData::new(numbers, [PIXELS]), device), weights)
        };
        Self {
            from_centre: [row(&|x, _| x as f32 - CENTRE), row(&|_, y| y as f32 - CENTRE)],
            corners: [corner(0, 0), corner(1, 0), corner(0, 1), corner(1, 1)],
        }
    }

    /// Transforms the images `[n, PIXELS]` as [`Movement::apply`] does.
    ///
    /// `parameters`, `[n, k]`, are those of [`Movement::extend_parameters`].
    pub fn moved(&self, images: Tensor<2>, parameters: &Tensor<2>) -> Tensor<2> {
        let [n, count] = parameters.dims();
        let columns = |first: usize, columns: usize| parameters.clone().slice([0..n, first..first + columns]);
        // Source coordinates of each pixel along an axis, before the rotation.
        let shifted = |axis: usize| {
            let place = self.from_centre[axis].clone() - columns(axis, 1);
            if count == RIGID {
                return place;
            }
            let offsets = columns(RIGID + axis * CORNERS * CORNERS, CORNERS * CORNERS);
            let part = |(corner, weight): &(Tensor<1, Int>, Tensor<2>)| {
                offsets.clone().select(1, corner.clone()) * weight.clone()
            };
            let [a, b, c, d] = self.corners.each_ref().map(part);
            place - (a + b + c + d)
        };
        let ([x, y], [cos, sin]) = ([shifted(0), shifted(1)], [columns(2, 1), columns(3, 1)]);
        let from_x = cos.clone() * x.clone() + sin.clone() * y.clone();
        let from_y = cos * y - sin * x;
        // From pixels to a grid sample's coordinates, -1 to 1.
        let grid = Tensor::stack::<3>(vec![from_x, from_y], 2).div_scalar(CENTRE);
        // The defaults are bilinear interpolation and background outside.
        let options = GridSampleOptions::default().with_align_corners(true);
        let moved =
            images.reshape([n, 1, SIDE, SIDE]).grid_sample_2d(grid.reshape([n, SIDE, SIDE, 2]), options);
        moved.reshape([n, PIXELS])
    }
}

impl FromStr for Augment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = [0.0; 4];
        for part in text.split(',').filter(|_| text != "none") {
            let (name, limit) =
                part.split_once(':').map_or((part, None), |(name, limit)| (name, Some(limit)));
            let at = TRANSFORMS.iter().position(|transform| transform.0 == name).ok_or(
                "expected none, or some of shift:PIXELS, rotate:DEGREES, zoom:PERCENT, elastic:PIXELS",
            )?;
            let (_, usual, most) = TRANSFORMS[at];
            limits[at] = limit.map_or(Ok(usual), |limit| {
                let limit = limit.parse().ok().filter(|limit| (0.0..=most).contains(limit));
                limit.ok_or_else(|| format!("the limit of {name} is a number from 0 to {most}"))
            })?;
        }
        Ok(Augment(limits))
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = TRANSFORMS.iter().zip(self.0).filter(|(_, limit)| *limit > 0.0);
        let named: Vec<String> = named.map(|((name, ..), limit)| format!("{name}:{limit}")).collect();
        if named.is_empty() { f.write_str("none") } else { f.write_str(&named.join(",")) }
    }
}

impl Serialize for Augment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
