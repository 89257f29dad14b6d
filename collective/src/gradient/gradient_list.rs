//! Gradients of a module as a list of tensors.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use std::collections::HashMap;

/// Gradients by parameter, each once, in the order of the module's fields.
///
/// The tensors have the shapes of the parameters, whose numbers of dimensions differ: only operations by element and
/// `reshape` apply to them.
pub(crate) type GradientList = Vec<(ParamId, Tensor<1>)>;

/// Removes the gradients of the parameters of `module` from `grads`.
pub(crate) fn take<M: Module>(grads: &mut GradientsParams, module: &M) -> GradientList {
    let mut take = Take { grads, list: Vec::new() };
    module.visit(&mut take);
    take.list
}

struct Take<'a> {
    grads: &'a mut GradientsParams,
    list: GradientList,
}

impl ModuleVisitor for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let grad = self.grads.remove::<D>(param.id);
        self.list.extend(grad.map(|grad| (param.id, Tensor::from_dispatch(grad.into_dispatch()))));
    }
}

/// Adds gradients of the parameters of `module` to `grads`.
pub(crate) fn put<M: Module>(grads: &mut GradientsParams, list: GradientList, module: &M) {
    module.visit(&mut Put { grads, list: list.into_iter().collect() });
}

struct Put<'a> {
    grads: &'a mut GradientsParams,
    list: HashMap<ParamId, Tensor<1>>,
}

impl ModuleVisitor for Put<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.list.remove(&param.id) {
            self.grads.register::<D>(param.id, Tensor::from_dispatch(grad.into_dispatch()));
        }
    }
}
