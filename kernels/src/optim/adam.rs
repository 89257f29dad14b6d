//! Adam and AdamW as Burn optimizers, in one pass on the CPU.

#[cfg(feature = "cuda")]
use super::together::{Settings, add, takes};
use crate::adam::{self, Decay};
use crate::host_tensor::{contiguous, host, is_host, values, values_mut};
use burn::backend::{Flex, TensorMetadata};
use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{
    self, AdamState, AdamWState, AdaptiveMomentumState, LearningRate, ModuleOptimizer, Optimizer,
    decay::WeightDecayConfig,
};
use burn::tensor::{Device, Tensor};

/// An optimizer whose steps are computed by the kernels or by Burn's operations, and its settings.
///
/// The listed settings are those that only this optimizer has. `$decay` is the weight decay of a step; `None` where Burn's
/// operations compute it.
macro_rules! optimizer {
    (
        $optimizer:ident, $config:ident, $state:ident;
        $decay:expr;
        $($(#[$attribute:meta])* $field:ident, $with:ident: $type:ty;)*
    ) => {
        #[doc = concat!("Settings of [`", stringify!($optimizer), "`], with the names and defaults of Burn's `", stringify!($config), "`.")]
        #[derive(Config, Debug)]
        pub struct $config {
            /// Decay rate of the first moment.
            #[config(default = 0.9)]
            pub beta_1: f32,
            /// Decay rate of the second moment.
            #[config(default = 0.999)]
            pub beta_2: f32,
            /// Added to the square root of the second moment.
            #[config(default = 1e-5)]
            pub epsilon: f32,
            $($(#[$attribute])* pub $field: $type,)*
            /// Whether the largest second moment is used (AMSGrad), which is Burn's operation.
            #[config(default = false)]
            pub amsgrad: bool,
            /// Clipping of each parameter's gradient.
            pub grad_clipping: Option<GradientClippingConfig>,
        }

        impl $config {
            /// Creates the optimizer of a parameter group, without clipping.
            pub fn build(&self) -> $optimizer {
                let config = self.clone();
                let burn = optim::$config::new()
                    .with_beta_1(self.beta_1)
                    .with_beta_2(self.beta_2)
                    .with_epsilon(self.epsilon)
                    .with_amsgrad(self.amsgrad)
                    $(.$with(config.$field))*;
                $optimizer { config: self.clone(), burn: burn.build() }
            }

            /// Creates the optimizer of a module.
            pub fn init(&self) -> ModuleOptimizer {
                clipped(self.build().into(), self.grad_clipping.as_ref())
            }
        }

        #[doc = concat!("Burn's ", stringify!($optimizer), ".")]
        ///
        /// Results are bit-identical to those of Burn's optimizer, and so are records.
        #[derive(Clone)]
        pub struct $optimizer {
            config: $config,
            /// For the first step of a parameter, for settings without a kernel and for other devices.
            burn: optim::$optimizer,
        }

        impl Optimizer for $optimizer {
            type State<const D: usize> = $state<D>;

            fn step<const D: usize>(
                &self,
                lr: LearningRate,
                mut tensor: Tensor<D>,
                mut grad: Tensor<D>,
                mut state: Option<$state<D>>,
            ) -> (Tensor<D>, Option<$state<D>>) {
                let $config { beta_1, beta_2, epsilon, amsgrad, .. } = self.config;
                let decay: fn(&$config, LearningRate) -> Option<Decay> = $decay;
                if let Some($state { momentum }) = &mut state
                    && !amsgrad
                    && let Some(decay) = decay(&self.config, lr)
                {
                    let time = momentum.time as i32 + 1;
                    let with = adam::Adam { rate: lr as f32, betas: [beta_1, beta_2], epsilon, decay, time };
                    match step(with, [tensor, grad], momentum) {
                        Ok(tensor) => return (tensor, state),
                        Err(unchanged) => [tensor, grad] = *unchanged,
                    }
                }
                self.burn.step(lr, tensor, grad, state)
            }

            fn to_device<const D: usize>(state: $state<D>, device: &Device) -> $state<D> {
                optim::$optimizer::to_device(state, device)
            }
        }
    };
}

optimizer! {
    Adam, AdamConfig, AdamState;
    |config, _| Some(Decay::Gradient(config.weight_decay.as_ref().map(|decay| decay.penalty)));
    /// Weight decay (L2).
    #[config(default = "None")]
    weight_decay, with_weight_decay: Option<WeightDecayConfig>;
}

optimizer! {
    AdamW, AdamWConfig, AdamWState;
    |config, lr| {
        let factor = (1.0 - lr * f64::from(config.weight_decay)) as f32;
        (!config.cautious_weight_decay).then_some(Decay::Parameter(factor))
    };
    /// Weight decay.
    #[config(default = 1e-4)]
    weight_decay, with_weight_decay: f32;
    /// Whether a parameter decays only towards where its update leads, which is Burn's operation.
    #[config(default = false)]
    cautious_weight_decay, with_cautious_weight_decay: bool;
}

/// The optimizer with clipping of each parameter's gradient.
pub(super) fn clipped(optimizer: ModuleOptimizer, with: Option<&GradientClippingConfig>) -> ModuleOptimizer {
    match with {
        Some(clipping) => optimizer.with_grad_clipping(clipping.init()),
        None => optimizer,
    }
}

/// The parameter after a step, which the kernel computes or the batch of [`together`](super::together()) will compute.
///
/// Returns parameter and gradient if the tensors are on other devices, or the state has the largest second moment of
/// AMSGrad.
fn step<const D: usize>(
    with: adam::Adam,
    [tensor, grad]: [Tensor<D>; 2],
    momentum: &mut AdaptiveMomentumState<D>,
) -> Result<Tensor<D>, Box<[Tensor<D>; 2]>> {
    let all = [&tensor, &momentum.moment_1, &momentum.moment_2, &grad];
    let on_host = all.into_iter().all(is_host);
    #[cfg(feature = "cuda")]
    let queued = !on_host && takes(all);
    #[cfg(not(feature = "cuda"))]
    let queued = false;
    if momentum.max_moment_2.is_some() || !(on_host || queued) {
        return Err(Box::new([tensor, grad]));
    }
    momentum.time += 1;
    // The moments are taken out of the state, because shared values are copied.
    let empty = || Tensor::empty([0; D], &Device::flex());
    let [first, second] =
        [&mut momentum.moment_1, &mut momentum.moment_2].map(|moment| std::mem::replace(moment, empty()));
    #[cfg(feature = "cuda")]
    if queued {
        let [tensor, first, second] = add(Settings::Adam(with), [tensor, first, second, grad]);
        [momentum.moment_1, momentum.moment_2] = [first, second];
        return Ok(tensor);
    }
    let [parameter, gradient] = [tensor, grad].map(|tensor| contiguous(host(tensor)));
    let [mut first, mut second] = [first, second].map(host);
    let moments = [values_mut(&mut first), values_mut(&mut second)];
    let moved = with.step(values(&parameter), moments, values(&gradient));
    [momentum.moment_1, momentum.moment_2] = [first, second].map(Tensor::from_primitive::<Flex>);
    Ok(Tensor::from_primitive::<Flex>(crate::host_tensor::tensor(moved, parameter.shape())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    const BETAS: [f32; 2] = [0.9, 0.99];

    /// The optimizer of the settings type `$config`.
    macro_rules! optimizer {
        ($config:ty, $decay:expr) => {
            <$config>::new()
                .with_beta_1(BETAS[0])
                .with_beta_2(BETAS[1])
                .with_epsilon(1e-8)
                .with_weight_decay($decay)
                .build()
        };
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

    fn all_bits(parameter: &Tensor<2>, momentum: &AdaptiveMomentumState<2>) -> [Vec<u32>; 3] {
        [parameter, &momentum.moment_1, &momentum.moment_2].map(bits)
    }

    /// Steps of two optimizers, of which each continues from the other's state after half of them.
    macro_rules! equal_steps {
        ($ours:expr, $burns:expr, $shape:expr) => {{
            let (ours, burns) = ($ours, $burns);
            let first = random($shape);
            let (mut own, mut theirs) = ((first.clone(), None), (first, None));
            for step in 0..5 {
                let grad = gradient($shape);
                if step == 3 {
                    std::mem::swap(&mut own, &mut theirs);
                }
                own = ours.step(0.01, own.0, grad.clone(), own.1);
                theirs = burns.step(0.01, theirs.0, grad, theirs.1);
                let [own, theirs] =
                    [&own, &theirs].map(|(x, state)| all_bits(x, &state.as_ref().expect("moments").momentum));
                assert!(own == theirs, "{:?}, step {step}", $shape);
            }
        }};
    }

    #[test]
    fn steps_equal_those_of_burn_to_the_bit() {
        // The last one is divided among threads.
        for shape in [[1, 1], [7, 5], [33, 17], [211, 157]] {
            for decay in [0.0, 0.1] {
                let both = (optimizer!(AdamWConfig, decay), optimizer!(optim::AdamWConfig, decay));
                equal_steps!(both.0, both.1, shape);
                let decay = (decay > 0.0).then(|| WeightDecayConfig::new(decay));
                let both = (optimizer!(AdamConfig, decay.clone()), optimizer!(optim::AdamConfig, decay));
                equal_steps!(both.0, both.1, shape);
            }
        }
    }

    #[test]
    fn a_step_does_not_change_copies_of_parameter_and_state() {
        let ours = optimizer!(AdamWConfig, 0.1);
        let all_bits = |x: &Tensor<2>, state: &Option<AdamWState<2>>| {
            all_bits(x, &state.as_ref().expect("moments").momentum)
        };
        let (parameter, state) = ours.step(0.01, random([7, 5]), gradient([7, 5]), None);
        let before = all_bits(&parameter, &state);
        let (next, next_state) = ours.step(0.01, parameter.clone(), gradient([7, 5]), state.clone());
        assert!(all_bits(&parameter, &state) == before);
        assert!(all_bits(&next, &next_state) != before);
    }
}
