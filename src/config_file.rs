//! `--config FILE`: flags from a file. They are put before those of the command line, so that clap
//! checks both alike and the command line wins.
//!
//! The file is TOML, or JSON such as a run's `config.json`, whose `flags` repeat the run.

mod entries;
mod given;

pub use given::{Flags, Given};

use crate::{cli::Args, recipe::Recipe};
use anyhow::{Context, Result, bail};
use clap::{
    Arg, ArgAction, Command, CommandFactory, Parser, ValueEnum,
    error::{ContextKind, ContextValue, ErrorKind},
    value_parser,
};
use entries::{Entry, Value};
use std::{ffi::OsString, fs, path::Path};

/// The flag that names the file.
const CONFIG: &str = "--config";
/// The flag that names flags of our own, which are put before the file's.
const RECIPE: &str = "--recipe";

/// This process's command line, with the flags of the files that it names.
///
/// `subcommand` is the one that takes [`Args`], if they are not the whole command line. Like clap's own
/// `parse`, ends the process with a message where the command line is wrong.
///
/// # Errors
/// If a file cannot be read or has what is no flag; the error names file, line and flag.
pub fn parse<P: Parser>(subcommand: Option<&str>) -> Result<P> {
    Ok(P::parse_from(expand(std::env::args_os().collect(), subcommand)?))
}

