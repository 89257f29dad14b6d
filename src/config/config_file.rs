//! `--config FILE`: flags from a file. They are put before those of the command line, so that clap
//! checks both alike and the command line wins.
//!
//! The file is TOML, or JSON such as a run's `config.json`, whose `flags` repeat the run.

mod entries;
mod given;

pub use given::{Flags, GivenFlags};

use anyhow::{Context, Result, bail};
use clap::{
    Arg, ArgAction, Command, Error, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
    value_parser,
};
use entries::{Entry, Value};
use std::{ffi::OsString, fs, path::Path};

/// The flag that names the file.
const CONFIG: &str = "--config";

/// A flag of the program whose value stands for a set of other flags, such as `--recipe`.
#[derive(Clone, Copy)]
pub struct Preset {
    /// The flag, with its dashes.
    pub flag: &'static str,
    /// The flags that a value stands for; `None` if it is not a valid value.
    pub flags: fn(&str) -> Option<Vec<String>>,
}

/// Parses this process's command line, with the flags of the files that `--config` names.
///
/// Like clap's own `parse`, ends the process with a message where the command line is wrong.
///
/// # Errors
/// If a file cannot be read or has an entry that is not a flag; the error names file, line and flag.
pub fn parse<P: Parser>() -> Result<P> {
    parse_with(None)
}

/// [`parse`] for a program with a preset. Flags of files override those of the preset.
///
/// # Errors
/// As [`parse`].
pub fn parse_with<P: Parser>(preset: Option<Preset>) -> Result<P> {
    let args = expand(&command::<P>(), std::env::args_os().collect(), preset)?;
    Ok(parsed(args).unwrap_or_else(|error: Error| error.exit()))
}

/// Parses expanded `args`. The help is that of the declared command, in which switches take no value.
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

/// The command line of `P`, in which a later flag overrides an earlier one.
fn command<P: Parser>() -> Command {
    switchable(P::command().args_override_self(true))
}

/// `args` with the files' flags before the others. Subcommands are left as they are.
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
    // The last one counts; clap reports an invalid value.
    let chosen = preset.and_then(|preset| {
        let value = named(preset.flag, typed).pop().or_else(|| named(preset.flag, &flags).pop())?;
        (preset.flags)(value.to_str()?)
    });
    flags.splice(0..0, chosen.unwrap_or_default().into_iter().map(OsString::from));
    args.splice(1..1, flags);
    Ok(args)
}

/// What `--flag VALUE` and `--flag=VALUE` name, in their order.
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

/// A file's flags, as they would be typed.
fn read(command: &Command, path: &Path) -> Result<Vec<String>> {
    // A run stands for the flags that it was started with.
    let path = &if path.is_dir() { path.join("config.json") } else { path.into() };
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {CONFIG} {}", path.display()))?;
    let json = path.extension().is_some_and(|extension| extension == "json");
    let entries = if json { entries::of_json(&text) } else { entries::of_toml(&text) };
    let entries = entries.map_err(|(line, what)| anyhow::anyhow!("{}: {what}", place(path, line)))?;
    let mut flags = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let place = place(path, entry.line);
        if entries[..at].iter().any(|earlier| earlier.name == entry.name) {
            bail!("{place}: `{}` is there twice", entry.name);
        }
        let Some(flag) = typed(command, entry) else { continue };
        check(command, &flag, &entry.name).with_context(|| place)?;
        flags.push(flag);
    }
    Ok(flags)
}

fn place(path: &Path, line: usize) -> String {
    format!("{}, line {line}", path.display())
}

/// The flag as it would be typed. `None` for one that is not switched on.
fn typed(command: &Command, Entry { name, value, .. }: &Entry) -> Option<String> {
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name));
    let stands_alone = arg.and_then(Arg::get_num_args).is_some_and(|values| values.min_values() == 0);
    match value {
        // A recipe may have switched it on.
        Value::Switch(false) if arg.is_some_and(is_switch) => Some(format!("--{name}=false")),
        Value::Switch(on) if stands_alone => on.then(|| format!("--{name}")),
        Value::Switch(on) => Some(format!("--{name}={on}")),
        Value::Text(text) => Some(format!("--{name}={text}")),
    }
}

/// What clap says about one flag by itself; whether it goes with the others is known later.
fn check(command: &Command, flag: &str, name: &str) -> Result<()> {
    if name == "config" {
        bail!("a configuration file cannot name another one");
    }
    let Err(error) = command.clone().try_get_matches_from(["program", flag]) else { return Ok(()) };
    match error.kind() {
        ErrorKind::MissingRequiredArgument => Ok(()),
        ErrorKind::UnknownArgument => match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(near)) => {
                bail!("there is no flag `{name}`; did you mean `{}`?", near.trim_start_matches('-'))
            }
            Some(_) | None => bail!("there is no flag `{name}`; `--help` lists all"),
        },
        _ => {
            let text = error.to_string();
            let said = text.lines().map(str::trim).take_while(|line| !line.is_empty());
            bail!("{}", said.collect::<Vec<_>>().join(" ").trim_start_matches("error: "))
        }
    }
}

/// Whether it is one of those that [`switchable`] makes.
fn is_switch(arg: &Arg) -> bool {
    arg.get_default_values() == ["false"]
}

/// Lets a switch be switched off again, `--batch-norm=false`, where a file switched it on.
fn switchable(command: Command) -> Command {
    command.mut_args(|arg| match arg.get_action() {
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

#[cfg(test)]
mod tests;
