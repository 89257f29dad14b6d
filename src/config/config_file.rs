//! `--config FILE`: flags from a file.
//!
//! They are inserted before those of the command line, so that clap validates both and the command line has
//! precedence. The file is TOML, or JSON such as a run's `config.json`, whose `flags` reproduce the run.

use anyhow::{Context, Result, bail};
use clap::{
    Arg, ArgAction, Command, Error, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
    value_parser,
};
use serde_json::{Map, Value};
use std::{ffi::OsString, fs, path::Path};

/// The flag that names the file.
const CONFIG: &str = "--config";

/// A flag whose value expands to a set of other flags, such as `--recipe`.
#[derive(Clone, Copy)]
pub struct Preset {
    /// Name of the flag, with leading dashes.
    pub flag: &'static str,
    /// Expands a value; returns `None` for an invalid value.
    pub flags: fn(&str) -> Option<Vec<String>>,
}

/// Parses the command line, including the files that `--config` names.
///
/// Like clap's `parse`, exits with a message if the command line is invalid. Flags of files override those of a preset.
///
/// # Errors
/// If a file cannot be read or contains an invalid flag. The error names file, line and flag.
pub fn parse<P: Parser>(preset: Option<Preset>) -> Result<P> {
    let parsed = parse_from(std::env::args_os().collect(), preset)?;
    Ok(parsed.unwrap_or_else(|error: Error| error.exit()))
}

/// Parses `args`, of which the first names the program, like [`parse`]. The inner error is clap's.
///
/// # Errors
/// As for [`parse`].
pub fn parse_from<P: Parser>(args: Vec<OsString>, preset: Option<Preset>) -> Result<Result<P, Error>> {
    Ok(parsed(expand(&command::<P>(), args, preset)?))
}

/// Parses expanded `args`. Help is printed for the declared command, whose switches take no value.
fn parsed<P: Parser>(mut args: Vec<OsString>) -> Result<P, Error> {
    match command::<P>().try_get_matches_from(&args) {
        Ok(matches) => P::from_arg_matches(&matches),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            let with_value = |text: &str| text.ends_with("=true") || text.ends_with("=false");
            args.retain(|arg| !arg.to_str().is_some_and(with_value));
            P::try_parse_from(args)
        }
        Err(error) => Err(error),
    }
}

/// Returns the command of `P`, in which a later flag overrides an earlier one.
///
/// Switches accept a value, so that `--batch-norm=false` overrides a file.
fn command<P: Parser>() -> Command {
    P::command().args_override_self(true).mut_args(|arg| match arg.get_action() {
        ArgAction::SetTrue => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_value("false")
            .default_missing_value("true")
            .value_parser(value_parser!(bool)),
        _ => arg,
    })
}

/// Inserts the flags of files before the others. Subcommands are unchanged.
fn expand(command: &Command, mut args: Vec<OsString>, preset: Option<Preset>) -> Result<Vec<OsString>> {
    let first = args.get(1).and_then(|arg| arg.to_str());
    if args.is_empty() || first.is_some_and(|first| command.find_subcommand(first).is_some()) {
        return Ok(args);
    }
    let typed = &args[1..];
    let mut flags = Vec::new();
    for path in named(CONFIG, typed) {
        flags.extend(read(command, Path::new(&path))?.into_iter().map(OsString::from));
    }
    // The last one has precedence; clap reports an invalid value.
    let chosen = preset.and_then(|preset| {
        let value = named(preset.flag, typed).pop().or_else(|| named(preset.flag, &flags).pop())?;
        (preset.flags)(value.to_str()?)
    });
    flags.splice(0..0, chosen.unwrap_or_default().into_iter().map(OsString::from));
    args.splice(1..1, flags);
    Ok(args)
}

/// Returns the values of `--flag VALUE` and `--flag=VALUE`, in order.
fn named(flag: &str, args: &[OsString]) -> Vec<OsString> {
    let mut values = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some(text) if text == flag => values.extend(args.next().cloned()),
            Some(text) => values
                .extend(text.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')).map(OsString::from)),
            None => {}
        }
    }
    values
}

