//! Networks as a user writes them, once with the layers of a crate's `nn`.

/// The module `$name` with networks of the layers of `$nn` and their optimizer from `$optim`.
macro_rules! networks {
    ($name:ident, $($nn:ident)::+, $($optim:ident)::+) => {
        pub mod $name {
            use burn::module::Module;
            use burn::optim::ModuleOptimizer;
            use burn::tensor::{Device, Int, Tensor};
            use $($nn)::+::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
            use $($nn)::+::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
            use $($nn)::+::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
            use $($nn)::+::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
            use $($nn)::+::{
                BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gru, GruConfig, Linear, LinearConfig, Lstm,
                LstmConfig, Relu,
            };
            use $($optim)::+::AdamConfig;

            pub fn adam() -> ModuleOptimizer {
                AdamConfig::new().with_epsilon(1e-8).init()
            }

            pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
                CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, targets)
            }

            pub fn squared_error(output: Tensor<4>, targets: Tensor<4>) -> Tensor<1> {
                MseLoss::new().forward(output, targets, Reduction::Mean)
            }

            #[derive(Module, Debug)]
            pub struct Mlp {
                first: Linear,
                second: Linear,
                third: Linear,
                activation: Relu,
            }

            impl Mlp {
                pub fn new(device: &Device) -> Self {
                    let linear = |from, to| LinearConfig::new(from, to).init(device);
                    let [first, second, third] = [linear(784, 1024), linear(1024, 1024), linear(1024, 10)];
                    Self { first, second, third, activation: Relu::new() }
                }

                pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
                    let x = self.activation.forward(self.first.forward(x));
                    let x = self.activation.forward(self.second.forward(x));
                    self.third.forward(x)
                }
            }

            #[derive(Module, Debug)]
            pub struct Cnn {
                first: Conv2d,
                second: Conv2d,
                pool: MaxPool2d,
                dropout: Dropout,
                hidden: Linear,
                output: Linear,
            }

            impl Cnn {
                pub fn new(device: &Device) -> Self {
                    Self {
                        first: Conv2dConfig::new([1, 32], [3, 3]).init(device),
                        second: Conv2dConfig::new([32, 64], [3, 3]).init(device),
                        pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
                        dropout: DropoutConfig::new(0.25).init(),
                        hidden: LinearConfig::new(9216, 128).init(device),
                        output: LinearConfig::new(128, 10).init(device),
                    }
                }

                pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
                    let relu = Relu::new();
                    let x = relu.forward(self.second.forward(relu.forward(self.first.forward(x))));
                    let x: Tensor<2> = self.dropout.forward(self.pool.forward(x)).flatten(1, 3);
                    self.output.forward(relu.forward(self.hidden.forward(x)))
                }
            }

            #[derive(Module, Debug)]
            pub struct LstmClassifier {
                lstm: Lstm,
                output: Linear,
            }

            impl LstmClassifier {
                pub fn new(device: &Device) -> Self {
                    let output = LinearConfig::new(128, 10).init(device);
                    Self { lstm: LstmConfig::new(28, 128, true).init(device), output }
                }

                pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
                    let (states, _) = self.lstm.forward(x, None);
                    self.output.forward(last(states))
                }
            }

            #[derive(Module, Debug)]
            pub struct GruClassifier {
                gru: Gru,
                output: Linear,
            }

            impl GruClassifier {
                pub fn new(device: &Device) -> Self {
                    let output = LinearConfig::new(128, 10).init(device);
                    Self { gru: GruConfig::new(28, 128, true).init(device), output }
                }

                pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
                    self.output.forward(last(self.gru.forward(x, None)))
                }
            }

            fn last(states: Tensor<3>) -> Tensor<2> {
                let [_, time, _] = states.dims();
                states.narrow(1, time - 1, 1).squeeze_dim(1)
            }

            #[derive(Module, Debug)]
            pub struct Encoder {
                encoder: TransformerEncoder,
                output: Linear,
            }

            impl Encoder {
                pub fn new(device: &Device) -> Self {
                    let encoder = TransformerEncoderConfig::new(128, 512, 4, 2).with_dropout(0.0).init(device);
                    Self { encoder, output: LinearConfig::new(128, 10).init(device) }
                }

                pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
                    let x = self.encoder.forward(TransformerEncoderInput::new(x));
                    self.output.forward(x.mean_dim(1).squeeze_dim(1))
                }
            }

            #[derive(Module, Debug)]
            pub struct Autoencoder {
                down: [Conv2d; 2],
                up: [ConvTranspose2d; 2],
            }

            impl Autoencoder {
                pub fn new(device: &Device) -> Self {
                    let padding = burn::nn::PaddingConfig2d::Explicit(1, 1, 1, 1);
                    let down = |channels| {
                        let config = Conv2dConfig::new(channels, [3, 3]).with_stride([2, 2]);
                        config.with_padding(padding.clone()).init(device)
                    };
                    let up = |channels| {
                        let config = ConvTranspose2dConfig::new(channels, [3, 3]).with_stride([2, 2]);
                        config.with_padding([1, 1]).with_padding_out([1, 1]).init(device)
                    };
                    Self { down: [down([1, 32]), down([32, 64])], up: [up([64, 32]), up([32, 1])] }
                }

                pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
                    let relu = Relu::new();
                    let [first, second] = &self.down;
                    let x = relu.forward(second.forward(relu.forward(first.forward(x))));
                    let [first, second] = &self.up;
                    second.forward(relu.forward(first.forward(x)))
                }
            }

            /// Convolution, BatchNorm and ReLU.
            #[derive(Module, Debug)]
            pub struct Block {
                conv: Conv2d,
                norm: BatchNorm,
            }

            impl Block {
                fn new(channels: [usize; 2], kernel: usize, stride: usize, groups: usize, device: &Device) -> Self {
                    let side = kernel / 2;
                    let config = Conv2dConfig::new(channels, [kernel, kernel]).with_stride([stride, stride]);
                    let config = config.with_padding(burn::nn::PaddingConfig2d::Explicit(side, side, side, side));
                    let conv = config.with_groups(groups).with_bias(false).init(device);
                    Self { conv, norm: BatchNormConfig::new(channels[1]).init(device) }
                }

                fn forward(&self, x: Tensor<4>) -> Tensor<4> {
                    Relu::new().forward(self.norm.forward(self.conv.forward(x)))
                }
            }

            /// Depthwise separable convolutions, as in MobileNet.
            #[derive(Module, Debug)]
            pub struct Mobile {
                blocks: Vec<Block>,
                pool: AdaptiveAvgPool2d,
                output: Linear,
            }

            impl Mobile {
                pub fn new(device: &Device) -> Self {
                    let mut blocks = vec![Block::new([3, 32], 3, 2, 1, device)];
                    for (from, to, stride) in [(32, 64, 1), (64, 128, 2), (128, 128, 1)] {
                        blocks.push(Block::new([from, from], 3, stride, from, device));
                        blocks.push(Block::new([from, to], 1, 1, 1, device));
                    }
                    let pool = AdaptiveAvgPool2dConfig::new([1, 1]).init();
                    Self { blocks, pool, output: LinearConfig::new(128, 10).init(device) }
                }

                pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
                    let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
                    self.output.forward(self.pool.forward(x).flatten(1, 3))
                }
            }
        }
    };
}

networks!(burns, burn::nn, burn::optim);
networks!(ours, burn_ddp::nn, burn_ddp::optim);
