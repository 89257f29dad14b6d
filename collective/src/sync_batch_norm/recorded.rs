//! SyncBatchNorm as one operation that computes its gradients itself.

use super::{
    kernel::{self, Moments, Settings},
    passes::Statistics,
};
use crate::tensor::CollectiveBackend;
use burn::backend::{
    Autodiff, Backend, Dispatch, DispatchKindConversion, DispatchTensor,
    autodiff::checkpoint::strategy::BalancedCheckpointing, tensor::FloatTensor,
};
use burn::tensor::Tensor;
use kernels::autodiff::{self, Gradients, Saved, Upstream};

/// Normalises `x` of shape `[batch, channels, ...]`, with gamma and beta; also returns mean and variance over all ranks,
/// `[channels]`, without autodiff.
///
/// If the group fails, the results are undefined and the group keeps the cause. `None` unless the inputs are of the
/// backend.
pub fn forward<B: CollectiveBackend, const D: usize>(
    inputs: [FloatTensor<Dispatch>; 3],
    settings: &Settings,
) -> Option<(Tensor<D>, [Tensor<1>; 2])>
where
    DispatchTensor: DispatchKindConversion<B>
        + DispatchKindConversion<Autodiff<B>>
        + DispatchKindConversion<Autodiff<B, BalancedCheckpointing>>,
{
    let mut statistics_of_all = None;
    let output = autodiff::run(inputs, |[x, gamma, beta]| {
        let (output, Moments { mean, variance, statistics }) = kernel::forward::<B>(x, gamma, beta, settings);
        statistics_of_all = Some([mean, variance].map(Tensor::from_primitive::<B>));
        Some((output, State { statistics, settings: settings.clone() }))
    })?;
    Some((output, statistics_of_all?))
}

#[derive(Clone, Debug)]
struct State<B: Backend> {
    statistics: Statistics<B>,
    settings: Settings,
}

impl<B: CollectiveBackend> Saved<B, 3, 2> for State<B> {
    fn gradients(self, upstream: Upstream<B, 3, 2>) -> Gradients<B, 3> {
        let Upstream { gradient, wanted, read: [x, gamma] } = upstream;
        kernel::backward::<B>(x, gamma, gradient, self.statistics, &self.settings, wanted[0])
    }
}
