//! Refusal of embeddings whose gradients would be added in 16 bits.

use crate::{Error, Result, precision::Precision};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// Verifies that no `burn::nn::Embedding` of `module` is trained in 16 bits.
///
/// # Errors
/// [`Error::Invalid`] naming the weights of every one that is trainable, if the precision is not f32.
pub(super) fn check_embeddings<M: Module>(module: &M, precision: Precision) -> Result<()> {
    let mut found = Found::default();
    if precision != Precision::F32 {
        module.visit(&mut found);
    }
    if found.weights.is_empty() {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "precision {precision}: `{}`: burn::nn::Embedding adds gradients in 16 bits, which stop growing; give the model's field the type burn_ddp::nn::Embedding, which loads the same records",
        found.weights.join("`, `")
    )))
}

/// Collects the names of the trainable weights of `burn::nn::Embedding`.
#[derive(Default)]
struct Found {
    /// Field names, and whether they are those of an embedding.
    path: Vec<(String, bool)>,
    weights: Vec<String>,
}

impl ModuleVisitor for Found {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push((name.into(), container == "Struct:Embedding"));
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.last().is_some_and(|(_, in_embedding)| *in_embedding) && param.is_require_grad() {
            let names: Vec<&str> = self.path.iter().map(|(name, _)| name.as_str()).collect();
            self.weights.push(names.join("."));
        }
    }
}
