//! Tests of the layers of transformers against Burn's operations.

use super::{causal_attention, causal_attention_with, layer_norm, linear};
use crate::tests::{assert_close, everywhere, run, same_for_every_number_of_threads, with_threads};
use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Distribution, Tensor, activation};
use std::panic::AssertUnwindSafe;

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex().autodiff()).require_grad()
}

#[test]
fn attention_equals_burns_operations() {
    // Products skip later positions from 33 positions on.
    let sizes = [[1, 1, 1, 1], [2, 5, 3, 4], [1, 32, 1, 3], [3, 64, 4, 32], [1, 33, 2, 7], [2, 101, 3, 5]];
    for [batch, time, heads, head_width] in sizes {
        let all = random([batch * time, 3 * heads * head_width]);
        let causal = || run(&all, |all| causal_attention(all, [batch, time], heads)).0;
        same_for_every_number_of_threads(causal);
        let (theirs, _) =
            run(&all, |all| causal_attention_with(all, [batch, time], heads, |weights| weights));
        everywhere(|width| {
            for (ours, theirs) in causal().iter().zip(&theirs) {
                assert_close(ours, theirs, &format!("{batch} × {time}, {heads} × {head_width}, {width}"));
            }
        });
    }
    for size in [[0, 2], [2, 0]] {
        let (results, _) = run(&random([0, 6]), |all| causal_attention(all, size, 1));
        assert_eq!(results, [[0.0; 0]; 2]);
    }
}

/// 16-bit values in f32, and their type.
fn half_types<const D: usize>(shape: [usize; D]) -> [(DType, Tensor<D>); 2] {
    [DType::F16, DType::BF16]
        .map(|dtype| (dtype, (random(shape) * 8.0 + 100.0).cast(dtype).detach().cast(DType::F32)))
}

#[test]
fn half_types_are_normalised_in_f32() {
    for (dtype, x) in half_types([8, 64]) {
        let (gamma, beta) = (Tensor::ones([64], &x.device()), Tensor::zeros([64], &x.device()));
        let (gamma, beta): (Tensor<1>, Tensor<1>) = (gamma, beta);
        // The same values as a leaf of each type.
        let gradient = |dtype: DType| {
            let x = x.clone().cast(dtype).detach().require_grad();
            let output = layer_norm(x.clone(), gamma.clone().cast(dtype), beta.clone().cast(dtype), 1e-5);
            assert_eq!(output.dtype(), dtype);
            let weights = output.clone().powi_scalar(3).detach();
            let gradient = x.grad(&(output.clone() * weights).sum().backward()).expect("a gradient");
            (output.inner().cast(DType::F32), gradient.cast(DType::F32))
        };
        let (exact, exact_gradient) = gradient(DType::F32);
        let (output, slope) = gradient(dtype);
        // One rounding of the result.
        assert_eq!(output.into_data(), exact.cast(dtype).cast(DType::F32).into_data(), "{dtype:?}");
        let largest = exact_gradient.clone().abs().max().into_scalar::<f32>();
        let difference = (slope - exact_gradient).abs().max().into_scalar::<f32>();
        assert!(difference < 0.05 * largest, "{dtype:?}: {difference} of {largest}");
    }
}

#[test]
fn the_softmax_of_half_types_is_computed_in_f32() {
    let (batch, time, width) = (2, 16, 8);
    for (dtype, all) in half_types([batch * time, 3 * width]) {
        let all = (all / 40.0).cast(dtype);
        let mut found = None;
        let _ = causal_attention_with(all.clone(), [batch, time], 1, |weights| {
            found = Some(weights.clone());
            weights
        });
        let part = |number: usize| {
            all.clone().narrow(1, number * width, width).reshape([batch, time, 1, width]).swap_dims(1, 2)
        };
        let query = part(0).mul_scalar((width as f64).powf(-0.5));
        let scores = query.matmul(part(1).swap_dims(2, 3)).cast(DType::F32);
        let later = Tensor::<2>::full([time, time], f32::NEG_INFINITY, &all.device()).triu(1);
        let wanted = activation::softmax(scores + later.unsqueeze(), 3).cast(dtype);
        assert_eq!(found.expect("weights").into_data(), wanted.into_data());
    }
}

