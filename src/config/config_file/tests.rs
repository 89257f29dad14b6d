use super::*;
use crate::config::args::tests::Program;
use std::path::PathBuf;

const RECIPE: Preset = Preset {
    flag: "--progress",
    flags: |name| (name == "plain").then(|| vec!["--lr=0.5".into(), "--batch-norm".into()]),
};

fn written(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join(name);
    fs::write(&path, text).expect("written");
    (folder, path)
}

fn parsed(name: &str, text: &str, flags: &str) -> Program {
    let (_folder, path) = written(name, text);
    let args = ["program".into(), CONFIG.into(), path.into_os_string()];
    let args = args.into_iter().chain(flags.split_whitespace().map(OsString::from)).collect();
    super::parsed(expand(&command::<Program>(), args, Some(RECIPE)).expect("a good file"))
        .expect("good flags")
}

#[test]
fn the_command_line_wins_over_the_file() {
    let file = "# a run\nlr = 0.1\nbatch_size = 1_000\nbatch-norm = true\nno-shuffle = true\n\
                device-ids = [\"cpu:0\", \"cpu:1\"]\ngrad-compression = \"topk:0.5\"\nresume = false\n";
    let Program { trainer: args, batch_norm, .. } = parsed("run.toml", file, "");
    assert_eq!((args.lr, args.batch_size, batch_norm, args.no_shuffle), (0.1, 1000, true, true));
    assert_eq!(args.context.device_ids.len(), 2);
    assert_eq!(args.checkpoints.resume, None);
    let flags = "--lr 0.2 --batch-norm=false --device-ids cpu:3,cpu:4,cpu:5";
    let Program { trainer: args, batch_norm, .. } = parsed("run.toml", file, flags);
    assert_eq!((args.lr, args.batch_size, batch_norm), (0.2, 1000, false));
    assert_eq!(args.context.device_ids.len(), 3, "not added to the file's");
}

#[test]
fn a_preset_comes_before_file_and_command_line() {
    let parsed = |file: &str, flags: &str| parsed("run.toml", file, flags);
    let set = parsed("", "--progress plain");
    assert_eq!((set.trainer.lr, set.batch_norm), (0.5, true));
    let file = "progress = \"plain\"\nbatch-norm = false\n";
    assert!(!parsed(file, "").batch_norm && parsed(file, "--batch-norm").batch_norm);
    assert_eq!(parsed(file, "--lr 0.1").trainer.lr, 0.1);
    assert!(!parsed("progress = \"plain\"", "--progress=bar").batch_norm);
}

#[test]
fn a_file_is_not_read_for_a_subcommand() {
    let args = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
    let command = command::<Program>().subcommand(Command::new("bench"));
    let expand = |line: &str| expand(&command, args(line), None);
    let bench = "program bench --config nowhere.toml";
    assert_eq!(expand(bench).expect("as it was"), args(bench));
    let error = expand("program --config=nowhere.toml").expect_err("no file");
    assert!(format!("{error:#}").contains("nowhere.toml"), "{error:#}");
    assert_eq!(expand("program --config").expect("as it was"), args("program --config"));
}

#[test]
fn errors_name_line_flag_and_what_was_meant() {
    for (name, text, words) in [
        ("a.toml", "lr = 0.1\n\nepoch = 3\n", &["a.toml, line 3", "`epoch`", "did you mean `epochs`?"][..]),
        ("a.toml", "lr = 0.1\nqqqqqq = 3\n", &["line 2", "`qqqqqq`", "--help"]),
        ("a.toml", "lr = -1\n", &["line 1", "'-1'", "--lr", "a number from 0"]),
        ("a.toml", "mode = \"dpp\"\n", &["line 1", "--mode", "single, dp, ddp"]),
        ("a.toml", "lr = false\n", &["line 1", "--lr", "'false'"]),
        ("a.toml", "\n[training]\nlr = 1\n", &["line 2", "`training`", "table"]),
        ("a.toml", "lr = 1\nlr = = 2\n", &["line 2"]),
        ("a.toml", "batch-size = 1\nbatch_size = 2\n", &["line 2", "`batch-size`", "duplicate entry"]),
        ("a.toml", "config = \"b.toml\"\n", &["line 1", "cannot name another"]),
        ("a.json", "{\n \"flags\": {\n  \"epoch\": 3\n }\n}", &["a.json, line 3", "`epochs`"]),
        ("a.json", "{\n \"lr\": }\n", &["a.json", "line 2"]),
        ("a.json", "[1]", &["line 1", "map"]),
    ] {
        let (_folder, path) = written(name, text);
        let error = format!("{:#}", read(&command::<Program>(), &path).expect_err(text));
        for word in words {
            assert!(error.contains(word), "{text:?} should contain {word}: {error}");
        }
    }
}

#[test]
fn explicit_flags_round_trip_through_config_json() {
    let line = "--lr 0.3 --batch-norm --device-ids cpu:0,cpu:1 --seed 7 --init-from model.bpk";
    let flags = parsed("run.toml", "", line).trainer.explicit.0;
    assert_eq!(flags["lr"], 0.3);
    assert_eq!(flags["batch-norm"], true);
    assert!(Path::new(flags["init-from"].as_str().expect("a path")).is_absolute());
    assert_eq!(flags.len(), 5, "no defaults: {flags:?}");
    let json = serde_json::json!({ "flags": flags, "lr": 9, "version": "x" }).to_string();
    let again = parsed("config.json", &json, "").trainer.explicit.0;
    assert_eq!(again, flags);
}

#[test]
fn help_shows_switches_without_values() {
    for help in ["-h", "--help"] {
        let line = ["program", "--batch-norm=false", help].map(OsString::from);
        let error = super::parsed::<Program>(line.into()).expect_err("only help");
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{text}");
        let switch = text.lines().any(|line| line.trim() == "--batch-norm");
        assert_eq!(switch, help == "--help", "{text}");
        let flags = text.lines().filter(|line| line.trim_start().starts_with('-')).count();
        assert!(help == "--help" || (8..=12).contains(&flags), "{flags} flags\n{text}");
    }
}