/// `args` with the files' flags before the others.
fn expand(mut args: Vec<OsString>, subcommand: Option<&str>) -> Result<Vec<OsString>> {
    let at = match subcommand {
        None => 1,
        Some(name) if args.get(1).is_some_and(|arg| arg == name) => 2,
        Some(_) => return Ok(args),
    };
    let typed = args.get(at..).unwrap_or_default();
    let mut flags = Vec::new();
    for path in named(CONFIG, typed) {
        flags.extend(read(Path::new(&path))?.into_iter().map(OsString::from));
    }
    // The last one counts; clap says what is wrong with a name that is none.
    let recipe = named(RECIPE, typed).pop().or_else(|| named(RECIPE, &flags).pop());
    if let Some(recipe) = recipe.and_then(|name| Recipe::from_str(name.to_str()?, false).ok()) {
        flags.splice(0..0, recipe.flags().map(OsString::from));
    }
    args.splice(at.min(args.len())..at.min(args.len()), flags);
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
fn read(path: &Path) -> Result<Vec<String>> {
    // A run stands for the flags that it was started with.
    let path = &if path.is_dir() { path.join("config.json") } else { path.into() };
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {CONFIG} {}", path.display()))?;
    let json = path.extension().is_some_and(|extension| extension == "json");
    let entries = if json { entries::of_json(&text) } else { entries::of_toml(&text) };
    let entries = entries.map_err(|(line, what)| anyhow::anyhow!("{}: {what}", place(path, line)))?;
    let command = Args::command();
    let mut flags = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let place = place(path, entry.line);
        if entries[..at].iter().any(|earlier| earlier.name == entry.name) {
            bail!("{place}: `{}` is there twice", entry.name);
        }
        let Some(flag) = typed(&command, entry) else { continue };
        check(&command, &flag, &entry.name).with_context(|| place)?;
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
    let Err(error) = command.clone().try_get_matches_from(["train", flag]) else { return Ok(()) };
    match error.kind() {
        ErrorKind::MissingRequiredArgument => Ok(()),
        ErrorKind::UnknownArgument => match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(near)) => {
                bail!("there is no flag `{name}`; did you mean `{}`?", near.trim_start_matches('-'))
            }
            Some(_) | None => bail!("there is no flag `{name}`; `train --help` lists all"),
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
pub fn switchable(arg: Arg) -> Arg {
    match arg.get_action() {
        ArgAction::SetTrue => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_value("false")
            .default_missing_value("true")
            .value_parser(value_parser!(bool))
            .value_name("false")
            .hide_default_value(true)
            .hide_possible_values(true),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn written(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        (folder, path)
    }

    fn parsed(name: &str, text: &str, flags: &str) -> Args {
        let (_folder, path) = written(name, text);
        let args = ["train".into(), CONFIG.into(), path.into_os_string()];
        let args = args.into_iter().chain(flags.split_whitespace().map(OsString::from)).collect();
        Args::try_parse_from(expand(args, None).expect("a good file")).expect("good flags")
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file = "# a run\nlr = 0.1\nbatch_size = 1_000\nbatch-norm = true\nno-shuffle = true\n\
                    device-ids = [\"cpu:0\", \"cpu:1\"]\ngrad-compression = \"topk:0.5\"\nresume = false\n";
        let args = parsed("run.toml", file, "");
        assert_eq!((args.lr, args.batch_size, args.batch_norm, args.no_shuffle), (0.1, 1000, true, true));
        assert_eq!(args.device_ids.len(), 2);
        assert_eq!(args.checkpoints.resume, None);
        let args = parsed("run.toml", file, "--lr 0.2 --batch-norm=false --device-ids cpu:3,cpu:4,cpu:5");
        assert_eq!((args.lr, args.batch_size, args.batch_norm), (0.2, 1000, false));
        assert_eq!(args.device_ids.len(), 3, "not added to the file's");
    }

    #[test]
    fn a_recipe_comes_before_file_and_command_line() {
        let recipe = |file: &str, flags: &str| parsed("run.toml", file, flags);
        let best = recipe("", "--recipe best");
        assert!(best.batch_norm && best.optimisation.nesterov);
        let args = recipe("recipe = \"best\"\nbatch-size = 7\n", "--batch-norm=false --augment none");
        let file = "recipe = \"best\"\nbatch-norm = false\n";
        assert!(!recipe(file, "").batch_norm && recipe(file, "--batch-norm").batch_norm);
        assert_eq!((args.batch_size, args.batch_norm, args.recipe), (7, false, Some(Recipe::Best)));
        assert!(args.optimisation.augment.is_none() && args.optimisation.nesterov);
        assert_eq!(args.lr, best.lr);
        let args = recipe("recipe = \"best\"", "--recipe=fast");
        assert_eq!((args.recipe, args.optimisation.augment.is_none()), (Some(Recipe::Fast), true));
        assert!(Args::try_parse_from(["train", "--recipe", "slow"]).is_err());
    }

    #[test]
    fn a_file_is_read_where_the_flags_are_a_runs_and_nowhere_else() {
        let args = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        let launch = "burn-ddp launch -- mnist_ddp --config nowhere.toml";
        assert_eq!(expand(args(launch), Some("train")).expect("as it was"), args(launch));
        let error = expand(args("burn-ddp train --config=nowhere.toml"), Some("train")).expect_err("no file");
        assert!(format!("{error:#}").contains("nowhere.toml"), "{error:#}");
        assert_eq!(expand(args("burn-ddp"), Some("train")).expect("as it was"), args("burn-ddp"));
        assert_eq!(expand(args("train --config"), None).expect("as it was"), args("train --config"));
    }

    #[test]
    fn errors_name_line_flag_and_what_was_meant() {
        for (name, text, words) in [
            (
                "a.toml",
                "lr = 0.1\n\nepoch = 3\n",
                &["a.toml, line 3", "`epoch`", "did you mean `epochs`?"][..],
            ),
            ("a.toml", "lr = 0.1\nqqqqqq = 3\n", &["line 2", "`qqqqqq`", "--help"]),
            ("a.toml", "lr = -1\n", &["line 1", "'-1'", "--lr", "a number from 0"]),
            ("a.toml", "mode = \"dpp\"\n", &["line 1", "--mode", "single, dp, ddp"]),
            ("a.toml", "lr = false\n", &["line 1", "--lr", "'false'"]),
            ("a.toml", "\n[training]\nlr = 1\n", &["line 2", "`training`", "table"]),
            ("a.toml", "lr = 1\nlr = = 2\n", &["line 2"]),
            ("a.toml", "batch-size = 1\nbatch_size = 2\n", &["line 2", "`batch-size`", "twice"]),
            ("a.toml", "config = \"b.toml\"\n", &["line 1", "cannot name another"]),
            ("a.json", "{\n \"flags\": {\n  \"epoch\": 3\n }\n}", &["a.json, line 3", "`epochs`"]),
            ("a.json", "{\n \"lr\": }\n", &["a.json, line 2"]),
            ("a.json", "[1]", &["line 1", "object"]),
        ] {
            let (_folder, path) = written(name, text);
            let error = format!("{:#}", read(&path).expect_err(text));
            for word in words {
                assert!(error.contains(word), "{text:?} should say {word}: {error}");
            }
        }
    }

    #[test]
    fn what_was_given_repeats_itself() {
        let line = ["train", "--lr", "0.3", "--batch-norm", "--device-ids", "cpu:0,cpu:1", "--seed", "7"];
        let Flags(flags) = Args::try_parse_from(line).expect("good flags").given.flags();
        assert_eq!(flags["lr"], 0.3);
        assert_eq!(flags["batch-norm"], true);
        assert_eq!(flags.len(), 4, "no defaults: {flags:?}");
        let json = serde_json::json!({ "flags": flags, "lr": 9, "version": "x" }).to_string();
        let again = parsed("config.json", &json, "").given.flags();
        assert_eq!(again.0, flags);
    }
}
