//! Dropout.

use super::operation;
use crate::{
    dropout::{Kept, Key},
    host_tensor::{Host, is_host, tensor, values},
    random,
};
use burn::backend::{Distribution, Flex, TensorMetadata, ops::FloatTensorOps};
use burn::nn::Dropout;
use burn::tensor::{FloatDType, Shape, Tensor};

/// Computes `layer.forward(x)`.
///
/// On the CPU the kernel draws from the [`RandomStream`](crate::random::RandomStream) in scope, or else from
/// the device's generator. The same seed drops the same values, but not those that Burn's operation drops.
pub fn dropout<const D: usize>(layer: &Dropout, x: Tensor<D>) -> Tensor<D> {
    if !drops(layer, &x) || !is_host(&x) {
        return layer.forward(x);
    }
    operation::run([x.into_dispatch()], |[x]| {
        let shape = x.shape();
        let kept = Kept::draw(shape[0], shape[1..].iter().product(), layer.prob, key());
        (tensor(kept.scale(values(&x)), shape), move |[]: [Host; 0], grad: Host, _| {
            [Some(tensor(kept.scale(values(&grad)), grad.shape()))]
        })
    })
}

/// Whether the layer drops values of `x`.
pub(super) fn drops<const D: usize>(layer: &Dropout, x: &Tensor<D>) -> bool {
    layer.training.is_enabled() && x.device().is_autodiff() && layer.prob != 0.0
}

/// Key for ChaCha from the stream in scope, or from the device's generator, which `Device::seed` seeds.
pub(super) fn key() -> Key {
    let mut key = [0; 32];
    if let Some(number) = random::draw() {
        key[..8].copy_from_slice(&number.to_le_bytes());
        return key;
    }
    let shape = Shape::new([16]);
    let drawn = Flex::float_random(shape, Distribution::Default, &Default::default(), FloatDType::F32);
    for (bytes, value) in key.as_chunks_mut::<2>().0.iter_mut().zip(values(&drawn)) {
        // The value has 24 random bits.
        *bytes = ((value * 65536.0) as u16).to_le_bytes();
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::read;
    use burn::nn::DropoutConfig;
    use burn::tensor::Device;

    #[test]
    fn gradients_use_the_same_mask() {
        let x = Tensor::<2>::ones([20, 100], &Device::flex().autodiff()).require_grad();
        let output = dropout(&DropoutConfig::new(0.5).init(), x.clone());
        let again = dropout(&DropoutConfig::new(0.5).init(), x.clone());
        let gradient = x.grad(&output.clone().sum().backward()).expect("a gradient");
        // The values are 1, so that the gradient equals the output.
        assert!(read(gradient) == read(output.clone()));
        assert!(read(output) != read(again), "draws must differ");
    }

    #[test]
    fn inference_drops_nothing() {
        let x = Tensor::<2>::ones([3, 5], &Device::flex());
        assert_eq!(read(dropout(&DropoutConfig::new(0.5).init(), x.clone())), read(x));
    }
}
