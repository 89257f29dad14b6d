//! The float tensors of a module as lists, and replacement of them.
//!
//! The tensors have the shapes of the parameters, whose numbers of dimensions differ: only operations by element and
//! `reshape` apply to them.

use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Shape, Tensor};
use std::collections::HashMap;

/// Tensors by parameter, in the order of the module's fields.
pub(crate) type TensorList = Vec<(ParamId, Tensor<1>)>;

/// Tensors by parameter.
pub(crate) type TensorMap = HashMap<ParamId, Tensor<1>>;

pub(crate) fn erased<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    Tensor::from_dispatch(tensor.into_dispatch())
}

/// The tensor in a shape of any number of dimensions.
pub(crate) fn reshaped(tensor: Tensor<1>, shape: Shape) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::float_reshape(tensor.into_dispatch(), shape))
}

/// The values outside any graph of the trainable parameters, or of the float buffers and frozen parameters.
pub(crate) fn values<M: Module>(module: &M, trainable: bool) -> TensorList {
    struct Values(bool, TensorList);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() == self.0 {
                self.1.push((param.id, erased(param.base().inner())));
            }
        }
    }
    let mut values = Values(trainable, Vec::new());
    module.visit(&mut values);
    values.1
}

/// Replaces the float tensors of `module` for which `value` returns one, which is copied to their device and reshaped.
///
/// `value` receives the parameter's identity and whether it is trainable, which does not change.
pub(crate) fn replace<M: Module>(module: M, value: impl FnMut(ParamId, bool) -> Option<Tensor<1>>) -> M {
    struct Replace<F>(F);
    impl<F: FnMut(ParamId, bool) -> Option<Tensor<1>>> ModuleMapper for Replace<F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let trainable = param.is_require_grad();
            let Some(value) = (self.0)(param.id, trainable) else { return param };
            param.map(|old| {
                let value = Tensor::<D>::from_dispatch(value.into_dispatch());
                let value = if value.shape() == old.shape() { value } else { value.reshape(old.shape()) };
                let value = value.to_device(&old.device().without_autodiff());
                Tensor::from_inner(value).set_require_grad(trainable)
            })
        }
    }
    module.map(&mut Replace(value))
}

/// Replaces the trainable parameters of `module` that have a value in `values`.
pub(crate) fn with_values<M: Module>(module: M, values: &TensorMap) -> M {
    replace(module, |id, trainable| values.get(&id).filter(|_| trainable).cloned())
}

/// Removes the gradients of the parameters of `module` from `grads`.
pub(crate) fn take<M: Module>(grads: &mut GradientsParams, module: &M) -> TensorList {
    struct Take<'a>(&'a mut GradientsParams, TensorList);
    impl ModuleVisitor for Take<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = self.0.remove::<D>(param.id);
            self.1.extend(grad.map(|grad| (param.id, erased(grad))));
        }
    }
    let mut take = Take(grads, Vec::new());
    module.visit(&mut take);
    take.1
}

/// Adds gradients of the parameters of `module` to `grads`.
pub(crate) fn put<M: Module>(grads: &mut GradientsParams, list: TensorList, module: &M) {
    struct Put<'a>(&'a mut GradientsParams, TensorMap);
    impl ModuleVisitor for Put<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.1.remove(&param.id) {
                self.0.register::<D>(param.id, Tensor::from_dispatch(grad.into_dispatch()));
            }
        }
    }
    module.visit(&mut Put(grads, list.into_iter().collect()));
}
