//! The optimizer: AdamW that decays matrices only.

use burn::optim::{AdamWState, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use kernels::layers::AdamW;

/// PyTorch's default.
const EPSILON: f32 = 1e-8;

/// AdamW with decoupled weight decay of parameters with two or more dimensions.
///
/// As in nanoGPT, biases and the parameters of LayerNorm are not decayed. A parameter's group follows from its
/// shape and not from its ID, so that it is the same in a resumed run.
#[derive(Clone)]
pub struct DecayMatrices {
    decaying: AdamW,
    plain: AdamW,
}

/// AdamW as an optimizer of a module, with PyTorch's `eps`.
pub fn adam_w(beta1: f64, beta2: f64, weight_decay: f64) -> ModuleOptimizer {
    let with_decay = |decay| AdamW::new([beta1 as f32, beta2 as f32], EPSILON, decay);
    DecayMatrices { decaying: with_decay(weight_decay as f32), plain: with_decay(0.0) }.into()
}

impl Optimizer for DecayMatrices {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let optimizer = if D >= 2 { &self.decaying } else { &self.plain };
        optimizer.step(lr, tensor, grad, state)
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        AdamW::to_device(state, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::LinearConfig;
    use burn::optim::GradientsParams;

    #[test]
    fn only_matrices_are_decayed() {
        let device = Device::flex().autodiff();
        let before = LinearConfig::new(3, 2).init(&device);
        let [weight, bias] =
            [before.weight.val().flatten::<1>(0, 1), before.bias.as_ref().expect("a bias").val()];
        // A gradient of zero leaves the decay.
        let loss = before.forward(Tensor::<2>::zeros([1, 3], &device)).mul_scalar(0.0).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &before);
        let after = adam_w(0.9, 0.99, 0.5).step(0.1, before, gradients);
        let close = |ours: Tensor<1>, theirs: Tensor<1>| {
            assert!((ours - theirs).abs().max().into_scalar::<f32>() < 1e-6);
        };
        close(after.weight.val().flatten::<1>(0, 1), weight * 0.95);
        close(after.bias.expect("a bias").val(), bias);
    }
}
