//! `--augment` on a GPU: transforms are sampled on the host and applied on the device.

use super::{ElasticGrid, SIDE, Transform};
use crate::data::PIXELS;
use burn::tensor::{Device, Int, Tensor, TensorData, ops::GridSampleOptions};

/// Coordinate of the image's centre.
const CENTRE: f32 = (SIDE as f32 - 1.0) / 2.0;
/// Number of affine parameters.
const AFFINE: usize = 4;
const NODES: usize = ElasticGrid::NODES * ElasticGrid::NODES;

impl Transform {
    /// Appends the parameters that [`DeviceTransform`] takes.
    ///
    /// They are the translation, the step's cosine and sine, then the x and the y displacements of all grid nodes.
    pub fn extend_parameters(&self, parameters: &mut Vec<f32>) {
        parameters.extend([self.right, self.down, self.step.0, self.step.1]);
        if let Some(grid) = &self.grid {
            let corners = || grid.0.iter().flatten();
            parameters.extend(corners().map(|offset| offset[0]).chain(corners().map(|offset| offset[1])));
        }
    }
}

/// Transforms of image batches on a device, with tensors shared by all batches.
pub struct DeviceTransform {
    /// Offset of each pixel from the centre, x and y, `[1, PIXELS]`.
    from_centre: [Tensor<2>; 2],
    /// The four grid nodes around each pixel: indices `[PIXELS]` and weights `[1, PIXELS]`.
    corners: [(Tensor<1, Int>, Tensor<2>); 4],
}

impl DeviceTransform {
    /// Creates the tensors on `device`.
    pub fn new(device: &Device) -> Self {
        let row = |value: &dyn Fn(usize, usize) -> f32| {
            let values: Vec<f32> = (0..PIXELS).map(|at| value(at % SIDE, at / SIDE)).collect();
            Tensor::<2>::from_data(TensorData::new(values, [1, PIXELS]), device)
        };
        let corner = |right: usize, down: usize| {
            let number = |at: usize| {
                (at / SIDE / ElasticGrid::SIDE + down) * ElasticGrid::NODES
                    + at % SIDE / ElasticGrid::SIDE
                    + right
            };
            let numbers: Vec<i32> = (0..PIXELS).map(|at| number(at) as i32).collect();
            let part = |place: usize, far: usize| {
                let part = (place % ElasticGrid::SIDE) as f32 / ElasticGrid::SIDE as f32;
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

    /// Transforms the images `[n, PIXELS]` like [`Transform::apply`].
    ///
    /// The parameters `[n, k]` are those of [`Transform::extend_parameters`].
    pub fn apply(&self, images: Tensor<2>, parameters: Tensor<2>) -> Tensor<2> {
        let [n, count] = parameters.dims();
        let parameter = |index: usize| parameters.clone().slice([0..n, index..index + 1]);
        let shifted = |axis: usize| {
            let place = self.from_centre[axis].clone() - parameter(axis);
            if count == AFFINE { place } else { place - self.displacement(&parameters, axis) }
        };
        let ([x, y], [cos, sin]) = ([shifted(0), shifted(1)], [parameter(2), parameter(3)]);
        let from_x = cos.clone() * x.clone() + sin.clone() * y.clone();
        let from_y = cos * y - sin * x;
        // grid_sample_2d takes coordinates from -1 to 1.
        let grid = Tensor::stack::<3>(vec![from_x, from_y], 2).div_scalar(CENTRE);
        // The defaults are bilinear interpolation and zero padding.
        let options = GridSampleOptions::default().with_align_corners(true);
        let transformed =
            images.reshape([n, 1, SIDE, SIDE]).grid_sample_2d(grid.reshape([n, SIDE, SIDE, 2]), options);
        transformed.reshape([n, PIXELS])
    }

    /// Displacement of each pixel along an axis, `[n, PIXELS]`.
    fn displacement(&self, parameters: &Tensor<2>, axis: usize) -> Tensor<2> {
        let n = parameters.dims()[0];
        let first = AFFINE + axis * NODES;
        let offsets = parameters.clone().slice([0..n, first..first + NODES]);
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
    fn device_transforms_equal_those_of_the_host() {
        let device = Device::flex();
        let device_transform = DeviceTransform::new(&device);
        for flags in ["shift:3", "rotate:30", "zoom:20", "elastic:3", "shift,rotate,zoom,elastic"] {
            let augment: Augment = flags.parse().expect("a list of changes");
            let n = 20;
            let transforms: Vec<Transform> = (0..n).map(|index| augment.sample(7, 1, index)).collect();
            let images: Vec<f32> = (0..n).flat_map(noise).map(f32::from).collect();
            let mut parameters = Vec::new();
            transforms.iter().for_each(|transform| transform.extend_parameters(&mut parameters));
            let count = parameters.len() / n;
            let images = Tensor::from_data(TensorData::new(images, [n, PIXELS]), &device);
            let parameters = Tensor::from_data(TensorData::new(parameters, [n, count]), &device);
            let transformed =
                device_transform.apply(images, parameters).into_data().try_into_vec::<f32>().expect("f32");
            let expected = transforms.iter().enumerate().flat_map(|(index, m)| m.apply(&noise(index)));
            let worst = transformed.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // In the units of normalised pixels.
            assert!(worst / 255.0 / crate::data::STD <= 1e-5, "{flags}: {worst} of 255");
        }
    }
}
