//! Networks, optimizer and recipes.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::Conv2d;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Shape, Tensor, activation::relu};
use burn_ddp::metric::Classification;
use clap::{Parser, ValueEnum};
use mnist::{
    model::{NetConfig, Network, sgd},
    train::{MnistArgs, Recipe},
};

#[test]
fn the_networks_have_the_documented_number_of_parameters() {
    for (network, parameters) in [(Network::Cnn, 1_199_882), (Network::Lenet, 80_202)] {
        let net = NetConfig { network, ..NetConfig::default() }.init(&Device::flex());
        assert_eq!(net.num_params(), parameters, "{network:?}");
    }
}

/// Values between -0.2 and 0.2. Random ones may be so close in a pooling window, or so close to zero before ReLU, that
/// rounding decides where the gradient goes.
struct Fixed(f32);

impl Fixed {
    fn values<const D: usize>(&mut self, shape: Shape, device: &Device) -> Tensor<D> {
        self.0 += 1.0;
        let places = Tensor::<1, Int>::arange(0..shape.num_elements() as i64, device).float();
        places.mul_scalar(12.9898).add_scalar(self.0).sin().mul_scalar(0.2).reshape(shape)
    }
}

impl ModuleMapper for Fixed {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| self.values(tensor.shape(), &tensor.device().inner()).autodiff().require_grad())
    }
}

/// Logits and the gradients of all convolutions, for the fused layers and for Burn's own.
#[test]
fn fused_layers_compute_what_burns_layers_do() {
    let device = Device::flex().autodiff();
    for network in [Network::Cnn, Network::Lenet] {
        let mut fixed = Fixed(0.0);
        let net = NetConfig { network, ..NetConfig::default() }.init(&device).map(&mut fixed);
        let images = fixed.values([3, 1, 28, 28].into(), &device);
        let plain = |x: Tensor<4>| {
            let x = relu(net.conv1.forward(x));
            let x = net.pool1.as_ref().map_or(x.clone(), |pool| pool.forward(x));
            let x = net.pool.forward(relu(net.conv2.forward(x))).flatten(1, 3);
            net.fc2.forward(relu(net.fc1.forward(x)))
        };
        let results = [net.forward(images.clone()), plain(images)].map(|logits: Tensor<2>| {
            let gradients = logits.clone().powf_scalar(2.0).sum().backward();
            let of = |conv: &Conv2d| conv.weight.grad(&gradients).expect("a gradient").flatten::<1>(0, 3);
            Tensor::cat(vec![logits.inner().flatten::<1>(0, 1), of(&net.conv1), of(&net.conv2)], 0)
        });
        let [ours, burns] = results;
        let scale = burns.clone().abs().max();
        let difference = ((ours - burns).abs().max() / scale).into_scalar::<f32>();
        assert!(difference < 1e-5, "{network:?}: {difference}");
    }
}

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
    let device = Device::flex().autodiff();
    let logits = [
        [1.0, 2.0, 0.0, -1.0, 0.5, 3.0, 0.0, 0.0, 1.0, -2.0],
        [0.0, 0.0, 0.0, 4.0, 0.0, 1.0, -1.0, 2.0, 0.0, 0.5],
    ];
    let (logits, labels) =
        (Tensor::<2>::from_floats(logits, &device), Tensor::<1, Int>::from_ints([1, 3], &device));
    let loss = |smoothing, logits, labels| Classification::cross_entropy(smoothing, logits, labels).0;
    for (smoothing, wanted) in [(0.1, 1.201_021_9), (0.0, 0.956_021_9)] {
        assert_close(&loss(smoothing, logits.clone(), labels.clone()), &[wanted]);
    }
    // An evaluation has no smoothing.
    assert_close(&loss(0.1, logits.inner(), labels.inner()), &[0.956_021_9]);
}

#[test]
fn every_recipe_consists_of_valid_flags() {
    for recipe in Recipe::value_variants() {
        let line = ["program"].into_iter().chain(recipe.flags());
        let args = MnistArgs::try_parse_from(line).unwrap_or_else(|error| panic!("{recipe:?}: {error}"));
        assert!(args.nesterov);
    }
}
