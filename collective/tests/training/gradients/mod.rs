//! Gradient synchronisation: sums, overlap with backward, hooks, and ranks with less data.

mod clipping;
mod fallback;
mod hooks;
mod joined;
#[cfg(target_os = "linux")]
mod on_device;
mod overlap;
mod same_bits;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "made for the tests of NCCL itself")]
#[path = "../../../comm/tests/engine/nccl/site.rs"]
mod site;
mod sums;
mod uses;

use crate::{
    common::{Kind, options, world},
    support::{by_parameter, device, flat, worst},
};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use burn_ddp_collective::{
    ProcessGroup,
    gradient::{BucketSizes, Reducer, ReducerOptions},
    module_state,
};

/// One bucket per parameter.
const TINY: BucketSizes = BucketSizes { first: 1, rest: 1 };

/// Different values, the same on every rank.
fn number(index: usize) -> f32 {
    (index as f32 * 0.37).sin()
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(number).collect()
}

fn rows(count: usize, width: usize, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers(count * width), [count, width]), device)
}

/// Two used layers and an unused one.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    last: Linear,
    unused: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Net {
            first: LinearConfig::new(4, 8).init(device),
            last: LinearConfig::new(8, 1).init(device),
            unused: LinearConfig::new(3, 3).init(device),
        }
    }

    /// Mean over the batch; each sample is computed independently.
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        self.last.forward(self.first.forward(x).tanh()).powf_scalar(2.0).mean()
    }

    fn grads(&self, x: Tensor<2>) -> GradientsParams {
        GradientsParams::from_grads(self.loss(x).backward(), self)
    }
}

fn bits<M: Module>(grads: &GradientsParams, module: &M) -> Vec<u32> {
    flat(grads, module).into_iter().map(f32::to_bits).collect()
}

/// Options with a bucket per parameter.
fn tiny(overlap: bool) -> ReducerOptions {
    ReducerOptions { buckets: TINY, overlap, ..ReducerOptions::default() }
}

/// The reduced gradients of a step, of `samples` on this rank and `global` on all, whose own ones `grads` computes.
fn reduced<M: Module>(
    reducer: &mut Reducer,
    net: &M,
    [samples, global]: [usize; 2],
    grads: impl FnOnce(&M) -> GradientsParams,
) -> GradientsParams {
    let step = reducer.step(samples, global);
    let grads = grads(&step.watch(net));
    step.finish(grads, net, &mut vec![]).expect("finish")
}

/// One step of three ranks with 3, 4 and no samples.
///
/// Returns the reduced gradients, and those of the whole batch of 7 samples on one rank.
fn uneven_step(net: &Net, reducer: &mut Reducer, rank: usize) -> (GradientsParams, Vec<f32>) {
    // The last rank's sample is padding.
    let (share, count) = [(0..3, 3), (3..7, 4), (0..1, 0)][rank].clone();
    let x = rows(7, 4, &device());
    let wanted = flat(&net.grads(x.clone()), net);
    let mut totals = vec![rank as f32, 1.0];
    let step = reducer.step(count, 7);
    let grads = step.watch(net).grads(x.slice([share, 0..4]));
    let grads = step.finish(grads, net, &mut totals).expect("finish");
    assert_eq!(totals, [3.0, 3.0]);
    (grads, wanted)
}

/// Memory in which gradients are reduced.
#[derive(Clone, Copy, Debug)]
enum Place {
    Host,
    /// Device memory, with the NCCL stand-in.
    #[cfg(target_os = "linux")]
    Device,
}

const PLACES: &[Place] = &[
    Place::Host,
    #[cfg(target_os = "linux")]
    Place::Device,
];

/// Runs `body` on every rank with the same model and a reducer for it.
fn with_reducer<M: Module + Send, R: Send>(
    size: usize,
    make: impl Fn(&Device) -> M + Sync,
    choose: impl Fn() -> ReducerOptions + Sync,
    body: impl Fn(M, Reducer, ProcessGroup) -> R + Sync,
) -> Vec<R> {
    with_reducer_at(Place::Host, size, make, choose, body)
}

fn with_reducer_at<M: Module + Send, R: Send>(
    place: Place,
    size: usize,
    make: impl Fn(&Device) -> M + Sync,
    choose: impl Fn() -> ReducerOptions + Sync,
    body: impl Fn(M, Reducer, ProcessGroup) -> R + Sync,
) -> Vec<R> {
    #[cfg(target_os = "linux")]
    let stand_in = matches!(place, Place::Device).then(site::StandIn::new);
    world(Kind::Thread, size, options(), |group: ProcessGroup| {
        match place {
            Place::Host => {}
            #[cfg(target_os = "linux")]
            Place::Device => stand_in.iter().for_each(|stand_in| site::attach(&group, stand_in)),
        }
        let model = module_state::broadcast(make(&device()), &group, 0).expect("broadcast");
        let reducer = Reducer::new(&model, &group, choose()).expect("a reducer");
        assert_eq!(reducer.on_device(), !matches!(place, Place::Host));
        body(model, reducer, group)
    })
}
