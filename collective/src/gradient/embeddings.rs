//! Refusal of embeddings whose gradients would be added in 16 bits.

use crate::{
    Error, Result,
    module_state::{FloatParam, float_params},
    precision::Precision,
};
use burn::module::Module;

/// Verifies that no `burn::nn::Embedding` of `module` is trained in 16 bits.
///
/// # Errors
/// [`Error::Invalid`] naming the weights of every one that is trainable, if the precision is not f32.
pub(super) fn check_embeddings<M: Module>(module: &M, precision: Precision) -> Result<()> {
    let params = if precision == Precision::F32 { Vec::new() } else { float_params(module) };
    let in_embedding = |param: &FloatParam| param.trainable && param.container == "Struct:Embedding";
    let weights: Vec<_> = params.into_iter().filter(in_embedding).map(|param| param.path).collect();
    if weights.is_empty() {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "precision {precision}: `{}`: burn::nn::Embedding adds gradients in 16 bits, which stop growing; give the model's field the type burn_ddp::nn::Embedding, which loads the same records",
        weights.join("`, `")
    )))
}
