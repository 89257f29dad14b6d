//! Communication while backward runs: the order of events, and the same bits as without.

use crate::common::{KINDS, Kind, options, world};
use crate::{TINY, bits, device, numbers, rows, with_reducer};
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    backend_extension,
    tensor::FloatTensor,
};
use burn::module::Module;
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
    conv::{Conv2d, Conv2dConfig},
    gru::{Gru, GruConfig},
};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use collective::{
    ProcessGroup, ReduceOp, Result,
    gradient::{Bucket, CommHook, Reducer, ReducerOptions},
    replica, tensor,
};
use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

/// What happened, in order, and somebody to wait for it.
#[derive(Debug, Default)]
struct Log {
    events: Mutex<Vec<String>>,
    more: Condvar,
}

impl Log {
    fn push(&self, event: impl Into<String>) {
        self.events.lock().unwrap().push(event.into());
        self.more.notify_all();
    }

    fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    /// Waits for an event, not for ever.
    fn expect(&self, event: &str) {
        let missing = |events: &mut Vec<String>| !events.iter().any(|e| e == event);
        let events = self.events.lock().unwrap();
        let (events, _) = self.more.wait_timeout_while(events, Duration::from_secs(30), missing).unwrap();
        assert!(events.iter().any(|e| e == event), "`{event}` did not happen: {events:?}");
    }
}

/// Writes down which bucket is reduced.
#[derive(Debug)]
struct Recorder(Arc<Log>);

impl CommHook for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        group.all_reduce(bucket.values_mut(), ReduceOp::Sum)?;
        self.0.push(format!("bucket {}", bucket.index()));
        Ok(())
    }
}

/// What a gate waits for in backward, if anything, and what it then says.
#[derive(Clone, Debug)]
struct Gate {
    log: Arc<Log>,
    waits_for: Option<&'static str>,
    says: &'static str,
}

#[backend_extension(Autodiff, Flex)]
trait GateBackend: Backend {
    /// The same tensor, whose backward waits.
    fn gate(x: FloatTensor<Self>, gate: Gate) -> FloatTensor<Self>;
}

impl GateBackend for Flex {
    fn gate(x: FloatTensor<Self>, _: Gate) -> FloatTensor<Self> {
        x
    }
}

#[derive(Debug)]
struct GateBackward;

impl<B: Backend> Backward<B, 1> for GateBackward {
    type State = Gate;

    fn backward(self, ops: Ops<Gate, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let Gate { log, waits_for, says } = ops.state;
        if let Some(event) = waits_for {
            log.expect(event);
        }
        log.push(says);
        unary::<B, _>(ops.parents, ops.node, grads, |grad| grad);
    }
}

impl<B: GateBackend, C: CheckpointStrategy> GateBackend for Autodiff<B, C> {
    fn gate(x: FloatTensor<Self>, gate: Gate) -> FloatTensor<Self> {
        let (primitive, guard) = x.into_parts();
        match GateBackward.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(gate, primitive),
            OpsKind::UnTracked(prep) => prep.finish(primitive),
        }
    }
}

fn gate<const D: usize>(x: Tensor<D>, gate: Gate) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as GateBackend>::gate(x.into_dispatch(), gate))
}

/// Three layers; the modules are Burn's own, and nobody told them anything.
#[derive(Module, Debug)]
struct Three {
    a: Linear,
    b: Linear,
    c: Linear,
}

impl Three {
    fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(4, 4).init(device);
        Three { a: linear(), b: linear(), c: linear() }
    }
}

#[test]
fn buckets_are_reduced_before_backward_has_reached_the_first_layer() {
    for device in [device(), device().gradient_checkpointing()] {
        world(Kind::Thread, 2, options(), |group: ProcessGroup| {
            let log = Arc::new(Log::default());
            let net = replica::broadcast(Three::new(&device), &group, 0).expect("broadcast");
            let hook: Arc<dyn CommHook> = Arc::new(Recorder(log.clone()));
            let choice = ReducerOptions {
                buckets: TINY,
                overlap: true,
                hook: Some(hook),
                ..ReducerOptions::default()
            };
            let mut reducer = Reducer::new(&net, &group, choice).expect("a reducer");
            assert_eq!(reducer.buckets(), 6);
            for _ in 0..3 {
                log.events.lock().unwrap().clear();
                let step = reducer.step(&net, 3, 6).expect("step");
                let watched = step.watch(&net);
                let gated = |x, waits_for, says| gate(x, Gate { log: log.clone(), waits_for, says });
                let x = rows(3, 4, &device);
                let x = gated(watched.a.forward(x).tanh(), Some("bucket 3"), "backward leaves b");
                let x = gated(watched.b.forward(x).tanh(), Some("bucket 1"), "backward leaves c");
                let loss = watched.c.forward(x).mean();
                let grads = GradientsParams::from_grads(loss.backward(), &watched);
                log.push("backward is over");
                step.finish(grads, &net, &mut vec![]).expect("finish");
                let events = log.events();
                let at = |event: &str| events.iter().position(|e| e == event).expect(event);
                // c's two parameters are reduced when backward leaves c, b's two when it leaves b.
                assert!(at("bucket 1") < at("backward leaves c"), "{events:?}");
                assert!(at("backward leaves c") < at("bucket 2"), "{events:?}");
                assert!(at("bucket 3") < at("backward leaves b"), "{events:?}");
                assert!(at("backward leaves b") < at("backward is over"), "{events:?}");
                // The last one waits for the totals.
                assert!(at("backward is over") < at("bucket 5"), "{events:?}");
            }
            assert_eq!(reducer.fallback(), None);
        });
    }
}

