//! The network of nanoGPT's character model, with nanoGPT's parameter names, and its training step.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use burn_ddp::layers;
use burn_ddp::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, loss::CrossEntropyLossConfig,
};
use burn_ddp::{
    context::values::{probability, whole},
    data::Windows,
    dp::ParallelStep,
    metric::MeanLoss,
};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Standard deviation of the initial weights, GPT-2's.
const INITIAL_STD: f64 = 0.02;

/// Sizes and options of the network.
#[derive(Args, Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[command(about = None, long_about = None, next_help_heading = "Model")]
pub struct GptConfig {
    /// Number of different characters.
    #[arg(skip)]
    #[serde(skip)]
    pub characters: usize,
    /// Context length: characters that the model sees
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = whole(1..=65_536))]
    pub block_size: usize,
    /// Number of transformer blocks
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = whole(1..=1_000))]
    pub layers: usize,
    /// Attention heads per block
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = whole(1..=65_536))]
    pub heads: usize,
    /// Embedding size, a multiple of --heads
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = whole(1..=65_536))]
    pub width: usize,
    /// Dropout probability; 0 disables dropout
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = probability, hide_short_help = true)]
    pub dropout: f64,
    /// Use the token embedding as the weights of the output layer
    #[arg(long, hide_short_help = true)]
    pub tie_weights: bool,
}

/// Decoder-only transformer with pre-norm blocks (Radford et al. 2019).
#[derive(Module, Debug)]
pub struct Gpt {
    pub wte: Embedding,
    pub wpe: Embedding,
    drop: Dropout,
    h: Vec<Block>,
    ln_f: LayerNorm,
    /// `None` if the weights are tied: a clone of a parameter would become a separate one on other ranks.
    lm_head: Option<Linear>,
}

impl GptConfig {
    /// Floating-point operations of forward and backward of a window (Chowdhery et al. 2022, appendix B).
    pub fn flops(&self) -> f64 {
        let [layers, width, length] = [self.layers, self.width, self.block_size].map(|size| size as f64);
        let weights = 12.0 * layers * width * width + width * self.characters as f64;
        length * (6.0 * weights + 12.0 * layers * width * length)
    }

    /// Creates a network with GPT-2's initialisation, which `device.seed` determines.
    pub fn init(&self, device: &Device) -> Gpt {
        let normal = Initializer::Normal { mean: 0.0, std: INITIAL_STD };
        let embedding = |count| {
            let config = EmbeddingConfig::new(count, self.width);
            config.with_initializer(normal.clone()).init(device)
        };
        Gpt {
            wte: embedding(self.characters),
            wpe: embedding(self.block_size),
            drop: DropoutConfig::new(self.dropout).init(),
            h: (0..self.layers).map(|_| Block::new(self, device)).collect(),
            ln_f: LayerNormConfig::new(self.width).init(device),
            lm_head: (!self.tie_weights).then(|| {
                let head = LinearConfig::new(self.width, self.characters).with_bias(false);
                head.with_initializer(normal.clone()).init(device)
            }),
        }
    }

    /// Standard deviation of the initial weights before a residual sum.
    fn residual_std(&self) -> f64 {
        INITIAL_STD / (2.0 * self.layers as f64).sqrt()
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
        let x = self.drop.forward(self.wte.forward(characters) + self.wpe.forward(positions));
        let mut x = x.reshape([batch * time, width]);
        for block in &self.h {
            x = block.forward(x, [batch, time]);
        }
        let x = self.ln_f.forward(x); // [batch * time, width]
        let logits = match &self.lm_head {
            Some(head) => head.forward(x),
            None => x.matmul(self.wte.weight.val().transpose()),
        };
        let [_, characters] = logits.dims();
        logits.reshape([batch, time, characters])
    }
}

/// Pre-norm transformer block.
#[derive(Module, Debug)]
struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(config: &GptConfig, device: &Device) -> Self {
        let norm = || LayerNormConfig::new(config.width).init(device);
        Self {
            ln_1: norm(),
            attn: Attention::new(config, device),
            ln_2: norm(),
            mlp: Mlp::new(config, device),
        }
    }

    /// Maps `[batch * time, width]` to the same shape.
    fn forward(&self, x: Tensor<2>, size: [usize; 2]) -> Tensor<2> {
        let x = x.clone() + self.attn.forward(self.ln_1.forward(x), size);
        x.clone() + self.mlp.forward(self.ln_2.forward(x))
    }
}

/// Two linear layers with four times the width between them.
#[derive(Module, Debug)]
struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
    dropout: Dropout,
}

impl Mlp {
    fn new(config: &GptConfig, device: &Device) -> Self {
        let width = config.width;
        Self {
            c_fc: linear([width, 4 * width], INITIAL_STD, device),
            c_proj: linear([4 * width, width], config.residual_std(), device),
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = layers::gelu(self.c_fc.forward(x));
        self.dropout.forward(self.c_proj.forward(x))
    }
}

/// Self-attention in which a position sees itself and earlier ones (Vaswani et al. 2017).
#[derive(Module, Debug)]
struct Attention {
    /// Queries, keys and values of all heads.
    c_attn: Linear,
    c_proj: Linear,
    attn_dropout: Dropout,
    resid_dropout: Dropout,
    heads: usize,
}

impl Attention {
    fn new(config: &GptConfig, device: &Device) -> Self {
        let (width, dropout) = (config.width, || DropoutConfig::new(config.dropout).init());
        Self {
            c_attn: linear([width, 3 * width], INITIAL_STD, device),
            c_proj: linear([width, width], config.residual_std(), device),
            attn_dropout: dropout(),
            resid_dropout: dropout(),
            heads: config.heads,
        }
    }

    /// Maps `[batch * time, width]` to the same shape.
    fn forward(&self, x: Tensor<2>, size: [usize; 2]) -> Tensor<2> {
        let all = self.c_attn.forward(x); // [batch * time, 3 * width]
        let drops = self.attn_dropout.prob > 0.0 && all.device().is_autodiff();
        let x = match drops {
            true => layers::causal_attention_with(all, size, self.heads, |weights| {
                self.attn_dropout.forward(weights)
            }),
            false => layers::causal_attention(all, size, self.heads),
        };
        self.resid_dropout.forward(self.c_proj.forward(x))
    }
}

/// A linear layer with normally distributed weights and a bias of zeros.
fn linear([from, to]: [usize; 2], std: f64, device: &Device) -> Linear {
    let config = LinearConfig::new(from, to).with_initializer(Initializer::Normal { mean: 0.0, std });
    let mut linear = config.with_bias(false).init(device);
    linear.bias = Some(Initializer::Zeros.init([to], device));
    linear
}

burn_ddp::train_steps!(Gpt: Windows => MeanLoss);

impl ParallelStep for Gpt {
    /// Logits `[batch, time, characters]`.
    type Outputs = Tensor<3>;

    fn forward_part(&self, (characters, _): Windows) -> Tensor<3> {
        self.forward(characters)
    }

    /// Returns the mean loss `[1]` over all characters, and the output for metrics, whose samples are windows.
    fn criterion(&self, logits: Tensor<3>, (_, targets): Windows) -> (Tensor<1>, MeanLoss) {
        let [batch, time, characters] = logits.dims();
        let (logits, targets) = (logits.reshape([batch * time, characters]), targets.reshape([batch * time]));
        let loss = CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets);
        (loss.clone(), MeanLoss::new(loss, batch))
    }
}
