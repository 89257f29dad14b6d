//! What decides the trajectory of a run, as far as the strategy knows it: the same on all ranks.

use super::{DistributedDataParallel, Position};
use burn::train::{Learner, LearnerModel};
use std::fmt::Display;

/// Steps whose learning rates are compared.
const RATES: [usize; 3] = [1, 10, 100];

impl<M: LearnerModel> DistributedDataParallel<M> {
    /// Names and values for [`ProcessGroup::verify_settings`](crate::ProcessGroup::verify_settings). The
    /// model is compared where it is broadcast, which names the first parameter that differs.
    pub(super) fn settings(
        &self,
        learner: &Learner<M>,
        epochs: usize,
        accumulation: usize,
        position: &Position,
    ) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        let mut add = |name: &str, value: String| settings.push((name.to_owned(), value));
        add("version of burn-ddp-collective", env!("CARGO_PKG_VERSION").into());
        for (name, loaded) in [
            ("training", (self.train.samples(), self.train.steps(), self.train.settings())),
            ("evaluation", (self.valid.samples(), self.valid.steps(), self.valid.settings())),
        ] {
            let (samples, steps, others) = loaded;
            add(&format!("{name} samples"), samples.to_string());
            add(&format!("{name} steps"), steps.to_string());
            others.into_iter().for_each(|(setting, value)| add(&format!("{name} {setting}"), value));
        }
        add("learning rate (steps 1, 10, 100)", rates(learner, epochs.saturating_mul(self.train.steps())));
        add("epochs", epochs.to_string());
        add("max_steps", or_none(self.max_steps));
        add("accumulation", accumulation.to_string());
        add("clip", or_none(self.clip));
        add("seed", or_none(self.seed));
        add("precision", self.reducer.precision.to_string());
        add("compression", or_none(self.reducer.hook.as_ref().map(|hook| hook.name())));
        let buckets = self.reducer.buckets;
        add("bucket sizes", format!("{} and {} bytes", buckets.first, buckets.rest));
        add("non-finite loss", if self.non_finite_loss { "allowed" } else { "an error" }.into());
        let every = self.checkpoints.as_ref().map(|kept| match kept.every {
            Some(steps) => format!("after every epoch and {steps} steps"),
            None => "after every epoch".into(),
        });
        add("checkpoints", or_none(every));
        add("callbacks", self.callback_names().join(", "));
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

fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| "none".into(), |value| value.to_string())
}
