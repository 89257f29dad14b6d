//! SGD as a Burn optimizer, in one pass on the CPU.

use super::adam::clipped;
#[cfg(feature = "cuda")]
use super::together::{Settings, add, takes};
use crate::host_tensor::{self, contiguous, host, is_host, values, values_mut};
use crate::sgd;
use burn::backend::{Flex, TensorMetadata};
use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{
    LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource, decay::WeightDecayConfig,
    join_path, momentum::MomentumConfig,
};
use burn::tensor::{Device, Tensor};

/// Settings of [`Sgd`], with the names and defaults of Burn's `SgdConfig`.
#[derive(Config, Debug)]
pub struct SgdConfig {
    /// Weight decay (L2).
    pub weight_decay: Option<WeightDecayConfig>,
    /// Momentum.
    pub momentum: Option<MomentumConfig>,
    /// Clipping of each parameter's gradient.
    pub gradient_clipping: Option<GradientClippingConfig>,
}

impl SgdConfig {
    /// Creates the optimizer of a parameter group, without clipping.
    pub fn build(&self) -> Sgd {
        let weight_decay = self.weight_decay.as_ref().map_or(0.0, |decay| f64::from(decay.penalty));
        let (momentum, dampening, nesterov) = match &self.momentum {
            Some(with) => (with.momentum, with.dampening, with.nesterov),
            None => (0.0, 0.0, false),
        };
        Sgd { momentum, dampening, nesterov, weight_decay }
    }

    /// Creates the optimizer of a module.
    pub fn init(&self) -> ModuleOptimizer {
        clipped(self.build().into(), self.gradient_clipping.as_ref())
    }
}

/// PyTorch's SGD.
///
/// Results are bit-identical to those of Burn's SGD, and records are interchangeable.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Momentum factor; 0 disables momentum.
    pub momentum: f64,
    /// Part of the gradient that the velocity does not take in; 0 in PyTorch's default.
    pub dampening: f64,
    /// Whether Nesterov momentum is used.
    pub nesterov: bool,
    /// Weight decay (L2).
    pub weight_decay: f64,
}

/// Optimizer state of a parameter.
#[derive(Clone)]
pub struct SgdState<const D: usize> {
    velocity: Option<Tensor<D>>,
}

/// Key of the velocity in the record of Burn's `SgdState`.
const MOMENTUM: &str = "momentum";
const VELOCITY: &str = "velocity";

// Implemented by hand, because Burn's derive only works inside Burn's crates.
impl<const D: usize> RecordState for SgdState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(velocity) = &self.velocity {
            out.push_tensor(&join_path(prefix, MOMENTUM), VELOCITY, velocity.clone().into_data());
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let velocity = src.take_tensor(&join_path(prefix, MOMENTUM), VELOCITY);
        Some(SgdState { velocity: velocity.map(|velocity| Tensor::from_data(velocity, device)) })
    }
}

impl Optimizer for Sgd {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let velocity = state.and_then(|state| state.velocity);
        let (tensor, velocity) = match velocity {
            _ if self.momentum == 0.0 => (tensor.clone() - self.decayed(tensor, grad).mul_scalar(lr), None),
            Some(velocity) if [&tensor, &grad, &velocity].into_iter().all(is_host) => {
                let [parameter, gradient] = [tensor, grad].map(|tensor| contiguous(host(tensor)));
                let mut velocity = host(velocity);
                // The parameter is not changed in place, because burn-train's `Learner` keeps the model while the
                // optimizer creates the next one.
                let with = self.at(lr);
                let moved = with.step(values(&parameter), values_mut(&mut velocity), values(&gradient));
                let moved = host_tensor::tensor(moved, parameter.shape());
                let [parameter, velocity] = [moved, velocity].map(Tensor::from_primitive::<Flex>);
                (parameter, Some(velocity))
            }
            #[cfg(feature = "cuda")]
            Some(velocity) if self.dampening == 0.0 && takes([&tensor, &velocity, &grad]) => {
                let [tensor, velocity] = add(Settings::Sgd(self.at(lr)), [tensor, velocity, grad]);
                (tensor, Some(velocity))
            }
            velocity => {
                let grad = self.decayed(tensor.clone(), grad);
                let velocity = match velocity {
                    Some(velocity) => {
                        grad.clone().mul_scalar(1.0 - self.dampening) + velocity.mul_scalar(self.momentum)
                    }
                    None => grad.clone(),
                };
                let along = match self.nesterov {
                    true => velocity.clone().mul_scalar(self.momentum) + grad,
                    false => velocity.clone(),
                };
                (tensor - along.mul_scalar(lr), Some(velocity))
            }
        };
        (tensor, Some(SgdState { velocity }))
    }

    fn to_device<const D: usize>(mut state: SgdState<D>, device: &Device) -> SgdState<D> {
        state.velocity = state.velocity.map(|velocity| velocity.to_device(device));
        state
    }
}

