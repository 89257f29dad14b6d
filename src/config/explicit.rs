//! Flags given explicitly, recorded to reproduce a run.

use super::scope::Scope;
use clap::{ArgMatches, Command, FromArgMatches, parser::ValueSource};
use serde_json::{Map, Value};
use std::path::{self, PathBuf};

/// Flags given explicitly, with their values as typed; defaults are omitted.
///
/// It is a clap argument group that defines no flags and reads the matches of all others.
#[derive(Clone, Debug, Default)]
pub struct ExplicitFlags(pub Map<String, Value>);

/// Converts `text` to a number or boolean if that preserves its spelling, otherwise to a string.
fn value(text: &str) -> Value {
    let parsed = serde_json::from_str::<Value>(text).ok();
    // 1e3 keeps its spelling.
    let parsed =
        parsed.filter(|value| (value.is_number() || value.is_boolean()) && format!("{value}") == text);
    parsed.unwrap_or_else(|| text.into())
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
        let mut given = Map::new();
        for id in matches.ids() {
            // clap names the group of a struct after the type, with a capital letter.
            let (id, source) = (id.as_str(), matches.value_source(id.as_str()));
            if id.starts_with(char::is_uppercase)
                || Scope::of_setting(id) == Scope::Process
                || source == Some(ValueSource::DefaultValue)
            {
                continue;
            }
            let Ok(Some(raw)) = matches.try_get_raw(id) else { continue };
            let text = raw.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(",");
            // Paths are made absolute so that they do not depend on the working directory.
            let is_path = matches.try_get_one::<PathBuf>(id).is_ok();
            let whole = path::absolute(&text).ok().filter(|_| is_path);
            given.insert(
                id.replace('_', "-"),
                whole.map_or_else(|| value(&text), |path| path.display().to_string().into()),
            );
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
