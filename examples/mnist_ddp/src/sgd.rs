//! The optimizer: PyTorch's SGD without dampening.

use burn::optim::ModuleOptimizer;
use kernels::layers;

// ANCHOR: sgd
/// PyTorch's SGD as a Burn optimizer.
pub fn sgd(momentum: f64, nesterov: bool, weight_decay: f64) -> ModuleOptimizer {
    layers::Sgd { momentum, nesterov, weight_decay }.into()
}
// ANCHOR_END: sgd

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NetConfig;
    use burn::module::{Module, Param};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Int, Tensor};

    fn assert_close(ours: &Tensor<1>, theirs: &[f32]) {
        let ours: Vec<f32> = ours.to_data().try_to_vec().expect("f32");
        assert!(ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-6), "{ours:?} against {theirs:?}");
    }

    #[derive(Module, Debug)]
    struct Cube {
        weight: Param<Tensor<1>>,
    }

    /// Reference values from torch 2.15's `SGD([w], lr=0.1, momentum=0.9, nesterov=…, weight_decay=0.01)` minimising
    /// the sum of w³ from w = [1, −0.5].
    #[test]
    fn the_optimizer_equals_pytorchs() {
        let device = Device::flex().autodiff();
        for (nesterov, wanted) in [
            (true, [[0.4281, -0.641_55], [0.079_012_97, -0.935_280_3], [-0.189_005_96, -1.585_916_8]]),
            (false, [[0.699, -0.5745], [0.280_820_73, -0.739_990_6], [-0.119_479_545, -1.052_468]]),
        ] {
            let mut cube = Cube { weight: Param::from_tensor(Tensor::from_floats([1.0, -0.5], &device)) };
            let mut sgd = sgd(0.9, nesterov, 0.01);
            for wanted in wanted {
                let loss = cube.weight.val().powi_scalar(3).sum();
                let gradients = GradientsParams::from_grads(loss.backward(), &cube);
                cube = sgd.step(0.1, cube, gradients);
                assert_close(&cube.weight.val(), &wanted);
            }
        }
    }

    /// Reference values from torch 2.15's `cross_entropy(logits, labels, label_smoothing=0.1)`, and without smoothing.
    #[test]
    fn label_smoothing_equals_pytorchs() {
        let device = Device::flex();
        let logits = [
            [1.0, 2.0, 0.0, -1.0, 0.5, 3.0, 0.0, 0.0, 1.0, -2.0],
            [0.0, 0.0, 0.0, 4.0, 0.0, 1.0, -1.0, 2.0, 0.0, 0.5],
        ];
        let (logits, labels) =
            (Tensor::<2>::from_floats(logits, &device), Tensor::<1, Int>::from_ints([1, 3], &device));
        for (smoothing, loss) in [(0.1, 1.201_021_9), (0.0, 0.956_021_9)] {
            let net = NetConfig::default().init(&device);
            let net = net.with_label_smoothing(smoothing);
            assert_close(&net.judge(logits.clone(), labels.clone()).0, &[loss]);
        }
    }
}
