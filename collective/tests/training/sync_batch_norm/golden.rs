//! BatchNorm over the whole batch in PyTorch, from `tests/fixtures/sync_batch_norm.json`.

use super::batches::{Batch, Case, Outcome};
use crate::common::Kind;
use burn::tensor::DType;
use burn_ddp_collective::sync_batch_norm::RunningVariance;
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<GoldenCase>,
}

#[derive(Deserialize)]
struct GoldenCase {
    shape: Vec<usize>,
    shards: Vec<usize>,
    momentum_torch: f64,
    eps: f64,
    gamma: Vec<f64>,
    beta: Vec<f64>,
    steps: Vec<GoldenStep>,
}

#[derive(Deserialize)]
struct GoldenStep {
    #[serde(flatten)]
    batch: Batch,
    #[serde(flatten)]
    outcome: Outcome,
}

#[test]
fn all_cases_equal_the_reference() {
    let name = "sync_batch_norm.json";
    let text = include_bytes!("../../fixtures/sync_batch_norm.json");
    let reference: Reference = serde_json::from_slice(text).expect(name);
    assert!(!reference.cases.is_empty(), "{name} has no case");
    for (number, golden) in reference.cases.into_iter().enumerate() {
        assert_eq!(golden.shards.iter().sum::<usize>(), golden.shape[0], "{name}: case {number}");
        let steps = golden.steps.into_iter().map(|step| (step.batch, step.outcome));
        let (steps, wanted): (Vec<_>, Vec<_>) = steps.unzip();
        let case = Case {
            shape: golden.shape,
            shards: golden.shards,
            momentum: golden.momentum_torch,
            eps: golden.eps,
            gamma: golden.gamma,
            beta: golden.beta,
            steps,
            dtype: DType::F32,
            running_variance: RunningVariance::Unbiased,
        };
        for kind in [Kind::Thread, Kind::Tcp] {
            for (step, (ours, wanted)) in case.sharded(kind).iter().zip(&wanted).enumerate() {
                let what = format!("{name}: case {number}, step {step}, {kind:?}");
                ours.assert_close(wanted, case.gradient_scale(step), 1e-5, &what);
            }
        }
    }
}
