//! Layers compared with Burn's: what visitors see, records in both directions, outputs, gradients and settings.

use super::{conv::*, loss::*, pool::*, *};
use crate::tests::{everywhere, read, results, same_for_every_number_of_threads};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Distribution, Int, Tensor};
use proptest::prelude::*;
use std::fmt::Display;

pub(super) fn device() -> Device {
    Device::flex().autodiff()
}

pub(super) fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device())
}

/// Names, types and shapes that a visitor sees.
fn seen(module: &impl Module) -> Vec<String> {
    #[derive(Default)]
    struct Log(Vec<String>);
    impl ModuleVisitor for Log {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.push(format!("enter {name} of {container}"));
        }

        fn exit_module(&mut self, name: &str, container: &str) {
            self.0.push(format!("exit {name} of {container}"));
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(format!("{:?}", param.dims()));
        }
    }
    let mut log = Log::default();
    module.visit(&mut log);
    log.0
}

fn assert_close(ours: &[Vec<f32>], burns: &[Vec<f32>], what: &str) {
    assert_eq!(ours.len(), burns.len(), "gradients");
    for (at, (ours, burns)) in ours.iter().zip(burns).enumerate() {
        assert_eq!(ours.len(), burns.len(), "values of result {at}");
        let scale = burns.iter().fold(1.0f32, |most, value| most.max(value.abs()));
        for (ours, burns) in ours.iter().zip(burns) {
            assert!((ours - burns).abs() <= 2e-5 * scale, "result {at}, {what}: {ours} is not {burns}");
        }
    }
}

/// Changes all parameters, because some begin with ones or zeros.
struct Vary;

impl ModuleMapper for Vary {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let change = tensor.random_like(Distribution::Normal(0.0, 0.1));
            (tensor + change).detach().require_grad()
        })
    }
}

