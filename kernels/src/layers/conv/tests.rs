//! Comparison of the kernel with Burn's convolution over shapes, paddings and dilations.

use super::*;
use crate::tests::{assert_close, everywhere, read, results};
use burn::module::Param;
use burn::nn::{PaddingConfig2d, conv::Conv2dConfig, pool::MaxPool2dConfig};
use burn::tensor::{Device, Distribution, TensorData};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
struct Case {
    image: [usize; 4],
    filters: usize,
    kernel: [usize; 2],
    /// Before and after, by axis.
    padding: [[usize; 2]; 2],
    dilation: [usize; 2],
    stride: [usize; 2],
    groups: usize,
    bias: bool,
}

/// One image and filter of 3 × 3.
const PLAIN: Case = Case {
    image: [1, 1, 5, 5],
    filters: 1,
    kernel: [3, 3],
    padding: [[0; 2]; 2],
    dilation: [1, 1],
    stride: [1, 1],
    groups: 1,
    bias: true,
};

fn cases() -> impl Strategy<Value = Case> {
    // Many 3 × 3 kernels, because they use the Winograd path.
    let kernel = prop_oneof![Just([3, 3]), [1..=4usize, 1..=4]];
    let spread = prop_oneof![Just(([1, 1], [1, 1])), ([1..=2usize, 1..=3], [1..=3usize, 1..=4]),];
    // Channels, filters and groups.
    let sides = prop_oneof![
        2 => (1..=5usize, 1..=40usize, Just(1usize)),
        1 => (16..=36usize, 32..=40usize, Just(1usize)),
        1 => (1..=6usize, 1..=2usize).prop_map(|(groups, more)| (groups, groups * more, groups)),
        1 => (1..=3usize, 2..=4usize, 1..=5usize).prop_map(|(groups, inputs, outputs)| {
            (groups * inputs, groups * outputs, groups)
        }),
    ];
    (1..=10usize, sides, kernel, spread, any::<bool>())
        .prop_flat_map(|(batch, (channels, filters, groups), kernel, (dilation, stride), bias)| {
            let reach = [0, 1].map(|axis| dilation[axis] * (kernel[axis] - 1));
            let sizes = reach.map(|reach| reach + 1..=reach + 30);
            let paddings =
                reach.map(|reach| prop_oneof![(0..=reach).prop_map(|p| [p, p]), [0..=reach, 0..=reach + 2]]);
            (Just((batch, channels, filters, groups, kernel, dilation, stride, bias)), sizes, paddings)
        })
        .prop_map(|((batch, channels, filters, groups, kernel, dilation, stride, bias), size, padding)| {
            let image = [batch, channels, size[0], size[1]];
            Case { image, filters, kernel, padding, dilation, stride, groups, bias }
        })
}

fn layer(case: Case, device: &Device) -> Conv2d {
    let [[top, bottom], [left, right]] = case.padding;
    Conv2dConfig::new([case.image[1], case.filters], case.kernel)
        .with_padding(PaddingConfig2d::Explicit(top, left, bottom, right))
        .with_dilation(case.dilation)
        .with_stride(case.stride)
        .with_groups(case.groups)
        .with_bias(case.bias)
        .init(device)
}

/// Compares outputs and gradients with those of Burn, for every vector width.
fn assert_equals_burns(case: Case, with_relu: bool) {
    let device = Device::flex().autodiff();
    let layer = layer(case, &device);
    let x = Tensor::random(case.image, Distribution::Normal(0.0, 1.0), &device);
    assert!(covered(&layer, &x).is_some(), "{case:?} is not covered");
    let forward = |layer: &Conv2d, x| if with_relu { conv_relu(layer, x) } else { conv(layer, x) };
    let theirs = results(&layer, &x, |layer, x| {
        let output = layer.forward(x);
        if with_relu { relu(output) } else { output }
    });
    everywhere(|width| {
        let ours = results(&layer, &x, forward);
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_close(ours, theirs, &format!("{case:?}, {width}"));
        }
    });
}

