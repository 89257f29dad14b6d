//! Flags given explicitly, recorded to reproduce a run.

use crate::{
    context::{Mode, replicas::Replicas},
    device::LocalDevice,
};
use clap::{ArgMatches, Command, FromArgMatches, parser::ValueSource};
use serde::Serialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{self, PathBuf},
};

/// Flags that do not affect the result: output, display and process identity.
const NOT_RECORDED: [&str; 16] = [
    "config",
    "print-config",
    "resume",
    "run-dir",
    "export",
    "find-lr",
    "find-lr-steps",
    "progress",
    "mlflow",
    "mlflow-experiment",
    "help",
    "version",
    "rank",
    "world-size",
    "init-method",
    "job-id",
];

/// Flags given explicitly, with their values as typed; defaults are omitted.
///
/// It is a clap argument group that defines no flags and reads the matches of all others.
#[derive(Clone, Debug, Default)]
pub struct ExplicitFlags(BTreeMap<String, String>);

/// Flags that reproduce a run, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Flags(pub BTreeMap<String, Value>);

impl ExplicitFlags {
    /// Returns the flags for `config.json`.
    pub fn flags(&self) -> Flags {
        Flags(self.0.iter().map(|(name, text)| (name.clone(), value(text))).collect())
    }
}

/// Converts `text` to a number or boolean if that preserves its spelling, otherwise to a string.
fn value(text: &str) -> Value {
    let parsed =
        serde_json::from_str::<Value>(text).ok().filter(|value| value.is_number() || value.is_boolean());
    // 1e3 keeps its spelling.
    let same = |value: &Value| format!("{value}") == text;
    parsed.filter(same).unwrap_or_else(|| text.into())
}

impl Flags {
    /// Sets a flag to its resolved value.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// Sets the flags that depend on the machine to their resolved values.
    pub fn pin(
        &mut self,
        mode: Mode,
        world_size: usize,
        device: LocalDevice,
        replicas: Option<&Replicas>,
        threads: usize,
    ) {
        let kind = match device {
            LocalDevice::Cpu => "cpu".to_owned(),
            LocalDevice::Gpu(kind, _) => kind.to_string(),
        };
        self.set("threads", threads);
        match mode {
            Mode::Single => {
                self.set("mode", "single");
                self.set("device", device.to_string());
                self.set("nproc-per-node", "auto");
            }
            Mode::Ddp => {
                self.set("mode", "ddp");
                self.set("device", kind);
                self.set("nproc-per-node", world_size);
            }
            Mode::Dp => {
                self.set("mode", "dp");
                self.set("device", kind);
            }
        }
        if let Some(Replicas { devices, output }) = replicas {
            self.set("device-ids", devices.iter().map(|id| id.to_string()).collect::<Vec<_>>());
            self.set("output-device", output.to_string());
        }
    }
}

impl clap::Args for ExplicitFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for ExplicitFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = BTreeMap::new();
        for id in matches.ids() {
            // clap names the group of a struct after the type, with a capital letter.
            let (id, name) = (id.as_str(), id.as_str().replace('_', "-"));
            let source = matches.value_source(id);
            if id.starts_with(char::is_uppercase)
                || NOT_RECORDED.contains(&name.as_str())
                || source == Some(ValueSource::DefaultValue)
            {
                continue;
            }
            let Ok(Some(raw)) = matches.try_get_raw(id) else { continue };
            let text = raw.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(",");
            // Paths are made absolute so that they do not depend on the working directory.
            let is_path = matches.try_get_one::<PathBuf>(id).is_ok();
            let whole = path::absolute(&text).ok().filter(|_| is_path);
            given.insert(name, whole.map_or(text, |path| path.display().to_string()));
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
