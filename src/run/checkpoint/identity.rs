//! Settings that a resumed run must share with its checkpoint.

use crate::config::Config;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Settings that determine a run's trajectory at a given world size, by flag or name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Identity(BTreeMap<String, Value>);

impl Identity {
    /// Collects the settings of `config` and `own`, the program's settings by flag.
    ///
    /// # Errors
    /// If the configuration cannot be serialised as JSON.
    pub fn new(config: &Config, own: Map<String, Value>) -> Result<Self> {
        Ok(Self(config.trajectory()?.into_iter().chain(own).collect()))
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
    use serde_json::json;

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
