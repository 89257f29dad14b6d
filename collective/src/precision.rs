//! Mixed-precision training.
//!
//! Parameters and optimizer state stay f32; forward and backward use 16-bit copies of the parameters
//! (Micikevicius et al. 2018, "Mixed Precision Training", arXiv 1710.03740).
//!
//! A reparameterization makes the copies for one step, so that the model and its records do not change. The rest
//! depends on the level:
//!
//! | program | batch | outputs | loss scale |
//! |---|---|---|---|
//! | [`ParallelStep`](crate::dp::ParallelStep) | cast for the forward pass | cast to f32 | applied |
//! | [`DistributedDataParallel`](crate::DistributedDataParallel), [`DataParallel`](crate::DataParallel) | cast | cast by the closure, if at all | applied |
//! | a burn-train `TrainStep` alone | cast by the model | cast by the model | [`backward`] in place of `loss.backward()` |
//!
//! [`Scatter::cast`](crate::dp::Scatter::cast) casts a batch. Layers that create f32 tensors in their forward
//! pass fail with 16-bit input: Burn's recurrent layers, `PositionalEncoding` and `BatchNorm`, in place of which
//! [`SyncBatchNorm`](crate::sync_batch_norm::SyncBatchNorm) works. A trainable `burn::nn::Embedding` is an error, because
//! its gradient would be added in 16 bits: [`MixedPrecisionEmbedding`](kernels::layers::MixedPrecisionEmbedding) adds it
//! in f32.

use crate::{Error, Result, batch_context};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor};
use serde::{Deserialize, Serialize};

/// The floating-point type of forward and backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// f32's range with 8 bits of precision.
    Bf16,
    /// 11 bits of precision from 6e-8 to 65504; the loss is scaled to keep gradients in that range.
    F16,
}

burn_ddp_comm::names! { Precision, "unknown precision {:?}: use f32, bf16 or f16":
    F32 = "f32", Bf16 = "bf16", F16 = "f16"
}

impl Precision {
    /// The corresponding type of Burn.
    pub const fn dtype(self) -> FloatDType {
        match self {
            Precision::F32 => FloatDType::F32,
            Precision::Bf16 => FloatDType::BF16,
            Precision::F16 => FloatDType::F16,
        }
    }

    /// Verifies that `device` computes with this precision.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it does not.
    pub fn check(self, device: &Device) -> Result<()> {
        if device.supports_dtype(DType::from(self.dtype())) {
            return Ok(());
        }
        Err(Error::Invalid(format!("precision {self}: device {device:?} does not support it; use f32")))
    }

    /// Casts to this precision, which must not be f32.
    pub(crate) fn cast<const D: usize>(self, tensor: Tensor<D>) -> Tensor<D> {
        match self {
            Precision::F32 => tensor,
            Precision::Bf16 | Precision::F16 => tensor.cast(self.dtype()),
        }
    }
}

/// Computes `loss.backward()` with loss scaling, for a loss `[1]` in f32.
///
/// For models with a burn-train `TrainStep` and no [`ParallelStep`](crate::dp::ParallelStep). The gradients
/// are unscaled when they are synchronised.
pub fn backward(loss: &Tensor<1>) -> Gradients {
    match batch_context::scale_loss() {
        1.0 => loss.backward(),
        scale => loss.clone().mul_scalar(scale).backward(),
    }
}

/// Dynamic loss scaling for f16, with the constants of PyTorch's `GradScaler`.
///
/// The scale starts at 65536, halves when a gradient is not finite, in which case the step is skipped, and doubles
/// after 2000 steps without. A scale below the minimum is an error, as in fairseq (`--min-loss-scale`, 1e-4) and
/// DeepSpeed (`min_loss_scale`, 1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossScaler {
    pub scale: f32,
    good_steps: u32,
    /// Whether the last step was skipped.
    pub skipped: bool,
}

impl LossScaler {
    const START: f32 = 65536.0;
    const GROW_AFTER: u32 = 2000;
    /// The smallest power of two above fairseq's 1e-4: 29 halvings of [`START`](Self::START).
    const MIN: f32 = 1.0 / 8192.0;

    /// A scaler in its initial state.
    pub fn start() -> Self {
        LossScaler { scale: Self::START, good_steps: 0, skipped: false }
    }

    /// A scaler with a saved [`state`](Self::state).
    pub fn restore((scale, good_steps): (f32, u32)) -> Self {
        LossScaler { scale, good_steps, skipped: false }
    }

    /// The scale, and the number of steps since it last changed.
    pub fn state(self) -> (f32, u32) {
        (self.scale, self.good_steps)
    }

    /// Updates the scale after a step. All ranks pass the same value of `finite`.
    ///
    /// # Errors
    /// [`Error::LossScale`] if `finite` is false and the scale is at its minimum.
    pub fn update(&mut self, finite: bool) -> Result<()> {
        self.skipped = !finite;
        if finite {
            self.good_steps += 1;
            if self.good_steps == Self::GROW_AFTER {
                (self.scale, self.good_steps) = (self.scale * 2.0, 0);
            }
        } else if self.scale > Self::MIN {
            (self.scale, self.good_steps) = (self.scale / 2.0, 0);
        } else {
            return Err(Error::LossScale { scale: self.scale });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("fp8".parse::<Precision>().is_err());
    }

    #[test]
    fn the_scale_halves_at_once_and_doubles_after_a_while() {
        let mut scaler = LossScaler::start();
        let update = |scaler: &mut LossScaler, finite| scaler.update(finite).expect("above the minimum");
        update(&mut scaler, false);
        assert!(scaler.skipped);
        assert_eq!(scaler.scale, 32768.0);
        (0..1999).for_each(|_| update(&mut scaler, true));
        assert!(!scaler.skipped);
        assert_eq!(scaler.scale, 32768.0);
        update(&mut scaler, true);
        assert_eq!(scaler.scale, 65536.0);
    }

    #[test]
    fn a_loss_is_scaled_in_its_step() {
        let new_loss = || Tensor::<1>::ones([1], &Device::flex().autodiff()).require_grad();
        let loss = new_loss();
        let new_context = || batch_context::BatchContext::new(1, 1, 65536.0);
        let (mut context, mut unscaled) = (new_context(), new_context());
        let grads = context.scope(|| backward(&loss));
        let grad = loss.grad(&grads).expect("a gradient").into_data();
        assert_eq!((grad.as_slice::<f32>().expect("f32"), context.scaled), (&[65536.0][..], true));
        unscaled.scope(|| new_loss().backward());
        assert!(!unscaled.scaled);
    }
}