#[test]
fn without_overlap_nothing_is_sent_before_the_end() {
    let log = [(); 2].map(|()| Arc::new(Log::default()));
    world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let log = log[group.rank()].clone();
        let net = replica::broadcast(Three::new(&device()), &group, 0).expect("broadcast");
        let hook: Arc<dyn CommHook> = Arc::new(Recorder(log.clone()));
        let choice =
            ReducerOptions { buckets: TINY, overlap: false, hook: Some(hook), ..ReducerOptions::default() };
        let mut reducer = Reducer::new(&net, &group, choice).expect("a reducer");
        let step = reducer.step(&net, 3, 6).expect("step");
        let watched = step.watch(&net);
        let loss = watched.c.forward(watched.b.forward(watched.a.forward(rows(3, 4, &device())))).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &watched);
        log.push("backward is over");
        step.finish(grads, &net, &mut vec![]).expect("finish");
        let wanted =
            ["backward is over", "bucket 0", "bucket 1", "bucket 2", "bucket 3", "bucket 4", "bucket 5"];
        assert_eq!(log.events(), wanted);
    });
}

/// Layers that Burn's autodiff treats differently: a convolution, one weight used twice, one value
/// used twice, a weight that is reshaped by itself, a residual connection, an embedding, a recurrence.
#[derive(Module, Debug)]
struct Zoo {
    conv: Conv2d,
    norm: BatchNorm,
    embedding: Embedding,
    twice: Linear,
    layer_norm: LayerNorm,
    gru: Gru,
    attention: MultiHeadAttention,
    last: Linear,
}

impl Zoo {
    fn new(device: &Device) -> Self {
        Zoo {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            norm: BatchNormConfig::new(4).init(device),
            embedding: EmbeddingConfig::new(5, 16).init(device),
            twice: LinearConfig::new(16, 16).init(device),
            layer_norm: LayerNormConfig::new(16).init(device),
            gru: GruConfig::new(16, 16, true).init(device),
            attention: MultiHeadAttentionConfig::new(16, 2).with_dropout(0.0).init(device),
            last: LinearConfig::new(16, 1).init(device),
        }
    }

    /// `[batch, 1, 6, 6]` to a loss `[1]`.
    fn loss(&self, images: Tensor<4>, attend: bool) -> Tensor<1> {
        let [batch, ..] = images.dims();
        let x = self.norm.forward(self.conv.forward(images)).tanh(); // [batch, 4, 4, 4]
        let x = x.reshape([batch, 4, 16]);
        let places = Tensor::<1, Int>::arange(0..4, &x.device()).unsqueeze::<2>().repeat_dim(0, batch);
        let x = x + self.embedding.forward(places);
        let y = self.twice.forward(x.clone()).tanh();
        let x = self.layer_norm.forward(self.twice.forward(y) + x);
        let weight = self.twice.weight.val();
        let x = x.matmul(weight.clone().unsqueeze()).matmul(weight.unsqueeze());
        let x = self.gru.forward(x, None);
        let x = if attend { self.attention.forward(MhaInput::self_attn(x)).context } else { x };
        self.last.forward(x).powf_scalar(2.0).mean()
    }
}

fn images(rank: usize, device: &Device) -> Tensor<4> {
    let numbers = numbers(3 * 36).into_iter().map(|x| x + rank as f32 * 0.1).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(numbers, [3, 1, 6, 6]), device)
}

