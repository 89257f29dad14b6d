//! The configuration of one run, resolved from flags, as `config.json` keeps it.

use crate::{
    checkpoint::CheckpointArgs,
    cli::Args,
    config::{Mode, Role},
    config_file::Flags,
    device::{LocalDevice, cores},
    gradients::GradientArgs,
    optimisation::{Epochs, OptimisationArgs},
    recipe::Recipe,
    replicas::Replicas,
};
use anyhow::Result;
use collective::{
    lr::{LrScaling, WarmupLr},
    schedule::{Curve, ScheduledLr},
    strategy::Position,
};
use serde::Serialize;
use serde_json::Value;

/// What may differ between ranks: where a rank computes, and what rank 0 alone decides or reads.
const OF_ONE_RANK: [&str; 9] =
    ["device", "replicas", "threads", "workers", "no_overlap", "init_from", "keep", "recipe", "flags"];

/// Everything that decides a run's result, as `config.json` keeps it.
#[derive(Clone, Debug, Serialize)]
pub struct RunConfig {
    pub mode: Mode,
    pub world_size: usize,
    pub device: LocalDevice,
    pub replicas: Option<Replicas>,
    pub threads: usize,
    pub dataset: String,
    pub train_samples: usize,
    pub test_samples: usize,
    pub shuffle: bool,
    pub workers: usize,
    pub batch_norm: bool,
    pub sync_bn: bool,
    pub dropout: [f64; 2],
    pub init_from: Option<std::path::PathBuf>,
    pub epochs: Epochs,
    pub batch_size: usize,
    pub lr: f64,
    pub scale_lr: LrScaling,
    pub lr_factor: f64,
    pub warmup_epochs: f64,
    pub momentum: f64,
    #[serde(flatten)]
    pub optimisation: OptimisationArgs,
    #[serde(flatten)]
    pub gradients: GradientArgs,
    #[serde(flatten)]
    pub checkpoints: CheckpointArgs,
    pub seed: u64,
    pub max_steps: Option<usize>,
    pub recipe: Option<Recipe>,
    pub version: &'static str,
    /// What repeats the run, given to `--config`.
    pub flags: Flags,
}

impl RunConfig {
    /// The flags and what was decided about them.
    pub fn new(args: &Args, role: &Role) -> Self {
        let Role { mode, environment, device, .. } = *role;
        let parts = role.replicas.as_ref().map_or(environment.local_world_size, |r| r.devices.len());
        let scale_lr = LrScaling::from(args.scale_lr);
        let threads = args.threads.map_or((cores() / parts).max(1), usize::from);
        let mut flags = args.given.flags();
        flags.pin(mode, environment.world_size, device, role.replicas.as_ref(), threads);
        Self {
            mode,
            world_size: environment.world_size,
            device,
            replicas: role.replicas.clone(),
            threads,
            dataset: String::new(),
            train_samples: 0,
            test_samples: 0,
            shuffle: !args.no_shuffle,
            workers: args.workers,
            batch_norm: args.batch_norm || args.sync_bn,
            sync_bn: args.sync_bn,
            dropout: args.dropout.map_or([0.25, 0.5], |p| [p, p]),
            init_from: args.init_from.clone(),
            epochs: args.epochs,
            batch_size: args.batch_size,
            lr: args.lr,
            scale_lr,
            lr_factor: scale_lr.factor(environment.world_size),
            warmup_epochs: args.warmup_epochs,
            momentum: args.momentum,
            optimisation: args.optimisation,
            gradients: args.gradients.clone(),
            checkpoints: args.checkpoints.clone(),
            seed: args.seed,
            max_steps: args.max_steps,
            recipe: args.recipe,
            version: env!("CARGO_PKG_VERSION"),
            flags,
        }
    }

    /// What must be the same on all ranks, by the names that `config.json` has.
    ///
    /// # Errors
    /// If the configuration cannot be written as JSON.
    pub fn settings(&self) -> Result<Vec<(String, String)>> {
        let Value::Object(all) = serde_json::to_value(self)? else { return Ok(Vec::new()) };
        let shared = all.into_iter().filter(|(name, _)| !OF_ONE_RANK.contains(&name.as_str()));
        let text = |value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        Ok(shared.map(|(name, value)| (name, text(value))).collect())
    }

    /// Optimizer steps of an epoch of this many batches a rank.
    fn epoch_steps(&self, batches: usize) -> usize {
        batches.div_ceil(self.gradients.accumulate)
    }

    /// The step after which a run ends before its last epoch does, if there is one. An epoch has `batches`
    /// batches a rank, of which `left` are left of the one that `position` is in.
    pub fn last_step(&self, batches: usize, left: usize, position: &Position) -> Option<usize> {
        let epoch = self.epoch_steps(batches);
        // At another world size before, other steps led here.
        let done = position.epoch * epoch - self.epoch_steps(left);
        let end = || position.step + self.epochs.steps(epoch).saturating_sub(done);
        let ends = [self.max_steps, self.epochs.is_fraction().then(end)];
        ends.into_iter().flatten().min()
    }

    /// The learning-rate warm-up over `steps`: PyTorch's with a start factor, or where the rate does not
    /// grow with the world size; otherwise from the unscaled rate, as in Goyal et al. 2017.
    pub fn warmup(&self, steps: usize) -> WarmupLr {
        let target = self.lr * self.lr_factor;
        match self.optimisation.warmup_start_factor {
            Some(factor) => WarmupLr::linear(factor, target, steps),
            None if self.lr_factor > 1.0 => WarmupLr::new(self.lr, target, steps),
            None => WarmupLr::linear(WarmupLr::START_FACTOR, target, steps),
        }
    }

    /// If the run ends before its warm-up does: the warm-up and the number of steps in the run.
    pub fn unfinished_warmup(&self, batches: usize) -> Option<(WarmupLr, usize)> {
        let ScheduledLr { warmup, total_steps, .. } = self.schedule(batches);
        let steps = self.max_steps.map_or(total_steps, |max| max.min(total_steps));
        (warmup.warmup_steps > 0 && steps < warmup.reached_at()).then_some((warmup, steps))
    }

    /// The learning rate of every step, for an epoch of this many batches a rank.
    pub fn schedule(&self, batches: usize) -> ScheduledLr {
        let (curve, epoch) = (self.optimisation.lr_schedule, self.epoch_steps(batches));
        let warmup = self.warmup((self.warmup_epochs * epoch as f64).round() as usize);
        let whole = self.epochs.steps(epoch);
        match self.max_steps {
            Some(max) if max < whole && curve != Curve::Constant => {
                ScheduledLr::new(curve, warmup, max, None)
            }
            Some(_) | None => ScheduledLr::new(curve, warmup, whole, Some(epoch)),
        }
    }
}
