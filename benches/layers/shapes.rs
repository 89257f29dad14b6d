//! The layers that are measured, and their shapes.

use super::Bench;
use burn::tensor::{Bool, Tensor};
use burn_ddp::nn::{
    BatchNormConfig, BiGruConfig, BiLstmConfig, EluConfig, EmbeddingConfig, Gelu, GroupNormConfig, GruConfig,
    HardSwish, InstanceNormConfig, LayerNormConfig, LinearConfig, LstmConfig, Mish, PReluConfig,
    PaddingConfig1d, PaddingConfig2d, Relu, RmsNormConfig, Sigmoid, Silu, SoftplusConfig, SwiGluConfig, Tanh,
    attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask},
    conv::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig},
    loss::{
        BinaryCrossEntropyLossConfig, CrossEntropyLossConfig, HuberLossConfig, LpLossConfig, MseLoss,
        Reduction,
    },
    pool::{AdaptiveAvgPool2dConfig, AvgPool2dConfig, MaxPool2dConfig},
    transformer::{TransformerEncoderConfig, TransformerEncoderInput},
};

impl Bench<'_> {
    pub fn linear(&self) {
        for (batch, from, to) in
            [(16, 256, 256), (64, 512, 512), (256, 784, 128), (4096, 256, 1024), (2048, 256, 10000)]
        {
            let layer = LinearConfig::new(from, to).init(&self.device);
            self.layer(format!("linear_{batch}_{from}_{to}"), [batch, from], |x| layer.forward(x));
        }
        let layer = SwiGluConfig::new(256, 512).init(&self.device);
        self.layer("swiglu_2048_256_512".into(), [2048, 256], |x| layer.forward(x));
        for (count, width) in [(128, 64), (10000, 256)] {
            let layer = EmbeddingConfig::new(count, width).init(&self.device);
            let indices = self.indices([64, 128], count);
            let zeros = [64, 128, width];
            self.layer(format!("embedding_{count}_{width}"), zeros, |x| x + layer.forward(indices.clone()));
        }
    }

    pub fn convolutions(&self) {
        // Batch, channels, filters, side, kernel, stride, padding, groups.
        for [batch, from, to, side, kernel, stride, padding, groups] in [
            [32, 3, 64, 32, 3, 1, 1, 1],
            [8, 3, 64, 224, 7, 2, 3, 1],
            [32, 64, 64, 16, 3, 1, 1, 1],
            [32, 64, 128, 16, 3, 2, 1, 1],
            [32, 256, 256, 4, 3, 1, 1, 1],
            [16, 512, 512, 7, 3, 1, 1, 1],
            [32, 64, 256, 14, 1, 1, 0, 1],
            [32, 64, 128, 16, 1, 2, 0, 1],
            [32, 16, 32, 28, 5, 1, 2, 1],
            [32, 64, 64, 16, 3, 1, 1, 4],
            [32, 64, 64, 16, 3, 1, 1, 64],
            [8, 3, 96, 64, 4, 4, 0, 1],
        ] {
            let config = Conv2dConfig::new([from, to], [kernel; 2]).with_stride([stride; 2]);
            let config = config.with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding));
            let layer = config.with_groups(groups).init(&self.device);
            let name = format!("conv2d_{batch}_{from}_{to}_{side}_k{kernel}_s{stride}_g{groups}");
            self.layer(name, [batch, from, side, side], |x| layer.forward(x));
        }
        for (from, to, length, kernel, stride, padding) in
            [(64, 64, 256, 3, 1, 1), (1, 32, 4000, 7, 1, 3), (64, 128, 256, 5, 2, 2)]
        {
            let config = Conv1dConfig::new(from, to, kernel).with_stride(stride);
            let config = config.with_padding(PaddingConfig1d::Explicit(padding, padding));
            let layer = config.init(&self.device);
            let name = format!("conv1d_32_{from}_{to}_{length}_k{kernel}_s{stride}");
            self.layer(name, [32, from, length], |x| layer.forward(x));
        }
        for (batch, from, to, side, kernel, stride, padding) in
            [(32, 64, 32, 14, 2, 2, 0), (32, 64, 32, 7, 4, 2, 1), (64, 100, 256, 1, 4, 1, 0)]
        {
            let config = ConvTranspose2dConfig::new([from, to], [kernel; 2]).with_stride([stride; 2]);
            let layer = config.with_padding([padding; 2]).init(&self.device);
            let name = format!("conv_transpose2d_{batch}_{from}_{to}_{side}_k{kernel}_s{stride}");
            self.layer(name, [batch, from, side, side], |x| layer.forward(x));
        }
        let layer = ConvTranspose1dConfig::new([64, 32], 4).with_stride(2).with_padding(1).init(&self.device);
        self.layer("conv_transpose1d_32_64_32_128_k4_s2".into(), [32, 64, 128], |x| layer.forward(x));
    }

    pub fn pooling(&self) {
        let max = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
        self.layer("max_pool_2".into(), [32, 64, 32, 32], |x| max.forward(x));
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let max = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(padding).init();
        self.layer("max_pool_3_s2".into(), [8, 64, 112, 112], |x| max.forward(x));
        let mean = AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
        self.layer("avg_pool_2".into(), [32, 64, 32, 32], |x| mean.forward(x));
        let mean = AdaptiveAvgPool2dConfig::new([1, 1]).init();
        self.layer("adaptive_avg_pool_1".into(), [32, 256, 7, 7], |x| mean.forward(x));
    }

    pub fn normalisation(&self) {
        let layer = BatchNormConfig::new(64).init(&self.device);
        for side in [7, 32] {
            self.layer(format!("batch_norm_32_64_{side}"), [32, 64, side, side], |x| layer.forward(x));
        }
        let layer = BatchNormConfig::new(512).init(&self.device);
        self.layer("batch_norm_128_512".into(), [128, 512], |x| layer.forward(x));
        for width in [256, 768] {
            let layer = LayerNormConfig::new(width).init(&self.device);
            self.layer(format!("layer_norm_2048_{width}"), [2048, width], |x| layer.forward(x));
            let layer = RmsNormConfig::new(width).init(&self.device);
            self.layer(format!("rms_norm_2048_{width}"), [2048, width], |x| layer.forward(x));
        }
        let layer = GroupNormConfig::new(8, 64).init(&self.device);
        self.layer("group_norm_8".into(), [32, 64, 16, 16], |x| layer.forward(x));
        let layer = InstanceNormConfig::new(64).init(&self.device);
        self.layer("instance_norm".into(), [32, 64, 16, 16], |x| layer.forward(x));
    }

    pub fn activations(&self) {
        let shape = [1024, 1024];
        self.layer("relu".into(), shape, |x| Relu::new().forward(x));
        self.layer("gelu".into(), shape, |x| Gelu::new().forward(x));
        self.layer("gelu_tanh".into(), shape, |x| Gelu::new_approximate().forward(x));
        self.layer("silu".into(), shape, |x| Silu::new().forward(x));
        self.layer("tanh".into(), shape, |x| Tanh::new().forward(x));
        self.layer("sigmoid".into(), shape, |x| Sigmoid::new().forward(x));
        self.layer("mish".into(), shape, |x| Mish::new().forward(x));
        self.layer("hard_swish".into(), shape, |x| HardSwish::new().forward(x));
        self.layer("elu".into(), shape, |x| EluConfig::new().init().forward(x));
        self.layer("softplus".into(), shape, |x| SoftplusConfig::new().init().forward(x));
        let layer = PReluConfig::new().init(&self.device);
        self.layer("prelu".into(), shape, |x| layer.forward(x));
    }

    pub fn recurrent(&self) {
        for [batch, time, inputs, hidden] in
            [[64, 50, 128, 128], [32, 20, 256, 512], [1, 100, 64, 64], [16, 200, 40, 256]]
        {
            let name = |kind: &str| format!("{kind}_{batch}_{time}_{inputs}_{hidden}");
            let shape = [batch, time, inputs];
            let layer = LstmConfig::new(inputs, hidden, true).init(&self.device);
            self.layer(name("lstm"), shape, |x| layer.forward(x, None).0);
            let layer = GruConfig::new(inputs, hidden, true).init(&self.device);
            self.layer(name("gru"), shape, |x| layer.forward(x, None));
        }
        let layer = BiLstmConfig::new(64, 128, true).init(&self.device);
        self.layer("bilstm_32_40_64_128".into(), [32, 40, 64], |x| layer.forward(x, None).0);
        let layer = BiGruConfig::new(64, 128, true).init(&self.device);
        self.layer("bigru_32_40_64_128".into(), [32, 40, 64], |x| layer.forward(x, None).0);
    }

    pub fn attention(&self) {
        for [batch, positions, width, heads] in [[64, 16, 64, 2], [32, 64, 128, 4], [2, 1024, 256, 4]] {
            let config = MultiHeadAttentionConfig::new(width, heads).with_dropout(0.0);
            let layer = config.init(&self.device);
            let shape = [batch, positions, width];
            let name = |kind: &str| format!("{kind}_{batch}_{positions}_{width}_{heads}");
            self.layer(name("attention"), shape, |x| layer.forward(MhaInput::self_attn(x)).context);
            let mask: Tensor<3, Bool> = generate_autoregressive_mask(batch, positions, &self.device);
            self.layer(name("masked_attention"), shape, |x| {
                layer.forward(MhaInput::self_attn(x).mask_attn(mask.clone())).context
            });
        }
        for [batch, positions, width, heads] in [[32, 64, 128, 4], [8, 128, 256, 8]] {
            let config = TransformerEncoderConfig::new(width, 4 * width, heads, 2);
            let layer = config.with_norm_first(true).init(&self.device);
            let name = format!("encoder_{batch}_{positions}_{width}_{heads}");
            self.layer(name, [batch, positions, width], |x| layer.forward(TransformerEncoderInput::new(x)));
        }
    }

    pub fn losses(&self) {
        for (batch, classes) in [(64, 10), (4096, 1000), (1024, 20000)] {
            let targets = self.indices([batch], classes);
            let loss = CrossEntropyLossConfig::new().init(&self.device);
            let name = |kind: &str| format!("{kind}_{batch}_{classes}");
            self.layer(name("cross_entropy"), [batch, classes], |x| loss.forward(x, targets.clone()));
            let padded = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![0])).init(&self.device);
            self.layer(name("padded_cross_entropy"), [batch, classes], |x| {
                padded.forward(x, targets.clone())
            });
        }
        let shape = [256, 1024];
        let (y, labels) = (self.random(shape), self.indices(shape, 2));
        let mean = || Reduction::Mean;
        self.layer("mse".into(), shape, |x| MseLoss::new().forward(x, y.clone(), mean()));
        self.layer("l1".into(), shape, |x| LpLossConfig::l1().forward(x, y.clone(), mean()));
        let huber = HuberLossConfig::new(1.0).init();
        self.layer("huber".into(), shape, |x| huber.forward(x, y.clone(), mean()));
        let binary = BinaryCrossEntropyLossConfig::new().with_logits(true).init(&self.device);
        self.layer("binary_cross_entropy".into(), shape, |x| binary.forward(x, labels.clone()));
    }
}