/// The gradients' bits of two steps on every rank, and whether a step fell back.
fn zoo(device: &Device, overlap: bool, attend: bool) -> Vec<(Vec<u32>, Vec<u32>)> {
    let results = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let net = Zoo::new(device);
        let data = replica::entries(&net).into_iter().map(|entry| {
            let shape = entry.data.shape().clone();
            let numbers =
                numbers(shape.num_elements()).into_iter().map(|x| 0.3 * x + 0.5).collect::<Vec<_>>();
            TensorData::new(numbers, shape)
        });
        let net = replica::overwrite(net.clone(), data.collect());
        let choice = ReducerOptions { buckets: TINY, overlap, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(&net, &group, choice).expect("a reducer");
        let mut step = || {
            let step = reducer.step(&net, 3, 6).expect("step");
            let watched = step.watch(&net);
            let loss = watched.loss(images(group.rank(), device), attend);
            let grads = GradientsParams::from_grads(loss.backward(), &watched);
            bits(&step.finish(grads, &net, &mut vec![]).expect("finish"), &net)
        };
        let steps = (step(), step());
        assert_eq!(reducer.fallback(), None);
        steps
    });
    assert_eq!(results[0], results[1], "the same bits on every rank");
    results
}

#[test]
fn overlap_changes_no_bit() {
    for device in [device(), device().gradient_checkpointing()] {
        let plain = zoo(&device, false, false);
        assert!(plain[0].0.iter().any(|bits| *bits != 0));
        assert_eq!(zoo(&device, true, false), plain);
    }
}

#[test]
fn three_uses_of_one_activation_may_be_added_up_in_another_order_but_always_the_same() {
    let (plain, overlapped) = (zoo(&device(), false, true), zoo(&device(), true, true));
    assert_eq!(zoo(&device(), true, true), overlapped);
    let floats = |bits: &[u32]| bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
    let (ours, theirs) = (floats(&overlapped[0].0), floats(&plain[0].0));
    assert!(crate::worst(&ours, &theirs) < 1e-6 * theirs.iter().fold(1.0, |a, b| b.abs().max(a)));
}

/// As SyncBatchNorm does it: a collective of the training thread in the middle of backward.
#[test]
fn collectives_inside_backward_do_not_get_between_the_buckets() {
    for kind in KINDS {
        world(kind, 2, options(), |group: ProcessGroup| {
            let net = replica::broadcast(Three::new(&device()), &group, 0).expect("broadcast");
            let choice = ReducerOptions { buckets: TINY, ..ReducerOptions::default() };
            let mut reducer = Reducer::new(&net, &group, choice).expect("a reducer");
            let loss = |net: &Three, rank: usize| {
                let x = net.a.forward(rows(3, 4, &device()) + rank as f32).tanh();
                let x = tensor::all_reduce(x, &group, ReduceOp::Mean).expect("all_reduce").tanh();
                let x = tensor::all_reduce(net.b.forward(x), &group, ReduceOp::Sum).expect("all_reduce");
                net.c.forward(x).mean()
            };
            let mut all = Vec::new();
            for _ in 0..5 {
                let step = reducer.step(&net, 3, 6).expect("step");
                let watched = step.watch(&net);
                // Rank 1 uses c only, so that its other buckets leave at other times.
                let used = loss(&watched, group.rank());
                let used = if group.rank() == 1 { used * 0.0 + watched.c.weight.val().sum() } else { used };
                let grads = GradientsParams::from_grads(used.backward(), &watched);
                all.push(bits(&step.finish(grads, &net, &mut vec![]).expect("finish"), &net));
            }
            assert!(all.iter().all(|bits| *bits == all[0]));
            assert_eq!(reducer.fallback(), None);
        });
    }
}

#[test]
fn buckets_travel_in_the_same_order_when_ranks_are_ready_in_different_ones() {
    let logs = [(); 2].map(|()| Arc::new(Log::default()));
    let choose = ReducerOptions::default;
    with_reducer(2, Three::new, choose, |net, _, group| {
        let log = logs[group.rank()].clone();
        let hook: Arc<dyn CommHook> = Arc::new(Recorder(log.clone()));
        let choice =
            ReducerOptions { buckets: TINY, overlap: true, hook: Some(hook), ..ReducerOptions::default() };
        let mut reducer = Reducer::new(&net, &group, choice).expect("a reducer");
        let step = reducer.step(&net, 3, 6).expect("step");
        let watched = step.watch(&net);
        let x = rows(3, 4, &device());
        // Rank 1 runs the layers backwards.
        let y = match group.rank() {
            0 => watched.c.forward(watched.b.forward(watched.a.forward(x))),
            _ => watched.a.forward(watched.b.forward(watched.c.forward(x))),
        };
        let grads = GradientsParams::from_grads(y.mean().backward(), &watched);
        step.finish(grads, &net, &mut vec![]).expect("finish");
    });
    let wanted: Vec<String> = (0..6).map(|bucket| format!("bucket {bucket}")).collect();
    assert!(logs.iter().all(|log| log.events() == wanted), "{logs:?}");
}
