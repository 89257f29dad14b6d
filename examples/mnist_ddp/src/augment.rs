//! `--augment`: random translation, rotation, zoom and elastic distortion of training images, per epoch.
//!
//! The transformation of an image depends only on seed, epoch and the image's index, so that neither the world size nor
//! a resume changes it.

use crate::data::{PIXELS, SIDE};
use burn::tensor::{Device, Tensor, TensorData, ops::GridSampleOptions};
use burn_ddp::sampler::mix;
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
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

/// Side of a square in pixels.
const SQUARE: usize = 7;
/// Corners of squares along a side of an image.
const CORNERS: usize = SIDE / SQUARE + 1;
/// Number of parameters without the elastic distortion.
const RIGID: usize = 4;
/// Centre of an image, from which coordinates are measured.
const CENTRE: f32 = (SIDE as f32 - 1.0) / 2.0;

/// Limits of the transforms; 0 disables one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Augment([f32; 4]);

impl Augment {
    /// Whether images are unchanged.
    pub fn is_none(&self) -> bool {
        *self == Augment::default()
    }

    /// The transformation of image `index` in `epoch`, as parameters for [`Mover`].
    ///
    /// They are the translation right and down in pixels, the source vector of a step of one pixel to the right, which is
    /// (cos, sin) / zoom, and with elastic distortion the displacements of all corners in pixels, across and then down.
    pub fn draw(&self, seed: u64, epoch: usize, index: usize) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(mix(mix(seed, epoch as u64), index as u64));
        let [shift, rotate, zoom, elastic] = self.0;
        // Always the same number of draws, so that one parameter does not change another's. The last may be omitted.
        let mut within = |limit: f32| limit * (2.0 * rng.random::<f32>() - 1.0);
        let (right, down) = (within(shift), within(shift));
        let (angle, zoom) = (within(rotate).to_radians(), 1.0 + within(zoom) / 100.0);
        let mut parameters = vec![right, down, angle.cos() / zoom, angle.sin() / zoom];
        if elastic > 0.0 {
            let corners = [(); CORNERS * CORNERS].map(|()| [within(elastic), within(elastic)]);
            parameters.extend([0, 1].into_iter().flat_map(|axis| corners.map(|offset| offset[axis])));
        }
        parameters
    }
}

/// Transforms batches of images on their device.
pub struct Mover {
    /// Place of each pixel relative to the centre, across and down, `[1, PIXELS, 2]`.
    from_centre: Tensor<3>,
}

impl Mover {
    /// A mover for images on `device`.
    pub fn new(device: &Device) -> Self {
        let places = (0..PIXELS).flat_map(|at| [at % SIDE, at / SIDE]).map(|place| place as f32 - CENTRE);
        let places = TensorData::new(places.collect::<Vec<_>>(), [1, PIXELS, 2]);
        Self { from_centre: Tensor::from_data(places, device) }
    }

    /// Transforms the images `[n, PIXELS]`, with bilinear interpolation and background outside.
    ///
    /// `parameters`, `[n, k]`, are those of [`Augment::draw`].
    pub fn moved(&self, images: Tensor<2>, parameters: &Tensor<2>) -> Tensor<2> {
        let [n, count] = parameters.dims();
        let mut places = self.from_centre.clone() - parameters.clone().narrow(1, 0, 2).reshape([n, 1, 2]);
        if count > RIGID {
            // The displacement of a pixel is interpolated between the corners of its square.
            let corners = parameters.clone().narrow(1, RIGID, count - RIGID);
            let middle = (CORNERS - 1) as f32 / 2.0;
            let within = self.from_centre.clone().add_scalar(CENTRE).div_scalar(SQUARE as f32);
            let within = within.sub_scalar(middle).div_scalar(middle).expand([n, PIXELS, 2]);
            let offsets = sampled(corners.reshape([n, 2, CORNERS, CORNERS]), within);
            places = places - offsets.swap_dims(1, 2);
        }
        let [x, y] = [0, 1].map(|axis| places.clone().narrow(2, axis, 1).reshape([n, PIXELS]));
        let [cos, sin] = [2, 3].map(|at| parameters.clone().narrow(1, at, 1));
        let from_x = cos.clone() * x.clone() + sin.clone() * y.clone();
        let from_y = cos * y - sin * x;
        let grid = Tensor::stack::<3>(vec![from_x, from_y], 2).div_scalar(CENTRE);
        sampled(images.reshape([n, 1, SIDE, SIDE]), grid).reshape([n, PIXELS])
    }
}

/// Samples images `[n, channels, height, width]` at places `[n, PIXELS, 2]`, whose coordinates are from −1 to 1.
///
/// Returns `[n, channels, PIXELS]`. Interpolation is bilinear; the background, which is 0, is outside.
fn sampled(images: Tensor<4>, places: Tensor<3>) -> Tensor<3> {
    let [n, channels, ..] = images.dims();
    let options = GridSampleOptions::default().with_align_corners(true);
    images.grid_sample_2d(places.reshape([n, SIDE, SIDE, 2]), options).reshape([n, channels, PIXELS])
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
