//! Networks of `burn_ddp::nn` follow PyTorch's losses from equal weights on one rank, two ranks and two replicas.
//!
//! `tests/fixtures/networks.py` writes the losses. Weights and batches are those of its formula.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::optim::ModuleOptimizer;
use burn::store::ModuleSnapshot;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_ddp::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn_ddp::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn_ddp::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn_ddp::nn::{Gru, GruConfig, Linear, LinearConfig, Lstm, LstmConfig, Relu};
use burn_ddp::optim::{AdamConfig, AdamWConfig, SgdConfig, momentum::MomentumConfig};
use burn_ddp::{
    DataParallel, DistributedDataParallel, ParallelModule, ProcessGroup, launch_threads,
    loader::ShardedBatch, run::weights,
};
use safetensors::{Dtype, serialize, tensor::TensorView};
use serde::Deserialize;
use std::{fs, ops::Range};

const BATCH: usize = 8;
const TIME: usize = 7;
const INPUTS: usize = 6;
const HIDDEN: usize = 16;
const CLASSES: usize = 5;
const SIDE: usize = 12;

/// Inputs `[batch, values]`, classes `[batch]`, and which positions are padding `[batch, TIME]`.
type Batch = ((Tensor<2>, Tensor<1, Int>), Tensor<2, Bool>);

trait Network: Module + ModuleSnapshot + 'static {
    /// Number of values of a sample.
    const VALUES: usize;
    fn new(device: &Device) -> Self;
    fn loss(&self, batch: Batch) -> Tensor<1>;
}

fn cross_entropy(logits: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes)
}

/// A classifier of the last state of a recurrent layer.
macro_rules! classifier {
    ($name:ident, $layer:ident, $config:ident, $states:expr) => {
        #[derive(Module, Debug)]
        struct $name {
            recurrent: $layer,
            output: Linear,
        }

        impl Network for $name {
            const VALUES: usize = TIME * INPUTS;

            fn new(device: &Device) -> Self {
                let output = LinearConfig::new(HIDDEN, CLASSES).init(device);
                Self { recurrent: $config::new(INPUTS, HIDDEN, true).init(device), output }
            }

            fn loss(&self, ((x, classes), _): Batch) -> Tensor<1> {
                let x = x.reshape([0, TIME as i32, INPUTS as i32]);
                let states: Tensor<3> = $states(self.recurrent.forward(x, None));
                let last = states.narrow(1, TIME - 1, 1).squeeze_dim(1);
                cross_entropy(self.output.forward(last), classes)
            }
        }
    };
}

classifier!(LstmClassifier, Lstm, LstmConfig, |(states, _)| states);
classifier!(GruClassifier, Gru, GruConfig, |states| states);

#[derive(Module, Debug)]
struct Encoder {
    encoder: TransformerEncoder,
    output: Linear,
}

impl Network for Encoder {
    const VALUES: usize = TIME * HIDDEN;

    fn new(device: &Device) -> Self {
        let encoder = TransformerEncoderConfig::new(HIDDEN, 2 * HIDDEN, 4, 2).with_dropout(0.0);
        Self { encoder: encoder.init(device), output: LinearConfig::new(HIDDEN, CLASSES).init(device) }
    }

    fn loss(&self, ((x, classes), padding): Batch) -> Tensor<1> {
        let x = x.reshape([0, TIME as i32, HIDDEN as i32]);
        let x = self.encoder.forward(TransformerEncoderInput::new(x).mask_pad(padding.clone()));
        let kept = padding.bool_not().float().unsqueeze_dim::<3>(2);
        let mean = (x * kept.clone()).sum_dim(1) / kept.sum_dim(1);
        cross_entropy(self.output.forward(mean.squeeze_dim(1)), classes)
    }
}

#[derive(Module, Debug)]
struct Autoencoder {
    down: [Conv2d; 2],
    up: [ConvTranspose2d; 2],
}

impl Network for Autoencoder {
    const VALUES: usize = SIDE * SIDE;

