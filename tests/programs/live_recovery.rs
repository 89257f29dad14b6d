//! `burn-ddp launch --recover live` replaces a rank that has failed; the others keep their processes, and the final
//! parameters are bit-identical to those of an undisturbed run.

use crate::common::{
    Outcome, Run, command, example, finish, free_port,
    launched::{ranks, signal, steps, wait_until},
    mnist, processes_with, program, train, trained,
};
use std::{
    collections::BTreeMap,
    process::{Child, Command},
    sync::OnceLock,
};

const RUN: &str = "--dataset subset --train-limit 960 --eval-limit 20 --batch-size 8 --threads 1";

fn launcher(marker: &str, restarts: usize, ranks: usize) -> Command {
    let flags = format!("launch --nproc-per-node {ranks} --max-restarts {restarts} --recover live --");
    let mut job = command(&program(), &flags.split(' ').collect::<Vec<_>>());
    job.env("BURN_DDP_TEST", marker);
    job
}

/// Starts the launcher of a machine, with its `flags`, of a training into the folder `run`.
fn start_node(marker: &str, port: u16, flags: &str, run: &Run) -> Child {
    let flags = format!("launch {flags} --master-addr 127.0.0.1 --master-port {port} --");
    let mut node = command(&program(), &flags.split(' ').collect::<Vec<_>>());
    node.arg(mnist()).args(["--device", "cpu", "--progress", "plain"]).args(RUN.split_whitespace());
    node.arg("--run-dir").arg(&run.path).env("BURN_DDP_TEST", marker).spawn().expect("built")
}

/// Starts a training of two ranks into the folder `run`.
fn start(marker: &str, restarts: usize, flags: &str, run: &Run) -> Child {
    let mut job = launcher(marker, restarts, 2);
    job.arg(mnist()).args(["--device", "cpu", "--progress", "plain", "--timeout", "3"]);
    job.args(RUN.split_whitespace()).args(flags.split_whitespace()).arg("--run-dir").arg(&run.path);
    job.spawn().expect("built")
}

/// The parameters of an undisturbed run without further flags.
fn undisturbed() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| trained(&format!("{RUN} --nproc-per-node 2")).digest())
}

/// Waits until step `step` + 1 is in the run's table.
fn wait_for_step(run: &Run, step: usize) {
    wait_until(&format!("step {step}"), || steps(&run.path) > step);
}

#[test]
fn the_other_ranks_keep_their_processes_and_the_bits_are_those_of_an_undisturbed_run() {
    // Buffers and the moving average are part of the state, and all rows of the tables are there.
    let synchronised = "--batch-norm --sync-bn --ema 0.9 --save-every 17";
    // The running statistics are rank 0's.
    let of_rank_0 = "--batch-norm --ema 0.9 --save-every 17";
    let undisturbed = |flags| trained(&format!("{RUN} {flags} --nproc-per-node 2"));
    let runs = [(synchronised, undisturbed(synchronised)), (of_rank_0, undisturbed(of_rank_0))];
    // Rank 0 hosts the rendezvous and writes all files. A stopped rank is found when a call has timed out.
    for (marker, number, victim, (flags, undisturbed)) in [
        ("live-recovery-5301", libc::SIGKILL, 1, &runs[0]),
        ("live-recovery-5302", libc::SIGKILL, 0, &runs[0]),
        ("live-recovery-5303", libc::SIGSTOP, 1, &runs[0]),
        ("live-recovery-5304", libc::SIGKILL, 0, &runs[1]),
    ] {
        let run = Run::new();
        let job = start(marker, 2, flags, &run);
        wait_for_step(&run, 10);
        let before = ranks(marker);
        signal(before[&victim], number);
        wait_until("a new process", || ranks(marker).get(&victim).is_some_and(|pid| *pid != before[&victim]));
        assert_eq!(ranks(marker)[&(1 - victim)], before[&(1 - victim)], "the survivor has the same process");
        let outcome = finish(job).succeeded();
        assert!(outcome.stderr.contains("replacing it, restart 1 of 2"), "{outcome:#?}");
        assert!(outcome.stdout.contains("recovered after step "), "{outcome:#?}");
        assert_eq!(run.digest(), undisturbed.digest(), "after {number} to rank {victim}, {flags}");
        assert_eq!(run.losses(), undisturbed.losses());
        let [ours, theirs] = [&run, undisturbed].map(|run| run.column("epochs.csv", "train_loss"));
        assert_eq!(ours, theirs);
        assert!(processes_with(marker).is_empty());
    }
}

