//! `--config`: flags from a file, and repetition of a run from its config.json.

use super::{
    common::{Run, train},
    mnist_ddp,
};
use std::fs;

/// Few images, so that a run takes a second.
const FEW: &str = "device = \"cpu\"\nprogress = \"plain\"\ndataset = \"subset\"\ntrain-limit = 96\n\
                   eval_limit = 20\nbatch-size = 8\nlr = 0.02\n";

#[test]
fn a_run_is_repeated_from_its_config_json_to_the_bit() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let file = format!("{FEW}nproc-per-node = 2\nbatch-norm = true\nseed = 7\nthreads = 1\n");
    fs::write(folder.path().join("run.toml"), file).expect("written");
    train(&format!("--config {} --lr 0.03 --run-dir {}", path("run.toml"), path("a"))).succeeded();
    let first = Run::at(folder.path().join("a"));
    let config = first.json("config.json");
    assert_eq!((&config["lr"], &config["batch_size"]), (&0.03.into(), &8.into()), "the command line wins");
    assert_eq!((&config["world_size"], &config["batch_norm"]), (&2.into(), &true.into()));
    train(&format!("--config {}/config.json --run-dir {}", path("a"), path("b"))).succeeded();
    let again = Run::at(folder.path().join("b"));
    assert_eq!(again.digest(), first.digest());
    assert_eq!(again.losses(), first.losses());
    let [mut ours, mut theirs] = [&again, &first].map(|run| run.json("config.json"));
    assert_eq!(ours["flags"], theirs["flags"], "and can be repeated again");
    ours["flags"].take();
    theirs["flags"].take();
    assert_eq!(ours, theirs);
    // A different seed changes the run.
    train(&format!("--config {} --seed 8 --run-dir {}", path("a"), path("c"))).succeeded();
    assert_ne!(Run::at(folder.path().join("c")).digest(), first.digest());
}

#[test]
fn the_printed_configuration_is_reproducible_and_starts_no_run() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (file, run) = (folder.path().join("resolved.json"), folder.path().join("run"));
    let flags = format!("--device cpu --recipe fast --nproc-per-node 3 --run-dir {}", run.display());
    let printed = train(&format!("{flags} --print-config")).succeeded().stdout;
    let config: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!((&config["world_size"], &config["mode"]), (&3.into(), &"ddp".into()));
    assert_eq!((&config["epochs"], &config["flags"]["recipe"]), (&1.2.into(), &"fast".into()));
    assert!(!run.exists(), "no run was started");
    fs::write(&file, &printed).expect("written");
    let again = train(&format!("--config {} --print-config", file.display())).succeeded().stdout;
    assert_eq!(again, printed);
}

#[test]
fn dp_and_single_runs_are_repeated_in_their_mode() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(folder.path().join("run.toml"), format!("{FEW}dropout = 0\nno-shuffle = true\n"))
        .expect("written");
    for (name, flags) in [("single", "--mode single"), ("dp", "--mode dp --device-ids cpu:1,cpu:0,cpu:2")] {
        train(&format!("--config {} {flags} --run-dir {}", path("run.toml"), path(name))).succeeded();
        let config = format!("{}/config.json", path(name));
        let again = format!("{name}-again");
        train(&format!("--config {config} --run-dir {}", path(&again))).succeeded();
        let [first, again] = [name, &again].map(|name| Run::at(folder.path().join(name)));
        assert_eq!(first.json("config.json")["mode"], name);
        assert_eq!(again.json("config.json"), first.json("config.json"));
        assert_eq!(again.digest(), first.digest(), "{name}");
    }
}

#[test]
fn mistakes_in_a_file_are_named_with_their_line() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("run.toml");
    let path = path.to_str().expect("UTF-8");
    fs::write(path, format!("{FEW}epoch = 3\n")).expect("written");
    mnist_ddp(&["--config", path]).failed_with(&["run.toml, line 8", "`epoch`", "did you mean `epochs`?"]);
    fs::write(path, format!("{FEW}momentum = 2\n")).expect("written");
    mnist_ddp(&[&format!("--config={path}")]).failed_with(&["line 8", "--momentum", "'2'"]);
    mnist_ddp(&["--config", "/nowhere/run.toml"]).failed_with(&["--config", "/nowhere/run.toml"]);
}

#[test]
fn the_short_help_is_short_and_names_the_long_one() {
    let text = mnist_ddp(&["-h"]).succeeded().stdout;
    let flags = text.lines().filter(|line| line.trim_start().starts_with('-')).count();
    assert!((12..=14).contains(&flags), "{flags} flags\n{text}");
    assert!(text.contains("--help lists all"), "{text}");
    let all = mnist_ddp(&["--help"]).succeeded().stdout;
    assert!(all.contains("--grad-accum-steps") && !text.contains("--grad-accum-steps"), "{all}");
}
