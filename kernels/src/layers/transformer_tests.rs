//! Tests of the layers of transformers against Burn's operations.

use super::{causal_attention, causal_attention_with, gelu, layer_norm};
use burn::tensor::{Device, Distribution, Tensor, activation, module};

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex().autodiff()).require_grad()
}

fn assert_close<const D: usize>(ours: Tensor<D>, theirs: Tensor<D>) {
    assert_eq!(ours.dims(), theirs.dims());
    let largest = theirs.clone().abs().max().into_scalar::<f32>();
    let difference = (ours - theirs).abs().max().into_scalar::<f32>();
    assert!(difference <= 1e-5 * (1.0 + largest), "{difference} of {largest}");
}

/// Compares outputs and the gradients of `inputs` of two functions.
fn assert_same<const D: usize>(
    inputs: &[&Tensor<1>],
    x: &Tensor<D>,
    ours: impl Fn() -> Tensor<2>,
    theirs: impl Fn() -> Tensor<2>,
) {
    let (ours, theirs) = (ours(), theirs());
    assert_close(ours.clone(), theirs.clone());
    let weights = Tensor::random(ours.dims(), Distribution::Normal(0.0, 1.0), &ours.device());
    let [ours, theirs] = [ours, theirs].map(|output| (output * weights.clone()).sum().backward());
    assert_close(x.grad(&ours).expect("a gradient"), x.grad(&theirs).expect("a gradient"));
    for input in inputs {
        assert_close(input.grad(&ours).expect("a gradient"), input.grad(&theirs).expect("a gradient"));
    }
}

#[test]
fn attention_equals_burns_operations() {
    for [batch, time, heads, head_width] in [[1, 1, 1, 1], [2, 5, 3, 4], [3, 64, 4, 32], [1, 33, 2, 7]] {
        let all = random([batch * time, 3 * heads * head_width]);
        assert_same(
            &[],
            &all,
            || causal_attention(all.clone(), [batch, time], heads),
            || causal_attention_with(all.clone(), [batch, time], heads, |weights| weights),
        );
    }
}

#[test]
fn layer_norm_equals_burns() {
    for [rows, width] in [[1, 1], [3, 5], [64, 16], [200, 130]] {
        let (x, gamma, beta) = (random([rows, width]), random([width]), random([width]));
        assert_same(
            &[&gamma, &beta],
            &x,
            || layer_norm(x.clone(), gamma.clone(), beta.clone(), 1e-5),
            || module::layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5),
        );
    }
}

#[test]
fn gelu_equals_burns() {
    let x = random([300, 301]);
    assert_same(&[], &x, || gelu(x.clone()), || activation::gelu(x.clone()));
}