#[test]
fn several_failures_use_up_the_restarts() {
    let (marker, run) = ("live-recovery-5304", Run::new());
    let job = start(marker, 2, "--epochs 20", &run);
    for (step, victim) in [(5, 1), (12, 0), (20, 1)] {
        wait_for_step(&run, step);
        signal(ranks(marker)[&victim], libc::SIGKILL);
        wait_until("its end", || ranks(marker).len() < 2 || step < 20);
        wait_until("its replacement", || ranks(marker).len() == 2 || step == 20);
    }
    let outcome = finish(job);
    assert_eq!(outcome.code, Some(137), "{outcome:#?}");
    for words in ["restart 1 of 2", "restart 2 of 2", "the job was stopped after 2 restart(s)"] {
        assert!(outcome.stderr.contains(words), "`{words}`: {outcome:#?}");
    }
    assert!(processes_with(marker).is_empty());
}

/// A replacement that fails before it has joined is replaced as well.
#[test]
fn a_failure_during_a_recovery_is_recovered() {
    let (marker, run) = ("live-recovery-5305", Run::new());
    let job = start(marker, 9, "", &run);
    wait_for_step(&run, 10);
    for _ in 0..3 {
        let victim = ranks(marker)[&1];
        signal(victim, libc::SIGKILL);
        wait_until("its replacement", || ranks(marker).get(&1).is_some_and(|pid| *pid != victim));
    }
    finish(job).succeeded();
    assert_eq!(run.digest(), undisturbed());
}

#[test]
fn without_a_survivor_the_job_continues_from_its_checkpoint() {
    for (marker, flags) in
        [("live-recovery-5306", "--save-every 5 --resume"), ("live-recovery-5311", "--save-every 5")]
    {
        let run = Run::new();
        let job = start(marker, 5, flags, &run);
        wait_for_step(&run, 12);
        let all = ranks(marker);
        all.values().for_each(|pid| signal(*pid, libc::SIGKILL));
        let outcome = finish(job).succeeded();
        assert!(outcome.stdout.contains("resume "), "{outcome:#?}");
        assert_eq!(run.digest(), undisturbed());
    }
}

/// The launcher of node 0 decides for all machines; the launcher of the rank's machine replaces it.
#[test]
fn a_rank_of_another_machine_is_replaced() {
    let (marker, run) = ("live-recovery-5310", Run::new());
    let port = free_port();
    let [first, second] = ["--recover live --max-restarts 4 --node-rank 0", "--node-rank 1"]
        .map(|own| start_node(marker, port, &format!("--nnodes 2 {own}"), &run));
    for (step, victim) in [(8, 1), (20, 0)] {
        wait_for_step(&run, step);
        let before = ranks(marker);
        signal(before[&victim], libc::SIGKILL);
        wait_until("a new process", || ranks(marker).get(&victim).is_some_and(|pid| *pid != before[&victim]));
        assert_eq!(ranks(marker)[&(1 - victim)], before[&(1 - victim)]);
    }
    let [first, second] = [first, second].map(|node| finish(node).succeeded());
    for node in [&first, &second] {
        for words in ["rank 1 of 2 on node 1", "replacing it, restart 1 of 4", "rank 0 of 2 on node 0"] {
            assert!(node.stderr.contains(words), "`{words}`: {node:#?}");
        }
    }
    assert_eq!(run.digest(), undisturbed());
    assert!(processes_with(marker).is_empty());
}

/// The other ranks keep their processes, and continue as a run of fewer ranks does from a checkpoint.
#[test]
fn the_ranks_of_a_lost_machine_are_not_replaced() {
    let (marker, run, port) = ("live-recovery-5312", Run::new(), free_port());
    let mut nodes = [0, 1, 2].map(|node| {
        let flags = "--nnodes 1:3 --last-call 60 --recover live --max-restarts 4";
        start_node(marker, port, &format!("{flags} --node-rank {node}"), &run)
    });
    let mut before = BTreeMap::new();
    for (step, lost) in [(8, 1), (16, 2)] {
        wait_for_step(&run, step);
        before = ranks(marker);
        nodes[lost].kill().expect("it runs");
        before.remove(&lost);
        wait_until("the end of the machine's rank", || ranks(marker) == before);
    }
    let outcome = finish(nodes.into_iter().next().expect("node 0")).succeeded();
    assert_eq!(before.len(), 1);
    for words in [
        "is lost: its launcher ended, or cannot be reached; continuing with the other 2 rank(s), restart 1 of 4",
        "continuing with the other 1 rank(s), restart 2 of 4",
    ] {
        assert!(outcome.stderr.contains(words), "`{words}`: {outcome:#?}");
    }
    let recovered = outcome.stdout.lines().filter_map(|line| line.split("recovered after step ").nth(1));
    let steps: Vec<&str> = recovered.filter_map(|line| line.split(' ').next()).collect();
    let [first, second] = steps[..] else { panic!("{outcome:#?}") };
    let (interrupted, flags) = (Run::new(), format!("{RUN} --device cpu --progress plain"));
    for world in [
        format!("--nproc-per-node 3 --max-steps {first}"),
        format!("--nproc-per-node 2 --resume --max-steps {second}"),
        "--nproc-per-node 1 --mode ddp --resume".into(),
    ] {
        train(&format!("{flags} {world} --run-dir {}", interrupted.path.display())).succeeded();
    }
    assert_eq!(run.digest(), interrupted.digest());
    assert_eq!(run.losses(), interrupted.losses());
    assert!(processes_with(marker).is_empty());
}

