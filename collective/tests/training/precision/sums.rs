//! Which operations add many 16-bit values in 16 bits on a CPU. The table is in the book's "Sixteen bits".

use burn::nn::{
    LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
    conv::{Conv2d, Conv2dConfig},
    loss::CrossEntropyLossConfig,
};
use burn::tensor::{
    Device, Distribution, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData,
    activation::{log_softmax, softmax},
    module::embedding,
};
use burn_ddp_collective::sync_batch_norm::SyncBatchNormConfig;
use kernels::layers;

/// Number of summands.
const N: usize = 1 << 16;

/// A function of values `[N, 4]` between 1/8 and 3/8.
type Operation = fn(Tensor<2>) -> Tensor<2>;

/// Gradient of `of` for an output whose gradient is `x`, or the first of its values.
fn gradient<const D: usize, const E: usize>(
    of: Tensor<D>,
    x: &Tensor<2>,
    operation: impl FnOnce(Tensor<D>) -> Tensor<E>,
) -> Tensor<2> {
    let of = of.cast(FloatDType::from(x.dtype())).detach().require_grad();
    let output = operation(of.clone());
    let shape = output.shape();
    let factors = x.clone().flatten::<1>(0, 1).slice(0..shape.num_elements()).reshape(shape);
    let gradient = of.grad(&(output * factors).sum().backward()).expect("a gradient");
    rows(Tensor::from_inner(gradient))
}

/// One row per value.
fn rows<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    let count = x.shape().num_elements();
    x.reshape([count, 1])
}

/// `count` indices that take `different` values.
fn indices(count: usize, different: usize, device: &Device) -> Tensor<1, Int> {
    let indices: Vec<i32> = (0..count).map(|i| (i * i % 7 % different) as i32).collect();
    Tensor::from_data(TensorData::new(indices, [count]), device)
}

/// A layer with parameters of the type of `x`.
fn cast<M: burn::module::Module>(module: M, x: &Tensor<2>) -> M {
    struct Cast(FloatDType);
    impl burn::module::ModuleMapper for Cast {
        fn map_float<const D: usize>(
            &mut self,
            param: burn::module::Param<Tensor<D>>,
        ) -> burn::module::Param<Tensor<D>> {
            param.map(|value| value.cast(self.0).detach().require_grad())
        }
    }
    module.map(&mut Cast(FloatDType::from(x.dtype())))
}

fn linear(x: &Tensor<2>) -> Linear {
    let zeros = LinearConfig::new(4, 4).with_initializer(burn::nn::Initializer::Zeros);
    cast(zeros.init(&x.device()), x)
}

fn layer_norm(x: &Tensor<2>) -> LayerNorm {
    cast(LayerNormConfig::new(4).init(&x.device()), x)
}

