//! Options of a training step.

use super::local_sgd::LocalSgd;
use crate::gradient::ReducerOptions;
use std::fmt::Display;

/// Options of [`DistributedDataParallel`](super::DistributedDataParallel), [`DataParallel`](super::DataParallel) and the
/// strategies for burn-train.
///
/// ```
/// use burn_ddp_collective::{StepOptions, gradient::ReducerOptions, precision::Precision};
///
/// let options = StepOptions {
///     grad_accum_steps: 4,
///     clip_grad_norm: Some(1.0),
///     reducer: ReducerOptions { precision: Precision::Bf16, ..ReducerOptions::default() },
///     ..StepOptions::default()
/// };
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// Gradient buckets, overlap, communication hook and precision.
    pub reducer: ReducerOptions,
    /// Number of batches per optimizer step, of which only the last synchronises.
    ///
    /// The last step of an epoch has the remaining batches. 0 counts as 1.
    pub grad_accum_steps: usize,
    /// Maximum global norm of the gradients: see [`clip_by_global_norm`](crate::gradient::clip_by_global_norm).
    pub clip_grad_norm: Option<f64>,
    /// Whether [`SyncBatchNorm`](crate::sync_batch_norm::SyncBatchNorm) layers synchronise their statistics over all
    /// ranks or replicas.
    pub sync_batch_norm: bool,
    /// Synchronises parameters after several optimizer steps, in place of gradients in each step.
    pub local_sgd: Option<LocalSgd>,
    /// Seed of the random numbers, from which each rank and step derives its own, also after a resume.
    pub seed: Option<u64>,
    /// Whether to continue when the loss or the gradient norm is NaN or infinite.
    ///
    /// By default that is [`Error::NonFinite`](crate::Error::NonFinite) on every rank.
    pub allow_non_finite: bool,
}

impl Default for StepOptions {
    /// One batch a step, without clipping, SyncBatchNorm and seed.
    fn default() -> Self {
        Self {
            reducer: ReducerOptions::default(),
            grad_accum_steps: 1,
            clip_grad_norm: None,
            sync_batch_norm: false,
            local_sgd: None,
            seed: None,
            allow_non_finite: false,
        }
    }
}

impl StepOptions {
    /// Names and values, for [`ProcessGroup::verify_settings`](crate::ProcessGroup::verify_settings).
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let Self { reducer, grad_accum_steps, clip_grad_norm, local_sgd, seed, allow_non_finite, .. } = self;
        let buckets = reducer.buckets;
        [
            ("accumulation", grad_accum_steps.to_string()),
            ("clip", or_none(*clip_grad_norm)),
            ("local SGD", or_none(*local_sgd)),
            ("seed", or_none(*seed)),
            ("precision", reducer.precision.to_string()),
            ("compression", or_none(reducer.hook.as_ref().map(|hook| hook.name()))),
            ("optimizer state", if reducer.shard_optimizer { "sharded" } else { "whole" }.into()),
            ("bucket sizes", format!("{} and {} bytes", buckets.first, buckets.rest)),
            ("non-finite loss", if *allow_non_finite { "allowed" } else { "an error" }.into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// A setting's value, or `none`.
pub(crate) fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| "none".into(), |value| value.to_string())
}
