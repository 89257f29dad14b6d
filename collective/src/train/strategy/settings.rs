//! Comparison of the settings that decide a run's trajectory, which must be the same on all ranks.

use super::{
    CheckpointSink, LoggedValue, Observer, ParallelStrategy, Position, weight_average::WeightAverage,
};
use crate::{
    Error, Result, StepOptions,
    ddp::{engine::Engine, or_none},
};
use burn::train::{Learner, LearnerModel, TrainingComponents};

/// Steps whose learning rates are compared.
const RATES: [usize; 3] = [1, 10, 100];

impl<M: LearnerModel> ParallelStrategy<M> {
    /// Verifies that the ranks can train together. Returns the engine, the position to start at, and the average of the
    /// weights.
    pub(super) fn begin(
        &self,
        learner: &mut Learner<M>,
        components: &TrainingComponents<M>,
        starting_epoch: usize,
    ) -> Result<(Engine, Position, Option<WeightAverage>)> {
        self.callbacks.admit(self.group.world_size())?;
        let mut position = Position { epoch: starting_epoch, ..Position::start() };
        if let Some(snapshot) = &self.resume {
            // First, because it brings the identities of parameters with it.
            snapshot.apply(learner)?;
            position = snapshot.position.clone();
        }
        let grad_accum_steps = components.grad_accumulation.unwrap_or(self.options.grad_accum_steps).max(1);
        let options = StepOptions { grad_accum_steps, ..self.options.clone() };
        let settings = self.settings(learner, components.num_epochs, &options, &position);
        self.group.verify_settings(&settings)?;
        self.train.require_samples("training")?;
        self.valid.require_samples("validation")?;
        if options.reducer.shard_optimizer {
            self.check_sharding(components)?;
        }
        if self.recovery.is_some() && (options.local_sgd.is_some() || options.reducer.shard_optimizer) {
            let option = if options.local_sgd.is_some() { "local SGD" } else { "shard_optimizer" };
            return Err(Error::Invalid(format!(
                "live recovery: with {option}, no rank has the state of all; turn one of them off"
            )));
        }
        if options.local_sgd.is_some() && self.ema.is_some() {
            return Err(Error::Invalid(
                "local SGD: the ranks would have different averages; turn off ema".into(),
            ));
        }
        let mut engine = Engine::new(&learner.model(), &self.group, &self.device, options)?;
        if let Some(snapshot) = &self.resume {
            snapshot.apply_optimizer(learner, &engine.reducer)?;
        }
        engine.steps = position.step;
        engine.reducer.restore_scaler(position.loss_scale);
        let average = |decay| WeightAverage::new(decay, &learner.model(), self.resume.as_ref());
        let average = self.ema.map(average).transpose()?;
        Ok((engine, position, average))
    }

    /// Verifies that the optimizer's state can be divided over the ranks; warns if there is one rank.
    fn check_sharding(&self, components: &TrainingComponents<M>) -> Result<()> {
        if self.group.world_size() == 1 {
            self.observe(|observer| observer.warned("shard_optimizer has no effect on one rank"));
        } else if components.checkpointer.is_some() {
            return Err(Error::Invalid(
                "burn-train's checkpointers would store one rank's part of a sharded optimizer: take checkpoints with with_checkpoints, or turn off shard_optimizer".into(),
            ));
        }
        Ok(())
    }

    /// Model FLOPs utilisation of an epoch (Chowdhery et al. 2022, arXiv 2204.02311, appendix B).
    pub(super) fn utilisation(&self, samples: usize, seconds: f64) -> Option<LoggedValue> {
        let throughput = samples as f64 / seconds.max(1e-9);
        self.peak_throughput.map(|peak| LoggedValue::percent("utilisation", throughput / peak))
    }

    /// Calls all observers.
    pub(super) fn observe(&self, call: impl Fn(&dyn Observer)) {
        self.observers.iter().for_each(|observer| call(&**observer));
    }

    /// The storage of checkpoints, on rank 0.
    pub(super) fn sink(&self) -> Option<&dyn CheckpointSink> {
        self.checkpoints.as_ref()?.sink.as_deref().filter(|_| self.group.rank() == 0)
    }

    /// Calls the storage of checkpoints on rank 0, if there is one. Every rank must call it.
    ///
    /// # Errors
    /// On all ranks, if `act` or the group fails.
    pub(super) fn store(&self, act: impl FnOnce(&dyn CheckpointSink) -> Result<(), String>) -> Result<()> {
        let stored = self.group.run_on(0, || self.sink().map_or(Ok(()), act));
        stored.map_err(|error| match error {
            Error::Remote { rank: 0, reason } if self.group.rank() == 0 => Error::Invalid(reason),
            error => error,
        })
    }

    /// This rank's answer to a request to stop: 0 to continue.
    pub(super) fn stop_signal(&self) -> u8 {
        self.stop.as_ref().map_or(0, |request| request.poll())
    }

    /// Names and values for [`ProcessGroup::verify_settings`](crate::ProcessGroup::verify_settings). The
    /// model is compared where it is broadcast, which names the first parameter that differs.
    fn settings(
        &self,
        learner: &Learner<M>,
        epochs: usize,
        options: &StepOptions,
        position: &Position,
    ) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        let mut add = |name: &str, value: String| settings.push((name.to_owned(), value));
        add("version of burn-ddp-collective", env!("CARGO_PKG_VERSION").into());
        let test = self.test.iter().map(|test| ("test", (test.samples(), test.steps(), test.settings())));
        for (name, loaded) in [
            ("training", (self.train.samples(), self.train.steps(), self.train.settings())),
            ("evaluation", (self.valid.samples(), self.valid.steps(), self.valid.settings())),
        ]
        .into_iter()
        .chain(test)
        {
            let (samples, steps, others) = loaded;
            add(&format!("{name} samples"), samples.to_string());
            add(&format!("{name} steps"), steps.to_string());
            others.into_iter().for_each(|(setting, value)| add(&format!("{name} {setting}"), value));
        }
        add("learning rate (steps 1, 10, 100)", rates(learner, epochs.saturating_mul(self.train.steps())));
        add("epochs", epochs.to_string());
        add("max_steps", or_none(self.max_steps));
        add("moving average", or_none(self.ema));
        options.settings().into_iter().for_each(|(name, value)| add(&name, value));
        let every = self.checkpoints.as_ref().map(|kept| match kept.every {
            Some(steps) => format!("after every epoch and {steps} steps"),
            None => "after every epoch".into(),
        });
        let loads_best = self.checkpoints.as_ref().is_some_and(|kept| kept.load_best);
        add("final weights", if loads_best { "of the best checkpoint" } else { "of the last step" }.into());
        add("checkpoints", or_none(every));
        add("callbacks", self.callbacks.names().join(", "));
        add("position", format!("step {} of epoch {}", position.step, position.epoch));
        settings
    }
}

/// The rates that `learner` would use within its next `most` steps.
fn rates<M: LearnerModel>(learner: &Learner<M>, most: usize) -> String {
    let mut learner = learner.clone();
    let rates = (1..=most.min(RATES[RATES.len() - 1])).map(|step| {
        learner.lr_step();
        (step, learner.lr_current().base())
    });
    let compared = rates.filter(|(step, _)| RATES.contains(step)).map(|(_, rate)| rate.to_string());
    compared.collect::<Vec<_>>().join(", ")
}
