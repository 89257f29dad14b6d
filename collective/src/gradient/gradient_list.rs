//! Gradients of a module as a list of tensors.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use std::collections::{HashMap, HashSet};

/// Gradients by parameter, each once, in the order of the module's fields.
///
/// The tensors have the shapes of the parameters, whose numbers of dimensions differ: only operations by element and
/// `reshape` apply to them.
pub(crate) type GradientList = Vec<(ParamId, Tensor<1>)>;

/// The gradients of the parameters of `module` in `grads`.
pub(crate) fn list<M: Module>(grads: &GradientsParams, module: &M) -> GradientList {
    let mut list = List { grads, seen: HashSet::new(), list: Vec::new() };
    module.visit(&mut list);
    list.list
}

struct List<'a> {
    grads: &'a GradientsParams,
    seen: HashSet<ParamId>,
    list: GradientList,
}

impl ModuleVisitor for List<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let grad = self.seen.insert(param.id).then(|| self.grads.get::<D>(param.id)).flatten();
        self.list.extend(grad.map(|grad| (param.id, Tensor::from_dispatch(grad.into_dispatch()))));
    }
}

/// The inverse of [`list`].
pub(crate) fn from_list<M: Module>(list: GradientList, module: &M) -> GradientsParams {
    let mut register = Register { list: list.into_iter().collect(), grads: GradientsParams::new() };
    module.visit(&mut register);
    register.grads
}

struct Register {
    list: HashMap<ParamId, Tensor<1>>,
    grads: GradientsParams,
}

impl ModuleVisitor for Register {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.list.remove(&param.id) {
            self.grads.register::<D>(param.id, Tensor::from_dispatch(grad.into_dispatch()));
        }
    }
}
