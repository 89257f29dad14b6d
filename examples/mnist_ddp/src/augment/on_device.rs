//! `--augment` on a GPU: parameters are drawn on the host, images are interpolated on the device.

use super::{Bend, Movement, SIDE};
use crate::data::PIXELS;
use burn::tensor::{Device, Int, Tensor, TensorData, ops::GridSampleOptions};

/// Centre of an image, from which coordinates are measured.
const CENTRE: f32 = (SIDE as f32 - 1.0) / 2.0;
/// Number of parameters without the elastic distortion.
const RIGID: usize = 4;
const CORNERS: usize = Bend::CORNERS * Bend::CORNERS;

impl Movement {
    /// Appends the parameters for [`Mover`].
    ///
    /// Translation right and down, cosine and sine of the step, then the displacement of each corner across and down.
    pub fn extend_parameters(&self, parameters: &mut Vec<f32>) {
        parameters.extend([self.right, self.down, self.step.0, self.step.1]);
        if let Some(bend) = &self.bend {
            let corners = || bend.0.iter().flatten();
            parameters.extend(corners().map(|offset| offset[0]).chain(corners().map(|offset| offset[1])));
        }
    }
}

/// Transforms batches of images on one device, and keeps the tensors that all batches share.
pub struct Mover {
    /// Distance of each pixel from the centre, across and down, `[1, PIXELS]`.
    from_centre: [Tensor<2>; 2],
    /// The four corners of each pixel's square: indices, `[PIXELS]`, and weights, `[1, PIXELS]`.
    corners: [(Tensor<1, Int>, Tensor<2>); 4],
}

impl Mover {
    /// A mover for images on `device`.
    pub fn new(device: &Device) -> Self {
        let row = |value: &dyn Fn(usize, usize) -> f32| {
            let values: Vec<f32> = (0..PIXELS).map(|at| value(at % SIDE, at / SIDE)).collect();
            Tensor::<2>::from_data(TensorData::new(values, [1, PIXELS]), device)
        };
        let corner = |right: usize, down: usize| {
            let number =
                |at: usize| (at / SIDE / Bend::SIDE + down) * Bend::CORNERS + at % SIDE / Bend::SIDE + right;
            let numbers: Vec<i32> = (0..PIXELS).map(|at| number(at) as i32).collect();
            let part = |place: usize, far: usize| {
                let part = (place % Bend::SIDE) as f32 / Bend::SIDE as f32;
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

    /// Transforms the images `[n, PIXELS]` as [`Movement::of`] does.
    ///
    /// `parameters`, `[n, k]`, are those of [`Movement::extend_parameters`].
    pub fn moved(&self, images: Tensor<2>, parameters: Tensor<2>) -> Tensor<2> {
        let [n, count] = parameters.dims();
        let parameter = |index: usize| parameters.clone().slice([0..n, index..index + 1]);
        let shifted = |axis: usize| {
            let place = self.from_centre[axis].clone() - parameter(axis);
            if count == RIGID { place } else { place - self.bent(&parameters, axis) }
        };
        let ([x, y], [cos, sin]) = ([shifted(0), shifted(1)], [parameter(2), parameter(3)]);
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

    /// Displacement of each pixel along an axis, `[n, PIXELS]`.
    fn bent(&self, parameters: &Tensor<2>, axis: usize) -> Tensor<2> {
        let n = parameters.dims()[0];
        let first = RIGID + axis * CORNERS;
        let offsets = parameters.clone().slice([0..n, first..first + CORNERS]);
        let parts = self
            .corners
            .iter()
            .map(|(corner, weight)| offsets.clone().select(1, corner.clone()) * weight.clone());
        parts.reduce(|sum, part| sum + part).unwrap_or_else(|| self.from_centre[axis].zeros_like())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::Augment;

    /// The worst case for interpolation: neighbouring pixels differ as much as possible.
    fn noise(index: usize) -> [u8; PIXELS] {
        std::array::from_fn(|at| if (at * 7919 + index * 104_729) % 13 < 6 { 255 } else { 0 })
    }

    #[test]
    fn images_move_like_on_the_host() {
        let device = Device::flex();
        let mover = Mover::new(&device);
        for flags in ["shift:3", "rotate:30", "zoom:20", "elastic:3", "shift,rotate,zoom,elastic"] {
            let augment: Augment = flags.parse().expect("a list of changes");
            let n = 20;
            let movements: Vec<Movement> = (0..n).map(|index| augment.draw(7, 1, index)).collect();
            let images: Vec<f32> = (0..n).flat_map(noise).map(f32::from).collect();
            let mut parameters = Vec::new();
            movements.iter().for_each(|movement| movement.extend_parameters(&mut parameters));
            let count = parameters.len() / n;
            let images = Tensor::from_data(TensorData::new(images, [n, PIXELS]), &device);
            let parameters = Tensor::from_data(TensorData::new(parameters, [n, count]), &device);
            let moved = mover.moved(images, parameters).into_data().try_into_vec::<f32>().expect("f32");
            let expected = movements.iter().enumerate().flat_map(|(index, m)| m.of(&noise(index)));
            let worst = moved.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // In units of normalised pixels.
            assert!(worst / 255.0 / crate::data::STD <= 1e-5, "{flags}: {worst} of 255");
        }
    }
}