/// A convolution of 4 channels.
fn conv(x: &Tensor<2>) -> Conv2d {
    let config = Conv2dConfig::new([4, 4], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
    cast(config.init(&x.device()), x)
}

fn images(x: &Tensor<2>) -> Tensor<4> {
    x.clone().reshape([4, 4, 128, 128])
}

/// A function whose gradient of a leaf is compared, with `x` as its input and as the gradient of its output.
fn of_leaf<const D: usize, const E: usize>(x: &Tensor<2>, leaf: Tensor<D>, output: Tensor<E>) -> Tensor<2> {
    let factors = x.clone().reshape(output.shape());
    let gradient = leaf.grad(&(output * factors).sum().backward()).expect("a gradient");
    rows(Tensor::from_inner(gradient))
}

/// Operations that are accurate, with their names in the book.
const ACCURATE: &[(&str, Operation)] = &[
    ("sum", |x| rows(x.slice(0..N / 4).sum())),
    ("sum_dim", |x| rows(x.sum_dim(0))),
    ("mean", |x| rows(x.mean())),
    ("mean_dim", |x| rows(x.mean_dim(0))),
    ("cumsum", |x| x.cumsum(0)),
    ("softmax", |x| softmax(x, 0)),
    ("log_softmax", |x| log_softmax(x, 0)),
    ("matmul", |x| x.clone().transpose().matmul(x)),
    ("linear, gradient of the weight", |x| {
        let layer = linear(&x);
        of_leaf(&x, layer.weight.val(), layer.forward(x.clone()))
    }),
    ("linear, gradient of the bias", |x| {
        let layer = linear(&x);
        of_leaf(&x, layer.bias.as_ref().expect("a bias").val(), layer.forward(x.clone()))
    }),
    ("burn_ddp::layers::linear, gradient of the weight", |x| {
        let layer = linear(&x);
        of_leaf(&x, layer.weight.val(), layers::linear(&layer, x.clone()))
    }),
    ("burn_ddp::layers::linear, gradient of the bias", |x| {
        let layer = linear(&x);
        of_leaf(&x, layer.bias.as_ref().expect("a bias").val(), layers::linear(&layer, x.clone()))
    }),
    ("broadcast, gradient", |x| gradient(Tensor::<2>::zeros([1, 4], &x.device()), &x, |b| b.expand([N, 4]))),
    ("conv2d, gradient of the bias", |x| {
        let layer = conv(&x);
        of_leaf(&x, layer.bias.as_ref().expect("a bias").val(), layer.forward(images(&x)))
    }),
    ("burn_ddp::layers::conv, gradient of the weight", |x| {
        let layer = conv(&x);
        of_leaf(&x, layer.weight.val(), layers::conv(&layer, images(&x)))
    }),
    ("burn_ddp::layers::conv, gradient of the bias", |x| {
        let layer = conv(&x);
        of_leaf(&x, layer.bias.as_ref().expect("a bias").val(), layers::conv(&layer, images(&x)))
    }),
    ("LayerNorm, gradient of gamma", |x| {
        let layer = layer_norm(&x);
        of_leaf(&x, layer.gamma.val(), layer.forward(x.clone()))
    }),
    ("LayerNorm, gradient of beta", |x| {
        let layer = layer_norm(&x);
        of_leaf(&x, layer.beta.as_ref().expect("a beta").val(), layer.forward(x.clone()))
    }),
    ("burn_ddp::layers::layer_norm, gradient of gamma", |x| {
        let layer = layer_norm(&x);
        let beta = layer.beta.as_ref().expect("a beta").val();
        of_leaf(&x, layer.gamma.val(), layers::layer_norm(x.clone(), layer.gamma.val(), beta, 1e-5))
    }),
    ("burn_ddp::layers::layer_norm, gradient of beta", |x| {
        let layer = layer_norm(&x);
        let beta = layer.beta.as_ref().expect("a beta").val();
        of_leaf(&x, beta.clone(), layers::layer_norm(x.clone(), layer.gamma.val(), beta, 1e-5))
    }),
    ("SyncBatchNorm, gradient of gamma", |x| {
        let layer = cast(SyncBatchNormConfig::new(4).init(&x.device()), &x);
        of_leaf(&x, layer.norm.gamma.val(), layer.forward(x.clone()))
    }),
    ("SyncBatchNorm, gradient of beta", |x| {
        let layer = cast(SyncBatchNormConfig::new(4).init(&x.device()), &x);
        of_leaf(&x, layer.norm.beta.val(), layer.forward(x.clone()))
    }),
    ("cross-entropy", |x| {
        let loss = CrossEntropyLossConfig::new().init(&x.device());
        rows(loss.forward(x.clone(), indices(N, 4, &x.device())))
    }),
];

/// Operations that add in 16 bits, in one type at least.
const INACCURATE: &[(&str, Operation)] = &[
    ("conv2d, gradient of the weight", |x| {
        let layer = conv(&x);
        of_leaf(&x, layer.weight.val(), layer.forward(images(&x)))
    }),
    ("embedding, gradient", |x| {
        let tokens = indices(N, 4, &x.device()).unsqueeze::<2>();
        gradient(Tensor::<2>::zeros([4, 4], &x.device()), &x, |weight| embedding(weight, tokens))
    }),
    ("select, gradient", |x| {
        let places = indices(N, 4, &x.device());
        gradient(Tensor::<2>::zeros([4, 4], &x.device()), &x, |from| from.select(0, places))
    }),
    ("gather, gradient", |x| {
        let places = indices(N, 4, &x.device()).unsqueeze_dim::<2>(1).expand([N, 4]);
        gradient(Tensor::<2>::zeros([4, 4], &x.device()), &x, |from| from.gather(0, places))
    }),
    ("scatter", |x| {
        let places = indices(N, 4, &x.device()).unsqueeze_dim::<2>(1).expand([N, 4]);
        let zeros = Tensor::<2>::zeros([4, 4], &x.device()).cast(FloatDType::from(x.dtype()));
        zeros.scatter(0, places, x, IndexingUpdateOp::Add)
    }),
];

/// Errors in bf16 and f16 relative to f32, by the norm of the result.
fn errors(operation: Operation) -> [f32; 2] {
    let device = &Device::flex().autodiff();
    device.seed(1);
    let x = Tensor::<2>::random([N, 4], Distribution::Uniform(0.125, 0.375), device);
    [FloatDType::BF16, FloatDType::F16].map(|dtype| {
        let x = x.clone().cast(dtype);
        let exact = operation(x.clone().cast(FloatDType::F32)).inner();
        let ours = operation(x).inner().cast(FloatDType::F32);
        let norm = |x: Tensor<2>| x.powi_scalar(2).sum().sqrt().into_scalar::<f32>();
        norm(ours - exact.clone()) / norm(exact)
    })
}

#[test]
fn operations_that_add_in_16_bits_are_those_of_the_book() {
    let mut wrong: Vec<&str> = Vec::new();
    for (operations, accurate) in [(ACCURATE, true), (INACCURATE, false)] {
        for (name, operation) in operations {
            let [bf16, f16] = errors(*operation);
            println!("| {name} | {bf16:.1e} | {f16:.1e} |");
            let right = if accurate { bf16 < 1e-2 && f16 < 2e-3 } else { bf16.max(f16) > 0.1 };
            wrong.extend((!right).then_some(name));
        }
    }
    assert!(wrong.is_empty(), "accurate or not, unlike in the book: {wrong:?}");
}
