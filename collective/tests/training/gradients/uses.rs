//! Every layer uses each of its parameters once in a forward pass.
//!
//! A second use of which no gradient arrives would delay the bucket to the end of backward.

use super::device;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::nn::{
    LayerNormConfig, LinearConfig,
    conv::{Conv2d, Conv2dConfig},
    pool::MaxPool2dConfig,
};
use burn::tensor::{Distribution, FloatDType, Int, Tensor};
use burn_ddp_collective::sync_batch_norm::SyncBatchNormConfig;
use kernels::layers::{self, MixedPrecisionEmbeddingConfig};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Number of uses by name of the parameter.
type Uses = BTreeMap<String, usize>;

/// Counts the uses of one parameter.
#[derive(Module, Debug)]
struct Counter {
    #[module(skip)]
    path: String,
    #[module(skip)]
    uses: Arc<Mutex<Uses>>,
}

impl Reparameterization for Counter {
    const NAME: &'static str = "counter";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        *self.uses.lock().unwrap().entry(self.path.clone()).or_default() += 1;
        base
    }
}

struct Count(Arc<Mutex<Uses>>);

impl Reparameterizer for Count {
    type Reparam = Counter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Counter>) {
        (param, Some(Counter { path: path.into(), uses: self.0.clone() }))
    }
}

/// Asserts that `forward` uses each of these parameters once.
fn assert_once<M: Module, const D: usize>(
    names: &[&str],
    module: &M,
    what: &str,
    forward: impl Fn(&M) -> Tensor<D>,
) {
    let uses = Arc::default();
    let counted = module.clone().apply_reparameterization(Count(Arc::clone(&uses)));
    let _ = forward(&counted);
    let uses = uses.lock().unwrap();
    let found: Vec<(&str, usize)> = uses.iter().map(|(name, uses)| (name.as_str(), *uses)).collect();
    let wanted: Vec<(&str, usize)> = names.iter().map(|name| (*name, 1)).collect();
    assert_eq!(found, wanted, "{what}");
}

#[test]
fn a_forward_pass_uses_each_parameter_once() {
    let device = &device();
    let images = Tensor::<4>::random([2, 4, 8, 8], Distribution::Default, device);
    let rows = Tensor::<2>::random([5, 4], Distribution::Default, device);
    let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();

    let config = || Conv2dConfig::new([4, 4], [3, 3]);
    for (what, config) in [
        ("a convolution", config()),
        ("a strided convolution", config().with_stride([2, 2])),
        ("Burn's convolution", config().with_groups(2)),
    ] {
        let layer: Conv2d = config.init(device);
        let names = ["bias", "weight"];
        assert_once(&names, &layer, what, |layer| layers::conv(layer, images.clone()));
        assert_once(&names, &layer, what, |layer| layers::conv_relu(layer, images.clone()));
        assert_once(&names, &layer, what, |layer| layers::conv_relu_max_pool(layer, &pool, images.clone()));
        let layer = Conv2d { bias: None, ..layer };
        assert_once(&names[1..], &layer, what, |layer| layers::conv(layer, images.clone()));
    }

    let linear = LinearConfig::new(4, 3).init(device);
    assert_once(&["bias", "weight"], &linear, "linear", |layer| layers::linear(layer, rows.clone()));
    let linear = LinearConfig::new(4, 3).with_bias(false).init(device);
    assert_once(&["weight"], &linear, "linear without bias", |layer| layers::linear(layer, rows.clone()));

    let norm = LayerNormConfig::new(4).init(device);
    assert_once(&["beta", "gamma"], &norm, "LayerNorm", |norm| {
        let beta = norm.beta.as_ref().expect("a beta").val();
        layers::layer_norm(rows.clone(), norm.gamma.val(), beta, 1e-5)
    });

    let norm = SyncBatchNormConfig::new(4).init(device);
    let names = ["beta", "gamma"];
    for x in [images.clone(), images.clone().cast(FloatDType::BF16)] {
        assert_once(&names, &norm, "SyncBatchNorm", |norm| norm.forward(x.clone()));
        assert_once(&names, &norm, "with ReLU", |norm| norm.forward_relu(x.clone()));
        assert_once(&names, &norm, "with pooling", |norm| norm.forward_relu_max_pool(&pool, x.clone()));
    }

    let embedding = MixedPrecisionEmbeddingConfig::new(3, 4).init(device);
    let indices = Tensor::<2, Int>::from_data([[0, 2]], device);
    assert_once(&["weight"], &embedding, "an embedding", |layer| layer.forward(indices.clone()));
}
