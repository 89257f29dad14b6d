//! Batch normalisation followed by ReLU, or by ReLU and max-pooling, in the same passes over an f32 batch on a CPU.
//!
//! In training, the normalised values are not stored, and neither is a mask: backward computes the sign of each output
//! again from the input.

use super::{
    kernel::{Batch, Gradients, Moments, Settings, flatten, project},
    passes::{Statistics, gradient_lines, projected_lines},
};
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, Flex, TensorMetadata,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads,
        ops::{Backward, Ops, OpsKind},
    },
    backend_extension,
    tensor::FloatTensor,
};
use kernels::{
    batch_norm::{self, Affine, Centred, PooledGradient, ReluGradient},
    host_tensor::{Host, contiguous, tensor, values as host},
    pool::{self, Windows},
};
use std::sync::Arc;

/// A normalisation and what follows its ReLU.
#[derive(Clone, Debug)]
pub struct Activated {
    pub settings: Settings,
    /// Windows of a max-pooling.
    pub windows: Option<Windows>,
}

/// A Burn backend with this operation.
#[backend_extension(Autodiff, Flex)]
pub trait ActivatedBatchNormBackend: Backend {
    /// Normalises `x`, f32 of shape `[batch, channels, ...]`, then applies ReLU and max-pooling; also returns mean and
    /// variance over all ranks, `[channels]`.
    fn activated_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        activated: Activated,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl ActivatedBatchNormBackend for Flex {
    fn activated_batch_norm(x: Host, gamma: Host, beta: Host, activated: Activated) -> (Host, Host, Host) {
        let result = forward(&contiguous(x), gamma, &beta, &activated);
        (result.output, result.moments.mean, result.moments.variance)
    }
}

/// Results of the forward pass.
struct Forward {
    output: Host,
    moments: Moments<Flex>,
    /// Maps from the input, relative to the statistics' anchor, to the normalised values.
    maps: Vec<Affine>,
    /// Where each pooled value was in its window, and the input there; empty without windows.
    taken: Arc<(Vec<u8>, Vec<f32>)>,
}

fn forward(x: &Host, gamma: Host, beta: &Host, activated: &Activated) -> Forward {
    let values = flatten::<Flex>(x.clone());
    let batch = Batch::<Flex>::of(values.clone(), &activated.settings);
    let statistics = &batch.statistics;
    let constants = host(&statistics.inv_std).iter().zip(host(&statistics.offset));
    let maps: Vec<Affine> =
        (host(&contiguous(gamma)).iter().zip(host(&contiguous(beta.clone()))).zip(constants))
            .map(|((gamma, beta), (inv_std, offset))| {
                let scale = gamma * inv_std;
                Affine { factors: [scale, 0.0], constant: beta - offset * scale }
            })
            .collect();
    let input = Centred { values: host(&values), centres: Some(host(&statistics.anchor)) };
    let (output, taken) = match &activated.windows {
        Some(windows) => {
            let pooled = pool::forward_mapped(&maps, input, windows);
            (tensor(pooled.values, windows.output()), (pooled.taken, pooled.inputs))
        }
        None => {
            (tensor(batch_norm::relu(&maps, input, values.shape().dims()), x.shape()), Default::default())
        }
    };
    Forward { output, moments: batch.finish(&activated.settings).1, maps, taken: Arc::new(taken) }
}

#[derive(Debug)]
struct Step;

#[derive(Clone, Debug)]
struct State {
    x: Host,
    gamma: Host,
    statistics: Statistics<Flex>,
    maps: Arc<Vec<Affine>>,
    taken: Arc<(Vec<u8>, Vec<f32>)>,
    activated: Activated,
}

impl State {
    fn backward(self, grad: Host, for_input: bool) -> Gradients<Flex> {
        let Self { x, gamma, statistics, maps, taken, activated } = self;
        let (shape, values, grad) = (x.shape(), flatten::<Flex>(x), contiguous(grad));
        let dims = values.shape().dims();
        let input = Centred { values: host(&values), centres: Some(host(&statistics.anchor)) };
        let through_relu = ReluGradient { values: host(&grad), outputs: &maps, x: input };
        let through_pool = activated.windows.as_ref().map(|windows| PooledGradient {
            values: host(&grad),
            taken: &taken.0,
            inputs: &taken.1,
            windows,
            x: input,
        });
        let sums = through_pool.map_or_else(|| through_relu.sums(dims), PooledGradient::sums);
        let sums = gradient_lines(&sums, &statistics);
        let for_x = for_input.then(|| {
            let empty = shape.num_elements() == 0;
            let projection = project::<Flex>(&sums, gamma.clone(), &statistics, &activated.settings, empty);
            let lines = projected_lines(&statistics, &projection);
            let gradient = match through_pool {
                Some(gradient) => gradient.apply(&lines),
                None => through_relu.apply(&lines, dims),
            };
            tensor(gradient, shape)
        });
        Gradients::new(for_x, sums, &gamma)
    }
}

impl Backward<Flex, 3> for Step {
    type State = State;

    fn backward(self, ops: Ops<State, 3>, grads: &mut grads::Gradients, _: &mut Checkpointer) {
        let [x, gamma, beta] = ops.parents;
        let grad = grads.consume::<Flex>(&ops.node);
        let result = ops.state.backward(grad, x.is_some());
        let gradients = [(x, result.input), (gamma, Some(result.gamma)), (beta, Some(result.beta))];
        for (node, gradient) in gradients {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                grads.register::<Flex>(node.id, gradient);
            }
        }
    }
}

impl<C: CheckpointStrategy> ActivatedBatchNormBackend for Autodiff<Flex, C> {
    fn activated_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        activated: Activated,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let prep = Step.prepare::<C>([x.node(), gamma.node(), beta.node()]).compute_bound().stateful();
        let (x, gamma, beta) =
            (contiguous(x.into_primitive()), gamma.into_primitive(), beta.into_primitive());
        let Forward { output, moments, maps, taken } = forward(&x, gamma.clone(), &beta, &activated);
        let Moments { mean, variance, statistics } = moments;
        let output = match prep {
            OpsKind::Tracked(prep) => {
                let maps = Arc::new(maps);
                prep.finish(State { x, gamma, statistics, maps, taken, activated }, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        };
        let constant = <Self as AutodiffBackend>::from_inner;
        (output, constant(mean), constant(variance))
    }
}
