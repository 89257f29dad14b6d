//! Flags for gradient accumulation, clipping and synchronisation.

use crate::{
    context::values::{above_zero, positive, probability, whole},
    process::auto_batch,
};
use clap::Args;
use collective::{
    Error,
    gradient::{BucketSizes, CommHook, HalfPrecision, PowerSgd, ReducerOptions, TopK},
    local_sgd::LocalSgd,
    precision::Precision,
};
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr, sync::Arc};

#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Gradients")]
pub struct GradientArgs {
    /// Batches per optimizer step; only the last one synchronises
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = accum_steps)]
    pub grad_accum_steps: usize,
    /// Maximum norm of the averaged gradients
    #[arg(long, value_name = "NORM", value_parser = above_zero)]
    pub clip_grad_norm: Option<f64>,
    /// Gradient compression: none, bf16, fp16, topk:RATIO or powersgd:RANK
    #[arg(long, default_value = "none", value_name = "HOOK")]
    pub grad_compression: Compression,
    /// Precision of forward and backward: f32, bf16 or f16
    ///
    /// Parameters and optimizer state stay f32.
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    pub precision: Precision,
    /// Gradient bucket size in MiB
    #[arg(long, default_value_t = 25.0, value_name = "MIB", value_parser = above_zero)]
    pub bucket_cap_mb: f64,
    /// First gradient bucket size in MiB
    #[arg(long, default_value_t = 1.0, value_name = "MIB", value_parser = above_zero)]
    pub first_bucket_mb: f64,
    /// Disable the overlap of gradient synchronisation with backward
    #[arg(long)]
    pub no_overlap: bool,
    /// Divide the optimizer's state over the ranks (ZeRO-1)
    #[arg(long)]
    pub shard_optimizer: bool,
    /// Optimizer steps of each rank between synchronisations of the parameters (local SGD, DiLoCo)
    ///
    /// The ranks do not average gradients. --grad-compression applies to the exchanged differences.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub sync_every: Option<usize>,
    /// Learning rate of the outer optimizer, 0.7 in DiLoCo [default: 1, which averages the parameters]
    #[arg(long, value_name = "RATE", value_parser = above_zero, requires = "sync_every")]
    pub outer_lr: Option<f64>,
    /// Nesterov momentum of the outer optimizer, 0.9 in DiLoCo [default: 0]
    #[arg(long, value_name = "F", value_parser = probability, requires = "sync_every")]
    pub outer_momentum: Option<f64>,
    /// Optimizer steps during a synchronisation, less than --sync-every (Streaming DiLoCo) [default: 0, which waits]
    #[arg(long, value_name = "N", value_parser = whole(0..=1_000_000), requires = "sync_every")]
    pub sync_overlap: Option<usize>,
}

impl GradientArgs {
    /// Options of local SGD, if it is enabled.
    pub fn local_sgd(&self) -> Option<LocalSgd> {
        let (outer_lr, outer_momentum) = (self.outer_lr.unwrap_or(1.0), self.outer_momentum.unwrap_or(0.0));
        let overlap = self.sync_overlap.unwrap_or(0);
        self.sync_every.map(|sync_every| LocalSgd { sync_every, outer_lr, outer_momentum, overlap })
    }

    /// Converts the flags to reducer options.
    pub fn reducer(&self) -> ReducerOptions {
        // As in PyTorch, a bucket's MB is 2^20 bytes.
        let bytes = |mb: f64| (mb * f64::from(1 << 20)) as usize;
        ReducerOptions {
            buckets: BucketSizes { first: bytes(self.first_bucket_mb), rest: bytes(self.bucket_cap_mb) },
            overlap: !self.no_overlap,
            // The parser of the flag has validated the value.
            hook: self.grad_compression.hook().ok().flatten(),
            precision: self.precision,
            shard_optimizer: self.shard_optimizer,
        }
    }
}

/// Value of `--grad-compression`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    None,
    Half(HalfPrecision),
    TopK(f64),
    PowerSgd(usize),
}

impl Compression {
    fn hook(self) -> Result<Option<Arc<dyn CommHook>>, Error> {
        Ok(match self {
            Compression::None => None,
            Compression::Half(half) => Some(Arc::new(half)),
            Compression::TopK(ratio) => Some(Arc::new(TopK::new(ratio)?)),
            Compression::PowerSgd(rank) => Some(Arc::new(PowerSgd::new(rank)?)),
        })
    }

    /// Whether the hook keeps error-feedback state between steps.
    pub fn has_memory(self) -> bool {
        matches!(self, Compression::TopK(_) | Compression::PowerSgd(_))
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        let parsed = match (name, value) {
            ("none", None) => Some(Compression::None),
            ("bf16", None) => Some(Compression::Half(HalfPrecision::Bf16)),
            ("fp16", None) => Some(Compression::Half(HalfPrecision::Fp16)),
            ("topk", None) => Some(Compression::TopK(TopK::RATIO)),
            ("topk", Some(ratio)) => ratio.parse().ok().map(Compression::TopK),
            ("powersgd", None) => Some(Compression::PowerSgd(PowerSgd::RANK)),
            ("powersgd", Some(rank)) => rank.parse().ok().map(Compression::PowerSgd),
            _ => None,
        };
        let parsed =
            parsed.ok_or("expected none, bf16, fp16, topk, topk:RATIO, powersgd or powersgd:RANK")?;
        parsed.hook().map(|_| parsed).map_err(|error| error.to_string())
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => f.write_str("none"),
            Compression::Half(half) => f.write_str(half.name()),
            Compression::TopK(ratio) => write!(f, "topk:{ratio}"),
            Compression::PowerSgd(rank) => write!(f, "powersgd:{rank}"),
        }
    }
}

impl Serialize for Compression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parser of `--grad-accum-steps`, multiplied for `--auto-batch`.
fn accum_steps(text: &str) -> Result<usize, String> {
    Ok(whole(1..=1_000_000)(text)? * auto_batch::divisor()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions_are_named_as_documented() {
        assert_eq!("none".parse(), Ok(Compression::None));
        assert_eq!("fp16".parse(), Ok(Compression::Half(HalfPrecision::Fp16)));
        assert_eq!("topk".parse(), Ok(Compression::TopK(0.01)));
        assert_eq!("topk:0.25".parse(), Ok(Compression::TopK(0.25)));
        assert_eq!("powersgd:2".parse(), Ok(Compression::PowerSgd(2)));
        for bad in ["", "zip", "bf16:2", "topk:0", "topk:2", "topk:x", "powersgd:0", "powersgd:1.5", "none:1"]
        {
            assert!(bad.parse::<Compression>().is_err(), "{bad}");
        }
        for good in ["none", "bf16", "fp16", "topk:0.25", "powersgd:3"] {
            assert_eq!(good.parse::<Compression>().expect(good).to_string(), good);
        }
    }
}
