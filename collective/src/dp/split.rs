//! Batches, and the forward pass of a [`ParallelStep`], in any precision.

use super::{Outputs, ParallelStep, Scatter};
use crate::precision::Precision;

/// Casts a batch for the forward pass; f32 leaves it unchanged.
pub(crate) fn cast<B: Scatter>(batch: B, precision: Precision) -> B {
    match precision {
        Precision::F32 => batch,
        Precision::Bf16 | Precision::F16 => batch.cast(precision.dtype()),
    }
}

/// Outputs in f32 of `net`, whose parameters are of type `precision`.
pub(crate) fn forward<M: ParallelStep>(net: &M, part: M::Input, precision: Precision) -> M::Outputs {
    let outputs = net.forward_part(cast(part, precision));
    if precision == Precision::F32 { outputs } else { outputs.to_f32() }
}