/// Compares a layer with Burn's of the same settings, for every vector width.
pub(super) fn compare<M: Module + Sync, N: Module, const A: usize, const B: usize>(
    (ours, burns): (M, N),
    x: Tensor<A>,
    forward: impl Fn(&M, Tensor<A>) -> Tensor<B> + Sync,
    burns_forward: impl Fn(&N, Tensor<A>) -> Tensor<B>,
) {
    assert_eq!(seen(&ours), seen(&burns));
    assert_eq!(ours.num_params(), burns.num_params());
    let burns = burns.map(&mut Vary);
    let ours = ours.load_record(burns.clone().into_record());
    let expected = results(&burns, &x, &burns_forward);
    everywhere(|width| assert_close(&results(&ours, &x, &forward), &expected, width));
    same_for_every_number_of_threads(|| {
        results(&ours, &x, &forward).concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    let back = burns.load_record(ours.into_record());
    assert!(results(&back, &x, burns_forward) == expected, "the same weights in Burn's layer");
}

/// Compares layers of `$config`, here and in Burn.
macro_rules! compare {
    ($config:ident $(of $part:ident)?, $new:ident ($($needed:expr),*) $(.$with:ident($value:expr))*, $x:expr) => {
        compare!($config $(of $part)?, $new($($needed),*) $(.$with($value))*; init(&device()), $x)
    };
    ($config:ident $(of $part:ident)?, $new:ident ($($needed:expr),*) $(.$with:ident($value:expr))*; init($($device:expr)?), $x:expr) => {{
        let ours = $config::$new($($needed),*)$(.$with($value))*;
        let burns = burn::nn::$($part::)?$config::$new($($needed),*)$(.$with($value))*;
        same_settings(&ours, &burns);
        compare((ours.init($($device)?), burns.init($($device)?)), $x, |m, x| m.forward(x), |m, x| m.forward(x));
    }};
}

pub(super) fn same_settings(ours: &impl Display, burns: &impl Display) {
    assert_eq!(ours.to_string(), burns.to_string());
}

#[test]
fn linear_layers_equal_those_of_burn() {
    compare!(LinearConfig, new(37, 19), random([11, 37]));
    compare!(LinearConfig, new(37, 19), random([3, 5, 37]));
    compare!(LinearConfig, new(64, 300).with_bias(false), random([130, 64]));
    // Transposes a gradient.
    compare!(LinearConfig, new(40, 301), random([19, 40]));
    // Adds the bias, and sums its gradient, in several parts.
    compare!(LinearConfig, new(40, 301), random([300, 40]));
    // Its weights are not contiguous, and Burn cannot load its records before it is used.
    let transposed = burn::nn::LinearConfig::new(8, 5).with_layout(LinearLayout::Col).init(&device());
    let x = random([2, 2, 3, 8]);
    let ours = results(&Linear(transposed.clone()), &x, |m, x| m.forward(x));
    assert_close(&ours, &results(&transposed, &x, |m, x| m.forward(x)), "transposed");
}

#[test]
fn convolutions_equal_those_of_burn() {
    compare!(Conv2dConfig of conv, new([3, 8], [3, 3]), random([5, 3, 12, 9]));
    compare!(Conv2dConfig of conv, new([16, 32], [3, 3]).with_padding(PaddingConfig2d::Same).with_bias(false), random([4, 16, 10, 10]));
    compare!(Conv2dConfig of conv, new([4, 6], [3, 3]).with_groups(2), random([2, 4, 7, 7]));
    // Each algorithm with several parts of the work.
    compare!(Conv2dConfig of conv, new([3, 20], [3, 3]).with_padding(PaddingConfig2d::Same), random([21, 3, 11, 9]));
    compare!(Conv2dConfig of conv, new([32, 20], [3, 3]).with_padding(PaddingConfig2d::Same), random([21, 32, 11, 9]));
    compare!(Conv2dConfig of conv, new([8, 20], [3, 3]).with_stride([2, 2]), random([21, 8, 11, 9]));
    compare!(Conv2dConfig of conv, new([10, 20], [3, 3]).with_groups(10), random([21, 10, 11, 9]));
    compare!(Conv2dConfig of conv, new([10, 10], [5, 3]).with_groups(10).with_stride([2, 2]), random([21, 10, 11, 9]));
    compare!(Conv1dConfig of conv, new(4, 8, 5).with_groups(4).with_bias(false), random([6, 4, 31]));
    compare!(Conv1dConfig of conv, new(4, 7, 5), random([6, 4, 31]));
    compare!(Conv1dConfig of conv, new(4, 7, 5).with_stride(2).with_padding(PaddingConfig1d::Explicit(2, 2)), random([6, 4, 31]));
    compare!(Conv1dConfig of conv, new(4, 7, 3).with_dilation(2).with_bias(false), random([6, 4, 31]));
    compare!(Conv1dConfig of conv, new(4, 7, 4).with_padding(PaddingConfig1d::Same), random([2, 4, 9]));
}

#[test]
fn transposed_convolutions_equal_those_of_burn() {
    let x = || random([3, 6, 7, 5]);
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]), x());
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]).with_padding([1, 1]).with_bias(false), x());
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]).with_dilation([2, 1]), x());
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]).with_stride([2, 2]).with_padding([1, 1]).with_padding_out([1, 1]), x());
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]).with_stride([3, 2]).with_padding_out([2, 0]), x());
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]).with_groups(2), x());
    compare!(ConvTranspose2dConfig of conv, new([6, 6], [3, 3]).with_groups(3).with_stride([2, 2]).with_bias(false), x());
    // Burn's operation: one output channel for each group, and a gradient that is not a convolution of the kernels.
    compare!(ConvTranspose2dConfig of conv, new([6, 6], [3, 3]).with_groups(6), x());
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]).with_stride([2, 2]).with_dilation([2, 2]), x());
}

#[test]
fn transposed_convolutions_of_one_dimension_equal_those_of_burn() {
    let x = || random([3, 6, 15]);
    compare!(ConvTranspose1dConfig of conv, new([6, 4], 3), x());
    compare!(ConvTranspose1dConfig of conv, new([6, 4], 4).with_stride(2).with_padding(1).with_bias(false), x());
    compare!(ConvTranspose1dConfig of conv, new([6, 4], 3).with_stride(2).with_padding_out(1), x());
    compare!(ConvTranspose1dConfig of conv, new([6, 4], 3).with_dilation(2).with_groups(2), x());
    // Burn's operation.
    compare!(ConvTranspose1dConfig of conv, new([6, 6], 3).with_groups(6), x());
}

