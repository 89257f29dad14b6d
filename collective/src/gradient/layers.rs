//! Refusal of layers that are not trained correctly in 16 bits.

use crate::{
    Error, ProcessGroup, Result,
    module_state::{FloatParam, float_params},
    precision::Precision,
    sync_batch_norm::convert,
};
use burn::module::Module;

/// Verifies that the layers of `module` support `precision`.
///
/// # Errors
/// If the precision is not f32, [`Error::Invalid`] naming every trainable `burn::nn::BatchNorm`, or the weights of every
/// trainable `burn::nn::Embedding`. Burn adds the statistics of a 16-bit batch to running statistics in f32, which fails,
/// and the gradients of an embedding in 16 bits.
pub(super) fn check_layers<M: Module>(module: &M, precision: Precision) -> Result<()> {
    if precision == Precision::F32 {
        return Ok(());
    }
    let (_, norms) = convert(module.clone(), &ProcessGroup::solo());
    let in_embedding = |param: &FloatParam| param.trainable && param.container == "Struct:Embedding";
    let embeddings = float_params(module).into_iter().filter(in_embedding).map(|param| param.path).collect();
    for (found, layer, why) in [
        (norms, "BatchNorm", "BatchNorm does not support it"),
        (embeddings, "Embedding", "Embedding adds gradients in 16 bits, which stop growing"),
    ] {
        if !found.is_empty() {
            return Err(Error::Invalid(format!(
                "precision {precision}: `{}`: burn::nn::{why}; give the model's field the type burn_ddp::nn::{layer}, which loads the same records",
                found.join("`, `")
            )));
        }
    }
    Ok(())
}