/// With a sharded optimizer, no rank has the state of all.
#[test]
fn divided_state_restarts_all_ranks() {
    let undisturbed = trained(&format!("{RUN} --nproc-per-node 2 --shard-optimizer"));
    let (marker, run) = ("live-recovery-5307", Run::new());
    let job = start(marker, 1, "--shard-optimizer --save-every 5 --resume", &run);
    wait_for_step(&run, 12);
    let before = ranks(marker);
    signal(before[&1], libc::SIGKILL);
    let outcome = finish(job).succeeded();
    let (out, err) = (&outcome.stdout, &outcome.stderr);
    assert!(
        err.contains("--recover live: no rank has the state of all with --shard-optimizer"),
        "{outcome:#?}"
    );
    assert!(err.contains("restarting all ranks, restart 1 of 1") && out.contains("resume "), "{outcome:#?}");
    assert_eq!(run.digest(), undisturbed.digest());
}

/// A loop of the user's own runs again in the surviving process, and continues from its checkpoint.
#[test]
fn an_own_loop_runs_again() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let loop_in = |name: &str| {
        let folder = folder.path().join(name).display().to_string();
        ["--device", "cpu", "--epochs", "40", "--folder", &folder].map(str::to_owned)
    };
    let parameters = |outcome: &Outcome| {
        let line = outcome.stdout.lines().find_map(|line| line.split_once("parameters "));
        line.unwrap_or_else(|| panic!("{outcome:#?}")).1.to_owned()
    };
    let mut undisturbed = command(&example("checkpoints"), &["--nproc-per-node", "2"]);
    let undisturbed = finish(undisturbed.args(loop_in("undisturbed")).spawn().expect("built")).succeeded();
    let marker = "live-recovery-5308";
    let mut job = launcher(marker, 1, 2);
    let job = job.arg(example("checkpoints")).args(loop_in("disturbed")).spawn().expect("built");
    wait_until("some epochs", || folder.path().join("disturbed/3").exists());
    let before = ranks(marker);
    signal(before[&1], libc::SIGKILL);
    wait_until("a new process", || ranks(marker).get(&1).is_some_and(|pid| *pid != before[&1]));
    assert_eq!(ranks(marker)[&0], before[&0]);
    let outcome = finish(job).succeeded();
    assert!(outcome.stdout.contains("resuming after epoch "), "{outcome:#?}");
    assert_eq!(parameters(&outcome), parameters(&undisturbed));
}

#[test]
fn the_launcher_of_another_version_is_named() {
    let script = format!(
        "exec 9< <(echo '{{\"number\":0}}'); BURN_DDP_RECOVERY_FD=9 exec {} --device cpu {RUN}",
        mnist().display()
    );
    let mut job = launcher("live-recovery-5313", 1, 2);
    let outcome = finish(job.args(["bash", "-c", &script]).spawn().expect("built"));
    let wanted = "--recover live: the launcher's message is not understood; use the launcher of this version";
    assert!(outcome.code == Some(1) && outcome.stderr.contains(wanted), "{outcome:#?}");
}

/// A program that does not join a second group is restarted with all its ranks.
#[test]
fn other_programs_restart() {
    let mut job = launcher("live-recovery-5309", 1, 2);
    let job = job.args(["sh", "-c", "test $TORCHELASTIC_RESTART_COUNT = 1 || exit $RANK"]);
    let outcome = finish(job.spawn().expect("built")).succeeded();
    assert!(outcome.stderr.contains("restarting all ranks, restart 1 of 1"), "{outcome:#?}");
}
