//! Dropout as a Burn operation.

use crate::{
    dropout::{Kept, Key},
    host_tensor::{Host, contiguous, is_host, tensor, values},
    random,
};
use burn::backend::{
    Autodiff, Backend, Dispatch, Distribution, Flex, TensorMetadata,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    backend_extension,
    ops::FloatTensorOps,
    tensor::FloatTensor,
};
use burn::nn::Dropout;
use burn::tensor::{FloatDType, Shape, Tensor};
use std::sync::Arc;

/// Computes `layer.forward(x)`.
///
/// On the CPU the kernel draws from the [`RandomStream`](crate::random::RandomStream) in scope, or else from
/// the device's generator. The same seed drops the same values, but not those that Burn's operation drops.
pub fn dropout<const D: usize>(layer: &Dropout, x: Tensor<D>) -> Tensor<D> {
    if !layer.training.is_enabled() || !x.device().is_autodiff() || layer.prob == 0.0 || !is_host(&x) {
        return layer.forward(x);
    }
    Tensor::from_dispatch(<Dispatch as DropoutBackend>::kernel_dropout(x.into_dispatch(), layer.prob))
}

/// A Burn backend with the dropout of this crate.
#[backend_extension(Autodiff, Flex)]
pub trait DropoutBackend: Backend {
    /// Dropout of `x`, `[batch, ...]`, f32, with probability `prob`.
    fn kernel_dropout(x: FloatTensor<Self>, prob: f64) -> FloatTensor<Self>;
}

impl DropoutBackend for Flex {
    fn kernel_dropout(x: Host, prob: f64) -> Host {
        scale(&draw(&x, prob), &x)
    }
}

fn draw(x: &Host, prob: f64) -> Arc<Kept> {
    let shape = x.shape();
    Arc::new(Kept::draw(shape[0], shape[1..].iter().product(), prob, key()))
}

fn scale(kept: &Kept, x: &Host) -> Host {
    tensor(kept.scale(values(&contiguous(x.clone()))), x.shape())
}

/// Key for ChaCha from the stream in scope, or from the device's generator, which `Device::seed` seeds.
fn key() -> Key {
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

#[derive(Debug)]
struct DropoutBackward;

impl Backward<Flex, 1> for DropoutBackward {
    type State = Arc<Kept>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let kept = ops.state;
        unary::<Flex, _>(ops.parents, ops.node, grads, |grad| scale(&kept, &grad));
    }
}

impl<C: CheckpointStrategy> DropoutBackend for Autodiff<Flex, C> {
    fn kernel_dropout(x: FloatTensor<Self>, prob: f64) -> FloatTensor<Self> {
        let (x, guard) = x.into_parts();
        let kept = draw(&x, prob);
        let output = scale(&kept, &x);
        match DropoutBackward.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(kept, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::DropoutConfig;
    use burn::tensor::Device;

    fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().expect("f32")
    }

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