#[test]
fn pooling_equals_that_of_burn() {
    let x = |shape| random(shape) - 1.0;
    for (kernel, strides) in [([2, 2], [2, 2]), ([3, 3], [3, 3]), ([3, 3], [2, 2]), ([2, 3], [2, 3])] {
        compare!(MaxPool2dConfig of pool, new(kernel).with_strides(strides); init(), x([3, 5, 13, 11]));
        compare!(AvgPool2dConfig of pool, new(kernel).with_strides(strides); init(), x([3, 5, 13, 11]));
    }
    let padding = || PaddingConfig2d::Explicit(1, 1, 1, 1);
    compare!(MaxPool2dConfig of pool, new([3, 3]).with_strides([2, 2]).with_padding(padding()); init(), x([3, 5, 112, 40]));
    compare!(AvgPool2dConfig of pool, new([3, 3]).with_strides([1, 1]).with_padding(PaddingConfig2d::Same); init(), x([2, 3, 9, 8]));
    compare!(AvgPool2dConfig of pool, new([3, 2]).with_padding(padding()).with_count_include_pad(false); init(), x([2, 3, 9, 8]));
    compare!(AvgPool2dConfig of pool, new([3, 3]).with_strides([2, 2]).with_ceil_mode(true); init(), x([2, 3, 9, 8]));
    compare!(AdaptiveAvgPool2dConfig of pool, new([1, 1]); init(), x([3, 50, 7, 7]));
    compare!(AdaptiveAvgPool2dConfig of pool, new([4, 7]); init(), x([3, 5, 13, 5]));
    let (x, padding) = (|| random([3, 5, 31]) - 1.0, || PaddingConfig1d::Explicit(1, 1));
    compare!(MaxPool1dConfig of pool, new(4).with_stride(4); init(), x());
    compare!(MaxPool1dConfig of pool, new(3).with_stride(2).with_padding(padding()); init(), x());
    compare!(MaxPool1dConfig of pool, new(3).with_dilation(2).with_ceil_mode(true); init(), x());
    compare!(AvgPool1dConfig of pool, new(3).with_stride(2).with_padding(padding()); init(), x());
    compare!(AvgPool1dConfig of pool, new(3).with_padding(padding()).with_count_include_pad(false); init(), x());
    compare!(AdaptiveAvgPool1dConfig of pool, new(4); init(), x());
}

#[test]
fn max_pooling_propagates_nan_and_negative_values() {
    let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let values = [f32::NAN, 1.0, -3.0, -2.0, 0.0, 2.0, f32::NEG_INFINITY, -7.0];
    let output = read(pool.forward(Tensor::<1>::from_floats(values, &device()).reshape([1, 1, 2, 4])));
    assert!(output[0].is_nan());
    assert_eq!(output[1], -2.0);
}

#[test]
fn normalisation_equals_that_of_burn() {
    compare!(LayerNormConfig, new(33).with_epsilon(1e-3), random([2, 5, 33]));
    compare!(LayerNormConfig, new(8).with_bias(false), random([70, 8]));
    compare!(RmsNormConfig, new(33).with_epsilon(1e-3), random([2, 70, 33]));
    compare!(GroupNormConfig, new(3, 12), random([5, 12, 700]));
    compare!(GroupNormConfig, new(2, 4).with_affine(false), random([5, 4, 9]));
    compare!(InstanceNormConfig, new(12).with_epsilon(1e-3), random([5, 12, 30, 10]));
    compare!(InstanceNormConfig, new(4).with_affine(false), random([5, 4, 9]));
}

#[test]
fn activation_functions_equal_those_of_burn() {
    let x = || random([9, 1000]) * 3.0;
    compare((Relu::new(), burn::nn::Relu::new()), x(), |m, x| m.forward(x), |m, x| m.forward(x));
    compare((Gelu::new(), burn::nn::Gelu::new()), x(), |m, x| m.forward(x), |m, x| m.forward(x));
    let approximate = (Gelu::new_approximate(), burn::nn::Gelu::new_approximate());
    compare(approximate, x(), |m, x| m.forward(x), |m, x| m.forward(x));
    compare((Silu::new(), Silu::new()), x(), |m, x| m.forward(x), |_, x| burn::tensor::activation::silu(x));
    compare((Sigmoid::new(), burn::nn::Sigmoid::new()), x(), |m, x| m.forward(x), |m, x| m.forward(x));
    compare((Tanh::new(), burn::nn::Tanh::new()), x(), |m, x| m.forward(x), |m, x| m.forward(x));
    let mish = burn::nn::activation::Mish::new();
    compare((Mish::new(), mish), x(), |m, x| m.forward(x), |m, x| m.forward(x));
    let hard_swish = burn::nn::activation::HardSwish::new();
    compare((HardSwish::new(), hard_swish), x(), |m, x| m.forward(x), |m, x| m.forward(x));
    let limits = [Tensor::full([9, 3], 6.0, &device()), Tensor::zeros([9, 3], &device())];
    let at_limits = Tensor::cat(vec![x(), limits[0].clone(), limits[1].clone()], 1);
    let selu = burn::nn::Selu::new();
    compare((Selu::new(), selu), at_limits.clone(), |m, x| m.forward(x), |m, x| m.forward(x));
    let relu6 = burn::nn::activation::Relu6::new();
    compare((Relu6::new(), relu6), at_limits, |m, x| m.forward(x), |m, x| m.forward(x));
    compare!(EluConfig, new().with_alpha(0.7); init(), x());
    compare!(SoftplusConfig, new().with_beta(1.5).with_threshold(3.0); init(), x());
    compare!(SoftplusConfig, new(); init(), x() * 20.0);
    compare!(HardSigmoidConfig, new().with_alpha(0.3); init(), x());
    compare!(LeakyReluConfig, new().with_negative_slope(0.2); init(), x());
    compare!(PReluConfig, new(), random([5, 70, 300]));
    compare!(PReluConfig, new().with_num_parameters(70).with_alpha(0.1), random([5, 70, 300]));
    compare!(PReluConfig, new().with_num_parameters(6), random([300, 6]));
    compare!(SwiGluConfig, new(20, 33).with_bias(true), random([3, 7, 20]));
}

