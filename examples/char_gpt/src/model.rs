//! The network of nanoGPT's character model, with nanoGPT's parameter names.

mod attention;
mod block;
mod common;

use crate::output::CharacterLoss;
use block::Block;
use burn::module::Module;
use burn::nn::{
    Dropout, DropoutConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    loss::CrossEntropyLossConfig,
};
use burn::tensor::{Device, Int, Tensor};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use burn_ddp::data::Windows;
use collective::data_parallel::ParallelStep;
use common::{Sizes, norm};
use kernels::layers::{self, MixedPrecisionEmbedding, MixedPrecisionEmbeddingConfig};
use serde::{Deserialize, Serialize};

/// Standard deviation of the initial weights, GPT-2's.
const INITIAL_STD: f64 = 0.02;

/// Sizes and options of the network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GptConfig {
    /// Number of different characters.
    #[serde(default)]
    pub characters: usize,
    /// Context length.
    pub block_size: usize,
    pub layers: usize,
    pub heads: usize,
    /// Embedding size, a multiple of `heads`.
    pub width: usize,
    pub dropout: f64,
    /// Whether the output layer uses the token embedding's weights.
    pub tie_weights: bool,
}

/// Decoder-only transformer with pre-norm blocks (Radford et al. 2019).
#[derive(Module, Debug)]
pub struct Gpt {
    wte: MixedPrecisionEmbedding,
    wpe: MixedPrecisionEmbedding,
    drop: Dropout,
    h: Vec<Block>,
    ln_f: LayerNorm,
    /// `None` if the weights are tied: a clone of a parameter would become a separate one on other ranks.
    lm_head: Option<Linear>,
}

impl GptConfig {
    /// Creates a network with GPT-2's initialisation, which `device.seed` determines.
    pub fn init(&self, device: &Device) -> Gpt {
        let normal = Initializer::Normal { mean: 0.0, std: INITIAL_STD };
        let embedding = |count| {
            let config = MixedPrecisionEmbeddingConfig::new(count, self.width);
            config.with_initializer(normal.clone()).init(device)
        };
        let sizes = Sizes { width: self.width, heads: self.heads, dropout: self.dropout };
        let residual_std = INITIAL_STD / (2.0 * self.layers as f64).sqrt();
        Gpt {
            wte: embedding(self.characters),
            wpe: embedding(self.block_size),
            drop: DropoutConfig::new(self.dropout).init(),
            h: (0..self.layers).map(|_| Block::new(sizes, [INITIAL_STD, residual_std], device)).collect(),
            ln_f: LayerNormConfig::new(self.width).init(device),
            lm_head: (!self.tie_weights).then(|| {
                let head = LinearConfig::new(self.width, self.characters).with_bias(false);
                head.with_initializer(normal.clone()).init(device)
            }),
        }
    }
}

impl Gpt {
    /// Context length.
    pub fn block_size(&self) -> usize {
        self.wpe.weight.dims()[0]
    }

    /// Maps characters `[batch, time]` to logits of the following ones, `[batch, time, characters]`.
    ///
    /// `time` is at most the context length.
    pub fn forward(&self, characters: Tensor<2, Int>) -> Tensor<3> {
        let [batch, time] = characters.dims();
        let width = self.wte.weight.dims()[1];
        let positions = Tensor::arange(0..time as i64, &characters.device()).unsqueeze::<2>();
        let x = layers::dropout(&self.drop, self.wte.forward(characters) + self.wpe.forward(positions));
        let mut x = x.reshape([batch * time, width]);
        for block in &self.h {
            x = block.forward(x, [batch, time]);
        }
        let x = norm(&self.ln_f, x); // [batch * time, width]
        let logits = match &self.lm_head {
            Some(head) => head.forward(x),
            None => x.matmul(self.wte.weight.val().transpose()),
        };
        let [_, characters] = logits.dims();
        logits.reshape([batch, time, characters])
    }
}

/// The mean loss `[1]` over all characters, and the output for metrics.
fn judge(logits: Tensor<3>, targets: Tensor<2, Int>) -> (Tensor<1>, CharacterLoss) {
    let [batch, time, characters] = logits.dims();
    let (logits, targets) = (logits.reshape([batch * time, characters]), targets.reshape([batch * time]));
    let loss = CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets);
    (loss.clone(), CharacterLoss::new(loss, batch))
}

impl TrainStep for Gpt {
    type Input = Windows;
    type Output = CharacterLoss;

    fn step(&self, (characters, targets): Windows) -> TrainOutput<CharacterLoss> {
        let (loss, output) = judge(self.forward(characters), targets);
        TrainOutput::new(self, loss.backward(), output)
    }
}

impl InferenceStep for Gpt {
    type Input = Windows;
    type Output = CharacterLoss;

    fn step(&self, (characters, targets): Windows) -> CharacterLoss {
        judge(self.forward(characters), targets).1
    }
}

impl ParallelStep for Gpt {
    /// Logits `[batch, time, characters]`.
    type Outputs = Tensor<3>;

    fn forward_part(&self, (characters, _): Windows) -> Tensor<3> {
        self.forward(characters)
    }

    fn criterion(&self, logits: Tensor<3>, (_, targets): Windows) -> (Tensor<1>, CharacterLoss) {
        judge(logits, targets)
    }
}

#[cfg(test)]
mod tests;