    fn new(device: &Device) -> Self {
        let down = |channels| {
            let config = Conv2dConfig::new(channels, [3, 3]).with_stride([2, 2]);
            config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device)
        };
        let up = |channels| {
            let config = ConvTranspose2dConfig::new(channels, [3, 3]).with_stride([2, 2]);
            config.with_padding([1, 1]).with_padding_out([1, 1]).init(device)
        };
        Self { down: [[1, 8], [8, 12]].map(down), up: [[12, 8], [8, 1]].map(up) }
    }

    fn loss(&self, ((x, _), _): Batch) -> Tensor<1> {
        let (x, relu) = (x.reshape([0, 1, SIDE as i32, SIDE as i32]), Relu::new());
        let hidden = self.down.iter().fold(x.clone(), |x, layer| relu.forward(layer.forward(x)));
        let [first, second] = &self.up;
        let output = second.forward(relu.forward(first.forward(hidden)));
        MseLoss::new().forward(output, x, Reduction::Mean)
    }
}

/// One line of the fixture.
#[derive(Clone, Deserialize)]
struct Case {
    network: String,
    optimizer: String,
    /// Names and shapes in PyTorch.
    parameters: Vec<(String, Vec<usize>)>,
    loss: Vec<f64>,
}

/// Pseudorandom numbers of 24 bits, as in the script.
fn bits(seed: u32, count: usize) -> impl Iterator<Item = u32> {
    (0..count as u32).map(move |at| {
        let k = at.wrapping_add(seed.wrapping_mul(1_000_003));
        let k = (k ^ (k >> 16)).wrapping_mul(0x85EB_CA6B);
        let k = (k ^ (k >> 13)).wrapping_mul(0xC2B2_AE35);
        (k ^ (k >> 16)) >> 8
    })
}

/// Numbers from 0 to 1.
fn uniform(seed: u32, count: usize) -> Vec<f32> {
    bits(seed, count).map(|bits| bits as f32 / (1 << 24) as f32).collect()
}

/// The names in Burn of the equal parts that a tensor of PyTorch has along its first dimension.
fn burns_names(name: &str, rows: usize) -> Vec<String> {
    if let Some(rest) = name.strip_prefix("recurrent.") {
        let (kind, transform) = rest.split_once('_').expect("as weight_ih_l0");
        let transform = if transform.starts_with("ih") { "input_transform" } else { "hidden_transform" };
        let gates = match rows / HIDDEN {
            3 => &["reset", "update", "new"][..],
            _ => &["input", "forget", "cell", "output"],
        };
        return gates.iter().map(|gate| format!("recurrent.{gate}_gate.{transform}.{kind}")).collect();
    }
    if let Some((layer, kind)) = name.split_once("self_attn.in_proj_") {
        return ["query", "key", "value"].map(|part| format!("{layer}mha.{part}.{kind}")).into();
    }
    let layers = [
        ("self_attn.out_proj", "mha.output"),
        ("linear1", "pwff.linear_inner"),
        ("linear2", "pwff.linear_outer"),
        ("norm1", "norm_1"),
        ("norm2", "norm_2"),
    ];
    vec![layers.iter().fold(name.to_owned(), |name, (theirs, burns)| name.replace(theirs, burns))]
}

