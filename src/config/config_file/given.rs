//! Which flags were given, so that a run can be repeated.

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

/// Not what a run computes, but where it is left, how it is shown and which process it was.
const NOT_REPEATED: [&str; 11] = [
    "config",
    "print-config",
    "resume",
    "run-dir",
    "progress",
    "help",
    "version",
    "rank",
    "world-size",
    "init-method",
    "job-id",
];

/// The flags that were given, with their values as they were typed, without defaults. To clap this is a part of the
/// arguments that defines no flags and sees all.
#[derive(Clone, Debug, Default)]
pub struct GivenFlags(BTreeMap<String, String>);

/// The flags that repeat a run, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Flags(pub BTreeMap<String, Value>);

impl GivenFlags {
    /// As they go into `config.json`.
    pub fn flags(&self) -> Flags {
        Flags(self.0.iter().map(|(name, text)| (name.clone(), value(text))).collect())
    }
}

/// The number or truth value that is written like this, or else the text.
fn value(text: &str) -> Value {
    let parsed =
        serde_json::from_str::<Value>(text).ok().filter(|value| value.is_number() || value.is_boolean());
    // 1e3 stays as it was typed.
    let same = |value: &Value| format!("{value}") == text;
    parsed.filter(same).unwrap_or_else(|| text.into())
}

impl Flags {
    /// Sets a flag to what was decided about it.
    pub fn decided(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// Sets what was left to the machine to what it was here.
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
        self.decided("threads", threads);
        match mode {
            Mode::Single => {
                self.decided("mode", "single");
                self.decided("device", device.to_string());
                self.decided("nproc-per-node", "auto");
            }
            Mode::Ddp => {
                self.decided("mode", "ddp");
                self.decided("device", kind);
                self.decided("nproc-per-node", world_size);
            }
            Mode::Dp => {
                self.decided("mode", "dp");
                self.decided("device", kind);
            }
        }
        if let Some(Replicas { devices, output }) = replicas {
            self.decided("device-ids", devices.iter().map(|id| id.to_string()).collect::<Vec<_>>());
            self.decided("output-device", output.to_string());
        }
    }
}

impl clap::Args for GivenFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for GivenFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = BTreeMap::new();
        for id in matches.ids() {
            // An id with a capital is the group that clap makes of a struct.
            let (id, name) = (id.as_str(), id.as_str().replace('_', "-"));
            let source = matches.value_source(id);
            if id.starts_with(char::is_uppercase)
                || NOT_REPEATED.contains(&name.as_str())
                || source == Some(ValueSource::DefaultValue)
            {
                continue;
            }
            let Ok(Some(raw)) = matches.try_get_raw(id) else { continue };
            let text = raw.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(",");
            // A file or folder is named from wherever the run was started.
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
