//! Configuration of a run, resolved once from flags, machine and data, and stored in `config.json`.

pub mod args;
mod checkpoints;
pub mod config_file;
mod explicit;
pub mod gradients;
pub mod learning_rate;
mod scope;

pub use args::TrainerArgs;
pub use checkpoints::{CheckpointArgs, Monitor};

use crate::{
    context::{Context, Mode, replicas::Replicas},
    device::LocalDevice,
};
use anyhow::{Result, anyhow, bail};
use collective::{
    StepOptions,
    lr::{LrScaling, LrSchedule, ScheduledLr, WarmupLr},
    metric::MetricInfo,
    strategy::Position,
};
use learning_rate::LrPlan;
use scope::Scope;
use serde::Serialize;
use serde_json::{Map, Value};

/// All settings that determine the result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    pub mode: Mode,
    pub world_size: usize,
    pub device: LocalDevice,
    pub replicas: Option<Replicas>,
    pub threads: usize,
    /// Factor of `--lr` for this world size.
    pub lr_factor: f64,
    #[serde(flatten)]
    pub args: TrainerArgs,
    #[serde(flatten)]
    pub program: ProgramSettings,
    pub version: &'static str,
    /// Flags that reproduce the run, for `--config`.
    pub flags: Map<String, Value>,
}

/// Name and source of a data set, for display.
#[derive(Clone, Debug, Serialize)]
pub struct DatasetName {
    #[serde(rename = "dataset")]
    pub name: String,
    /// Folder or generator of the data.
    #[serde(skip)]
    pub source: String,
}

/// Settings of a run besides flags and machine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProgramSettings {
    #[serde(flatten)]
    pub dataset: Option<DatasetName>,
    pub train_samples: usize,
    /// 0 without `--valid-split`.
    pub valid_samples: usize,
    pub test_samples: usize,
    /// Metrics of an evaluation: those of the model and of callbacks.
    pub metrics: Vec<MetricInfo>,
    /// Metrics of the training step.
    pub train_metrics: Vec<MetricInfo>,
    /// Floating-point operations of forward and backward of a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops_per_sample: Option<f64>,
    /// Settings that the program adds, by their names in `config.json`.
    #[serde(flatten)]
    pub own: Map<String, Value>,
    /// Settings besides flags that a resumed run must share, by flag or name.
    #[serde(skip)]
    pub identity: Map<String, Value>,
    /// Resolved values of the program's flags.
    #[serde(skip)]
    pub resolved_flags: Map<String, Value>,
}

impl Config {
    /// Resolves the configuration of a run of `context`.
    pub fn resolve(args: &TrainerArgs, context: &Context, program: ProgramSettings) -> Self {
        let role = context.role();
        // With local SGD, every optimizer step is that of one rank's batch.
        let is_local = args.gradients.sync_every.is_some();
        let scale_lr = if is_local { LrScaling::None } else { args.scale_lr };
        let known_peak = || program.flops_per_sample.and(role.device.peak_tflops(args.gradients.precision));
        let peak_tflops = args.peak_tflops.or_else(known_peak);
        let mut config = Self {
            mode: role.mode,
            world_size: role.environment.world_size,
            device: role.device,
            replicas: role.replicas.clone(),
            threads: context.threads(),
            lr_factor: scale_lr.factor(role.environment.world_size),
            args: TrainerArgs { scale_lr, peak_tflops, ..args.clone() },
            program,
            version: env!("CARGO_PKG_VERSION"),
            flags: args.explicit.0.clone(),
        };
        let pinned = config.pinned().into_iter().map(|(name, value)| (name.to_owned(), value));
        config.flags.extend(pinned.chain(config.program.resolved_flags.clone()));
        config
    }

