//! Training under every launcher gives bit-identical parameters.
//!
//! The program itself, `burn-ddp launch`, torchrun and mpirun where they are installed, and emulated variables of
//! others.

use crate::common::{self, Run, command, finish, free_port, mnist, program};
use std::{
    path::{Path, PathBuf},
    process::Child,
    time::{Duration, Instant},
};

const RUN: &str =
    "--dataset subset --train-limit 256 --eval-limit 20 --max-steps 3 --batch-size 16 --threads 1";

/// [`RUN`] with the flags that `common::trained` adds.
fn flags() -> impl Iterator<Item = &'static str> {
    RUN.split_whitespace().chain(["--device", "cpu", "--progress", "plain"])
}

/// Path of a launcher from the environment variable `variable` or on the PATH.
fn installed(variable: &str, name: &str) -> Option<PathBuf> {
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.exists())
    };
    let found = std::env::var_os(variable).map(PathBuf::from).or_else(on_path);
    if found.is_none() {
        eprintln!("SKIPPED: {name} is not installed; put it on the PATH or set {variable}");
    }
    found
}

/// Runs `launcher FLAGS mnist_ddp …` and reads the digest from the run folder.
fn digest_under(launcher: &Path, before: &[&str]) -> String {
    let run = Run::new();
    let mut launched = command(launcher, before);
    launched.arg(mnist()).arg("--run-dir").arg(&run.path).args(flags());
    finish(launched.spawn().expect("it is installed")).succeeded();
    run.digest_of_two()
}

fn own() -> String {
    let run: Run = common::trained(&format!("{RUN} --nproc-per-node 2"));
    run.digest()
}

#[test]
fn burn_ddp_launch_trains_the_same() {
    let launched = digest_under(&program(), &["launch", "--nproc-per-node", "2", "--"]);
    assert_eq!(launched, own());
}

#[test]
fn launchers_of_two_nodes_train_the_same() {
    let port = free_port();
    let world = format!("launch --nnodes 2 --master-addr 127.0.0.1 --master-port {port} --node-rank");
    let world: Vec<&str> = world.split(' ').collect();
    let mut other = command(&program(), &world);
    other.args(["1", "--"]).arg(mnist()).args(flags());
    let other = other.spawn().expect("built");
    let launched = digest_under(&program(), &[&world[..], &["0", "--"]].concat());
    finish(other).succeeded();
    assert_eq!(launched, own());
}

#[test]
fn torchrun_trains_the_same() {
    let Some(torchrun) = installed("TORCHRUN", "torchrun") else { return };
    let launched = digest_under(&torchrun, &["--nproc-per-node", "2", "--no-python"]);
    assert_eq!(launched, own());
}

#[test]
fn mpirun_trains_the_same() {
    let Some(mpirun) = installed("MPIRUN", "mpirun") else { return };
    // The first two flags are required only as root, in a container, or with fewer cores than ranks.
    let launched = digest_under(&mpirun, &["--allow-run-as-root", "--oversubscribe", "-n", "2"]);
    assert_eq!(launched, own());
}

#[test]
fn mpich_trains_the_same() {
    let Some(mpiexec) = installed("MPIEXEC_HYDRA", "mpiexec.hydra") else { return };
    assert_eq!(digest_under(&mpiexec, &["-launcher", "fork", "-n", "2"]), own());
}

/// Starts two ranks with a launcher's variables `vars`, in which `R` is replaced by the rank.
fn by_hand(vars: &[(&str, &str)]) -> String {
    let run = Run::new();
    let ranks: Vec<Child> = ["0", "1"]
        .map(|rank| {
            let mut rank_command = command(&mnist(), &["--run-dir"]);
            rank_command.arg(&run.path).args(flags());
            rank_command.envs(vars.iter().map(|(name, value)| (name, value.replace('R', rank))));
            rank_command.spawn().expect("built")
        })
        .into();
    for rank in ranks {
        finish(rank).succeeded();
    }
    run.digest_of_two()
}

#[test]
fn sruns_tasks_train_the_same() {
    let job = std::process::id().to_string();
    let trained = by_hand(&[
        ("SLURM_PROCID", "R"),
        ("SLURM_LOCALID", "R"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2"),
        ("SLURM_STEP_NODELIST", "node[07-08]"),
        ("SLURM_JOB_ID", &job),
        ("SLURM_STEP_ID", "0"),
    ]);
    assert_eq!(trained, own());
}

#[test]
fn ranks_on_two_machines_require_a_secret() {
    let vars = [
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        // A reserved address, so that no name is resolved.
        ("SLURM_STEP_NODELIST", "192.0.2.1"),
        ("SLURM_JOB_ID", "12"),
    ];
    let mut rank = command(&mnist(), &[]);
    rank.args(flags()).env_remove("BURN_DDP_SECRET").envs(vars);
    finish(rank.spawn().expect("built")).failed_with(&["BURN_DDP_SECRET", "192.0.2.1"]);
}

#[test]
fn an_sbatch_script_is_not_a_rank() {
    let began = Instant::now();
    let vars = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "1"), ("SLURM_LOCALID", "0")];
    let run = Run::new();
    let mut script = command(&mnist(), &["--nproc-per-node", "2", "--run-dir"]);
    script.arg(&run.path).args(flags()).envs(vars);
    finish(script.spawn().expect("built")).succeeded();
    run.digest_of_two();
    assert!(began.elapsed() < Duration::from_secs(120), "it waited for ranks that do not exist");
}

#[test]
fn a_flag_that_contradicts_the_launcher_is_rejected() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let launched = |world: &str, flags: &[&str]| {
        let mut rank = command(&mnist(), &[]);
        rank.args(self::flags()).args(flags).current_dir(&folder);
        rank.envs([("RANK", "0"), ("WORLD_SIZE", world)]);
        finish(rank.spawn().expect("built"))
    };
    let two = ["--nproc-per-node", "2"];
    launched("1", &two).failed_with(&["--nproc-per-node 2", "started 1 rank(s)", "LOCAL_WORLD_SIZE"]);
    launched("1", &["--mode", "dp", "--nproc-per-node", "2"]).failed_with(&["--nproc-per-node 2"]);
    launched("3", &two).failed_with(&["--nproc-per-node 2", "started 3 rank(s)"]);
    launched("2", &["--mode", "single"]).failed_with(&["--mode single", "WORLD_SIZE=2"]);
    launched("2", &["--mode", "dp"]).failed_with(&["--mode dp", "a launcher started several"]);
    launched("2", &["--device-ids", "cpu:0,cpu:1"]).failed_with(&["--device-ids", "--mode dp"]);
}
