//! Observation of gradients during backward, without a change to the module.
//!
//! The reduction receives each parameter's gradient as soon as it is final.
//!
//! Burn's autodiff gives every operation a depth, one more than its deepest input's, and runs
//! backward by depth, the deepest first. A leaf's gradient is complete when its last consumer has
//! run, but the leaf itself has depth 0, and so would an identity operation on it have depth 1: it
//! would run last. The identity therefore gets a second parent, an *anchor*: a tensor as deep as the activations
//! at the time of the parameter's use. It then runs directly after the parameter's consumers and before the
//! preceding layers.
//!
//! Anchors are chains of identity operations on a tensor that needs no gradient. Autodiff counts the depth of such
//! a parent and never visits it, so the anchors are created once and used in every step. The anchor of each use of a
//! parameter is [`DEPTH_PER_USE`] deeper than that of the use before. That does not depend on other threads, so two
//! runs give the same order. If a model is deeper between two uses, the gradient arrives later but is
//! still correct.
//!
//! Every use calls [`Param::val`], which applies the parameter's [`Reparameterization`]. It is attached to a copy of
//! the module for one step and never to the module itself.

use super::in_flight::InFlightReduction;
use crate::precision::Precision;
#[cfg(feature = "cube")]
use burn::backend::Cube;
use burn::backend::{
    Autodiff, Backend, Dispatch, DispatchKindConversion, DispatchTensor, Flex,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    backend_extension,
    tensor::FloatTensor,
};
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{Device, Tensor};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Depth between two uses of parameters.
///
/// A convolution with activation, pooling and dropout has depth 5, a linear layer 3, and each uses two parameters.
const DEPTH_PER_USE: usize = 6;

/// Maximum number of anchors.
///
/// Only recurrent networks use parameters more often. Their gradients are final after backward of the first use.
const MAX_ANCHORS: usize = 1024;

/// Copies `module` with parameters cast to `precision` and final gradients passed to the reduction, if any.
pub(super) fn watch<M: Module>(
    module: &M,
    reduction: Option<(&Arc<InFlightReduction>, &Arc<DepthAnchors>)>,
    precision: Precision,
) -> M {
    if reduction.is_none() && precision == Precision::F32 {
        return module.clone();
    }
    module.clone().apply_reparameterization(Install { reduction, precision })
}

/// Copies `module` with parameters cast to `precision`.
pub(crate) fn in_precision<M: Module>(module: &M, precision: Precision) -> M {
    watch(module, None, precision)
}

struct Install<'a> {
    reduction: Option<(&'a Arc<InFlightReduction>, &'a Arc<DepthAnchors>)>,
    precision: Precision,
}

impl Reparameterizer for Install<'_> {
    type Reparam = HookedParameter;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<HookedParameter>) {
        let trainable = param.is_require_grad();
        let watched = self.reduction.filter(|_| trainable).and_then(|(reduction, anchors)| {
            let slot = reduction.with(|buckets| buckets.plan.slot_of(param.id))??;
            Some(GradientHook { reduction: reduction.clone(), anchors: anchors.clone(), slot })
        });
        let needed = watched.is_some() || self.precision != Precision::F32;
        (param, needed.then_some(HookedParameter { watched, precision: self.precision }))
    }
}

/// Reparameterization of a watched parameter. It has no parameters, so that records do not change.
#[derive(Module, Debug)]
struct HookedParameter {
    #[module(skip)]
    watched: Option<GradientHook>,
    #[module(skip)]
    precision: Precision,
}

impl HookedParameter {
    fn watch<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let Some(watched) = &self.watched else { return base };
        let device = base.device();
        // The parameter was frozen, copied for validation, or is on a second device.
        if !base.is_require_grad() || !watched.anchors.are_on(&device) {
            return base;
        }
        let number = watched.reduction.with(|buckets| buckets.use_in_forward(watched.slot));
        let Some(number) = number else { return base };
        Tensor::from_dispatch(<Dispatch as WatchBackend>::watched(
            base.into_dispatch(),
            watched.anchors.anchor(number, &device).into_dispatch(),
            watched.clone(),
        ))
    }
}