/// Reads the flags of a file in command-line form.
fn read(command: &Command, path: &Path) -> Result<Vec<String>> {
    let path = &if path.is_dir() { path.join("config.json") } else { path.into() };
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {CONFIG} {}", path.display()))?;
    let place = |line: usize| format!("{}, line {line}", path.display());
    let mut entries: Map<String, Value> = match path.extension() {
        Some(extension) if extension == "json" => serde_json::from_str(&text).with_context(|| place(1))?,
        _ => toml::from_str(&text).map_err(|error| {
            let line = 1 + text[..error.span().map_or(0, |span| span.start)].matches('\n').count();
            anyhow::anyhow!("{}: {}", place(line), error.message().replace('\n', ", "))
        })?,
    };
    if let Some(Value::Object(flags)) = entries.remove("flags") {
        entries = flags;
    }
    let mut entries: Vec<_> = entries
        .into_iter()
        .map(|(key, value)| (line_of(&text, &key), key.replace('_', "-"), value))
        .collect();
    entries.sort_by_key(|(line, ..)| *line);
    let mut flags = Vec::new();
    for (at, (line, name, value)) in entries.iter().enumerate() {
        if entries[..at].iter().any(|earlier| earlier.1 == *name) {
            bail!("{}: duplicate entry `{name}`", place(*line));
        }
        let Some(flag) = typed(command, name, value).with_context(|| place(*line))? else { continue };
        check(command, &flag, name).with_context(|| place(*line))?;
        flags.push(flag);
    }
    Ok(flags)
}

/// Line of an entry, from 1. In config.json, `flags` is the last entry and repeats other keys.
fn line_of(text: &str, key: &str) -> usize {
    let is_entry = |line: &str| {
        let line = line.trim_start().trim_start_matches(['"', '\'', '[']);
        line.strip_prefix(key)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || "-_".contains(c)))
    };
    let lines: Vec<&str> = text.lines().collect();
    lines.into_iter().rposition(is_entry).map_or(1, |at| at + 1)
}

/// Converts an entry to a command-line flag.
///
/// Returns `None` for `false`, unless the flag is a switch.
fn typed(command: &Command, name: &str, value: &Value) -> Result<Option<String>> {
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name));
    let stands_alone = arg.and_then(Arg::get_num_args).is_some_and(|values| values.min_values() == 0);
    let is_switch = arg.is_some_and(|arg| arg.get_default_values() == ["false"]);
    Ok(match value {
        // A preset may have switched it on.
        Value::Bool(on) if stands_alone && (*on || !is_switch) => on.then(|| format!("--{name}")),
        value => Some(format!("--{name}={}", text(name, value)?)),
    })
}

/// Command-line form of a value.
fn text(name: &str, value: &Value) -> Result<String> {
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(parts) => {
            parts.iter().map(|part| text(name, part)).collect::<Result<Vec<_>>>()?.join(",")
        }
        Value::Null | Value::Object(_) => {
            bail!("`{name}` is a table or null; give it a value, or several as [A, B]")
        }
    })
}

/// Validates one flag alone. Conflicts with other flags are checked later.
fn check(command: &Command, flag: &str, name: &str) -> Result<()> {
    if name == "config" {
        bail!("a configuration file cannot name another one");
    }
    let Err(error) = command.clone().try_get_matches_from(["program", flag]) else { return Ok(()) };
    match error.kind() {
        ErrorKind::MissingRequiredArgument => Ok(()),
        ErrorKind::UnknownArgument => match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(near)) => {
                bail!("unknown flag `{name}`; did you mean `{}`?", near.trim_start_matches('-'))
            }
            Some(_) | None => bail!("unknown flag `{name}`; `--help` lists all"),
        },
        _ => {
            let text = error.to_string();
            let said = text.lines().map(str::trim).take_while(|line| !line.is_empty());
            bail!("{}", said.collect::<Vec<_>>().join(" ").trim_start_matches("error: "))
        }
    }
}

#[cfg(test)]
mod tests;