/// The same bits with one thread and with three, and f32 sums rounded once.
#[test]
fn linear_layers_of_half_types_sum_in_f32() {
    let shapes = [[1, 1, 1], [7, 5, 3], [65, 33, 17], [19, 40, 301], [300, 601, 130], [0, 3, 2]];
    for (dtype, epsilon) in [(DType::BF16, 2f32.powi(-8)), (DType::F16, 2f32.powi(-11))] {
        for [rows, inputs, outputs] in shapes {
            let [x, weight] = [[rows, inputs], [inputs, outputs]].map(|shape| random(shape).cast(dtype));
            let (bias, weights) =
                (random([outputs]).cast(dtype), random([rows, outputs]).cast(dtype).detach());
            let results = |dtype: DType, threads| {
                let [x, weight] = [&x, &weight].map(|x| x.clone().cast(dtype).detach().require_grad());
                let bias = bias.clone().cast(dtype).detach().require_grad();
                let layer = Linear {
                    weight: Param::from_tensor(weight.clone()),
                    bias: Some(Param::from_tensor(bias.clone())),
                };
                with_threads(threads, || {
                    let output = linear(&layer, x.clone());
                    assert_eq!(output.dtype(), dtype);
                    let gradients = (output.clone() * weights.clone().cast(dtype)).sum().backward();
                    let all = [output.inner(), x.grad(&gradients).expect("a gradient")];
                    let parameters = [
                        weight.grad(&gradients).expect("a gradient").flatten::<1>(0, 1),
                        bias.grad(&gradients).expect("a gradient"),
                    ];
                    let all = all.map(|x| x.flatten::<1>(0, 1)).into_iter().chain(parameters);
                    all.map(|x| x.cast(DType::F32)).collect::<Vec<_>>()
                })
            };
            let ours = results(dtype, 1);
            for (ours, three) in ours.iter().zip(results(dtype, 3)) {
                assert_eq!(ours.to_data(), three.into_data(), "{dtype:?} {rows} {inputs} {outputs}");
            }
            for (ours, exact) in ours.into_iter().zip(results(DType::F32, 1)) {
                let (ours, exact) = (ours.into_data(), exact.into_data());
                let exact: &[f32] = exact.as_slice().expect("f32");
                let largest = exact.iter().fold(1.0f32, |most, value| most.max(value.abs()));
                for (ours, exact) in ours.as_slice::<f32>().expect("f32").iter().zip(exact) {
                    let bound = epsilon * exact.abs() + 1e-6 * largest;
                    assert!((ours - exact).abs() <= bound, "{dtype:?}: {ours} is not {exact}");
                }
            }
        }
    }
}

#[test]
fn the_gradients_of_an_empty_batch_are_zeros_of_the_parameters_shapes() {
    let device = Device::flex().autodiff();
    let layer = LinearConfig::new(3, 2).init(&device);
    let x = Tensor::zeros([0, 3], &device).require_grad();
    let output = linear(&layer, x.clone());
    assert_eq!(output.dims(), [0, 2]);
    let gradients = output.sum().backward();
    let weight = layer.weight.val().grad(&gradients).expect("a gradient");
    assert_eq!(weight.into_data(), Tensor::<2>::zeros([3, 2], &Device::flex()).into_data());
    let bias = layer.bias.as_ref().expect("a bias").val().grad(&gradients).expect("a gradient");
    assert_eq!(bias.into_data(), Tensor::<1>::zeros([2], &Device::flex()).into_data());
    assert_eq!(x.grad(&gradients).expect("a gradient").dims(), [0, 3]);
}

#[test]
fn gradients_with_checkpointing_and_constant_parameters_equal_those_of_burn() {
    // Its parameters are on a device without autodiff.
    let layer = LinearConfig::new(3, 2).init(&Device::flex());
    for device in [Device::flex().autodiff(), Device::flex().autodiff().gradient_checkpointing()] {
        let x = Tensor::<2>::random([4, 3], Distribution::Normal(0.0, 1.0), &device);
        let (ours, _) = run(&x, |x| linear(&layer, x * 2.0) + 1.0);
        let (theirs, _) = run(&x, |x| layer.forward(x * 2.0) + 1.0);
        assert_eq!(ours.len(), 2, "output and gradient");
        ours.iter().zip(&theirs).for_each(|(ours, theirs)| assert_close(ours, theirs, "linear"));
    }
}

#[test]
fn layer_norm_rejects_parameters_of_another_length() {
    for dtype in [DType::F32, DType::BF16] {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::zeros([4, 6], &device).cast(dtype);
        let with = |lengths: [usize; 2]| {
            let [gamma, beta] = lengths.map(|length| Tensor::<1>::ones([length], &device).cast(dtype));
            std::panic::catch_unwind(AssertUnwindSafe(|| layer_norm(x.clone(), gamma, beta, 1e-5)))
        };
        assert!(with([6, 6]).is_ok());
        for lengths in [[3, 3], [3, 6], [6, 3], [24, 24]] {
            let panic = with(lengths).expect_err("a panic");
            let text = panic.downcast_ref::<String>().expect("a message");
            assert!(text.contains("[width]): axis 0 expected 6, got"), "{lengths:?}: {text}");
        }
    }
}
