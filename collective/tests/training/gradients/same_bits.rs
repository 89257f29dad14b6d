//! Overlap is bit-identical to no overlap for all kinds of layers.

use super::{bits, device, number, numbers, reduced, tiny};
use crate::{
    common::{Kind, options, world},
    support::filled,
};
use burn::module::Module;
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
    conv::{Conv2d, Conv2dConfig},
    gru::{Gru, GruConfig},
};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_ddp_collective::{ProcessGroup, gradient::Reducer};

/// Layers that Burn's autodiff treats differently.
///
/// A convolution, a weight and a value that are used twice, a reshaped weight, a residual connection, an embedding and
/// a recurrence.
#[derive(Module, Debug)]
struct Zoo {
    conv: Conv2d,
    norm: BatchNorm,
    embedding: Embedding,
    twice: Linear,
    layer_norm: LayerNorm,
    gru: Gru,
    attention: MultiHeadAttention,
    last: Linear,
}

impl Zoo {
    fn new(device: &Device) -> Self {
        Zoo {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            norm: BatchNormConfig::new(4).init(device),
            embedding: EmbeddingConfig::new(5, 16).init(device),
            twice: LinearConfig::new(16, 16).init(device),
            layer_norm: LayerNormConfig::new(16).init(device),
            gru: GruConfig::new(16, 16, true).init(device),
            attention: MultiHeadAttentionConfig::new(16, 2).with_dropout(0.0).init(device),
            last: LinearConfig::new(16, 1).init(device),
        }
    }

    /// Maps `[batch, 1, 6, 6]` to a loss `[1]`.
    fn loss(&self, images: Tensor<4>, attend: bool) -> Tensor<1> {
        let [batch, ..] = images.dims();
        let x = self.norm.forward(self.conv.forward(images)).tanh(); // [batch, 4, 4, 4]
        let x = x.reshape([batch, 4, 16]);
        let places = Tensor::<1, Int>::arange(0..4, &x.device()).unsqueeze::<2>().repeat_dim(0, batch);
        let x = x + self.embedding.forward(places);
        let y = self.twice.forward(x.clone()).tanh();
        let x = self.layer_norm.forward(self.twice.forward(y) + x);
        let weight = self.twice.weight.val();
        let x = x.matmul(weight.clone().unsqueeze()).matmul(weight.unsqueeze());
        let x = self.gru.forward(x, None);
        let x = if attend { self.attention.forward(MhaInput::self_attn(x)).context } else { x };
        self.last.forward(x).powf_scalar(2.0).mean()
    }
}

fn images(rank: usize, device: &Device) -> Tensor<4> {
    let numbers = numbers(3 * 36).into_iter().map(|x| x + rank as f32 * 0.1).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(numbers, [3, 1, 6, 6]), device)
}

/// Bits of the gradients of two steps on every rank, and whether a step fell back.
fn zoo(device: &Device, overlap: bool, attend: bool) -> Vec<(Vec<u32>, Vec<u32>)> {
    let results = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let net = filled(Zoo::new(device), |_, index| 0.3 * number(index) + 0.5);
        let mut reducer = Reducer::new(&net, &group, tiny(overlap)).expect("a reducer");
        let grads = |net: &Zoo| {
            let loss = net.loss(images(group.rank(), device), attend);
            GradientsParams::from_grads(loss.backward(), net)
        };
        let mut step = || bits(&reduced(&mut reducer, &net, [3, 6], grads), &net);
        let steps = (step(), step());
        assert_eq!(reducer.fallback(), None);
        steps
    });
    assert_eq!(results[0], results[1], "the same bits on every rank");
    results
}

#[test]
fn overlap_is_bit_identical() {
    for device in [device(), device().gradient_checkpointing()] {
        let plain = zoo(&device, false, false);
        assert!(plain[0].0.iter().any(|bits| *bits != 0));
        assert_eq!(zoo(&device, true, false), plain);
    }
}

#[test]
fn three_uses_of_one_activation_are_added_up_in_a_reproducible_order() {
    let (plain, overlapped) = (zoo(&device(), false, true), zoo(&device(), true, true));
    assert_eq!(zoo(&device(), true, true), overlapped);
    let floats = |bits: &[u32]| bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
    let (ours, theirs) = (floats(&overlapped[0].0), floats(&plain[0].0));
    assert!(super::worst(&ours, &theirs) < 1e-6 * theirs.iter().fold(1.0, |a, b| b.abs().max(a)));
}
