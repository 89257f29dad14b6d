//! Settings that a resumed run must share with its checkpoint.

use crate::config::Config;
use collective::lr::LrSchedule;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Settings that determine a run's trajectory at a given world size, by flag or name.
///
/// World size, batch size and, with a constant learning rate, the length of the run may change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Identity(BTreeMap<String, Value>);

impl Identity {
    /// Collects the settings of `config` and `own`, the program's settings by flag.
    pub fn new(config: &Config, own: Map<String, Value>) -> Self {
        let (args, gradients, rate) = (&config.args, &config.args.gradients, &config.args.rate);
        let entries = [
            ("--sync-bn", json!(args.sync_bn)),
            ("training samples", json!(config.program.train_samples)),
            ("--valid-split", json!(args.valid_split)),
            ("--no-shuffle", json!(args.no_shuffle)),
            ("--seed", json!(args.seed)),
            ("--lr", json!(args.lr)),
            ("--scale-lr", json!(args.scale_lr)),
            ("--warmup-epochs", json!(rate.warmup_epochs)),
            ("--warmup-start-factor", json!(rate.warmup_start_factor)),
            ("--lr-schedule", json!(rate.lr_schedule)),
            ("--grad-accum-steps", json!(gradients.grad_accum_steps)),
            ("--clip-grad-norm", json!(gradients.clip_grad_norm)),
            ("--precision", json!(gradients.precision.to_string())),
            ("--grad-compression", json!(gradients.grad_compression)),
        ];
        let mut entries: BTreeMap<_, _> =
            entries.into_iter().map(|(flag, value)| (flag.to_owned(), value)).chain(own).collect();
        // Other schedules depend on the length of the run.
        if rate.lr_schedule != LrSchedule::Constant {
            entries.insert("--epochs".into(), json!(args.epochs));
            entries.insert("--max-steps".into(), json!(args.max_steps));
        }
        Self(entries)
    }

    /// Describes the settings that differ, such as `--seed 42, not 43`. The value of `now` is last.
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let none = Value::Null;
        let flags: std::collections::BTreeSet<&String> = self.0.keys().chain(now.0.keys()).collect();
        let value = |of: &Self, flag: &String| of.0.get(flag).unwrap_or(&none).clone();
        let differ = flags.into_iter().map(|flag| (flag, value(self, flag), value(now, flag)));
        differ.filter(|(_, a, b)| a != b).map(|(flag, a, b)| format!("{flag} {a}, not {b}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_flag_and_both_values() {
        let identity = |pairs: &[(&str, Value)]| {
            Identity(pairs.iter().map(|(flag, value)| ((*flag).to_owned(), value.clone())).collect())
        };
        let kept = identity(&[("--seed", json!(42)), ("--lr", json!(0.1)), ("--old", json!(true))]);
        let now = identity(&[("--seed", json!(43)), ("--lr", json!(0.1))]);
        assert_eq!(kept.differences(&now), ["--old true, not null", "--seed 42, not 43"]);
        assert!(kept.differences(&kept).is_empty());
    }
}
