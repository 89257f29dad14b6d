//! Max-pooling, optionally with ReLU.

use super::operation::{self, Operation};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::pool::{self, Windows};
use burn::nn::{PaddingConfig2d, pool::MaxPool2d};
use burn::tensor::{Tensor, activation::relu};
use std::sync::Arc;

/// Computes `layer.forward(x)`.
///
/// The kernel supports windows with a stride equal to their size, without padding and dilation.
pub fn max_pool(layer: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    match relu_max_pool_windows(layer, &x) {
        Some(windows) => operation::run(windows.without_relu(), [x.into_dispatch()]),
        None => layer.forward(x),
    }
}

/// Computes `layer.forward(relu(x))`.
///
/// The kernel supports windows with a stride equal to their size, without padding and dilation.
pub fn relu_max_pool(layer: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    match relu_max_pool_windows(layer, &x) {
        Some(windows) => operation::run(windows, [x.into_dispatch()]),
        None => layer.forward(relu(x)),
    }
}

/// The windows of [`relu_max_pool`]'s kernel; `None` where Burn's operations are used.
pub fn relu_max_pool_windows(layer: &MaxPool2d, x: &Tensor<4>) -> Option<Windows> {
    let fits = side_by_side(layer) && is_host(x);
    fits.then(|| Windows::new(x.dims(), layer.kernel_size)).flatten()
}

/// Whether windows do not overlap, so that each value is in at most one.
pub(super) fn side_by_side(layer: &MaxPool2d) -> bool {
    layer.stride == layer.kernel_size
        && layer.padding == PaddingConfig2d::Valid
        && layer.dilation == [1, 1]
        && !layer.ceil_mode
}

impl Operation<1, 0> for Windows {
    /// Index of each pooled value within its window.
    type Saved = Arc<Vec<u8>>;

    const READS: [usize; 0] = [];

    fn forward(&self, [x]: [Host; 1]) -> (Host, Self::Saved) {
        let (output, taken) = pool::forward(values(&x), self);
        (tensor(output, self.output()), Arc::new(taken))
    }

    fn backward(&self, []: [Host; 0], taken: Self::Saved, grad: Host, _: [bool; 1]) -> [Option<Host>; 1] {
        [Some(tensor(pool::backward(values(&grad), &taken, self), self.input()))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::pool::MaxPool2dConfig;
    use burn::tensor::{Device, Distribution};
    use proptest::prelude::*;

    fn read(tensor: Tensor<4>) -> Vec<f32> {
        tensor.into_data().try_to_vec().expect("f32")
    }

    fn with_gradient(x: &Tensor<4>, f: impl Fn(Tensor<4>) -> Tensor<4>) -> [Vec<f32>; 2] {
        let x = x.clone().require_grad();
        let output = f(x.clone());
        let loss = (output.clone() * output.clone().detach().sin()).sum();
        let gradient = x.grad(&loss.backward()).expect("a gradient");
        [read(output), read(gradient)]
    }

    fn layer(kernel: [usize; 2], strides: [usize; 2]) -> MaxPool2d {
        MaxPool2dConfig::new(kernel).with_strides(strides).init()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn values_and_gradients_equal_those_of_burn(
            planes in [1..4usize, 1..4],
            kernel in [1..4usize, 1..4],
            more in [0..9usize, 0..9],
        ) {
            let device = Device::flex().autodiff();
            let shape = [planes[0], planes[1], kernel[0] + more[0], kernel[1] + more[1]];
            let x = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device);
            let layer = layer(kernel, kernel);
            let ours = with_gradient(&x, |x| relu_max_pool(&layer, x));
            let theirs = with_gradient(&x, |x| layer.forward(relu(x)));
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn unsupported_windows_use_burns_operation() {
        let device = Device::flex().autodiff();
        let x = Tensor::random([2, 3, 9, 9], Distribution::Normal(0.0, 1.0), &device);
        let layer = layer([3, 3], [2, 2]);
        let ours = with_gradient(&x, |x| relu_max_pool(&layer, x));
        assert_eq!(ours, with_gradient(&x, |x| layer.forward(relu(x))));
    }

    #[test]
    fn nan_is_propagated() {
        let device = Device::flex();
        let x = Tensor::full([1, 1, 4, 4], f32::NAN, &device);
        assert!(read(relu_max_pool(&layer([2, 2], [2, 2]), x)).iter().all(|value| value.is_nan()));
    }
}