impl Sgd {
    fn decayed<const D: usize>(&self, tensor: Tensor<D>, grad: Tensor<D>) -> Tensor<D> {
        if self.weight_decay == 0.0 { grad } else { tensor.mul_scalar(self.weight_decay) + grad }
    }

    fn at(&self, lr: LearningRate) -> sgd::Sgd {
        let [rate, momentum, dampening, weight_decay] =
            [lr, self.momentum, self.dampening, self.weight_decay].map(|value| value as f32);
        sgd::Sgd { rate, momentum, dampening, nesterov: self.nesterov, weight_decay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::everywhere;
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::{self, GradientsParams};
    use burn::tensor::Distribution;

    /// Momentum, dampening, Nesterov momentum and weight decay.
    type Case = (f64, f64, bool, f64);

    const CASES: [Case; 7] = [
        (0.0, 0.0, false, 0.0),
        (0.0, 0.0, false, 5e-4),
        (0.9, 0.0, false, 0.0),
        (0.9, 0.0, false, 5e-4),
        (0.9, 0.1, false, 0.0),
        (0.9, 0.0, true, 0.0),
        (0.9, 0.0, true, 5e-4),
    ];

    /// The optimizer of the settings type `$config`.
    macro_rules! sgd {
        ($config:ty, $case:expr) => {{
            let (momentum, dampening, nesterov, weight_decay): Case = $case;
            let with = MomentumConfig::new().with_momentum(momentum).with_dampening(dampening);
            let decay = (weight_decay > 0.0).then(|| WeightDecayConfig::new(weight_decay as f32));
            let config = <$config>::new().with_weight_decay(decay);
            config.with_momentum((momentum > 0.0).then_some(with.with_nesterov(nesterov))).init()
        }};
    }

    fn steps(mut net: Linear, optimizer: &mut ModuleOptimizer, x: &Tensor<2>) -> Linear {
        for _ in 0..3 {
            let gradients = net.forward(x.clone()).powi_scalar(2).mean().backward();
            let gradients = GradientsParams::from_grads(gradients, &net);
            net = optimizer.step(0.1, net, gradients);
        }
        net
    }

    fn values_of(net: &Linear) -> [Vec<f32>; 2] {
        let read = |data: burn::tensor::TensorData| data.try_to_vec().expect("f32");
        [read(net.weight.val().into_data()), read(net.bias.as_ref().expect("a bias").val().into_data())]
    }

    fn network() -> (Linear, Tensor<2>) {
        let device = Device::flex().autodiff();
        let net = LinearConfig::new(7, 5).init(&device);
        let _drawn = net.weight.val();
        (net, Tensor::random([4, 7], Distribution::Default, &device))
    }

    #[test]
    fn steps_equal_those_of_burns_sgd_to_the_bit() {
        for case in CASES {
            let (net, x) = network();
            let burns = values_of(&steps(net.clone(), &mut sgd!(optim::SgdConfig, case), &x));
            everywhere(|width| {
                let ours = values_of(&steps(net.clone(), &mut sgd!(SgdConfig, case), &x));
                assert!(ours == burns, "{case:?}, {width}");
            });
        }
    }

    #[test]
    fn records_of_burns_sgd_can_be_loaded() {
        let device = Device::flex();
        let [parameter, first, second] =
            [(); 3].map(|()| Tensor::<2>::random([4, 7], Distribution::Default, &device));
        let burns =
            optim::SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).build();
        let (parameter, state) = burns.step(0.1, parameter, first, None);

        let mut record = StateSink::default();
        state.clone().expect("a velocity").state_flatten("weight", &mut record);
        let mut source = StateSource::default();
        record.tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
        let loaded = SgdState::state_unflatten("weight", &mut source, &device);

        let ours = Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
        let (a, _) = ours.step(0.1, parameter.clone(), second.clone(), loaded);
        let (b, _) = burns.step(0.1, parameter, second, state);
        a.into_data().assert_eq(&b.into_data(), true);
    }

    #[test]
    fn a_step_does_not_change_other_copies_of_the_model() {
        let (net, x) = network();
        let mut optimizer = sgd!(SgdConfig, (0.9, 0.0, false, 0.0));
        let kept = steps(net, &mut optimizer, &x);
        let values = values_of(&kept);
        let net = steps(kept.clone(), &mut optimizer, &x);
        assert!(values_of(&kept) == values);
        assert!(values_of(&net) != values);
    }
}
