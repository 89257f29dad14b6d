//! Layers compared with Burn's: what visitors see, records in both directions, outputs, gradients and settings.

use super::{conv::*, loss::*, pool::*, *};
use crate::tests::{read, with_threads};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Distribution, Gradients, Int, Tensor};
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

/// Output and gradients of the input and all parameters.
pub(super) fn results<M: Module, const A: usize, const B: usize>(
    module: &M,
    x: &Tensor<A>,
    forward: impl Fn(&M, Tensor<A>) -> Tensor<B>,
) -> Vec<Vec<f32>> {
    struct Collect<'a>(&'a Gradients, Vec<Vec<f32>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.extend(param.val().grad(self.0).map(read));
        }
    }
    let x = x.clone().require_grad();
    let output = forward(module, x.clone());
    // A different gradient for every value.
    let gradients = (output.clone() * output.clone().detach().sin()).sum().backward();
    let mut collect = Collect(&gradients, vec![read(output)]);
    collect.1.extend(x.grad(&gradients).map(read));
    module.visit(&mut collect);
    collect.1
}

fn assert_close(ours: &[Vec<f32>], burns: &[Vec<f32>]) {
    assert_eq!(ours.len(), burns.len(), "gradients");
    for (at, (ours, burns)) in ours.iter().zip(burns).enumerate() {
        assert_eq!(ours.len(), burns.len(), "values of result {at}");
        let scale = burns.iter().fold(1.0f32, |most, value| most.max(value.abs()));
        for (ours, burns) in ours.iter().zip(burns) {
            assert!((ours - burns).abs() <= 2e-5 * scale, "result {at}: {ours} is not {burns}");
        }
    }
}

/// Compares a layer with Burn's of the same settings.
pub(super) fn compare<M: Module + Sync, N: Module, const A: usize, const B: usize>(
    (ours, burns): (M, N),
    x: Tensor<A>,
    forward: impl Fn(&M, Tensor<A>) -> Tensor<B> + Sync,
    burns_forward: impl Fn(&N, Tensor<A>) -> Tensor<B>,
) {
    assert_eq!(seen(&ours), seen(&burns));
    assert_eq!(ours.num_params(), burns.num_params());
    let ours = ours.load_record(burns.clone().into_record());
    let expected = results(&burns, &x, &burns_forward);
    let result = with_threads(1, || results(&ours, &x, &forward));
    assert_close(&result, &expected);
    let bits = |results: Vec<Vec<f32>>| results.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let three = with_threads(3, || results(&ours, &x, &forward));
    assert!(bits(result) == bits(three), "bit-identical for every number of threads");
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
    // Its weights are not contiguous, and Burn cannot load its records before it is used.
    let transposed = burn::nn::LinearConfig::new(8, 5).with_layout(LinearLayout::Col).init(&device());
    let x = random([2, 2, 3, 8]);
    let ours = results(&Linear(transposed.clone()), &x, |m, x| m.forward(x));
    assert_close(&ours, &results(&transposed, &x, |m, x| m.forward(x)));
}

#[test]
fn convolutions_equal_those_of_burn() {
    compare!(Conv2dConfig of conv, new([3, 8], [3, 3]), random([5, 3, 12, 9]));
    compare!(Conv2dConfig of conv, new([16, 32], [3, 3]).with_padding(PaddingConfig2d::Same).with_bias(false), random([4, 16, 10, 10]));
    compare!(Conv2dConfig of conv, new([4, 6], [3, 3]).with_groups(2), random([2, 4, 7, 7]));
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
    // Burn's operation, because the gradient is not a convolution of the kernels.
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]).with_groups(2), x());
    compare!(ConvTranspose2dConfig of conv, new([6, 4], [3, 3]).with_stride([2, 2]).with_dilation([2, 2]), x());
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
    compare!(GroupNormConfig, new(3, 12), random([5, 12, 7, 3]));
    compare!(GroupNormConfig, new(2, 4).with_affine(false), random([5, 4, 9]));
}

#[test]
fn activation_functions_equal_those_of_burn() {
    let x = || random([9, 1000]) * 3.0;
    compare((Relu::new(), burn::nn::Relu::new()), x(), |m, x| m.forward(x), |m, x| m.forward(x));
    compare((Gelu::new(), burn::nn::Gelu::new()), x(), |m, x| m.forward(x), |m, x| m.forward(x));
    compare((Silu::new(), Silu::new()), x(), |m, x| m.forward(x), |_, x| burn::tensor::activation::silu(x));
}

#[test]
fn activation_functions_propagate_nan_and_infinities() {
    let x = Tensor::<1>::from_floats([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -100.0], &device());
    let relu = read(Relu::new().forward(x.clone()));
    assert!(relu[0].is_nan() && relu[1..] == [f32::INFINITY, 0.0, 0.0], "{relu:?}");
    let silu = read(Silu::new().forward(x));
    assert!(silu[0].is_nan() && silu[1] == f32::INFINITY && silu[3].abs() < 1e-30, "{silu:?}");
}

#[test]
fn cross_entropy_equals_that_of_burn() {
    let targets = Tensor::<1, Int>::from_ints([3, 0, 6, 2, 2], &device());
    for smoothing in [None, Some(0.1)] {
        let ours = CrossEntropyLossConfig::new().with_smoothing(smoothing);
        let burns = burn::nn::loss::CrossEntropyLossConfig::new().with_smoothing(smoothing);
        same_settings(&ours, &burns);
        let both = (ours.init(&device()), burns.init(&device()));
        let forward = |m: &CrossEntropyLoss, x| m.forward(x, targets.clone());
        compare(both, random([5, 7]), forward, |m, x| m.forward(x, targets.clone()));
    }
}

#[test]
fn dropout_is_frozen_with_the_module() {
    let dropout = DropoutConfig::new(0.5).init();
    let x = random([20, 20]);
    assert!(read(dropout.forward(x.clone())) != read(x.clone()));
    assert_eq!(read(dropout.freeze().forward(x.clone())), read(x));
}