#[test]
fn activation_functions_propagate_nan_and_infinities() {
    let x = Tensor::<1>::from_floats([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -100.0], &device());
    let relu = read(Relu::new().forward(x.clone()));
    assert!(relu[0].is_nan() && relu[1..] == [f32::INFINITY, 0.0, 0.0], "{relu:?}");
    let silu = read(Silu::new().forward(x.clone()));
    assert!(silu[0].is_nan() && silu[1] == f32::INFINITY && silu[3].abs() < 1e-30, "{silu:?}");
    for forward in [
        |x| Mish::new().forward(x),
        |x| HardSwish::new().forward(x),
        |x| SoftplusConfig::new().init().forward(x),
    ] {
        let values: Vec<f32> = read(forward(x.clone()));
        assert!(values[0].is_nan() && values[1] == f32::INFINITY && values[3].abs() < 1e-30, "{values:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn normalisation_of_any_shape_equals_that_of_burn(
        (rows, groups, of_group, positions) in (1..150_usize, 1..4_usize, 1..4_usize, 1..40_usize),
        affine in any::<bool>(),
    ) {
        // The gradient of a few values with almost no variance would amplify rounding.
        let (channels, epsilon) = (groups * of_group, 1e-2);
        compare!(LayerNormConfig, new(positions).with_bias(affine).with_epsilon(epsilon), random([rows, positions]));
        compare!(RmsNormConfig, new(positions).with_epsilon(epsilon), random([rows, positions]));
        let images = random([rows % 5 + 3, channels, positions]);
        compare!(GroupNormConfig, new(groups, channels).with_affine(affine).with_epsilon(epsilon), images);
    }

    #[test]
    fn cross_entropy_equals_that_of_burn(
        (batch, classes) in (1..40_usize, 1..70_usize),
        (smoothing, offset) in
            prop::sample::select(&[(None, 0.0), (Some(0.1), 0.0), (None, -200.0), (Some(1.0), 90.0)]),
        (weighted, padded) in (any::<bool>(), any::<bool>()),
    ) {
        let weights = weighted.then(|| (0..classes).map(|class| 0.5 + (class % 3) as f32).collect());
        // Class 0 is that of the first row, and of all rows if 7 is a multiple of the classes.
        let padding = (padded && batch > 1 && 7 % classes != 0).then(|| vec![0, 9999]);
        let targets = (0..batch).map(|row| (row * 7 % classes) as i64).collect::<Vec<_>>();
        let targets = Tensor::<1, Int>::from_ints(&targets[..], &device());
        let ours = CrossEntropyLossConfig::new()
            .with_smoothing(smoothing)
            .with_weights(weights.clone())
            .with_pad_tokens(padding.clone());
        let burns = burn::nn::loss::CrossEntropyLossConfig::new()
            .with_smoothing(smoothing)
            .with_weights(weights)
            .with_pad_tokens(padding);
        same_settings(&ours, &burns);
        let both = (ours.init(&device()), burns.init(&device()));
        let forward = |m: &CrossEntropyLoss, x| m.forward(x, targets.clone());
        compare(both, random([batch, classes]) * 10.0 + offset, forward, |m, x| m.forward(x, targets.clone()));
    }
}

#[test]
fn a_batch_of_padding_has_no_loss_and_no_gradients() {
    let loss = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![1])).init(&device());
    let logits = random([2, 3]).require_grad();
    let mean = loss.forward(logits.clone(), Tensor::<1, Int>::from_ints([1, 1], &device()));
    let gradients = mean.clone().backward();
    assert!(read(mean)[0].is_nan());
    assert_eq!(logits.grad(&gradients).map(read), Some(vec![0.0; 6]));
}

#[test]
fn dropout_is_frozen_with_the_module() {
    let dropout = DropoutConfig::new(0.5).init();
    let x = random([20, 20]);
    assert!(read(dropout.forward(x.clone())) != read(x.clone()));
    assert_eq!(read(dropout.freeze().forward(x.clone())), read(x));
}
