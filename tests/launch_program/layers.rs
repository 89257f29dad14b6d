//! Layers with kernels of their own on a GPU, compared with Burn's operations on the same device.

use burn::nn::{PaddingConfig2d, conv::Conv2dConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_ddp::layers;

/// Values without a pattern.
fn values<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>() as i64;
    Tensor::<1, Int>::arange(1..count + 1, device).float().powi_scalar(2).sin().reshape(shape)
}

/// Largest difference between the values of two tensors, relative to the largest of them.
fn difference<const D: usize>(one: Tensor<D>, other: Tensor<D>) -> f32 {
    assert_eq!(one.dims(), other.dims());
    ((one - other.clone()).abs().max() / other.abs().max()).into_scalar()
}

/// Differences of output and gradients of convolutions.
fn convolution(config: &Conv2dConfig, size: [usize; 2], device: &Device) -> Vec<f32> {
    let (autodiff, [channels, _]) = (device.clone().autodiff(), config.channels);
    let layer = config.init(&autodiff);
    // Channels last, as the outputs of Burn's convolutions.
    let x = values([3, size[0], size[1], channels], device).permute([0, 3, 1, 2]);
    let compute = |ours: bool| {
        let x = Tensor::from_inner(x.clone()).require_grad();
        let output = if ours { layers::conv(&layer, x.clone()) } else { layer.forward(x.clone()) };
        let upstream = Tensor::from_inner(values(output.dims(), device));
        let gradients = (output.clone() * upstream).sum().backward();
        let bias = layer.bias.as_ref().map(|bias| bias.grad(&gradients).expect("a gradient"));
        let weight = layer.weight.grad(&gradients).expect("a gradient");
        (output.inner(), x.grad(&gradients).expect("a gradient"), weight, bias)
    };
    let (ours, burns) = (compute(true), compute(false));
    let mut found =
        vec![difference(ours.0, burns.0), difference(ours.1, burns.1), difference(ours.2, burns.2)];
    found.extend(ours.3.zip(burns.3).map(|(ours, burns)| difference(ours, burns)));
    found
}

/// Differences of output and gradient of attention.
fn attention([batch, time, heads, width]: [usize; 4], device: &Device) -> Vec<f32> {
    let all = values([batch * time, 3 * width], device) * 3.0;
    let compute = |ours: bool| {
        let all = Tensor::from_inner(all.clone()).require_grad();
        let size = [batch, time];
        let output = match ours {
            true => layers::causal_attention(all.clone(), size, heads),
            false => layers::causal_attention_with(all.clone(), size, heads, |weights| weights),
        };
        let upstream = Tensor::from_inner(values(output.dims(), device));
        let gradients = (output.clone() * upstream).sum().backward();
        (output.inner(), all.grad(&gradients).expect("a gradient"))
    };
    let (ours, burns) = (compute(true), compute(false));
    vec![difference(ours.0, burns.0), difference(ours.1, burns.1)]
}

/// Prints the differences of each case.
pub fn compare(device: &Device) {
    let plain = |channels, kernel| Conv2dConfig::new(channels, kernel);
    let convolutions = [
        (plain([1, 3], [3, 3]), [7, 9]),
        (plain([3, 5], [3, 2]).with_stride([2, 1]).with_dilation([1, 2]), [9, 8]),
        (plain([2, 3], [5, 4]).with_padding(PaddingConfig2d::Explicit(1, 0, 2, 3)), [5, 6]),
        (plain([4, 40], [1, 1]).with_bias(false), [4, 4]),
        (plain([2, 2], [3, 3]).with_padding(PaddingConfig2d::Same), [6, 5]),
    ];
    for (config, size) in convolutions {
        println!("conv {:?}", convolution(&config, size, device));
    }
    // One position, fewer positions than threads, and more.
    for sizes in [[3, 1, 1, 2], [2, 5, 2, 6], [1, 300, 2, 8]] {
        println!("attention {:?}", attention(sizes, device));
    }
}