impl Case {
    /// The network with the weights of the formula, which are loaded from a file.
    fn open<N: Network>(&self, device: &Device) -> N {
        let mut tensors = Vec::new();
        for ((name, shape), seed) in self.parameters.iter().zip(0..) {
            let mut values = uniform(seed, shape.iter().product());
            let centre = if name.contains("norm") && name.ends_with("weight") { 1.0 } else { 0.0 };
            values.iter_mut().for_each(|value| *value = (*value - 0.5) / 2.0 + centre);
            let names = burns_names(name, shape[0]);
            let (rows, size) = (shape[0] / names.len(), values.len() / names.len());
            for (name, part) in names.into_iter().zip(values.chunks(size)) {
                let bytes: Vec<u8> = part.iter().flat_map(|value| value.to_le_bytes()).collect();
                tensors.push((name, [&[rows], &shape[1..]].concat(), bytes));
            }
        }
        let views = tensors.iter().map(|(name, shape, bytes)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("its size"))
        });
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("weights.safetensors");
        fs::write(&path, serialize(views, None).expect("consistent tensors")).expect("written");
        weights::open(N::new(device), &path).expect("all weights")
    }

    /// Optimizer and learning rate.
    fn optimizer(&self) -> (ModuleOptimizer, f64) {
        match &*self.optimizer {
            "adam" => (AdamConfig::new().with_epsilon(1e-8).init(), 0.01),
            "adamw" => (AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.1).init(), 0.01),
            "sgd" => {
                let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
                (SgdConfig::new().with_momentum(Some(momentum)).init(), 0.1)
            }
            other => panic!("the optimizer {other}"),
        }
    }

    /// Trains on these rows of every batch. Returns the losses of the whole batches.
    fn train<N: Network>(
        &self,
        mut model: ParallelModule<N>,
        (mut optimizer, lr): (ModuleOptimizer, f64),
        rows: Range<usize>,
    ) -> burn_ddp::Result<Vec<f64>> {
        let device = Device::flex().autodiff();
        let step = |step: usize| {
            let seed = 1000 + step as u32 % 4;
            let x = TensorData::new(uniform(seed, BATCH * N::VALUES), [BATCH, N::VALUES]);
            let classes: Vec<i32> = bits(seed, BATCH).map(|bits| bits as i32 % CLASSES as i32).collect();
            let padding = (0..BATCH).flat_map(|i| (0..TIME).map(move |at| at >= 3 + i % (TIME - 2)));
            let padding = TensorData::new(padding.collect::<Vec<_>>(), [BATCH, TIME]);
            let classes = Tensor::<1, Int>::from_data(&*classes, &device).slice(rows.clone());
            let x = Tensor::<2>::from_data(x, &device).slice(rows.clone());
            let item = ((x, classes), Tensor::<2, Bool>::from_data(padding, &device).slice(rows.clone()));
            let batch = ShardedBatch { item, samples: rows.len(), global_samples: BATCH, last: false };
            let (loss, gradients) = model.backward(batch, N::loss)?;
            model.step(&mut optimizer, lr, gradients)?;
            loss.mean()
        };
        (0..self.loss.len()).map(step).collect()
    }

    /// The losses on one rank, on two ranks with 5 and 3 samples, and on two replicas.
    fn losses<N: Network>(&self) -> [Vec<f64>; 3] {
        let device = Device::flex().autodiff();
        let model = || self.open::<N>(&device);
        let one = DistributedDataParallel::new(model(), &ProcessGroup::solo()).expect("a model");
        let two = launch_threads(2, |context| {
            let model = DistributedDataParallel::new(model(), context.group())?;
            let rows = if context.is_main() { 0..5 } else { 5..BATCH };
            Ok(self.train(model.into(), self.optimizer(), rows)?)
        });
        let mut two = two.expect("two ranks");
        assert_eq!(two[0], two[1], "every rank has the loss of the batch");
        let replicas = DataParallel::new(model(), &[Device::flex(), Device::flex()]).expect("replicas");
        let here = |model| self.train::<N>(model, self.optimizer(), 0..BATCH).expect("losses");
        [here(one.into()), two.remove(0), here(replicas.into())]
    }
}

fn cases() -> Vec<Case> {
    serde_json::from_slice(include_bytes!("../fixtures/networks.json")).expect("networks.json")
}

/// The largest relative difference.
fn difference(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max)
}

#[test]
fn losses_equal_those_of_pytorch_in_all_modes() {
    for case in cases() {
        let all = match &*case.network {
            "lstm" => case.losses::<LstmClassifier>(),
            "gru" => case.losses::<GruClassifier>(),
            "encoder" => case.losses::<Encoder>(),
            "autoencoder" => case.losses::<Autoencoder>(),
            other => panic!("the network {other}"),
        };
        let from_pytorch = all.each_ref().map(|losses| difference(losses, &case.loss));
        let between = [difference(&all[1], &all[0]), difference(&all[2], &all[0])];
        let what = format!("{} with {}", case.network, case.optimizer);
        println!("{what}: from PyTorch {from_pytorch:?}, between modes {between:?}");
        // Small enough that one missing entry of an LSTM's gradient is found.
        let tolerance = if ["lstm", "gru"].contains(&&*case.network) { 1e-6 } else { 1e-5 };
        let worst = from_pytorch.into_iter().chain(between).fold(0.0, f64::max);
        assert!(worst <= tolerance, "{what}: {all:?}");
    }
}

#[test]
fn a_wrong_setting_changes_the_losses() {
    let case = cases().swap_remove(0);
    let losses = |beta_2| {
        let model = case.open::<LstmClassifier>(&Device::flex().autodiff());
        let model = DistributedDataParallel::new(model, &ProcessGroup::solo()).expect("a model");
        let adam = AdamConfig::new().with_epsilon(1e-8).with_beta_2(beta_2).init();
        case.train(model.into(), (adam, 0.01), 0..BATCH).expect("losses")
    };
    assert!(difference(&losses(0.999), &case.loss) <= 1e-5);
    assert!(difference(&losses(0.998), &case.loss) > 1e-5);
}