/// Compares a convolution and pooling in one operation with two operations, to the bit and for every vector width.
fn assert_fused_pooling_is_equal(case: Case, kernel: [usize; 2]) {
    let device = Device::flex().autodiff();
    let (layer, pool) = (layer(case, &device), MaxPool2dConfig::new(kernel).with_strides(kernel).init());
    let x = Tensor::random(case.image, Distribution::Normal(0.0, 1.0), &device);
    let output = layer.forward(x.clone()).dims();
    if (0..2).all(|axis| output[2 + axis] >= kernel[axis]) {
        everywhere(|width| {
            let at_once = results(&layer, &x, |layer, x| conv_relu_max_pool(layer, &pool, x));
            let separate = results(&layer, &x, |layer, x| relu_max_pool(&pool, conv(layer, x)));
            assert!(at_once == separate, "{case:?}, {width}");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn output_and_gradients_equal_those_of_burn(case in cases(), with_relu in any::<bool>()) {
        assert_equals_burns(case, with_relu);
    }

    #[test]
    fn fused_pooling_equals_separate_pooling(case in cases(), kernel in prop_oneof![Just([2, 2]), Just([3, 1])]) {
        assert_fused_pooling_is_equal(case, kernel);
    }
}

#[test]
fn convolutions_by_every_algorithm_equal_those_of_burn() {
    for (image, filters, kernel, padding, dilation) in [
        ([2, 3, 26, 26], 10, [3, 3], [0, 0], [1, 1]),
        ([1, 1, 28, 28], 33, [3, 3], [1, 1], [1, 1]),
        ([9, 2, 5, 7], 3, [2, 3], [1, 2], [1, 2]),
        ([3, 4, 1, 1], 5, [1, 1], [0, 0], [1, 1]),
        // Winograd: whole and incomplete tiles, rows longer than a vector and shorter than the padding.
        ([2, 16, 26, 26], 33, [3, 3], [0, 0], [1, 1]),
        ([9, 29, 5, 8], 18, [3, 3], [1, 2], [1, 1]),
        ([1, 32, 9, 45], 16, [3, 3], [2, 0], [1, 1]),
        ([1, 33, 8, 45], 16, [3, 3], [2, 1], [1, 1]),
        ([1, 32, 1, 1], 16, [3, 3], [2, 2], [1, 1]),
        // Patches: small images with many channels.
        ([5, 75, 3, 3], 72, [3, 3], [1, 1], [1, 1]),
        ([40, 9, 1, 1], 8, [1, 1], [0, 0], [1, 1]),
    ] {
        let padding = padding.map(|zeros| [zeros; 2]);
        let case = Case { image, filters, kernel, padding, dilation, ..PLAIN };
        assert_equals_burns(case, false);
        assert_equals_burns(case, true);
        assert_fused_pooling_is_equal(case, [2, 2]);
    }
}

#[test]
fn overlapping_kernels_with_a_stride_equal_those_of_burn() {
    for (image, filters, kernel, padding, stride) in [
        ([9, 3, 28, 27], 33, [3, 3], 1, [2, 2]),
        ([2, 2, 15, 16], 5, [3, 4], 0, [2, 3]),
        ([3, 1, 9, 40], 17, [5, 2], 1, [1, 1]),
        ([3, 4, 11, 12], 16, [4, 3], 1, [3, 1]),
        ([1, 2, 4, 5], 3, [3, 3], 2, [2, 2]),
        // Rows and columns that no kernel reaches.
        ([2, 3, 12, 10], 8, [4, 4], 0, [3, 3]),
    ] {
        let case = Case { image, filters, kernel, padding: [[padding; 2]; 2], stride, ..PLAIN };
        assert_equals_burns(case, false);
        assert_equals_burns(case, true);
    }
}

#[test]
fn depthwise_convolutions_equal_those_of_burn() {
    let padding = [[1, 2], [3, 0]];
    for (image, filters, dilation) in [([2, 3, 7, 9], 6, [1, 1]), ([1, 2, 30, 21], 2, [2, 3])] {
        for stride in [[1, 1], [2, 1], [3, 2]] {
            let case = Case { image, filters, padding, dilation, stride, groups: image[1], ..PLAIN };
            assert_equals_burns(case, false);
        }
    }
}

/// A zero in place of NaN would hide a divergence.
#[test]
fn relu_propagates_nan() {
    let device = Device::flex().autodiff();
    let case = Case { filters: 2, ..PLAIN };
    let x = Tensor::<4>::full(case.image, f32::NAN, &device);
    assert!(read(conv_relu(&layer(case, &device), x)).iter().all(|value| value.is_nan()));
}

#[test]
fn a_strided_convolution_spreads_nan_to_its_kernels_only() {
    let device = Device::flex().autodiff();
    let case = Case { image: [1, 1, 9, 9], stride: [2, 2], ..PLAIN };
    let layer = layer(case, &device);
    for value in [f32::NAN, f32::INFINITY] {
        let mut pixels = vec![1.0; 81];
        pixels[3 * 9 + 3] = value;
        let x = Tensor::<4>::from_data(TensorData::new(pixels, case.image), &device);
        let [ours, theirs] = [conv(&layer, x.clone()), layer.forward(x)].map(read);
        let finite = |values: Vec<f32>| values.into_iter().map(f32::is_finite).collect::<Vec<_>>();
        assert_eq!(finite(ours), finite(theirs), "{value}");
    }
}

#[test]
fn half_types_are_convolved_in_f32() {
    let device = Device::flex().autodiff();
    let case = Case { image: [8, 1, 98, 98], ..PLAIN };
    let f32_layer = layer(case, &device);
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        // 73,728 summands of each gradient, the same in every type.
        let x = Tensor::<4>::random(case.image, Distribution::Uniform(0.5, 1.0), &device).cast(dtype);
        let results = |dtype: FloatDType| {
            let weight = f32_layer.weight.val().cast(FloatDType::F16).cast(dtype).detach().require_grad();
            let bias = Tensor::<1>::zeros([1], &device).cast(dtype).require_grad();
            let layer = Conv2d {
                weight: Param::from_tensor(weight.clone()),
                bias: Some(Param::from_tensor(bias.clone())),
                ..f32_layer.clone()
            };
            let output = conv(&layer, x.clone().cast(dtype));
            assert_eq!(output.dtype(), dtype.into());
            let gradients = output.clone().cast(FloatDType::F32).mul_scalar(0.125).sum().backward();
            let [weight, bias] = [
                read(weight.grad(&gradients).expect("of weight").cast(FloatDType::F32)),
                read(bias.grad(&gradients).expect("of bias").cast(FloatDType::F32)),
            ];
            (output, weight.into_iter().chain(bias).collect::<Vec<_>>())
        };
        let ((ours, gradients), (exact, exact_gradients)) = (results(dtype), results(FloatDType::F32));
        if dtype == FloatDType::F16 {
            assert_eq!(ours.into_data(), exact.cast(dtype).into_data(), "one rounding of the result");
        }
        for (ours, exact) in gradients.iter().zip(&exact_gradients) {
            assert!((ours / exact - 1.0).abs() < 0.005, "{dtype:?}: {ours} is not {exact}");
        }
    }
}
