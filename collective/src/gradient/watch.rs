//! Watching a module's parameters, so that each gradient is seen at the moment it is final, while
//! backward goes on, and without a change to the module.
//!
//! Burn's autodiff gives every operation a depth, one more than its deepest input's, and runs
//! backward by depth, the deepest first. A leaf's gradient is complete when its last consumer has
//! run, but the leaf itself has depth 0, and so would an identity operation on it have depth 1: it
//! would run at the very end. So the identity gets a second parent, an *anchor*: a tensor deep
//! enough to put it beside the activations that were there when the parameter was used. It
//! then runs right after the parameter's consumers and before the layers further down.
//!
//! Anchors are rungs of a ladder: operations that do nothing, on a tensor that needs no gradient.
//! Autodiff counts the depth of such a parent, and never visits it, so the ladder is built once and
//! serves every step. Each use of a parameter goes [`RUNGS`] further up. That does not depend on what
//! other threads do, and so two runs give the same order. Where a model is deeper between two uses, the
//! gradient is seen that much later; it is right in any case.
//!
//! Every use goes through [`Param::val`], where a [`Reparameterization`] has a say. It is attached
//! to a copy of the module for one step; the module itself never carries one.

use super::{flight::Flight, host::ReadBackend};
use crate::precision::Precision;
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex,
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
use std::sync::{Arc, Mutex, PoisonError};

/// Levels between two uses of parameters. A convolution with its activation, pooling and dropout is
/// 5, a linear layer 3, and each uses two parameters.
const RUNGS: usize = 6;

/// Anchors that are kept. Only a recurrent network uses parameters more often, and there it is the
/// first use, the last to come back, that decides when a gradient is final.
const HEIGHT: usize = 1024;

/// A copy of `module` whose parameters are used in `precision`, and tell `flight` when their gradients
/// are final, if there is one.
pub(super) fn watch<M: Module>(module: &M, flight: Option<&Arc<Flight>>, precision: Precision) -> M {
    if flight.is_none() && precision == Precision::F32 {
        return module.clone();
    }
    module.clone().apply_reparameterization(Install { flight: flight.cloned(), precision })
}

struct Install {
    flight: Option<Arc<Flight>>,
    precision: Precision,
}

impl Reparameterizer for Install {
    type Reparam = Watcher;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Watcher>) {
        let trainable = param.is_require_grad();
        let watched =
            self.flight.as_ref().filter(|_| trainable).and_then(|flight| {
                flight.slot_of(param.id).map(|slot| Watched { flight: flight.clone(), slot })
            });
        let needed = watched.is_some() || self.precision != Precision::F32;
        (param, needed.then_some(Watcher { watched, precision: self.precision }))
    }
}

/// What a watched parameter carries: no parameter of its own, so that records do not show it.
#[derive(Module, Debug)]
struct Watcher {
    #[module(skip)]
    watched: Option<Watched>,
    #[module(skip)]
    precision: Precision,
}

impl Watcher {
    fn watch<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let Some(Watched { flight, slot }) = &self.watched else { return base };
        // Frozen since, or copied for validation.
        if !base.is_require_grad() {
            return base;
        }
        let Some(anchor) = flight.used(*slot, &base.device()) else { return base };
        Tensor::from_dispatch(<Dispatch as WatchBackend>::watched(
            base.into_dispatch(),
            anchor.into_dispatch(),
            Watched { flight: flight.clone(), slot: *slot },
        ))
    }
}

impl Reparameterization for Watcher {
    const NAME: &'static str = "gradient_watcher";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        self.precision.cast(self.watch(base))
    }
}

/// The anchors, each [`RUNGS`] above the one before.
#[derive(Debug, Default)]
pub(super) struct Ladder(Mutex<Vec<Tensor<1>>>);

impl Ladder {
    /// The anchor of a step's use number `number`, from 0. None on another device than the first.
    pub fn anchor(&self, number: usize, device: &Device) -> Option<Tensor<1>> {
        let mut anchors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = number.min(HEIGHT - 1);
        while anchors.len() <= number {
            let below = anchors.last().cloned().unwrap_or_else(|| Tensor::zeros([1], device));
            let dispatch = <Dispatch as WatchBackend>::climbed(below.into_dispatch(), RUNGS);
            anchors.push(Tensor::from_dispatch(dispatch));
        }
        (anchors[number].device() == *device).then(|| anchors[number].clone())
    }
}

/// One parameter of one step.
#[derive(Clone, Debug)]
pub struct Watched {
    flight: Arc<Flight>,
    slot: usize,
}

/// A Burn backend whose parameters can be watched.
#[cfg_attr(feature = "cube", backend_extension(Autodiff, Flex, Cube))]
#[cfg_attr(not(feature = "cube"), backend_extension(Autodiff, Flex))]
pub trait WatchBackend: Backend {
    /// The parameter itself, at a depth above the anchor's.
    fn watched(
        parameter: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        watched: Watched,
    ) -> FloatTensor<Self>;
    /// The same tensor, this much deeper.
    fn climbed(below: FloatTensor<Self>, rungs: usize) -> FloatTensor<Self>;
}

macro_rules! nothing_to_watch {
    ($($backend:ty),*) => { $(
        /// Without autodiff there is no gradient.
        impl WatchBackend for $backend {
            fn watched(parameter: FloatTensor<Self>, _: FloatTensor<Self>, _: Watched) -> FloatTensor<Self> {
                parameter
            }
            fn climbed(below: FloatTensor<Self>, _: usize) -> FloatTensor<Self> {
                below
            }
        }
    )* };
}
nothing_to_watch!(Flex);
#[cfg(feature = "cube")]
nothing_to_watch!(burn::backend::Cube);

#[derive(Debug)]
struct WatchedBackward;

impl<B: ReadBackend> Backward<B, 2> for WatchedBackward {
    type State = Watched;

    fn backward(self, ops: Ops<Watched, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [parameter, _anchor] = ops.parents;
        let Some(parameter) = parameter else { return };
        // Added to what other uses of the parameter have brought.
        grads.register::<B>(parameter.id, grad);
        let Watched { flight, slot } = ops.state;
        flight.arrived(slot, || B::read(grads.consume::<B>(&parameter)));
    }
}

/// Backward never comes to a rung, because nothing below it needs a gradient.
#[derive(Debug)]
struct Rung;

impl<B: Backend> Backward<B, 1> for Rung {
    type State = ();

    fn backward(self, _: Ops<(), 1>, _: &mut Gradients, _: &mut Checkpointer) {}
}

/// Both count as compute-bound, so that gradient checkpointing keeps them and repeats neither.
impl<B: WatchBackend + ReadBackend, C: CheckpointStrategy> WatchBackend for Autodiff<B, C> {
    fn watched(
        parameter: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        watched: Watched,
    ) -> FloatTensor<Self> {
        let (primitive, guard) = parameter.into_parts();
        match WatchedBackward.prepare::<C>([guard, anchor.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(watched, primitive),
            OpsKind::UnTracked(prep) => prep.finish(primitive),
        }
    }

    fn climbed(below: FloatTensor<Self>, rungs: usize) -> FloatTensor<Self> {
        (0..rungs).fold(below, |below, _| {
            let (primitive, guard) = below.into_parts();
            <Rung as Backward<B, 1>>::prepare::<C>(Rung, [guard]).compute_bound().stateless(primitive)
        })
    }
}
