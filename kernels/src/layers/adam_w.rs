//! AdamW as a Burn optimizer, in one pass on the CPU.

use crate::adam_w;
use crate::host_tensor::{Host, contiguous, is_host, tensor, values, values_mut};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension, tensor::FloatTensor};
use burn::optim::{self, AdamWConfig, AdamWState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

/// Burn's AdamW without AMSGrad.
///
/// Results are bit-identical to those of Burn's AdamW, and so are records.
#[derive(Clone)]
pub struct AdamW {
    betas: [f32; 2],
    epsilon: f32,
    weight_decay: f32,
    /// For the first step of a parameter, and for other devices.
    burn: optim::AdamW,
}

impl AdamW {
    /// Creates the optimizer; `betas` are the decay rates of the moments.
    pub fn new(betas: [f32; 2], epsilon: f32, weight_decay: f32) -> Self {
        let config = AdamWConfig::new().with_beta_1(betas[0]).with_beta_2(betas[1]);
        let burn = config.with_epsilon(epsilon).with_weight_decay(weight_decay).build();
        Self { betas, epsilon, weight_decay, burn }
    }

    /// Adds the step to those of [`together`](super::together()), if possible, and moves the state on.
    #[cfg(feature = "cuda")]
    fn add<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: &Tensor<D>,
        grad: &Tensor<D>,
        state: &mut AdamWState<D>,
    ) -> Option<Tensor<D>> {
        let momentum = &mut state.momentum;
        if momentum.max_moment_2.is_some() {
            return None;
        }
        let with = self.at(lr, momentum.time + 1);
        let [tensor, first, second, grad] = [tensor, &momentum.moment_1, &momentum.moment_2, grad]
            .map(|tensor| tensor.clone().into_dispatch());
        let [tensor, first, second] =
            super::together::add(|updates| updates.adam_w(with, tensor, [first, second], grad))?;
        momentum.time += 1;
        [momentum.moment_1, momentum.moment_2] = [first, second].map(Tensor::from_dispatch);
        Some(Tensor::from_dispatch(tensor))
    }

    fn at(&self, lr: LearningRate, time: usize) -> adam_w::AdamW {
        let Self { betas, epsilon, weight_decay, .. } = *self;
        let decay = (1.0 - lr * f64::from(weight_decay)) as f32;
        adam_w::AdamW { rate: lr as f32, betas, epsilon, decay, time: time as i32 }
    }
}

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let mut state = match state {
            Some(state) if on_host(&tensor, &grad, &state) => state,
            #[cfg_attr(not(feature = "cuda"), allow(unused_mut, reason = "a CUDA kernel writes it"))]
            Some(mut state) => {
                #[cfg(feature = "cuda")]
                if let Some(tensor) = self.add(lr, &tensor, &grad, &mut state) {
                    return (tensor, Some(state));
                }
                return self.burn.step(lr, tensor, grad, Some(state));
            }
            None => return self.burn.step(lr, tensor, grad, None),
        };
        let momentum = &mut state.momentum;
        momentum.time += 1;
        let with = self.at(lr, momentum.time);
        // The moments are taken out of the state, because shared values are copied.
        let empty = || Tensor::empty([0; D], &Device::flex());
        let [first, second] = [&mut momentum.moment_1, &mut momentum.moment_2]
            .map(|moment| std::mem::replace(moment, empty()).into_dispatch());
        let (tensor, first, second) = <Dispatch as AdamWBackend>::kernel_adam_w(
            tensor.into_dispatch(),
            first,
            second,
            grad.into_dispatch(),
            with,
        );
        [momentum.moment_1, momentum.moment_2] = [first, second].map(Tensor::from_dispatch);
        (Tensor::from_dispatch(tensor), Some(state))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        optim::AdamW::to_device(state, device)
    }
}

/// Whether the kernel can use all tensors.
fn on_host<const D: usize>(tensor: &Tensor<D>, grad: &Tensor<D>, state: &AdamWState<D>) -> bool {
    let momentum = &state.momentum;
    momentum.max_moment_2.is_none()
        && [tensor, grad, &momentum.moment_1, &momentum.moment_2].into_iter().all(is_host)
}

/// A Burn backend with the AdamW step of this crate.
#[backend_extension(Flex)]
pub trait AdamWBackend: Backend {
    /// Parameter and both moments after a step; all are f32 and have the same shape.
    fn kernel_adam_w(
        parameter: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        with: adam_w::AdamW,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl AdamWBackend for Flex {
    fn kernel_adam_w(
        parameter: Host,
        mut first: Host,
        mut second: Host,
        gradient: Host,
        with: adam_w::AdamW,
    ) -> (Host, Host, Host) {
        let (parameter, gradient) = (contiguous(parameter), contiguous(gradient));
        let moments = [values_mut(&mut first), values_mut(&mut second)];
        let moved = with.step(values(&parameter), moments, values(&gradient));
        (tensor(moved, parameter.shape()), first, second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    const BETAS: [f32; 2] = [0.9, 0.99];

    fn burns(weight_decay: f32) -> optim::AdamW {
        let config = AdamWConfig::new().with_beta_1(BETAS[0]).with_beta_2(BETAS[1]).with_epsilon(1e-8);
        config.with_weight_decay(weight_decay).build()
    }

    fn random(shape: [usize; 2]) -> Tensor<2> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
    }

    /// A contiguous part of a larger tensor, as in a gradient bucket.
    fn gradient([rows, columns]: [usize; 2]) -> Tensor<2> {
        random([rows + 1, columns]).slice([1..rows + 1, 0..columns])
    }

    fn bits(tensor: &Tensor<2>) -> Vec<u32> {
        tensor.to_data().try_to_vec::<f32>().expect("f32").into_iter().map(f32::to_bits).collect()
    }

    fn all_bits(parameter: &Tensor<2>, state: &Option<AdamWState<2>>) -> [Vec<u32>; 3] {
        let momentum = &state.as_ref().expect("moments").momentum;
        [parameter, &momentum.moment_1, &momentum.moment_2].map(bits)
    }

    #[test]
    fn steps_equal_those_of_burns_adamw_to_the_bit() {
        // The last one is divided among threads.
        for shape in [[1, 1], [7, 5], [33, 17], [211, 157]] {
            for decay in [0.0, 0.1] {
                let (ours, burns) = (AdamW::new(BETAS, 1e-8, decay), burns(decay));
                let first = random(shape);
                let (mut own, mut theirs) = ((first.clone(), None), (first, None));
                for step in 0..5 {
                    let grad = gradient(shape);
                    // Both continue from each other's state.
                    if step == 3 {
                        std::mem::swap(&mut own, &mut theirs);
                    }
                    own = ours.step(0.01, own.0, grad.clone(), own.1);
                    theirs = burns.step(0.01, theirs.0, grad, theirs.1);
                    let same = all_bits(&own.0, &own.1) == all_bits(&theirs.0, &theirs.1);
                    assert!(same, "{shape:?}, decay {decay}, step {step}");
                }
            }
        }
    }

    #[test]
    fn a_step_does_not_change_copies_of_parameter_and_state() {
        let ours = AdamW::new(BETAS, 1e-8, 0.1);
        let (parameter, state) = ours.step(0.01, random([7, 5]), gradient([7, 5]), None);
        let before = all_bits(&parameter, &state);
        let (next, next_state) = ours.step(0.01, parameter.clone(), gradient([7, 5]), state.clone());
        assert!(all_bits(&parameter, &state) == before);
        assert!(all_bits(&next, &next_state) != before);
    }
}