    /// Flags that depend on the machine, with their resolved values.
    fn pinned(&self) -> Vec<(&'static str, Value)> {
        let device = match self.device {
            LocalDevice::Gpu(kind, _) if self.mode != Mode::Single => kind.to_string(),
            device => device.to_string(),
        };
        let (mode, nproc_per_node) = match self.mode {
            Mode::Single => ("single", Some("auto".into())),
            Mode::Ddp => ("ddp", Some(self.world_size.into())),
            Mode::Dp => ("dp", None),
        };
        let mut flags: Vec<(&str, Value)> =
            vec![("threads", self.threads.into()), ("mode", mode.into()), ("device", device.into())];
        flags.extend(nproc_per_node.map(|ranks| ("nproc-per-node", ranks)));
        if self.args.auto_batch {
            let steps = self.args.gradients.grad_accum_steps;
            flags.extend([("batch-size", self.args.batch_size.into()), ("grad-accum-steps", steps.into())]);
        }
        if let Some(Replicas { devices, output }) = &self.replicas {
            let devices: Vec<String> = devices.iter().map(|id| id.to_string()).collect();
            flags.extend([("device-ids", devices.into()), ("output-device", output.to_string().into())]);
        }
        flags
    }

    /// Returns the settings by their names in `config.json`.
    fn all_settings(&self) -> serde_json::Result<Map<String, Value>> {
        serde_json::from_value(serde_json::to_value(self)?)
    }

    /// Returns the settings that must be equal on all ranks, by their names in `config.json`.
    ///
    /// # Errors
    /// If the configuration cannot be serialised as JSON.
    pub fn settings(&self) -> Result<Vec<(String, String)>> {
        let text = |value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let shared =
            self.all_settings()?.into_iter().filter(|(name, _)| Scope::of_setting(name) != Scope::Rank);
        Ok(shared.map(|(name, value)| (name, text(value))).collect())
    }

    /// Returns the settings that a resumed run must share with its checkpoint, by flag or name: those that determine its
    /// trajectory at a given world size.
    ///
    /// # Errors
    /// If the configuration cannot be serialised as JSON.
    pub fn identity(&self) -> Result<Map<String, Value>> {
        // A learning rate that is not constant depends on the length of the run.
        let has_curve = self.args.rate.lr_schedule != LrSchedule::Constant;
        let is_length = |name: &str| has_curve && ["epochs", "max_steps"].contains(&name);
        let is_shared = |name: &str| Scope::of_setting(name) == Scope::Trajectory || is_length(name);
        let shared = self.all_settings()?.into_iter().filter(|(name, _)| is_shared(name));
        Ok(shared
            .map(|(name, value)| match name.as_str() {
                "train_samples" => ("training samples".into(), value),
                "shuffle" => ("--no-shuffle".into(), (value != true).into()),
                _ => (format!("--{}", name.replace('_', "-")), value),
            })
            .chain(self.program.identity.clone())
            .collect())
    }