impl Reparameterization for HookedParameter {
    const NAME: &'static str = "gradient_watcher";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        self.precision.cast(self.watch(base))
    }
}

/// The anchors, each [`DEPTH_PER_USE`] deeper than the one before.
#[derive(Debug, Default)]
pub(super) struct DepthAnchors {
    device: OnceLock<Device>,
    anchors: Mutex<Vec<Tensor<1>>>,
}

impl DepthAnchors {
    /// Whether the anchors are on `device`, which is the first device that was requested.
    fn are_on(&self, device: &Device) -> bool {
        self.device.get_or_init(|| device.clone()) == device
    }

    /// The anchor of use `number` of a step, from 0.
    fn anchor(&self, number: usize, device: &Device) -> Tensor<1> {
        let mut anchors = self.anchors.lock().unwrap_or_else(PoisonError::into_inner);
        let number = number.min(MAX_ANCHORS - 1);
        while anchors.len() <= number {
            let below = anchors.last().cloned().unwrap_or_else(|| Tensor::zeros([1], device));
            let dispatch = <Dispatch as WatchBackend>::deepen(below.into_dispatch(), DEPTH_PER_USE);
            anchors.push(Tensor::from_dispatch(dispatch));
        }
        anchors[number].clone()
    }
}

/// One parameter of one step.
#[derive(Clone, Debug)]
pub struct GradientHook {
    reduction: Arc<InFlightReduction>,
    anchors: Arc<DepthAnchors>,
    slot: usize,
}

/// A Burn backend whose parameters can be watched. The defaults are those of backends without autodiff, which have no
/// gradients.
#[cfg_attr(feature = "cube", backend_extension(Autodiff, Flex, Cube))]
#[cfg_attr(not(feature = "cube"), backend_extension(Autodiff, Flex))]
pub trait WatchBackend: Backend {
    /// The parameter at a depth above the anchor's.
    fn watched(
        parameter: FloatTensor<Self>,
        _anchor: FloatTensor<Self>,
        _watched: GradientHook,
    ) -> FloatTensor<Self> {
        parameter
    }
    /// The same tensor at a greater depth.
    fn deepen(below: FloatTensor<Self>, _levels: usize) -> FloatTensor<Self> {
        below
    }
}

impl WatchBackend for Flex {}
#[cfg(feature = "cube")]
impl WatchBackend for Cube {}

#[derive(Debug)]
struct WatchedBackward;

impl<B: WatchBackend> Backward<B, 2> for WatchedBackward
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = GradientHook;

    fn backward(self, ops: Ops<GradientHook, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [parameter, _anchor] = ops.parents;
        let Some(parameter) = parameter else { return };
        // Added to the gradients of other uses of the parameter.
        grads.register::<B>(parameter.id, grad);
        let GradientHook { reduction, slot, .. } = ops.state;
        reduction.with(|buckets| {
            buckets.arrive(slot, || Tensor::from_primitive::<B>(grads.consume::<B>(&parameter)));
        });
    }
}

/// One more level of depth. Backward never visits it, because nothing below it needs a gradient.
#[derive(Debug)]
struct Level;

impl<B: Backend> Backward<B, 1> for Level {
    type State = ();

    fn backward(self, _: Ops<(), 1>, _: &mut Gradients, _: &mut Checkpointer) {}
}

/// Both are marked compute-bound, so that gradient checkpointing keeps them and does not repeat them.
impl<B: WatchBackend, C: CheckpointStrategy> WatchBackend for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn watched(
        parameter: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        watched: GradientHook,
    ) -> FloatTensor<Self> {
        let (primitive, guard) = parameter.into_parts();
        match WatchedBackward.prepare::<C>([guard, anchor.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(watched, primitive),
            OpsKind::UnTracked(prep) => prep.finish(primitive),
        }
    }

    fn deepen(below: FloatTensor<Self>, levels: usize) -> FloatTensor<Self> {
        (0..levels).fold(below, |below, _| {
            let (primitive, guard) = below.into_parts();
            <Level as Backward<B, 1>>::prepare::<C>(Level, [guard]).compute_bound().stateless(primitive)
        })
    }
}
