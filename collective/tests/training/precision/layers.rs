//! Burn's layers in 16 bits.

use super::device;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{
    BatchNorm, BatchNormConfig, EmbeddingConfig, GroupNormConfig, LayerNormConfig, LstmConfig,
    PositionalEncodingConfig, RmsNormConfig,
    attention::{MhaInput, MultiHeadAttentionConfig},
};
use burn::tensor::{DType, Distribution, FloatDType, Int, Tensor};
use burn_ddp_collective::{
    ProcessGroup,
    gradient::{Reducer, ReducerOptions},
    precision::Precision,
    sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig},
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Casts parameters, as a step in 16 bits does.
struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.cast(self.0))
    }
}

#[derive(Module, Debug)]
struct Normalised {
    burns: Option<BatchNorm>,
    ours: SyncBatchNorm,
}

#[test]
fn burns_batch_norm_is_refused_by_name() {
    let reducer = |batch_norm: bool, precision| {
        let net = Normalised {
            burns: batch_norm.then(|| BatchNormConfig::new(2).init(&device())),
            ours: SyncBatchNormConfig::new(2).init(&device()),
        };
        let options = ReducerOptions { precision, ..ReducerOptions::default() };
        Reducer::new(&net, &ProcessGroup::solo(), options).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!((reducer(true, Precision::F32), reducer(false, Precision::Bf16)), (Ok(()), Ok(())));
    for precision in [Precision::Bf16, Precision::F16] {
        let error = reducer(true, precision).expect_err("refused");
        assert!(
            error.starts_with(&format!("precision {precision}: `burns`: burn::nn::BatchNorm")),
            "{error}"
        );
        assert!(error.contains("burn_ddp::nn::BatchNorm"), "{error}");
    }
}

/// Which layers the documentation of `burn_ddp_collective::precision` names.
#[test]
fn burns_other_layers_work_except_those_that_create_f32_tensors() {
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let on = &device();
        let x = Tensor::<3>::random([2, 4, 8], Distribution::Default, on).cast(dtype);
        let works = |forward: &dyn Fn() -> DType| {
            catch_unwind(AssertUnwindSafe(forward)).is_ok_and(|found| found == dtype.into())
        };
        let cast = &mut Cast(dtype);
        let layer_norm = LayerNormConfig::new(8).init(on).map(cast);
        let rms_norm = RmsNormConfig::new(8).init(on).map(cast);
        let group_norm = GroupNormConfig::new(2, 4).init(on).map(cast);
        let embedding = EmbeddingConfig::new(3, 8).init(on).map(cast);
        let attention = MultiHeadAttentionConfig::new(8, 2).init(on).map(cast);
        let lstm = LstmConfig::new(8, 4, true).init(on).map(cast);
        let positions = PositionalEncodingConfig::new(8).init(on);
        let batch_norm = BatchNormConfig::new(4).init(on).map(&mut Cast(FloatDType::F32));
        let tokens = Tensor::<2, Int>::from_data([[1, 2]], on);
        assert!(works(&|| layer_norm.forward(x.clone()).dtype()));
        assert!(works(&|| rms_norm.forward(x.clone()).dtype()));
        assert!(works(&|| group_norm.forward(x.clone()).dtype()));
        assert!(works(&|| embedding.forward(tokens.clone()).dtype()));
        assert!(works(&|| attention.forward(MhaInput::self_attn(x.clone())).context.dtype()));
        assert!(!works(&|| lstm.forward(x.clone(), None).0.dtype()));
        assert!(!works(&|| positions.forward(x.clone()).dtype()));
        assert!(!works(&|| batch_norm.forward(x.clone()).dtype()), "f32 parameters do not help");
    }
}