    /// Returns the metric that `--monitor` names: one of an evaluation, or `train_` and one of the training step.
    ///
    /// # Errors
    /// If there is no such metric, or two metrics have the same name.
    pub fn monitored(&self) -> Result<Monitor> {
        let of = |metrics: &[MetricInfo], of_training| {
            let monitor = |metric: &MetricInfo| Monitor { metric: metric.clone(), of_training };
            metrics.iter().map(monitor).collect::<Vec<_>>()
        };
        let all = [of(&self.program.metrics, false), of(&self.program.train_metrics, true)].concat();
        let names: Vec<String> = all.iter().map(Monitor::flag).collect();
        if let Some(at) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
            bail!("two metrics have the name `{}`; rename one", names[at]);
        }
        let wanted = &self.args.checkpoints.monitor;
        let found = names.iter().position(|name| name == wanted);
        let unknown = || anyhow!("--monitor {wanted}: this model's metrics are {}", names.join(", "));
        found.map(|at| all[at].clone()).ok_or_else(unknown)
    }

    /// Options of a training step.
    pub fn step_options(&self) -> StepOptions {
        let gradients = &self.args.gradients;
        StepOptions {
            reducer: gradients.reducer(),
            grad_accum_steps: gradients.grad_accum_steps,
            clip_grad_norm: gradients.clip_grad_norm,
            sync_batch_norm: self.args.sync_bn,
            local_sgd: gradients.local_sgd(),
            seed: Some(self.args.seed),
            allow_non_finite: self.args.allow_nan,
        }
    }

    /// Training samples per second of all ranks with every device at its peak, if that is known.
    pub fn peak_throughput(&self) -> Option<f64> {
        let devices = self.replicas.as_ref().map_or(self.world_size, |replicas| replicas.devices.len());
        Some(self.args.peak_tflops? * 1e12 * devices as f64 / self.program.flops_per_sample?)
    }

    /// Number of optimizer steps in an epoch of `batches` batches per rank.
    fn epoch_steps(&self, batches: usize) -> usize {
        batches.div_ceil(self.args.gradients.grad_accum_steps)
    }

    /// Returns the last optimizer step if training ends within an epoch.
    ///
    /// An epoch has `batches` batches per rank; `left` of them remain in the epoch of `position`.
    pub fn last_step(&self, batches: usize, left: usize, position: &Position) -> Option<usize> {
        let epoch = self.epoch_steps(batches);
        // Computed from the epoch, because a previous world size would give another step count.
        let done = position.epoch * epoch - self.epoch_steps(left);
        let end = || position.step + self.args.epochs.steps(epoch).saturating_sub(done);
        let ends = [self.args.max_steps, self.args.epochs.is_fraction().then(end)];
        ends.into_iter().flatten().min()
    }

    /// Returns the learning-rate warm-up over `steps` steps.
    ///
    /// If the rate grows with the world size, it starts from the unscaled rate, as in Goyal et al. 2017.
    /// Otherwise, or with an explicit start factor, it is PyTorch's `LinearLR`.
    pub fn warmup(&self, steps: usize) -> WarmupLr {
        let target = self.args.lr * self.lr_factor;
        match self.args.rate.warmup_start_factor {
            Some(factor) => WarmupLr::linear(factor, target, steps),
            None if self.lr_factor > 1.0 => WarmupLr::new(self.args.lr, target, steps),
            None => WarmupLr::linear(WarmupLr::START_FACTOR, target, steps),
        }
    }

    /// Returns the warm-up and the number of training steps if training ends during warm-up.
    pub fn unfinished_warmup(&self, batches: usize) -> Option<(WarmupLr, usize)> {
        let (warmup, steps) = (self.schedule(batches).warmup, self.lr_plan(batches).total_steps);
        (warmup.warmup_steps > 0 && steps < warmup.reached_at()).then_some((warmup, steps))
    }

    /// Returns learning rate and length of the run, for epochs of `batches` batches per rank.
    pub fn lr_plan(&self, batches: usize) -> LrPlan {
        let epoch_steps = self.epoch_steps(batches);
        let total_steps = self.args.epochs.steps(epoch_steps);
        let total_steps = self.args.max_steps.map_or(total_steps, |max| max.min(total_steps));
        LrPlan { lr: self.args.lr * self.lr_factor, epoch_steps, total_steps }
    }

    /// Returns the learning-rate schedule for epochs of `batches` batches per rank.
    pub fn schedule(&self, batches: usize) -> ScheduledLr {
        let LrPlan { epoch_steps, total_steps, .. } = self.lr_plan(batches);
        let curve = self.args.rate.lr_schedule;
        let warmup = self.warmup((self.args.rate.warmup_epochs * epoch_steps as f64).round() as usize);
        let is_cut = curve != LrSchedule::Constant && total_steps < self.args.epochs.steps(epoch_steps);
        ScheduledLr::new(curve, warmup, total_steps, (!is_cut).then_some(epoch_steps))
    }
}
