//! Max-pooling, optionally with ReLU, and average pooling.

use super::operation;
use super::padding::{of_one_row, padding};
use super::relu;
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::pool::{self, Spans, Windows};
use burn::nn::{
    PaddingConfig2d,
    pool::{AdaptiveAvgPool1d, AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d},
};
use burn::tensor::Tensor;

/// Computes `layer.forward(x)`.
///
/// The kernels support windows without dilation, whose number is rounded down (`ceil_mode` is false).
pub fn max_pool(layer: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    if let Some(windows) = relu_max_pool_windows(layer, &x) {
        return largest(windows.without_relu(), x);
    }
    let MaxPool2d { kernel_size, stride, ref padding, dilation, ceil_mode } = *layer;
    match spans(&x, kernel_size, stride, padding).filter(|_| dilation == [1, 1] && !ceil_mode) {
        Some(spans) => operation::run([x.into_dispatch()], |[x]| {
            let (output, taken) = spans.max(values(&x));
            (tensor(output, spans.output()), move |[]: [Host; 0], grad: Host, _| {
                [Some(tensor(spans.max_gradient(values(&grad), &taken), spans.input()))]
            })
        }),
        None => layer.forward(x),
    }
}

/// Computes `layer.forward(relu(x))`; see [`max_pool`].
///
/// It is one operation if the stride equals the windows' size and there is no padding.
pub fn relu_max_pool(layer: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    match relu_max_pool_windows(layer, &x) {
        Some(windows) => largest(windows, x),
        // The same values and gradients as in the other order, from fewer elements.
        None => relu(max_pool(layer, x)),
    }
}

/// Computes `layer.forward(x)`.
///
/// The kernel supports windows whose number is rounded down (`ceil_mode` is false).
pub fn avg_pool(layer: &AvgPool2d, x: Tensor<4>) -> Tensor<4> {
    let AvgPool2d { kernel_size, stride, ref padding, count_include_pad, ceil_mode } = *layer;
    match spans(&x, kernel_size, stride, padding).filter(|_| !ceil_mode) {
        Some(spans) => {
            let area = kernel_size[0] * kernel_size[1];
            means(if count_include_pad { spans.divided_by(area) } else { spans }, x)
        }
        None => layer.forward(x),
    }
}

/// Computes `layer.forward(x)`.
pub fn adaptive_avg_pool(layer: &AdaptiveAvgPool2d, x: Tensor<4>) -> Tensor<4> {
    match is_host(&x).then(|| Spans::adaptive(x.dims(), layer.output_size)).flatten() {
        Some(spans) => means(spans, x),
        None => layer.forward(x),
    }
}

/// Computes `layer.forward(x)` as pooling of images with one row; see [`max_pool`].
pub fn max_pool1d(layer: &MaxPool1d, x: Tensor<3>) -> Tensor<3> {
    let layer = MaxPool2d {
        stride: [1, layer.stride],
        kernel_size: [1, layer.kernel_size],
        padding: of_one_row(&layer.padding),
        dilation: [1, layer.dilation],
        ceil_mode: layer.ceil_mode,
    };
    max_pool(&layer, x.unsqueeze_dim(2)).squeeze_dim(2)
}

/// Computes `layer.forward(x)` as pooling of images with one row; see [`avg_pool`].
pub fn avg_pool1d(layer: &AvgPool1d, x: Tensor<3>) -> Tensor<3> {
    let layer = AvgPool2d {
        stride: [1, layer.stride],
        kernel_size: [1, layer.kernel_size],
        padding: of_one_row(&layer.padding),
        count_include_pad: layer.count_include_pad,
        ceil_mode: layer.ceil_mode,
    };
    avg_pool(&layer, x.unsqueeze_dim(2)).squeeze_dim(2)
}

/// Computes `layer.forward(x)` as pooling of images with one row.
pub fn adaptive_avg_pool1d(layer: &AdaptiveAvgPool1d, x: Tensor<3>) -> Tensor<3> {
    let layer = AdaptiveAvgPool2d { output_size: [1, layer.output_size] };
    adaptive_avg_pool(&layer, x.unsqueeze_dim(2)).squeeze_dim(2)
}

