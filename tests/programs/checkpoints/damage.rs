//! Damaged checkpoints, and file systems that are full or read-only.

use super::{SMALL, checkpointed, resume};
use crate::common::{Outcome, Run, command, example_command, finish, mnist, trained};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

const FLAGS: &str = "--mode single --batch-size 16";

type Damage = fn(&Path);

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("a file");
    change(&mut bytes);
    fs::write(path, bytes).expect("written");
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("a file");
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replacen(from, to, 1)).expect("written");
}

/// Kinds of damage, each with a part of the error message.
const DAMAGES: [(&str, Damage); 8] = [
    ("model.bpk has 1000 bytes", |c| edit(&c.join("model.bpk"), |bytes| bytes.truncate(1000))),
    ("optimizer.bpk does not have the checksum", |c| edit(&c.join("optimizer.bpk"), |b| b[4000] ^= 1)),
    ("scheduler.bpk: No such file", |c| fs::remove_file(c.join("scheduler.bpk")).expect("removed")),
    ("it has no manifest.json", |c| fs::remove_file(c.join("manifest.json")).expect("removed")),
    ("manifest.json: EOF", |c| edit(&c.join("manifest.json"), |bytes| bytes.truncate(200))),
    ("manifest.json has a wrong checksum", |c| {
        replace(&c.join("manifest.json"), "\"step\": 12", "\"step\": 13")
    }),
    ("manifest.json has no format version", |c| fs::write(c.join("manifest.json"), "{}").expect("written")),
    ("model.bpk has 0 bytes", |c| fs::write(c.join("model.bpk"), "").expect("written")),
];

#[test]
fn a_damaged_checkpoint_is_rejected_in_favour_of_the_previous_one() {
    let whole = checkpointed(FLAGS);
    for (said, damage) in DAMAGES {
        let run = whole.copied();
        damage(&run.path.join("checkpoints/step-000012"));
        let named = resume(&run.path, "checkpoints/step-000012", FLAGS);
        named.failed_with(&["step-000012", said, "step-000010 is intact"]);
        let outcome = resume(&run.path, "", FLAGS).succeeded();
        for word in ["warning", "step-000012", said, "resuming from", "step-000010"] {
            assert!(outcome.stderr.contains(word), "{said}: {outcome:#?}");
        }
        assert_eq!(run.digest(), whole.digest(), "{said}");
    }
}

#[test]
fn a_newer_or_mismatched_checkpoint_is_rejected() {
    let own = format!("{FLAGS} --warmup-epochs 1");
    let run = checkpointed(&own);
    for (flags, named) in [
        ("--seed 7", "--seed 42, not 7"),
        ("--warmup-start-factor 0.5", "no --warmup-start-factor, not 0.5"),
        ("--batch-norm", "--batch-norm false, not true"),
        ("--momentum 0.5", "--momentum 0.9, not 0.5"),
        ("--train-limit 80", "training samples 90, not 80"),
    ] {
        let small = SMALL
            .replace("--train-limit 90", if flags.starts_with("--train") { "" } else { "--train-limit 90" });
        let args = format!("{small} {own} {flags} --device cpu --resume {}", run.path.display());
        crate::common::train(&args).failed_with(&["step-000012", named, "--init-from"]);
    }
    replace(&run.path.join("checkpoints/step-000012/manifest.json"), "\"format\": 2", "\"format\": 3");
    for part in ["", "checkpoints/step-000012"] {
        resume(&run.path, part, FLAGS).failed_with(&["step-000012", "format 3", "reads format 2"]);
    }
    for step in [2, 4, 6, 8, 10, 12] {
        fs::remove_file(run.path.join(format!("checkpoints/step-{step:06}/manifest.json"))).expect("removed");
    }
    resume(&run.path, "", FLAGS).failed_with(&["step-000012", "no other intact checkpoint"]);
}

#[test]
fn a_partially_written_checkpoint_is_never_loaded() {
    // The larger network, whose checkpoints take longer to write.
    let small = SMALL.replace("--network lenet", "");
    let whole = trained(&format!("{small} {FLAGS}"));
    let run = Run::new();
    let path = &run.path;
    let (mut cuts, began) = (0, Instant::now());
    loop {
        let args =
            format!("--device cpu {small} {FLAGS} --save-every 1 --run-dir {} --resume", path.display());
        let mut child = example_command("mnist_ddp", &args).spawn().expect("built");
        // Tries to kill the run while it writes a checkpoint.
        let writing = || {
            fs::read_dir(path.join("checkpoints")).is_ok_and(|mut entries| {
                entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(".step-")))
            })
        };
        while child.try_wait().expect("our own child").is_none() {
            if cuts < 4 && writing() {
                child.kill().expect("killed");
                cuts += 1;
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(200), "hangs");
            thread::sleep(Duration::from_micros(200));
        }
        if finish(child).code == Some(0) {
            break;
        }
    }
    assert!(cuts > 0, "no write was ever seen");
    assert_eq!(run.digest(), whole.digest(), "after {cuts} kills");
    assert_eq!(run.column("steps.csv", "step").len(), 12);
    let left = fs::read_dir(path.join("checkpoints")).expect("folder").map(|e| e.expect("entry").file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().starts_with(".step")), "swept");
}

#[test]
fn a_full_disk_is_an_error_that_keeps_the_previous_checkpoint() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let small = folder.path().join("small");
    fs::create_dir(&small).expect("folder");
    // A private mount that ends with the shell, for one checkpoint.
    let run = |script: &str| -> Outcome {
        let script = format!("mount -t tmpfs -o size=1m none {} && {script}", small.display());
        finish(command(Path::new("unshare"), &["-m", "bash", "-c", &script]).spawn().expect("unshare"))
    };
    if run("true").code != Some(0) {
        eprintln!("SKIPPED: this user may not mount a tmpfs");
        return;
    }
    let (exe, dir) = (mnist().display().to_string(), small.join("run").display().to_string());
    let train = format!("{exe} --device cpu {SMALL} {FLAGS} --save-every 2");
    let kept = folder.path().join("kept");
    let outcome =
        run(&format!("{train} --run-dir {dir}; code=$?; cp -r {dir} {}; exit $code", kept.display()));
    outcome.failed_with(&["step-000004", "No space left on device", "step-000002 is intact"]);
    let names: Vec<_> =
        fs::read_dir(kept.join("checkpoints")).expect("folder").map(|e| e.expect("e").file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{names:?}");
    // With more space, the run continues to the same result.
    resume(&kept, "", FLAGS).succeeded();
    assert_eq!(Run::at(kept).digest(), trained(&format!("{SMALL} {FLAGS}")).digest());
}

#[test]
fn a_read_only_folder_is_an_error_on_the_rank_that_writes() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("run");
    fs::create_dir_all(path.join("checkpoints")).expect("folder");
    let allow =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    allow(folder.path(), 0o777);
    allow(&path, 0o777);
    allow(&path.join("checkpoints"), 0o555);
    let args = format!("--device cpu {SMALL} --nproc-per-node 2 --batch-size 8 --run-dir {}", path.display());
    let mut command = example_command("mnist_ddp", &args);
    // SAFETY: it only returns a number.
    if unsafe { libc::geteuid() } == 0 {
        // Permissions do not apply to root.
        command.uid(65534).gid(65534);
    }
    let Ok(child) = command.spawn() else {
        eprintln!("SKIPPED: another user may not run {}", mnist().display());
        return;
    };
    finish(child).failed_with(&["cannot write the checkpoint", "step-000006", "Permission denied"]);
    allow(&path.join("checkpoints"), 0o755);
}
