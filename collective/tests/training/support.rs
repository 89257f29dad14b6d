//! Devices, parameters, gradients and options that the tests share.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::{
    SupervisedTraining, TrainLoader, ValidLoader,
    logger::InMemoryMetricLogger,
    metric::{Adaptor, LossInput, LossMetric},
};
use burn_ddp_collective::{
    StepOptions,
    module_state::{self, Entry},
    strategy::{NoopRenderer, StepModel, TrainedOutput, ValidOutput},
};
use std::path::Path;

pub fn device() -> Device {
    Device::flex().autodiff()
}

/// The module with `value(entry, index)` as the values of each of its entries.
pub fn filled<M: Module>(module: M, value: impl Fn(&Entry, usize) -> f32) -> M {
    let entries = module_state::entries(&module).expect("read");
    let data = entries.into_iter().map(|entry| {
        let shape = entry.data.shape().clone();
        let values = (0..shape.num_elements()).map(|index| value(&entry, index));
        TensorData::new(values.collect::<Vec<_>>(), shape)
    });
    module_state::overwrite(module, data.collect())
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().expect("f32")
}

/// All trainable parameters, in field order.
pub fn parameters<M: Module>(net: &M) -> Vec<f32> {
    let entries = module_state::entries(net).expect("read");
    let trainable = entries.into_iter().filter(|entry| entry.trainable);
    trainable.flat_map(|entry| entry.data.try_to_vec::<f32>().expect("f32")).collect()
}

/// The gradients of all trainable parameters, in field order; `None` for parameters without one.
pub fn by_parameter<M: Module>(grads: &GradientsParams, module: &M) -> Vec<Option<Vec<f32>>> {
    struct Flat<'a>(&'a GradientsParams, Vec<Option<Vec<f32>>>);
    impl ModuleVisitor for Flat<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.1.push(self.0.get::<D>(param.id).map(values));
            }
        }
    }
    let mut flat = Flat(grads, Vec::new());
    module.visit(&mut flat);
    flat.1
}

/// All gradients, in field order.
pub fn flat<M: Module>(grads: &GradientsParams, module: &M) -> Vec<f32> {
    by_parameter(grads, module).into_iter().flatten().flatten().collect()
}

/// The largest difference.
pub fn worst(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Default options with changes.
pub fn options_with(set: impl FnOnce(&mut StepOptions)) -> StepOptions {
    let mut options = StepOptions::default();
    set(&mut options);
    options
}

/// A training that shows and writes nothing.
pub fn training<M>(
    folder: impl AsRef<Path>,
    train: TrainLoader<M>,
    valid: ValidLoader<M>,
    epochs: usize,
) -> SupervisedTraining<M>
where
    M: StepModel,
    TrainedOutput<M>: Adaptor<LossInput>,
    ValidOutput<M>: Adaptor<LossInput>,
{
    SupervisedTraining::new(folder, train, valid)
        .metrics((LossMetric::new(),))
        .with_metric_logger(InMemoryMetricLogger::default())
        .with_application_logger(None)
        .num_epochs(epochs)
        .renderer(Box::new(NoopRenderer))
}