/// The windows of a layer without dilation; `None` where Burn's operations are used.
fn spans(x: &Tensor<4>, kernel: [usize; 2], stride: [usize; 2], setting: &PaddingConfig2d) -> Option<Spans> {
    let [_, _, size @ ..] = x.dims();
    let padding = padding(setting, size, kernel, stride);
    is_host(x).then(|| Spans::new(x.dims(), kernel, stride, padding)).flatten()
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

/// The largest value of each window.
fn largest(windows: Windows, x: Tensor<4>) -> Tensor<4> {
    operation::run([x.into_dispatch()], |[x]| {
        let (output, taken) = pool::forward(values(&x), &windows);
        (tensor(output, windows.output()), move |[]: [Host; 0], grad: Host, _| {
            [Some(tensor(pool::backward(values(&grad), &taken, &windows), windows.input()))]
        })
    })
}

/// The mean of each window.
fn means(spans: Spans, x: Tensor<4>) -> Tensor<4> {
    operation::run([x.into_dispatch()], |[x]| {
        (tensor(spans.mean(values(&x)), spans.output()), move |[]: [Host; 0], grad: Host, _| {
            [Some(tensor(spans.mean_gradient(values(&grad)), spans.input()))]
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{everywhere, read, run};
    use burn::nn::pool::{AdaptiveAvgPool2dConfig, AvgPool2dConfig, MaxPool2dConfig};
    use burn::tensor::{Device, Distribution, Int, activation::relu};
    use proptest::prelude::*;

    /// Output and gradient of `x`.
    fn with_gradient(x: &Tensor<4>, f: impl FnOnce(Tensor<4>) -> Tensor<4>) -> Vec<f32> {
        run(x, f).0.concat()
    }

    fn layer(kernel: [usize; 2], strides: [usize; 2]) -> MaxPool2d {
        MaxPool2dConfig::new(kernel).with_strides(strides).init()
    }

    fn assert_close(ours: &[f32], theirs: &[f32]) {
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!((ours - theirs).abs() <= 1e-5 * theirs.abs().max(1.0), "{ours} is not {theirs}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn values_and_gradients_equal_those_of_burn(
            planes in [1..4usize, 1..4],
            kernel in [1..5usize, 1..5],
            more in [0..9usize, 0..40],
        ) {
            let device = Device::flex().autodiff();
            let shape = [planes[0], planes[1], kernel[0] + more[0], kernel[1] + more[1]];
            // Few different values, so that windows have several largest ones.
            let x = (Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device) * 2.0).round();
            let layer = layer(kernel, kernel);
            let theirs = with_gradient(&x, |x| layer.forward(relu(x)));
            everywhere(|width| {
                assert_eq!(with_gradient(&x, |x| relu_max_pool(&layer, x)), theirs, "{width}");
            });
        }

        /// With few different values, so that windows have several largest ones.
        #[test]
        fn overlapping_windows_equal_those_of_burn(
            planes in [1..4usize, 1..4],
            kernel in [1..5usize, 1..5],
            strides in [1..4usize, 1..4],
            around in [0..3usize, 0..3, 0..3, 0..3],
            more in [0..9usize, 0..9],
            output in [1..6usize, 1..6],
            counted in any::<bool>(),
        ) {
            let device = Device::flex().autodiff();
            let shape = [planes[0], planes[1], kernel[0] + more[0], kernel[1] + more[1]];
            let x = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
            let [top, left, bottom, right] = around;
            let padding = PaddingConfig2d::Explicit(top, left, bottom, right);

            let layer =
                MaxPool2dConfig::new(kernel).with_strides(strides).with_padding(padding.clone()).init();
            prop_assert!(spans(&x, kernel, strides, &padding).is_some());
            let few = (x.clone() * 2.0).round();
            // A window that is all padding has the gradient sin(−∞), NaN, which nothing receives.
            let largest = with_gradient(&few, |x| layer.forward(x));

            let mean = AvgPool2dConfig::new(kernel).with_strides(strides).with_padding(padding);
            let mean = mean.with_count_include_pad(counted).init();
            let means = with_gradient(&x, |x| mean.forward(x));
            let adaptive = [output, [1, 1], [shape[2], shape[3]]].map(|size| {
                let layer = AdaptiveAvgPool2dConfig::new(size).init();
                let means = with_gradient(&x, |x| layer.forward(x));
                (layer, means)
            });
            everywhere(|width| {
                assert_eq!(with_gradient(&few, |x| max_pool(&layer, x)), largest, "{width}");
                assert_close(&with_gradient(&x, |x| avg_pool(&mean, x)), &means);
                for (layer, means) in &adaptive {
                    assert_close(&with_gradient(&x, |x| adaptive_avg_pool(layer, x)), means);
                }
            });
        }
    }

    #[test]
    fn unsupported_windows_and_empty_tensors_use_burns_operation() {
        let device = Device::flex().autodiff();
        let x = Tensor::random([2, 3, 9, 8], Distribution::Normal(0.0, 1.0), &device);
        let config = || MaxPool2dConfig::new([3, 3]).with_strides([2, 2]);
        for layer in [config().with_dilation([2, 1]).init(), config().with_ceil_mode(true).init()] {
            let ours = with_gradient(&x, |x| relu_max_pool(&layer, x));
            assert_eq!(ours, with_gradient(&x, |x| layer.forward(relu(x))));
        }
        let mean = AvgPool2dConfig::new([3, 3]).with_strides([2, 2]).with_ceil_mode(true).init();
        assert_eq!(avg_pool(&mean, x.clone()).dims(), mean.forward(x).dims());
        let [max, mean] = [config().init(), config().with_padding(PaddingConfig2d::Same).init()];
        for shape in [[0, 3, 9, 9], [2, 0, 9, 9], [2, 3, 2, 9]] {
            let x = Tensor::zeros(shape, &device);
            for layer in [&max, &mean] {
                assert_eq!(max_pool(layer, x.clone()).dims(), layer.forward(x.clone()).dims());
            }
            let layer = AdaptiveAvgPool2dConfig::new([2, 2]).init();
            assert_eq!(adaptive_avg_pool(&layer, x.clone()).dims(), layer.forward(x).dims());
        }
    }

    /// NaN and infinities: outputs and gradients with the same bits as Burn's, except for the sign of NaN.
    #[test]
    fn special_values_equal_those_of_burn() {
        let device = Device::flex().autodiff();
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
        let values: Vec<f32> = (0..2 * 7 * 6).map(|at| special[at * at % 13 % 5]).collect();
        let x = Tensor::<1>::from_floats(&values[..], &device).reshape([1, 2, 7, 6]);
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let max = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(padding.clone()).init();
        let mean = AvgPool2dConfig::new([3, 2]).with_strides([1, 2]).with_padding(padding).init();
        let all = AdaptiveAvgPool2dConfig::new([1, 1]).init();
        let bits = |f: &dyn Fn(Tensor<4>) -> Tensor<4>| {
            let x = x.clone().require_grad();
            let output = f(x.clone());
            let numbers = Tensor::<1, Int>::arange(1..output.shape().num_elements() as i64 + 1, &device);
            let loss = (output.clone() * numbers.float().reshape(output.dims())).sum();
            let results = [read(output), read(x.grad(&loss.backward()).expect("a gradient"))].concat();
            let bits =
                results.into_iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() });
            bits.collect::<Vec<_>>()
        };
        assert_eq!(bits(&|x| max_pool(&max, x)), bits(&|x| max.forward(x)));
        assert_eq!(bits(&|x| avg_pool(&mean, x)), bits(&|x| mean.forward(x)));
        assert_eq!(bits(&|x| adaptive_avg_pool(&all, x)), bits(&|x| all.forward(x)));
    }

    #[test]
    fn nan_is_propagated() {
        let device = Device::flex();
        let x = Tensor::full([1, 1, 4, 4], f32::NAN, &device);
        assert!(read(relu_max_pool(&layer([2, 2], [2, 2]), x)).iter().all(|value| value.is_nan()));
    }
}
