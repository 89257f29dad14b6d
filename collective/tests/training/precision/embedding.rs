//! Embeddings in 16 bits: gradients over many tokens, and the refusal of Burn's layer.

use super::device;
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use burn_ddp_collective::{
    ProcessGroup,
    gradient::{Reducer, ReducerOptions},
    precision::Precision,
};
use kernels::layers::{MixedPrecisionEmbedding, MixedPrecisionEmbeddingConfig};

const TOKENS: usize = 1 << 16;
const VECTORS: usize = 4;
const WIDTH: usize = 8;

fn reducer<M: Module>(net: &M, precision: Precision) -> Result<Reducer, String> {
    let options = ReducerOptions { precision, ..ReducerOptions::default() };
    Reducer::new(net, &ProcessGroup::solo(), options).map_err(|error| error.to_string())
}

/// Gradient of the weights for a loss that depends on every token's vector in a similar way.
fn gradient(
    dtype: FloatDType,
    weight: &Tensor<2>,
    forward: impl Fn(Tensor<2, Int>) -> Tensor<3>,
) -> Tensor<2> {
    let device = &weight.device();
    let tokens: Vec<i32> = (0..TOKENS).map(|i| (i * i % 7 % VECTORS) as i32).collect();
    let output = forward(Tensor::from_data(TensorData::new(tokens, [64, TOKENS / 64]), device));
    assert_eq!(output.dtype(), dtype.into());
    let factors = (0..TOKENS * WIDTH).map(|i| 0.25 + 0.125 * (i as f32 * 0.37).sin());
    let factors = TensorData::new(factors.collect::<Vec<_>>(), output.shape());
    // The same 16-bit factors in every precision.
    let factors = Tensor::<3>::from_data(factors, device).cast(FloatDType::BF16).cast(dtype);
    let loss = (output * factors).cast(FloatDType::F32).sum();
    weight.grad(&loss.backward()).expect("a gradient")
}

/// Norm of the difference, divided by the norm of `exact`.
fn error(ours: Tensor<2>, exact: &Tensor<2>) -> f32 {
    let norm = |x: Tensor<2>| x.powi_scalar(2).sum().sqrt().into_scalar::<f32>();
    norm(ours - exact.clone()) / norm(exact.clone())
}

#[test]
fn the_gradient_of_an_embedding_is_added_in_f32() {
    let net = MixedPrecisionEmbeddingConfig::new(VECTORS, WIDTH).init(&device());
    let burns = EmbeddingConfig::new(VECTORS, WIDTH).init(&device()).load_record(net.clone().into_record());
    let exact = gradient(FloatDType::F32, &net.weight.val(), |tokens| net.forward(tokens));
    let theirs = gradient(FloatDType::F32, &burns.weight.val(), |tokens| burns.forward(tokens));
    assert_eq!(theirs.into_data(), exact.clone().into_data(), "it is Burn's operation in f32");
    for (precision, tolerance) in [(Precision::Bf16, 4e-3), (Precision::F16, 5e-4)] {
        let copy = reducer(&net, precision).expect("a reducer").local(&net);
        let ours = gradient(precision.dtype(), &net.weight.val(), |tokens| copy.forward(tokens));
        let ours = error(ours, &exact);
        let weight = burns.weight.val();
        let cast = Embedding { weight: burns.weight.clone().map(|weight| weight.cast(precision.dtype())) };
        let theirs = gradient(precision.dtype(), &weight, |tokens| cast.forward(tokens));
        let theirs = error(theirs, &exact);
        println!("{precision}: error {ours}, of burn::nn::Embedding {theirs}");
        assert!(ours < tolerance, "{precision}: {ours}");
        assert!(theirs > 0.5, "Burn's layer is accurate and need not be refused: {theirs}");
    }
}

#[derive(Module, Debug)]
struct Net {
    burns: Vec<Embedding>,
    ours: MixedPrecisionEmbedding,
}

#[test]
fn a_trainable_embedding_of_burn_is_refused_by_name() {
    let embedding = || EmbeddingConfig::new(3, 2).init(&device());
    let ours = MixedPrecisionEmbeddingConfig::new(3, 2).init(&device());
    let net = |burns| Net { burns, ours: ours.clone() };
    let refused = net(vec![embedding(), embedding()]);
    for precision in [Precision::Bf16, Precision::F16] {
        let error = reducer(&refused, precision).expect_err("refused");
        let names = "`burns.0.weight`, `burns.1.weight`: burn::nn::Embedding";
        assert!(error.starts_with(&format!("precision {precision}: {names}")), "{error}");
        assert!(error.contains("burn_ddp::nn::Embedding"), "{error}");
        assert!(reducer(&net(vec![embedding().freeze()]), precision).is_ok(), "it has no gradient");
        assert!(reducer(&net(vec![]), precision).is_ok());
    }
    assert!(reducer(&refused, Precision::F32).is_ok());
}
